// A model as it is served: its MoE layers, their weights packed for the kernels, on R ranks. Immutable after load, but for where
// the experts lie.
#ifndef EXPERTD_EXPERT_MODEL_MODEL_H
#define EXPERTD_EXPERT_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/safetensors.h"
#include "expert/architecture/architecture.h"
#include "expert/model/shards.h"
#include "expertd/kernels/team.h"
#include "expertd/kernels/weights.h"

enum { QUANTISATION_NAME_MAX = 100 };

struct model_layer {
    struct layer_params params;
    char prefix[128];                          // "model.layers.3.mlp.experts"
    uint64_t weights_id;                       // never 0
    enum expertd_dtype weight_dtype;           // as stored; EXPERTD_DTYPE_NONE: codes packed in words or pairs
    char quantisation[QUANTISATION_NAME_MAX];  // "mxfp4"; "": the routed experts are plain
    struct expertd_packed_weights router;      // F32, one group, n = E + Z, k = H; data NULL without a router
    float *router_bias;                        // [E + Z] or NULL
    float *selection_bias;                     // [E + Z] or NULL; params.routing.selection_bias points here
    float *router_norm, *expert_scale;         // [H], [E] where params.needs_router_input, else NULL; the same of expert_scale
    int32_t *token_experts;                    // [params.num_token_ids, K] where params.needs_token_ids, else NULL
    struct expert_shape shape;                 // of each routed expert's block
    bool ordered;                              // some expert, a shared one too, reads its rows in an order of its own
    struct shards_in_force *in_force;          // where the experts lie: what a batch takes (shards.h)
    struct expert_weights shared;              // shared_has_expert(params.shared)
    float *output_bias;                        // [H] SHARED_BIAS only
    float *output_norm;                        // [H] where params.has_output_norm, else NULL
    struct expertd_packed_weights shared_gate; // F32, n = 1, SHARED_SIGMOID only
    struct expertd_packed_weights latent_in, latent_out; // D, one group, [L, H] and [H, L]; data NULL where params.latent_size is 0
    uint64_t *expert_digests;                            // [E] XXH3-64 over the stored codes, row-major, fixed order of parts
};

// What is served as it is stored, and whoever wrote the file may not have meant so.
struct model_odd {
    uint64_t count;
    char tensor[SAFETENSORS_NAME_BYTES_MAX + 1], file[512]; // the first that has any, in the order of layers and experts; cut
};

struct model {
    char name[256]; // what callers ask for: the folder's or the preset's name
    char model_type[64];
    uint8_t digest[16];
    enum expertd_dtype compute_dtype; // D
    char numerics_id[64];             // "1/bf16/cpu", "1/bf16/cpu+widen"
    struct model_layer *layers;       // ascending by layer number
    size_t num_layers;
    const struct topology *topology; // options'
    struct arena arena;              // all weights as they were loaded; experts that moved have memory of their own
    uint64_t fixed_bytes;            // of the arena, without the routed experts
    uint64_t stored_bytes;           // of the MoE tensors on disk
    struct model_odd odd_scales;     // that are NaN or Inf: they pass through, but a good file has none
    struct model_odd zeros_of_16;    // stored in 4 bits as 15, one less: auto-gptq reads 16, GPTQModel does not
    // the greatest over all layers, for reserving scratch
    uint32_t max_hidden_size, max_intermediate_size, max_experts, max_top_k, ranks;
};

// Where a load's experts go on to, beyond the host's memory, which lets go of each once it was put there.
struct model_sink {
    void *context;
    err_t (*begin)(void *context, const struct model *model, unsigned threads); // all is laid out, nothing is loaded
    // An expert's block is packed, at its first holder. Threads of the team, below `threads`, several at a time.
    err_t (*put)(void *context, const struct model *model, size_t layer, uint32_t expert, unsigned thread);
    err_t (*end)(void *context, const struct model *model); // the rest is loaded, too
};

struct model_options {
    const char *model;                       // DIR | ORG/NAME | synthetic:PRESET[,layers=N][,experts=N][,seed=S][,format=F]
    const char *hf_cache;                    // the Hugging Face cache in which ORG/NAME is looked up; NULL: there is none
    enum expertd_dtype compute_dtype;        // EXPERTD_DTYPE_NONE: bf16, or f32 where every expert weight is F32
    bool widen;                              // --widen: quantised weights become elements of the compute dtype
    uint32_t ranks;                          // --shards
    const char *arithmetic, *arithmetic_f32; // of the devices that will compute, for the numerics_id; NULL: this CPU's
    // Where a layer's experts go; called more than once per layer, with one answer. NULL: contiguous.
    err_t (*place)(void *context, const struct layer_params *params, uint32_t ranks, struct placement **out);
    void *place_context;
    bool have_layers; // --layers A-B
    uint32_t first_layer, last_layer;
    uint64_t memory_bytes_max; // 0: what the machine has available; more is refused with the number of layers that would fit
    // What computing with such a model takes beside its weights, of which memory_bytes_max is no bound, but what the machine has
    // is. Of the model the parameters, shapes and maxima are set. NULL: nothing.
    uint64_t (*scratch_bytes)(void *context, const struct model *model);
    void *scratch_context;
    const struct topology *topology; // each rank's weights lie on its node; borrowed for the model's life. NULL: one node
    struct expertd_team *team;       // packs in parallel; borrowed during the load
    const struct model_sink *sink;   // NULL: the weights stay in the host's memory
    void (*progress)(void *context, uint64_t done_bytes, uint64_t all_bytes); // may be NULL
    void *progress_context;
};

// EXPERTD_ERR_CHECKPOINT (the file, the tensor, the rule), EXPERTD_ERR_CONFIG (an unknown preset or layer range), EXPERTD_ERR_NOMEM
// (figures).
FALLIBLE model_load(const struct model_options *options, struct model *out);
void model_deinit(struct model *model); // legal on a zeroed struct

uint64_t model_weights_bytes(const struct model *model);   // of weights in memory now; any thread
const char *model_quantisation(const struct model *model); // of all layers' experts: "mxfp4", "none", or "mixed"
uint64_t model_epoch(const struct model *model);           // the latest of all layers' placements; any thread

const struct model_layer *model_find_layer(const struct model *model, uint32_t layer); // NULL where it is not served

// Turns `model` into a folder: the path itself, or for ORG/NAME the newest snapshot in the local Hugging Face cache
// ($HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub: `cache` is that folder, found by the caller). EXPERTD_ERR_CHECKPOINT says
// where it looked.
FALLIBLE hub_resolve(const char *model, const char *cache, char *path, size_t path_bytes);

#endif
