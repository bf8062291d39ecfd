// Tensors of an MoE block that nothing used. Ignoring one could change the outputs, so it is an error, unless it is known to have
// no part in them. Reads the finder's marks; one owner. Private to expert/layout/.
#ifndef EXPERTD_EXPERT_LAYOUT_BLOCK_LEFTOVERS_H
#define EXPERTD_EXPERT_LAYOUT_BLOCK_LEFTOVERS_H

#include <stdbool.h>
#include <stdint.h>

#include "expert/checkpoint/tensor_finder.h"

// The experts' module and how its experts are numbered: num_experts experts with weights, then num_identity_experts identity
// experts. transformers saves weights for identity experts too; these tensors are ignored.
struct expert_numbers {
    const char *module;
    uint32_t num_experts, num_identity_experts;
};

// EXPERTD_ERR_CHECKPOINT: a tensor whose name begins with `module` ("model.layers.3.mlp.") was not taken; the message names the
// first, and says what it is if that is known.
FALLIBLE block_leftovers_check(const struct tensor_finder *finder, const char *module, const struct expert_numbers *experts);

// Is a tensor of a layer whose parts are in no module ("ffn_gate_inp.weight") one of the block, by its name?
bool block_leftovers_is_of_block(const char *rest, const char *const *beside);

// The same for layers whose parts are in no module: no tensor of the layer ("blk.3.") that begins like one of the block may be
// left, unless its first component is one of `beside`.
FALLIBLE block_leftovers_check_flat(const struct tensor_finder *finder, const char *layer, const char *const *beside,
                                    const struct expert_numbers *experts);

#endif
