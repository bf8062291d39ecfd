// The load of a model, in three steps that model_load calls: reserve (sizes everything exactly, refuses what does not fit, one
// arena), pack (all experts in parallel, straight from the supply, digests in the same pass), identify (weights_id and digest).
// Private to expert/. The calling thread owns `model` throughout; the team's threads write disjoint pieces of it.
#ifndef EXPERTD_EXPERT_MODEL_LOADER_H
#define EXPERTD_EXPERT_MODEL_LOADER_H

#include <stdint.h>

#include "base/err.h"
#include "expert/checkpoint/supply.h"
#include "expert/model/model.h"

// What no layer's arrays keep after the load: one per layer, owned by the caller.
struct loader_digests {
    uint64_t router; // XXH3-64 of the router's weights, bias and selection bias; of nothing where there is none
    uint64_t shared; // of the shared expert's tensors and its gate, of the projections of latent experts, and of the norm
};

// Fills in model->layers (parameters, placement, pointers; weights not yet) and the maxima; model->compute_dtype and name are set.
// EXPERTD_ERR_NOMEM: figures, and how many layers would fit. EXPERTD_ERR_CONFIG: more ranks than experts. EXPERTD_ERR_CHECKPOINT:
// parameters that cannot be computed. The model's arena is the caller's to release on error, too.
FALLIBLE loader_reserve(const struct supply *supply, const struct model_options *options, struct model *model);

// Bytes that staging takes beside the arena: one piece per thread of the team.
uint64_t loader_staging_bytes(const struct supply *supply, const struct model_options *options);

// Packs everything. digests [supply->count]. EXPERTD_ERR_CHECKPOINT names layer and expert where the file changed under it;
// EXPERTD_ERR_NOMEM.
FALLIBLE loader_pack(const struct supply *supply, const struct model_options *options, struct model *model,
                     struct loader_digests *digests);

// Sets every layer's weights_id (never 0) and the model's digest.
void loader_identify(const struct supply *supply, const struct loader_digests *digests, struct model *model);

#endif
