#include "kernels/tuning.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/backend.h"
#include "kernels/grouped_matmul_general.h"

enum { ROUNDS_MIN = 5, ROUNDS_MAX = 31, CANDIDATES_MAX = 16 };

// A schedule that is not clearly better is noise.
#define TUNING_GAIN 0.98

// Set at start, read by every product; atomic because the readers are other threads.
static _Atomic(const struct tuning_table *) in_force;

const struct matmul_schedule *tuning_find(const struct tuning_table *table, const struct schedule_class *wanted) {
    for (size_t i = 0; i < table->count; i++) {
        if (schedule_class_equal(&table->entries[i].found_for, wanted)) {
            return &table->entries[i].schedule;
        }
    }
    return NULL;
}

bool tuning_put(struct tuning_table *table, const struct tuning_entry *entry) {
    if (!schedule_is_valid(&entry->schedule) || dtype_size(entry->found_for.dtype) == 0) {
        return false;
    }
    for (size_t i = 0; i < table->count; i++) {
        if (schedule_class_equal(&table->entries[i].found_for, &entry->found_for)) {
            table->entries[i] = *entry;
            return true;
        }
    }
    if (table->count == TUNING_ENTRIES_MAX) {
        return false;
    }
    table->entries[table->count++] = *entry;
    return true;
}

void tuning_use(const struct tuning_table *table) {
    atomic_store(&in_force, table);
}

struct matmul_schedule tuning_schedule(const struct schedule_class *wanted) {
    const struct tuning_table *table = atomic_load(&in_force);
    const struct matmul_schedule *found = table ? tuning_find(table, wanted) : NULL;
    return found && schedule_is_valid(found) ? *found : schedule_heuristic();
}

// ---- trials

struct trials {
    size_t candidates, rounds;
    struct matmul_schedule schedules[CANDIDATES_MAX];
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

static FALLIBLE try_one(const struct tuning_job *job, const struct matmul_schedule *schedule, double *seconds) {
    if (job->before) {
        job->before(job->context);
    }
    struct grouped_matmul_args args = *job->args; // which `before` may have changed
    args.schedule = schedule;
    int64_t start_ns = clock_now_ns();
    TRY(grouped_matmul(&args, job->team, job->scratch));
    *seconds = (double)(clock_now_ns() - start_ns) / NS_PER_S;
    return OK;
}

// All candidates in each round, so that a machine that slows down slows all of them.
static FALLIBLE try_all(const struct tuning_job *job, struct trials *trials) {
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

static void choose(struct trials *trials, struct tuning_trial *out) {
    double heuristic = median(trials->seconds[0], trials->rounds);
    *out = (struct tuning_trial){.candidates = trials->candidates,
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

struct schedule_class tuning_class(const struct grouped_matmul_args *args, unsigned threads) {
    size_t rows = 0, groups = 0;
    for (size_t g = args->group_offset; g < args->group_offset + args->num_actual_groups; g++) {
        rows += (size_t)args->group_sizes[g];
        groups += args->group_sizes[g] > 0;
    }
    const struct packed_weights *weights = args->rhs.packed;
    size_t panels = (weights->n + KERNEL_PANEL - 1) / KERNEL_PANEL;
    return (struct schedule_class){.dtype = weights->dtype,
                                   .k = (uint32_t)weights->k,
                                   .n = (uint32_t)weights->n,
                                   .panel_bytes = (uint32_t)(panels ? weights->group_bytes / panels : 0),
                                   .rows = schedule_rows(rows, groups),
                                   .threads = threads};
}

FALLIBLE tuning_measure(const struct tuning_job *job, struct tuning_trial *out) {
    TRY(grouped_matmul_check(job->args));
    if (!grouped_matmul_is_plain_serving(job->args)) {
        FAIL_FIELD(ERR_INVALID, "args",
                   "args is not of packed F32 or BF16 weights, or has an option, a dtype or an existing output: schedules are for "
                   "products without");
    }
    struct schedule_class wanted = tuning_class(job->args, team_threads(job->team));
    struct trials trials = {0};
    while (trials.candidates < CANDIDATES_MAX &&
           schedule_candidate(&wanted, trials.candidates, &trials.schedules[trials.candidates])) {
        trials.candidates++;
    }
    TRY(try_all(job, &trials));
    choose(&trials, out);
    return OK;
}
