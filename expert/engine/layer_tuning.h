// Finds schedules for the matrix products of a model's layers by measuring them on the model's own weights (`--tuning tune`).
#ifndef EXPERTD_EXPERT_ENGINE_LAYER_TUNING_H
#define EXPERTD_EXPERT_ENGINE_LAYER_TUNING_H

#include "expert/model/model.h"
#include "expertd/kernels/tuning.h"

struct layer_tuning_options {
    const struct model *model; // no other thread may compute with it meanwhile
    struct expertd_team *team; // the team that will serve the model
    int64_t class_span_ns;     // approximate time for all trials of one class
    void (*found)(void *context, const struct expertd_tuning_entry *entry, const struct expertd_tuning_trial *trial); // may be NULL
    void *context;
};

// Adds the missing entries to `table`: one for each distinct expert matrix and each of 1, 4, 16 and 64 rows per expert. Classes
// that no longer fit into the table keep the default schedule. EXPERTD_ERR_NOMEM.
FALLIBLE layer_tuning_find(const struct layer_tuning_options *options, struct expertd_tuning_table *table);

#endif
