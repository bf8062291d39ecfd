#include "tests/bench/kernels/report.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/expertctl/print/json_out.h"
#include "client/expertctl/print/table.h"
#include "expert/model/memory.h"

FALLIBLE report_add(struct report *report, const struct report_row *row) {
    if (report->count == report->reserved) {
        size_t reserved = report->reserved ? 2 * report->reserved : 16;
        struct report_row *rows = realloc(report->rows, reserved * sizeof *rows);
        if (!rows) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu rows of figures", reserved);
        }
        report->rows = rows;
        report->reserved = reserved;
    }
    report->rows[report->count++] = *row;
    return OK;
}

void report_deinit(struct report *report) {
    free(report->rows);
    *report = (struct report){0};
}

static double tokens_per_s(const struct report_row *row) {
    return row->tokens / row->measured.seconds;
}

enum column {
    COLUMN_SHAPE,
    COLUMN_DTYPE,
    COLUMN_THREADS,
    COLUMN_TIME,
    COLUMN_GFLOPS,
    COLUMN_PEAK,
    COLUMN_TO_PEAK,
    COLUMN_GBYTES,
    COLUMN_TO_READ,
    COLUMN_TO_ROOF,
    COLUMN_TOKENS,
    COLUMN_NEIGHBOUR = COLUMN_TOKENS, // for kernels
    COLUMN_COUNT
};

static FALLIBLE fill_row(struct table *table, const struct report_row *row) {
    const struct measurement *m = &row->measured;
    TRY(table_row(table));
    TRY(table_cell(table, COLUMN_SHAPE, "%s", row->shape));
    TRY(table_cell(table, COLUMN_DTYPE, "%s", row->dtype));
    TRY(table_cell(table, COLUMN_THREADS, "%u", row->threads));
    TRY(table_cell(table, COLUMN_TIME, "%.3f", m->seconds * 1e3));
    TRY(table_cell(table, COLUMN_GFLOPS, "%.1f", m->gflops));
    TRY(table_cell(table, COLUMN_PEAK, "%s %.0f", m->peak, m->peak_gflops));
    TRY(table_cell(table, COLUMN_TO_PEAK, "%.3f", m->ratio_to_peak));
    TRY(table_cell(table, COLUMN_GBYTES, "%.1f of %.1f", m->gbytes_per_s, m->read_gbytes_per_s));
    TRY(table_cell(table, COLUMN_TO_READ, "%.3f", m->ratio_to_read));
    TRY(table_cell(table, COLUMN_TO_ROOF, "%.3f (%.3f)", m->ratio_to_roof, m->ratio_to_roof_best));
    if (m->ratio_beside_neighbour > 0) {
        TRY(table_cell(table, COLUMN_NEIGHBOUR, "%.3f (%.3f)", m->ratio_beside_neighbour, row->neighbour_leaves));
    }
    if (row->tokens) {
        TRY(table_cell(table, COLUMN_TOKENS, "%.0f", tokens_per_s(row)));
    }
    return OK;
}

// The stages' shares of a layer's time.
static FALLIBLE share_row(struct table *table, const struct report_row *row) {
    const struct report_shares *s = &row->shares;
    const double shares[] = {s->hidden, s->router, s->plan, s->dispatch, s->gate_up, s->down, s->shared, s->combine};
    TRY(table_row(table));
    TRY(table_cell(table, 0, "%s", row->shape));
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        TRY(table_cell(table, 1 + i, "%.1f %%", shares[i] * 100));
    }
    return OK;
}

static FALLIBLE print_shares(const struct report *report) {
    static const char *const NAMES[] = {"SHARE OF TIME", "HIDDEN ROWS", "ROUTER", "PLAN",    "DISPATCH",
                                        "GATE/UP",       "DOWN",        "SHARED", "COMBINE", NULL};
    struct table table;
    err_t e = OK;
    table_init(&table, NAMES, ~1u);
    for (size_t i = 0; i < report->count && !err_is(e); i++) {
        e = share_row(&table, &report->rows[i]);
    }
    if (!err_is(e)) {
        table_print(&table, stdout);
    }
    table_deinit(&table);
    return e;
}

