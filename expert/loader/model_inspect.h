// What a model holds and what it would take to serve it, from the headers of its files: no weight is read. A refusal is part of the
// result, with everything that was recognised before it.
#ifndef EXPERTD_EXPERT_LOADER_MODEL_INSPECT_H
#define EXPERTD_EXPERT_LOADER_MODEL_INSPECT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/checkpoint/checkpoint_notes.h"
#include "expert/loader/model_options.h"
#include "expert/model/memory.h"
#include "expert/model/model.h"

struct inspected_layer {
    uint32_t layer;
    struct layer_params params;
    char prefix[128];
    char format[QUANTISATION_NAME_MAX];        // of the routed experts as stored: "mxfp4", "BF16"
    char shared_format[QUANTISATION_NAME_MAX]; // of the shared expert as stored: "bf16"; "": there is none, or the layer is refused
    uint64_t stored_bytes;                     // of its tensors in the files; 0: generated weights
    uint64_t bytes;                            // in memory; 0 unless the model is served
    uint64_t experts_bytes;                    // the part of `bytes` for routed experts
    char *refusal;                             // owned; NULL: served. If set, only `layer` is set besides
};

// Memory for one number of shards.
struct inspected_shards {
    uint32_t shards;
    uint64_t weights, staging, scratch; // bytes; staging only during the load, scratch only after it
    uint64_t largest;                   // bytes of the routed experts of the shard with the most
    bool fit;                           // the daemon would start with the memory that is available now
};

enum { INSPECTED_SHARDS_MAX = 8 };

struct inspection {
    char name[256];
    char folder[PATH_MAX]; // or file; "": generated weights, or not found
    char model_type[64];   // of config.json; "": not read
    char numerics_id[64];  // "": refused
    enum expertd_dtype compute_dtype;
    size_t tensors;                 // of all files, also of layers without experts; 0: not read
    struct inspected_layer *layers; // ascending, owned; of a refused model those that could be examined
    size_t count;
    struct inspected_shards shards[INSPECTED_SHARDS_MAX];
    size_t shards_count;
    struct memory_limit available, loading; // for weights and scratch; for weights and staging
    struct err_copy too_large;              // the refusal of a start with the first number of shards, for lack of memory
    struct checkpoint_notes *notes;         // owned; NULL: none
    struct err_copy refusal;                // code EXPERTD_ERR_OK: the model is served
};

// shards: [count] numbers of shards for which memory is computed; scratch_bytes is called with model->ranks set. options->ranks is
// used with a sink only: its `begin` then sees the model laid out, as in model_load, and may refuse it. Whatever fails is
// out->refusal. The caller deinits.
void model_inspect(const struct model_options *options, const uint32_t *shards, size_t count, struct inspection *out);
void inspection_deinit(struct inspection *inspection); // legal on a zeroed struct

#endif
