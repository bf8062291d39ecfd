#include "tests/bench/kernels/tune_bench.h"

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/expertctl/print/json_out.h"
#include "client/expertctl/print/table.h"
#include "expertd/kernels/tuning.h"
#include "tests/bench/kernels/memory_check.h"
#include "tests/bench/kernels/product.h"
#include "tests/bench/kernels/selection.h"

enum { SPIN_US = 50 };

struct tuner {
    const struct bench_options *options;
    struct selection selection;
    struct expertd_tuning_identity identity;
    struct expertd_tuning_table *table; // the entries of the file and the new ones
    struct table printed;
    json_t *rows;
};

// A missing file is no error, but whether it can be created is checked now, not after minutes of measuring. A file that cannot be
// read is an error, so that it is not lost. A file that is damaged or from another CPU is replaced only when there are results.
static FALLIBLE load_cache(struct tuner *t) {
    err_t e = expertd_tuning_load(t->options->cache, &t->identity, t->table);
    if (err_is(e) && e.code == EXPERTD_ERR_IO && access(t->options->cache, F_OK) == 0) {
        return e;
    }
    if (err_is(e) && e.code != EXPERTD_ERR_IO) {
        fprintf(stderr, "the file is not used and will be replaced: %s\n", expertd_err_message());
        return OK;
    }
    return expertd_tuning_store(t->options->cache, &t->identity, t->table);
}

static FALLIBLE print_row(struct tuner *t, const char *shape, const char *dtype, const struct expertd_schedule_class *found_for,
                          const struct expertd_tuning_trial *trial) {
    if (t->options->json) {
        json_array_append_new(t->rows,
                              json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:I, s:I}", "shape", shape, "dtype", dtype,
                                        "threads", (json_int_t)found_for->threads, "candidates", (json_int_t)trial->candidates,
                                        "rounds", (json_int_t)trial->rounds, "heuristic_seconds", trial->heuristic_s,
                                        "best_seconds", trial->best_s, "gain", trial->heuristic_s / trial->best_s, "call_rows",
                                        (json_int_t)trial->best.call_rows, "run_bytes", (json_int_t)trial->best.run_bytes,
                                        "tasks_per_thread", (json_int_t)trial->best.tasks_per_thread));
        return OK;
    }
    TRY(table_row(&t->printed));
    TRY(table_cell(&t->printed, 0, "%s", shape));
    TRY(table_cell(&t->printed, 1, "%s", dtype));
    TRY(table_cell(&t->printed, 2, "%u", found_for->threads));
    TRY(table_cell(&t->printed, 3, "%zu x %zu", trial->candidates, trial->rounds));
    TRY(table_cell(&t->printed, 4, "%.3f", trial->heuristic_s * 1e3));
    TRY(table_cell(&t->printed, 5, "%.3f", trial->best_s * 1e3));
    TRY(table_cell(&t->printed, 6, "%.3f", trial->heuristic_s / trial->best_s));
    return table_cell(&t->printed, 7, "call_rows=%u run_bytes=%u tasks_per_thread=%u", trial->best.call_rows, trial->best.run_bytes,
                      trial->best.tasks_per_thread);
}

static FALLIBLE tune_product(struct tuner *t, struct product *p, const char *shape, const char *dtype) {
    struct expertd_tuning_job job = {.args = &p->args,
                                     .team = p->team,
                                     .scratch = p->scratch,
                                     .before = product_next_weights,
                                     .context = p,
                                     .span_ns = (int64_t)(t->options->seconds * NS_PER_S)};
    struct expertd_tuning_trial trial;
    product_next_weights(p);
    TRY(expertd_tuning_measure(&job, &trial));
    struct expertd_tuning_entry entry = {.found_for = expertd_tuning_class(&p->args, expertd_team_threads(p->team)),
                                         .schedule = trial.best};
    if (!expertd_tuning_put(t->table, &entry)) {
        FAIL(EXPERTD_ERR_TOO_LARGE, "the table of schedules is full (%d entries): use a new file", EXPERTD_TUNING_ENTRIES_MAX);
    }
    return print_row(t, shape, dtype, &entry.found_for, &trial);
}

static FALLIBLE tune_row(struct tuner *t, const struct bench_shape *shape, const struct bench_dtype *dtype,
                         struct expertd_team *team) {
    struct product *p = calloc(1, sizeof *p);
    if (!p) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for shape %s", shape->name);
    }
    fprintf(stderr, "%s %s, %u threads ...\n", shape->name, dtype->name, expertd_team_threads(team));
    err_t e = product_init(p, shape, dtype, &t->selection, team);
    if (!err_is(e)) {
        e = tune_product(t, p, shape->name, dtype->name);
    }
    product_deinit(p);
    free(p);
    return err_is(e) ? err_context(e, "shape %s, %s", shape->name, dtype->name) : e;
}

static FALLIBLE tune_on(struct tuner *t, uint32_t threads) {
    const struct selection *s = &t->selection;
    struct expertd_team *team;
    struct expertd_team_options options = {.threads = threads, .spin_us = SPIN_US};
    TRY(expertd_team_create(&options, &team));
    err_t e = OK;
    for (size_t i = 0; i < s->num_shapes && !err_is(e); i++) {
        for (size_t d = 0; d < s->num_dtypes && !err_is(e); d++) {
            e = tune_row(t, s->shapes[i], s->dtypes[d], team);
        }
    }
    expertd_team_destroy(team);
    return e;
}

static FALLIBLE print_all(struct tuner *t) {
    if (t->options->json) {
        return json_print_take(
            json_pack("{s:{s:s, s:s}, s:O}", "machine", "cpu", t->identity.cpu, "kernels", t->identity.kernels, "rows", t->rows));
    }
    printf("%s, kernels %s\n", t->identity.cpu, t->identity.kernels);
    table_print(&t->printed, stdout);
    return OK;
}

static FALLIBLE tune_all(struct tuner *t) {
    if (t->options->cache) {
        TRY(load_cache(t));
    }
    for (size_t i = 0; i < t->selection.num_threads; i++) {
        TRY(tune_on(t, t->selection.threads[i]));
    }
    TRY(print_all(t)); // also if the file cannot be written
    return t->options->cache ? expertd_tuning_store(t->options->cache, &t->identity, t->table) : OK;
}

FALLIBLE tune_bench(const struct bench_options *options, const struct machine *machine) {
    static const char *const NAMES[] = {"SHAPE", "DTYPE",    "THREADS", "CANDIDATES x ROUNDS", "BY RULE, MS", "BEST, MS",
                                        "GAIN",  "SCHEDULE", NULL};
    struct tuner t = {.options = options, .table = calloc(1, sizeof *t.table), .rows = json_array()};
    if (!t.table || !t.rows) {
        free(t.table);
        json_decref(t.rows);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a table of schedules");
    }
    table_init(&t.printed, NAMES, 1u << 2 | 1u << 4 | 1u << 5 | 1u << 6);
    expertd_tuning_identity_read(&t.identity);
    err_t e = selection_make(options, machine, &t.selection);
    if (!err_is(e)) {
        e = check_memory(&t.selection);
    }
    if (!err_is(e)) {
        e = tune_all(&t);
    }
    table_deinit(&t.printed);
    json_decref(t.rows);
    free(t.table);
    return e;
}
