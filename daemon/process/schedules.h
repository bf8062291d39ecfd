// Which schedules the products of this process take, by --tuning and --tuning-cache. No answer depends on it.
#ifndef EXPERTD_DAEMON_PROCESS_SCHEDULES_H
#define EXPERTD_DAEMON_PROCESS_SCHEDULES_H

#include "daemon/config/options.h"
#include "expert/model/model.h"

struct expertd_tuning_table;

// Loads and, where asked for, finds schedules for the loaded model, and puts them in force; *out is NULL where the rule serves.
// A cache that cannot be read or written is logged and done without. EXPERTD_ERR_NOMEM. Before any batch is computed.
FALLIBLE schedules_begin(const struct options *options, const struct model *model, struct expertd_team *team,
                         struct expertd_tuning_table **out);

// Back to the rule; nobody computes any more. NULL is legal.
void schedules_end(struct expertd_tuning_table *table);

#endif
