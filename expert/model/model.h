// A loaded model: its MoE layers with their weights packed for the kernels, on R ranks. Immutable after load, except for the
// placement of the experts (in_force).
#ifndef EXPERTD_EXPERT_MODEL_MODEL_H
#define EXPERTD_EXPERT_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/safetensors.h"
#include "expert/architecture/layer_params.h"
#include "expert/checkpoint/checkpoint_notes.h"
#include "expert/model/shards.h"
#include "expert/model/widened.h"
#include "expertd/kernels/weights.h"

enum { QUANTISATION_NAME_MAX = 256 };

struct model_layer {
    struct layer_params params;
    char prefix[128];                // "model.layers.3.mlp.experts"
    uint64_t weights_id;             // never 0
    enum expertd_dtype weight_dtype; // of the routed experts as stored; EXPERTD_DTYPE_NONE: codes other than FP8, or several dtypes
    char quantisation[QUANTISATION_NAME_MAX];        // layer_formats.h; "": the routed experts are plain, of one dtype
    uint32_t widened;                                // set of entries of model->widened
    char shared_quantisation[QUANTISATION_NAME_MAX]; // of the shared expert: "bf16", "q8_0"; "": there is none
    struct expertd_packed_weights router;            // F32, one group, n = E + Z, k = H; data NULL without a router
    float *router_bias;                              // [E + Z] or NULL
    float *selection_bias;                           // [E + Z] or NULL; params.routing.selection_bias points here
    float *router_norm, *expert_scale; // [H], [E] if params.needs_router_input, else NULL; params.routing.expert_scale points here
    int32_t *token_experts;            // [params.num_token_ids, K] if params.needs_token_ids, else NULL
    struct expert_shapes shapes;       // of the routed experts' blocks
    bool ordered;                      // some routed or shared expert has k sorted by scale: it reads permuted rows
    struct shards_in_force *in_force; // the placement and the weights of its ranks, which a batch takes (shards.h); NULL on a shard
    struct expert_weights shared;     // shared_has_expert(params.shared)
    float *output_bias;               // [H]; SHARED_BIAS only
    float *output_norm;               // [H] if params.has_output_norm, else NULL
    struct expertd_packed_weights shared_gate;           // F32, n = 1, SHARED_SIGMOID only
    struct expertd_packed_weights latent_in, latent_out; // D, one group, [L, H] and [H, L]; data NULL if params.latent_size is 0
    uint64_t *expert_digests; // [E] XXH3-64 of the expert's tensors as stored, row-major, in the order of enum supply_tensor
};

// Counts suspicious values that are served as stored. The log has a warning about them.
struct model_suspicious {
    uint64_t count;
    char tensor[SAFETENSORS_NAME_BYTES_MAX + 1]; // the first with such values, in the order of layers and experts; "": generated
    char file[512];                              // the path of its file, cut to fit
};

struct model {
    char name[256]; // the name in requests: the folder's or the preset's
    char model_type[64];
    uint8_t digest[16];
    enum expertd_dtype compute_dtype; // D
    char numerics_id[64];             // "1/bf16/cpu", "1/bf16/cpu+widen"
    struct widened widened;           // weights that devices have no kernels for
    struct model_layer *layers;       // ascending by layer number
    size_t num_layers;
    const struct topology *topology;           // of model_options
    struct arena arena;                        // all weights as loaded; experts that moved have memory of their own
    uint64_t fixed_bytes;                      // of the arena, without the routed experts
    uint64_t stored_bytes;                     // of the MoE tensors on disk
    struct checkpoint_notes *notes;            // for the log; owned; NULL: generated weights
    struct model_suspicious suspicious_scales; // scales that are NaN or infinite
    struct model_suspicious zero_matrices;     // matrices of zero bytes: see supply_is_zero
    struct model_suspicious
        zeros_of_16; // 4-bit zero points stored as 15, which means 16: auto-gptq reads them so, GPTQModel does not
    // maxima over all layers, for reserving scratch
    uint32_t max_hidden_size, max_intermediate_size, max_experts, max_top_k, ranks;
};

void model_deinit(struct model *model); // legal on a zeroed struct

uint64_t model_weights_bytes(const struct model *model);   // of weights in memory at present; any thread
const char *model_quantisation(const struct model *model); // of all layers' experts: "mxfp4", "none"; "mixed": layers differ
// The layers that have entry `format` of model->widened: "0-2,5". Cut to fit; "..." then stands for the rest. Returns text.
const char *model_widened_layers(const struct model *model, size_t format, char text[WIDENED_TEXT_MAX]);
uint64_t model_epoch(const struct model *model); // the latest of all layers' placements; any thread

const struct model_layer *model_find_layer(const struct model *model, uint32_t layer); // NULL: not served

#endif
