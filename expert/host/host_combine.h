// The last stage on the host: each token's weighted sum. Private to expert/.
#ifndef EXPERTD_EXPERT_HOST_HOST_COMBINE_H
#define EXPERTD_EXPERT_HOST_HOST_COMBINE_H

#include "expert/layer/batch.h"

// Writes every request's output: the weighted sum of the choices' rows in choice order, plus the shared experts' row and the bias,
// then the norm; rounded once.
err_t host_combine(struct batch *b);

#endif
