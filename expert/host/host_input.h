// The first stage on the host: hidden rows of any dtype to D, one rounding. Private to expert/.
#ifndef EXPERTD_EXPERT_HOST_HOST_INPUT_H
#define EXPERTD_EXPERT_HOST_HOST_INPUT_H

#include "expert/layer/batch.h"

// Fills b->in->hidden and, for rows that are read in fp32, b->in->hidden_f32. Does not change *rows_direct.
err_t host_input(struct batch *b, uint64_t *rows_direct);

#endif
