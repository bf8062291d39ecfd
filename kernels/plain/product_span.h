// The work of one task. Private to kernels/plain.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_SPAN_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_SPAN_H

#include "kernels/plain/product_state.h"

// after: the span that this thread runs next, or NULL where it is not known.
void product_run_span(const struct product_state *state, const struct product_span *span, const struct product_span *after,
                      unsigned thread);

#endif
