// A few rows against plain weights where these lie, without packing (unpacked_n_major.h, unpacked_k_major.h). Private to
// kernels/product*.c.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_UNPACKED_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_UNPACKED_H

#include "kernels/plain/product_call.h"

// Do the span's rows multiply their weights where they lie?
bool product_stays_unpacked(const struct product_work *work, const struct product_span *span);

// The same for all of its rows and panels, by a call that knows its work, group, lane and first panel.
void product_run_unpacked(struct product_call c, const struct product_span *span);

#endif
