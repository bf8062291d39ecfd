#include "daemon/process/schedules.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/log/log.h"
#include "daemon/process/notify.h"
#include "expert/engine/layer_tuning.h"

enum { CLASS_SPAN_MS = 200, EXTEND_S = 30 };

static void log_ignored(const char *key) {
    char quoted[EXPERTD_ERR_MESSAGE_MAX + 16];
    log_line(LOG_LEVEL_WARNING, "tuning", "%s=%s", key, log_quote(expertd_err_message(), quoted, sizeof quoted));
}

static void log_found(void *context, const struct expertd_tuning_entry *entry, const struct expertd_tuning_trial *trial) {
    (void)context;
    const struct expertd_schedule_class *c = &entry->found_for;
    notify_extend_timeout(EXTEND_S);
    log_line(LOG_LEVEL_INFO, "tuned",
             "dtype=%s k=%" PRIu32 " n=%" PRIu32 " rows=%" PRIu32 " gain=%.3f call_rows=%" PRIu32 " run_bytes=%" PRIu32
             " tasks_per_thread=%" PRIu32,
             expertd_dtype_name(c->dtype), c->k, c->n, c->rows, trial->heuristic_s / trial->best_s, entry->schedule.call_rows,
             entry->schedule.run_bytes, entry->schedule.tasks_per_thread);
}

static FALLIBLE find_missing(const struct options *options, const struct model *model, struct expertd_team *team,
                             const struct expertd_tuning_identity *identity, struct expertd_tuning_table *table) {
    size_t known = table->count;
    struct layer_tuning_options find = {
        .model = model, .team = team, .class_span_ns = (int64_t)CLASS_SPAN_MS * NS_PER_MS, .found = log_found};
    TRY(layer_tuning_find(&find, table));
    if (options->tuning_cache && table->count > known && err_is(expertd_tuning_store(options->tuning_cache, identity, table))) {
        log_ignored("not_stored");
    }
    return OK;
}

FALLIBLE schedules_begin(const struct options *options, const struct model *model, struct expertd_team *team,
                         struct expertd_tuning_table **out) {
    *out = NULL;
    if (strcmp(options->tuning, "heuristic") == 0) {
        return OK;
    }
    struct expertd_tuning_table *table = calloc(1, sizeof *table);
    if (!table) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a table of schedules");
    }
    struct expertd_tuning_identity identity;
    expertd_tuning_identity_read(&identity);
    if (options->tuning_cache && err_is(expertd_tuning_load(options->tuning_cache, &identity, table))) {
        log_ignored("not_used");
    }
    if (strcmp(options->tuning, "tune") == 0) {
        err_t e = find_missing(options, model, team, &identity, table);
        if (err_is(e)) {
            free(table);
            return e;
        }
    }
    expertd_tuning_use(table);
    log_line(LOG_LEVEL_INFO, "tuning", "policy=%s schedules=%zu", options->tuning, table->count);
    *out = table;
    return OK;
}

void schedules_end(struct expertd_tuning_table *table) {
    expertd_tuning_use(NULL);
    free(table);
}
