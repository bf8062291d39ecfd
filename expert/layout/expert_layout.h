// The experts of a layer in any layout: one tensor per expert and matrix or all experts in one tensor, gate and up in one matrix or
// two, transposed or not, alternating or not. Detected from names and shapes, never from the model's name. Private to
// expert/layout/.
#ifndef EXPERTD_EXPERT_LAYOUT_EXPERT_LAYOUT_H
#define EXPERTD_EXPERT_LAYOUT_EXPERT_LAYOUT_H

#include <stdbool.h>

#include "expert/checkpoint/tensor_finder.h"
#include "expert/layout/layer_tensors.h"

// Sets out->experts (allocated, [E]) and out->weight_dtype from the module out->prefix. `alternates`: column
// `interleaved` of struct architecture. The caller frees out->experts with layer_tensors_free, also on error.
FALLIBLE expert_layout_resolve(struct tensor_finder *finder, bool alternates, struct layer_tensors *out);

// Sets out->shared from the module `name`.
FALLIBLE expert_layout_resolve_shared(struct tensor_finder *finder, const char *name, struct layer_tensors *out);

#endif
