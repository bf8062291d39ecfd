// Small m: rows by unpacked weights that are read in place (cpu/backend/unpacked_n_major.h, unpacked_k_major.h). Private to
// kernels/plain.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_UNPACKED_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_UNPACKED_H

#include "kernels/plain/product_call.h"

// Does the span read its weights in place?
bool product_is_read_in_place(const struct product_state *state, const struct product_span *span);

// All rows and panels of the span. Of the call, state, group, scratch, sums and first panel are set.
void product_run_unpacked(struct product_call c, const struct product_span *span);

#endif
