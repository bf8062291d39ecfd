// The three steps of model_load: reserve computes all sizes exactly, refuses a model that does not fit, and allocates one arena;
// pack reads every tensor from the supply, digests and packs it, experts in parallel; identify computes the weights_ids and the
// model's digest. The calling thread owns `model` throughout; the team's threads write disjoint parts of it.
// Private to expert/.
#ifndef EXPERTD_EXPERT_LOADER_LOADER_H
#define EXPERTD_EXPERT_LOADER_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/loader/model_options.h"
#include "expert/model/memory.h"
#include "expert/model/model.h"
#include "expert/supply/supply.h"

// Digests of a layer that are needed for its weights_id only. Owned by the caller.
struct loader_digests {
    uint64_t router; // XXH3-64 of the router's weights, biases, table of token ids, norm and expert scale, as far as it has them
    uint64_t shared; // XXH3-64 of the shared expert, its gate, the latent projections and the output norm, as far as they exist
};

// The first step of every use of a model: opens its supply, and sets the model's name, model_type, compute_dtype and numerics_id.
// Errors as model_load. The caller closes the supply, also on error.
FALLIBLE loader_open(const struct model_options *options, struct supply *supply, struct model *model);

struct loader_layer_sizes {
    char quantisation[QUANTISATION_NAME_MAX]; // as in struct model_layer
    char shared_quantisation[QUANTISATION_NAME_MAX];
    uint64_t bytes;         // of the layer in memory
    uint64_t experts_bytes; // the part of `bytes` for routed experts
};

// What loader_reserve would reserve.
struct loader_sizes {
    struct loader_layer_sizes *layers;  // [supply->count], the caller's
    uint64_t weights, staging, scratch; // bytes; staging only during the load, scratch only after it
    struct memory_limit available;      // for weights and scratch
    struct memory_limit loading;        // for weights and staging: the configured limit, if that is lower
    struct err_copy refusal;            // of loader_reserve for lack of memory; code EXPERTD_ERR_OK: the model fits
};

// The same computation as loader_reserve, without reserving anything. Too little memory is no error.
FALLIBLE loader_measure(const struct supply *supply, const struct model_options *options, const struct model *model,
                        struct loader_sizes *out);

// Bytes of one layer's tensors as stored. layer: an index of supply->layers.
uint64_t loader_stored_bytes(const struct supply *supply, size_t layer);

// Sets model->layers (parameters, placement and pointers; the weights are still unset) and the maxima. model->compute_dtype and
// name must be set. EXPERTD_ERR_NOMEM: the message has the figures and the number of layers that would fit. EXPERTD_ERR_CONFIG:
// more ranks than experts. EXPERTD_ERR_CHECKPOINT: parameters that are not supported. The caller releases the model, also on error.
FALLIBLE loader_reserve(const struct supply *supply, const struct model_options *options, struct model *model);

// The last step before the first weight is read: loader_reserve, and the sink's begin. Errors of both. The caller releases the
// model, also on error.
FALLIBLE loader_begin(const struct supply *supply, const struct model_options *options, struct model *model);

// Reads, digests and packs all tensors, without those of the routed experts unless options->parts is MODEL_ALL. digests:
// [supply->count]. EXPERTD_ERR_CHECKPOINT names layer and expert: invalid values, or the file changed meanwhile. EXPERTD_ERR_NOMEM.
FALLIBLE loader_pack(const struct supply *supply, const struct model_options *options, struct model *model,
                     struct loader_digests *digests);

// Digest of the model's configuration and of the layers' numbers, parameters, tensors and formats: what a front and its shards must
// have in common before they compare digests of experts. It does not depend on this machine's packed layouts, or on how the tensors
// are divided into files.
void loader_shapes_digest(const struct supply *supply, const struct model *model, uint8_t digest[16]);

// Sets every layer's weights_id (never 0) and the model's digest.
void loader_identify(const struct supply *supply, const struct loader_digests *digests, struct model *model);

#endif
