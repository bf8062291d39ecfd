// Finds the fastest schedule for a product by trial.
#include <stdlib.h>

#include "base/clock.h"
#include "expertd/kernels/tuning.h"
#include "kernels/operations/grouped_matmul_general.h"

enum { ROUNDS_MIN = 5, ROUNDS_MAX = 31, CANDIDATES_MAX = 16 };

// A candidate must take less than this share of the heuristic's time; smaller gains are noise.
#define TUNING_GAIN 0.98

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
    struct expertd_grouped_matmul_args args = *job->args; // after `before`, which may change them
    args.schedule = schedule;
    int64_t start_ns = clock_now_ns();
    TRY(expertd_grouped_matmul(&args, job->team, job->scratch));
    *seconds = (double)(clock_now_ns() - start_ns) / NS_PER_S;
    return OK;
}

// Every round runs all candidates, so that a change of the machine's speed affects all of them.
static FALLIBLE try_all(const struct expertd_tuning_job *job, struct trials *trials) {
    double unused;
    TRY(try_one(job, &trials->schedules[0], &unused)); // warm-up: page faults and caches
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
