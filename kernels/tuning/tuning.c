#include "expertd/kernels/tuning.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/cpu/backend.h"
#include "kernels/operations/grouped_matmul_general.h"

enum { ROUNDS_MIN = 5, ROUNDS_MAX = 31, CANDIDATES_MAX = 16 };

// A schedule that is not clearly better is noise.
#define TUNING_GAIN 0.98

// Set at start, read by every product; atomic because the readers are other threads.
static _Atomic(const struct expertd_tuning_table *) in_force;

const struct expertd_matmul_schedule *expertd_tuning_find(const struct expertd_tuning_table *table,
                                                          const struct expertd_schedule_class *wanted) {
    for (size_t i = 0; i < table->count; i++) {
        if (expertd_schedule_class_equal(&table->entries[i].found_for, wanted)) {
            return &table->entries[i].schedule;
        }
    }
    return NULL;
}

bool expertd_tuning_put(struct expertd_tuning_table *table, const struct expertd_tuning_entry *entry) {
    if (!expertd_schedule_is_valid(&entry->schedule) || expertd_dtype_size(entry->found_for.dtype) == 0) {
        return false;
    }
    for (size_t i = 0; i < table->count; i++) {
        if (expertd_schedule_class_equal(&table->entries[i].found_for, &entry->found_for)) {
            table->entries[i] = *entry;
            return true;
        }
    }
    if (table->count == EXPERTD_TUNING_ENTRIES_MAX) {
        return false;
    }
    table->entries[table->count++] = *entry;
    return true;
}

void expertd_tuning_use(const struct expertd_tuning_table *table) {
    atomic_store(&in_force, table);
}

struct expertd_matmul_schedule expertd_tuning_schedule(const struct expertd_schedule_class *wanted) {
    const struct expertd_tuning_table *table = atomic_load(&in_force);
    const struct expertd_matmul_schedule *found = table ? expertd_tuning_find(table, wanted) : NULL;
    return found && expertd_schedule_is_valid(found) ? *found : expertd_schedule_heuristic();
}

// ---- trials

struct trials {
    size_t candidates, rounds;
    struct expertd_matmul_schedule schedules[CANDIDATES_MAX];
    double seconds[CANDIDATES_MAX][ROUNDS_MAX];
};

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

static FALLIBLE try_one(const struct expertd_tuning_job *job, const struct expertd_matmul_schedule *schedule, double *seconds) {
    if (job->before) {
        job->before(job->context);
    }
    struct expertd_grouped_matmul_args args = *job->args; // which `before` may have changed
    args.schedule = schedule;
    int64_t start_ns = clock_now_ns();
    TRY(expertd_grouped_matmul(&args, job->team, job->scratch));
    *seconds = (double)(clock_now_ns() - start_ns) / NS_PER_S;
    return OK;
}

// All candidates in each round, so that a machine that slows down slows all of them.
static FALLIBLE try_all(const struct expertd_tuning_job *job, struct trials *trials) {
    double unused;
    TRY(try_one(job, &trials->schedules[0], &unused)); // pages and caches as they will be
    int64_t end_ns = clock_add_ns(clock_now_ns(), job->span_ns);
    while (trials->rounds < ROUNDS_MAX && (trials->rounds < ROUNDS_MIN || clock_now_ns() < end_ns)) {
        for (size_t c = 0; c < trials->candidates; c++) {
            TRY(try_one(job, &trials->schedules[c], &trials->seconds[c][trials->rounds]));
        }
        trials->rounds++;
    }
    return OK;
}

static void choose(struct trials *trials, struct expertd_tuning_trial *out) {
    double heuristic = median(trials->seconds[0], trials->rounds);
    *out = (struct expertd_tuning_trial){.candidates = trials->candidates,
                                         .rounds = trials->rounds,
                                         .heuristic_s = heuristic,
                                         .best_s = heuristic,
                                         .best = trials->schedules[0]};
    for (size_t c = 1; c < trials->candidates; c++) {
        double seconds = median(trials->seconds[c], trials->rounds);
        if (seconds < heuristic * TUNING_GAIN && seconds < out->best_s) {
            out->best_s = seconds;
            out->best = trials->schedules[c];
        }
    }
}

struct expertd_schedule_class expertd_tuning_class(const struct expertd_grouped_matmul_args *args, unsigned threads) {
    size_t rows = 0, groups = 0;
    for (size_t g = args->group_offset; g < args->group_offset + args->num_actual_groups; g++) {
        rows += (size_t)args->group_sizes[g];
        groups += args->group_sizes[g] > 0;
    }
    const struct expertd_packed_weights *weights = args->rhs.packed;
    size_t panels = (weights->n + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL;
    return (struct expertd_schedule_class){.dtype = weights->dtype,
                                           .k = (uint32_t)weights->k,
                                           .n = (uint32_t)weights->n,
                                           .panel_bytes = (uint32_t)(panels ? weights->group_bytes / panels : 0),
                                           .rows = expertd_schedule_rows(rows, groups),
                                           .threads = threads};
}

FALLIBLE expertd_tuning_measure(const struct expertd_tuning_job *job, struct expertd_tuning_trial *out) {
    TRY(expertd_grouped_matmul_check(job->args));
    if (!grouped_matmul_is_plain_serving(job->args)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "args",
                   "args is not of packed F32 or BF16 weights, or has an option, a dtype or an existing output: schedules are for "
                   "products without");
    }
    struct expertd_schedule_class wanted = expertd_tuning_class(job->args, expertd_team_threads(job->team));
    struct trials trials = {0};
    while (trials.candidates < CANDIDATES_MAX &&
           expertd_schedule_candidate(&wanted, trials.candidates, &trials.schedules[trials.candidates])) {
        trials.candidates++;
    }
    TRY(try_all(job, &trials));
    choose(&trials, out);
    return OK;
}
