// Selects the schedules of matrix products, according to --tuning and --tuning-cache. Results do not depend on them.
#ifndef EXPERTD_DAEMON_PROCESS_SCHEDULES_H
#define EXPERTD_DAEMON_PROCESS_SCHEDULES_H

#include "daemon/config/options.h"
#include "expert/model/model.h"
#include "expertd/kernels/team.h"

struct expertd_tuning_table;

// Loads the tuned schedules, with --tuning tune measures the missing ones, and activates them. *out is NULL if the heuristic is
// used. Logs a cache file that cannot be read or written, and continues without it. EXPERTD_ERR_NOMEM. Call before the first batch.
FALLIBLE schedules_begin(const struct options *options, const struct model *model, struct expertd_team *team,
                         struct expertd_tuning_table **out);

// Returns to the heuristic and frees the table. Call after the last batch. NULL is legal.
void schedules_end(struct expertd_tuning_table *table);

#endif
