// Schedules for the products of a model's layers, found on their own weights: what `--tuning tune` does at start.
#ifndef EXPERTD_EXPERT_ENGINE_LAYER_TUNING_H
#define EXPERTD_EXPERT_ENGINE_LAYER_TUNING_H

#include "expert/model/model.h"
#include "expertd/kernels/tuning.h"

struct layer_tuning_options {
    const struct model *model; // nobody computes on it meanwhile
    struct expertd_team *team; // that will serve it
    int64_t class_span_ns;     // for all trials of one class, about
    void (*found)(void *context, const struct expertd_tuning_entry *entry, const struct expertd_tuning_trial *trial); // may be NULL
    void *context;
};

// Adds to `table` what it lacks: an entry for each distinct matrix of the layers' experts and for 1, 4, 16 and 64 rows per expert.
// Where the table is full the rest is left to the rule. EXPERTD_ERR_NOMEM.
FALLIBLE layer_tuning_find(const struct layer_tuning_options *options, struct expertd_tuning_table *table);

#endif
