// The tensors of one MoE layer, independent of the way in which the checkpoint stores them: for each expert three strided matrices
// in the mapped files, of plain elements or of codes with scales. layer_finder.h fills them in. Everything here borrows from the
// checkpoint.
#ifndef EXPERTD_EXPERT_LAYOUT_LAYER_TENSORS_H
#define EXPERTD_EXPERT_LAYOUT_LAYER_TENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "expert/architecture/layer_params.h"
#include "expert/checkpoint/vector_source.h"
#include "expert/layout/token_table.h"
#include "expert/quantised/quantised_matrix.h"
#include "expertd/kernels/weights.h"

enum expert_part { PART_GATE, PART_UP, PART_DOWN, PART_COUNT };

// One expert. Gate and up: n = I, k = H; down: n = H, k = I. A routed expert of a layer with a latent space has L instead of H.
struct expert_source {
    struct expertd_weight_source weight[PART_COUNT]; // data NULL: quantised, or a gate that the activation does not have
    struct quantised_matrix quantised[PART_COUNT];   // codes.data NULL: plain
    struct vector_source bias[PART_COUNT];           // gate, up [I], down [H]; data NULL: none
};

// A matrix beside the experts. Quantised ones are widened to F32.
struct common_matrix {
    struct expertd_weight_source plain; // data NULL: quantised, or there is no such matrix
    struct quantised_matrix quantised;  // codes.data NULL: plain
};

struct layer_tensors {
    struct layer_params params;      // routing.selection_bias NULL: the loader sets it
    char prefix[128];                // the experts module's name: "model.layers.3.mlp.experts"
    enum expertd_dtype weight_dtype; // of the routed experts' up as stored; EXPERTD_DTYPE_NONE: codes other than FP8, or it differs
    struct common_matrix router;     // n = E + Z, k = H; params.has_router
    struct vector_source router_bias;               // [E + Z], params.router_has_bias
    struct vector_source selection_bias;            // [E + Z], params.router_has_selection_bias
    struct token_table_source token_experts;        // [params.num_token_ids, K], params.needs_token_ids
    struct vector_source router_norm, expert_scale; // [H], [E], params.needs_router_input
    struct common_matrix latent_in, latent_out;     // [L, H], [H, L], params.latent_size > 0
    struct vector_source output_norm;               // [H], params.has_output_norm
    struct expert_source *experts;                  // [E], owned
    struct expert_source shared;                    // I = params.shared_intermediate_size; SHARED_BIAS: only the down bias is set
    struct common_matrix shared_gate;               // n = 1, k = H; SHARED_SIGMOID only
    uint64_t stored_bytes;                          // of all of the above in the files
};

// Which decoder layers to load: --layers A-B.
struct layer_tensors_options {
    bool have_layers; // false: all
    uint32_t first_layer, last_layer;
};

static inline bool layer_is_selected(const struct layer_tensors_options *options, uint32_t layer) {
    return !options->have_layers || (layer >= options->first_layer && layer <= options->last_layer);
}

void layer_tensors_free(struct layer_tensors *layers, size_t count); // NULL is legal

#endif
