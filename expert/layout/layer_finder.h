// Finds the tensors of a checkpoint's MoE layers, and checks every name and shape against config.json and the architecture's row.
// One thread: it reads the files of an open checkpoint that the selected layers need. The result borrows from the checkpoint.
// Private to expert/.
#ifndef EXPERTD_EXPERT_LAYOUT_LAYER_FINDER_H
#define EXPERTD_EXPERT_LAYOUT_LAYER_FINDER_H

#include <stddef.h>

#include "base/err.h"
#include "expert/architecture/architecture.h"
#include "expert/checkpoint/checkpoint.h"
#include "expert/layout/layer_tensors.h"

// The selected MoE layers, ascending; options NULL: all of them. Of layers that are not selected only the names are read;
// with an index, their files may be absent.
// EXPERTD_ERR_CHECKPOINT names the tensor, its shape and the shape that config.json requires; also if no layer holds experts.
// EXPERTD_ERR_CONFIG: the range ends past the last layer, or no layer in it holds experts (the message lists those that do).
// On success *out is to be freed by layer_tensors_free.
FALLIBLE layer_tensors_find(struct checkpoint *checkpoint, const struct architecture *architecture,
                            const struct layer_tensors_options *options, struct layer_tensors **out, size_t *count);

#endif
