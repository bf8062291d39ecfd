// Reads the tensors of one expert, or those that every token uses, from the supply, digests them, and packs them where they belong.
// Private to expert/.
#ifndef EXPERTD_EXPERT_LOADER_LOADER_TENSORS_H
#define EXPERTD_EXPERT_LOADER_LOADER_TENSORS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "expert/checkpoint/digest.h"
#include "expert/loader/model_options.h"
#include "expert/model/model.h"
#include "expert/supply/supply.h"

struct loader_digests;

// Counts suspicious values on all threads. See struct model_suspicious.
struct suspicious {
    _Atomic uint64_t count;
    _Atomic uint64_t first; // key_of the first matrix with such values; UINT64_MAX: none
};

// A load: what all of its threads share.
struct load {
    const struct supply *supply;
    const struct model_options *options;
    struct model *model;
    struct loader_digests *digests; // [layers]
    struct arena staging;           // [threads] of staging_bytes
    size_t staging_bytes;
    size_t layer_tasks;       // tasks of a layer: one for each expert, and one for the router and the shared expert
    uint64_t all_bytes;       // as stored
    int64_t next_progress_ns; // used by thread 0 only
    _Atomic uint64_t done_bytes;
    struct suspicious suspicious_scales, zeros_of_16, zero_matrices; // as in struct model
    _Atomic bool failed; // the thread that sets it writes `error`, which is read after all tasks have ended
    struct err_copy error;
};

// The tensors that a task loads, and their destination.
struct load_item {
    size_t layer;
    uint32_t expert;                      // or SUPPLY_SHARED
    const struct expert_weights *experts; // destination: group `group` of these
    size_t group;
    void *staging; // load->staging_bytes, of this thread
};

// Bytes of staging memory, outside the model's arena: one part for each thread of the team.
uint64_t load_staging_bytes(const struct supply *supply, const struct model_options *options);

// A load without tasks. Reserves staging memory for each thread of the options' team. EXPERTD_ERR_NOMEM. End it also on error.
FALLIBLE load_begin(struct load *load, const struct supply *supply, const struct model_options *options, struct model *model);
void load_end(struct load *load);
void *load_staging(const struct load *load, unsigned thread);

// The item's tensors [first, end), digested in this order. EXPERTD_ERR_CHECKPOINT: the message names the tensor and its file.
FALLIBLE load_tensors(struct load *load, const struct load_item *item, int first, int end, struct digest *digest);

// The norm and the scales in front of the router.
void load_router_input(const struct layer_tensors *tensors, struct model_layer *layer, struct digest *digest);

// Copies the names of the first suspicious tensors to the model, because the supply may be closed before the log names them.
void load_name_odd_tensors(struct load *load);

#endif
