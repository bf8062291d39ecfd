// Where a checkpoint's MoE layers lie: finds the decoder layers that hold experts from the tensor names, detects how they are laid
// out from names and shapes, checks every shape against config.json, and gives one answer whatever the layout was: for each expert
// three strided matrices in the mapped files, of plain elements or of codes with scales.
// Pure over an open checkpoint; any thread. Everything here borrows from the checkpoint, which must outlive it.
#ifndef EXPERTD_EXPERT_CHECKPOINT_LAYER_TENSORS_H
#define EXPERTD_EXPERT_CHECKPOINT_LAYER_TENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/architecture/architecture.h"
#include "expert/checkpoint/checkpoint.h"
#include "expert/model/token_table.h"
#include "expert/quantised/quantised_matrix.h"
#include "expertd/kernels/weights.h"

enum expert_part { PART_GATE, PART_UP, PART_DOWN, PART_COUNT };

// A vector in a file.
struct vector_source {
    const void *data;         // element 0, may be misaligned; NULL: there is none
    enum expertd_dtype dtype; // F32, F16 or BF16
    size_t stride;            // elements from one to the next (interleaved biases have 2)
};

// One expert. Gate and up are n = I, k = H; down is n = H, k = I; of a routed one L is in the place of H where the layer has an L.
struct expert_source {
    struct expertd_weight_source weight[PART_COUNT]; // data NULL: quantised, or a gate that there is none of
    struct quantised_matrix quantised[PART_COUNT];   // codes.data NULL: plain
    struct vector_source bias[PART_COUNT];           // gate, up [I], down [H]; data NULL without
};

struct layer_tensors {
    struct layer_params params; // routing.selection_bias NULL: the loader sets it
    char prefix[128];           // the experts module's name: "model.layers.3.mlp.experts"
    enum expertd_dtype
        weight_dtype; // of the routed experts, as stored; one dtype a layer; EXPERTD_DTYPE_NONE: codes in words or pairs
    struct expertd_weight_source router;                // n = E + Z, k = H; data NULL where !params.has_router
    struct vector_source router_bias;                   // [E + Z], params.router_has_bias
    struct vector_source selection_bias;                // [E + Z], params.router_has_selection_bias
    struct token_table_source token_experts;            // [params.num_token_ids, K], params.needs_token_ids
    struct vector_source router_norm, expert_scale;     // [H], [E], params.needs_router_input
    struct expertd_weight_source latent_in, latent_out; // [L, H], [H, L], params.latent_size > 0
    struct vector_source output_norm;                   // [H], params.has_output_norm
    struct expert_source *experts;                      // [E], owned
    struct expert_source shared; // I = params.shared_intermediate_size; of SHARED_BIAS its down bias alone, of SHARED_NONE nothing
    struct expertd_weight_source shared_gate; // n = 1, k = H; SHARED_SIGMOID only
    uint64_t stored_bytes;                    // of all of the above in the files
};

struct layer_tensors_options {
    bool have_layers; // --layers A-B: others are left out, and not checked beyond their names
    uint32_t first_layer, last_layer;
};

// All MoE layers, ascending. EXPERTD_ERR_CHECKPOINT names the tensor, what was found and what config.json led to expect; also where
// there is no MoE layer at all. EXPERTD_ERR_CONFIG where the last of the wanted layers is past the model's, or none of them holds
// experts (the message lists those that do). *out is to be freed by layer_tensors_free, on success only.
FALLIBLE layer_tensors_find(const struct checkpoint *checkpoint, const struct architecture *architecture,
                            const struct layer_tensors_options *options, struct layer_tensors **out, size_t *count);
void layer_tensors_free(struct layer_tensors *layers, size_t count); // NULL is legal

#endif