FALLIBLE report_print_table(const struct report *report) {
    int layers = report->count > 0 && report->rows[0].tokens;
    int neighbours = report->count > 0 && report->rows[0].measured.ratio_beside_neighbour > 0;
    const char *last = layers ? "TOKENS/S" : neighbours ? "BESIDE NEIGHBOUR (CPUS LEFT)" : NULL;
    const char *const names[] = {"SHAPE",   "DTYPE",          "THREADS", "MS",
                                 "GFLOP/S", "PEAK",           "OF PEAK", "GB/S OF WEIGHTS, READ",
                                 "OF READ", "OF ROOF (BEST)", last,      NULL};
    const struct machine *machine = report->machine;
    char cache[MEMORY_TEXT_MAX];
    printf("%s, %u CPUs, last-level cache %s, backend %s\n", machine->cpu, machine->cpus, memory_text(machine->cache_bytes, cache),
           report->backend);
    struct table table;
    err_t e = OK;
    table_init(&table, names, ~(1u << COLUMN_SHAPE | 1u << COLUMN_DTYPE));
    for (size_t i = 0; i < report->count && !err_is(e); i++) {
        e = fill_row(&table, &report->rows[i]);
    }
    if (!err_is(e)) {
        table_print(&table, stdout);
    }
    table_deinit(&table);
    return layers && !err_is(e) ? print_shares(report) : e;
}

static json_t *shares_json(const struct report_shares *s) {
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "hidden", s->hidden, "router", s->router, "plan", s->plan,
                     "dispatch", s->dispatch, "gate_up", s->gate_up, "down", s->down, "shared", s->shared, "combine", s->combine);
}

static void add_dealt(json_t *json, const struct bench_shape *shape) {
    int32_t sizes[SHAPE_GROUPS_MAX];
    json_t *rows = json_array();
    shape_sizes(shape, sizes);
    for (size_t g = 0; g < shape->groups; g++) {
        json_array_append_new(rows, json_integer(sizes[g]));
    }
    json_object_set_new(json, "k", json_integer((json_int_t)shape->k));
    json_object_set_new(json, "n", json_integer((json_int_t)shape->n));
    json_object_set_new(json, "group_sizes", rows);
}

static json_t *row_json(const struct report_row *row) {
    const struct measurement *m = &row->measured;
    json_t *json =
        json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:f, s:f, s:I}", "shape", row->shape, "dtype",
                  row->dtype, "threads", (json_int_t)row->threads, "gflops", m->gflops, "gbytes_per_s", m->gbytes_per_s,
                  "ratio_to_peak", m->ratio_to_peak, "ratio_to_read", m->ratio_to_read, "ratio_to_roof", m->ratio_to_roof,
                  "ratio_to_roof_best", m->ratio_to_roof_best, "seconds", m->seconds, "peak", m->peak, "peak_gflops",
                  m->peak_gflops, "read_gbytes_per_s", m->read_gbytes_per_s, "repetitions", (json_int_t)m->pairs);
    if (json && m->ratio_beside_neighbour > 0) {
        json_object_set_new(json, "ratio_beside_neighbour", json_real(m->ratio_beside_neighbour));
        json_object_set_new(json, "neighbour_leaves", json_real(row->neighbour_leaves));
    }
    if (json && row->dealt) {
        add_dealt(json, row->dealt);
    }
    if (json && row->tokens) {
        json_object_set_new(json, "tokens", json_integer(row->tokens));
        json_object_set_new(json, "tokens_per_s", json_real(tokens_per_s(row)));
        json_object_set_new(json, "shares", shares_json(&row->shares));
    }
    return json;
}

FALLIBLE report_print_json(const struct report *report) {
    const struct machine *machine = report->machine;
    json_t *rows = json_array();
    for (size_t i = 0; i < report->count; i++) {
        json_array_append_new(rows, row_json(&report->rows[i]));
    }
    return json_print_take(json_pack("{s:{s:o, s:I, s:I, s:s, s:s}, s:o}", "machine", "cpu", json_text(machine->cpu), "cpus",
                                     (json_int_t)machine->cpus, "cache_bytes", (json_int_t)machine->cache_bytes, "huge_pages",
                                     machine->huge_pages, "backend", report->backend, "rows", rows));
}
