// The experts of GGUF files: all experts in one tensor for each matrix, directly below the layer ("blk.3.ffn_gate_exps.weight"),
// gate and up separate or in one tensor; in the oldest files one tensor for each expert. Private to expert/layout/.
#ifndef EXPERTD_EXPERT_LAYOUT_FLAT_LAYOUT_H
#define EXPERTD_EXPERT_LAYOUT_FLAT_LAYOUT_H

#include "expert/architecture/architecture_row.h"
#include "expert/checkpoint/tensor_finder.h"
#include "expert/layout/layer_tensors.h"

// Sets the matrices and biases of out->experts [E] from the layer out->prefix.
FALLIBLE flat_layout_resolve(struct tensor_finder *finder, struct layer_tensors *out);

// EXPERTD_ERR_CHECKPOINT: the layer has a tensor of experts that was not taken.
FALLIBLE flat_layout_check(const struct tensor_finder *finder, const struct architecture *row, const struct layer_tensors *layer);

#endif
