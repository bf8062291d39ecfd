// The scalar twin of the engine: equal bits, element by element, no scratch. Private to kernels/.
#ifndef EXPERTD_KERNELS_REFERENCE_PRODUCT_REFERENCE_H
#define EXPERTD_KERNELS_REFERENCE_PRODUCT_REFERENCE_H

#include "kernels/products/product.h"

void product_reference(const struct product *product);

#endif
