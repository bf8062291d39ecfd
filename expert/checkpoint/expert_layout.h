// How a layer's experts lie: one tensor per expert and part, or all experts in one, gate and up fused or apart, transposed or not,
// interleaved or not. Detected from names and shapes, never from the model's name. Private to expert/.
#ifndef EXPERTD_EXPERT_CHECKPOINT_EXPERT_LAYOUT_H
#define EXPERTD_EXPERT_CHECKPOINT_EXPERT_LAYOUT_H

#include "expert/checkpoint/tensor_finder.h"

// Fills out->experts (allocated, [E]) and out->weight_dtype from the module out->prefix. `interleaved`: see struct architecture.
// On error out->experts is left for layer_tensors_free.
FALLIBLE expert_layout_resolve(struct tensor_finder *finder, bool interleaved, struct layer_tensors *out);

// Fills out->shared from the module `name`.
FALLIBLE expert_layout_resolve_shared(struct tensor_finder *finder, const char *name, struct layer_tensors *out);

#endif
