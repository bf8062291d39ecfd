// What to load, and how.
#ifndef EXPERTD_EXPERT_LOADER_MODEL_OPTIONS_H
#define EXPERTD_EXPERT_LOADER_MODEL_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/model/model.h"
#include "expertd/kernels/team.h"

struct model_audit;

// Receives each routed expert as it is loaded, for weights that live on devices. The host's copy is released after `put`.
struct model_sink {
    void *context;
    err_t (*begin)(void *context, const struct model *model, unsigned threads); // every size is known, no weight is loaded
    // The expert's block is packed, at its first holder. Called by the team's threads, several at a time; thread < threads.
    err_t (*put)(void *context, const struct model *model, size_t layer, uint32_t expert, unsigned thread);
    err_t (*end)(void *context, const struct model *model); // everything is loaded
};

// The part of a model that this process holds.
enum model_parts {
    MODEL_ALL,
    MODEL_WITHOUT_EXPERTS, // a front: the routed experts are loaded one by one, those of remote shards never (expert_store.h)
    MODEL_EXPERTS_ONLY,    // a shard: nothing but routed experts, which are loaded one by one
};

struct model_options {
    const char *model;                // DIR | ORG/NAME | synthetic:PRESET[,layers=N][,experts=N][,seed=S][,format=F]
    const char *hf_cache;             // the Hugging Face cache in which ORG/NAME is looked up; NULL: none
    enum expertd_dtype compute_dtype; // EXPERTD_DTYPE_NONE: bf16, or f32 if every expert weight is F32
    bool widen;                       // --widen: convert quantised weights to the compute dtype
    bool for_devices;                 // convert those that devices have no kernels for; devices take no other model
    const char *quantise;             // --quantize: "fp8", "int8", "int4" or "mxfp4"; NULL: leave plain weights as they are
    enum model_parts parts;
    uint32_t ranks;                          // --shards, and the slots of remote shards
    const char *arithmetic, *arithmetic_f32; // the devices' arithmetic, for the numerics_id; NULL: this CPU's
    // Places a layer's experts on the ranks. Called more than once for a layer; it must give the same answer each time.
    // NULL: contiguous ranges.
    err_t (*place)(void *context, const struct layer_params *params, uint32_t ranks, struct placement **out);
    void *place_context;
    bool have_layers; // --layers A-B
    uint32_t first_layer, last_layer;
    uint64_t memory_bytes_max; // bound of the weights; 0: the memory that the machine has available
    // Bytes that serving the model needs besides its weights. They count against the machine's available memory, not against
    // memory_bytes_max. The model's parameters, shapes and maxima are set when this is called. NULL: none.
    uint64_t (*scratch_bytes)(void *context, const struct model *model);
    void *scratch_context;
    const struct topology *topology; // memory nodes for the ranks' weights; borrowed for the model's life. NULL: one node
    struct expertd_team *team;       // packs in parallel; borrowed during the load. NULL: this thread alone
    const struct model_sink *sink;   // NULL: the weights stay in the host's memory
    struct model_audit *audit;       // model_audit.h: looks at every value that is loaded, slowly; NULL: none
    void (*progress)(void *context, uint64_t done_bytes, uint64_t all_bytes); // may be NULL
    void *progress_context;
};

#endif
