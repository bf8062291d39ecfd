#include "tests/verify/report.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "client/expertctl/print/json_out.h"
#include "client/expertctl/print/table.h"

bool report_all_right(const struct report *report) {
    bool right = true;
    for (size_t i = 0; i < report->count; i++) {
        right = right && report->rows[i].right;
    }
    return right;
}

static double tokens_per_s(const struct report_row *row) {
    return row->p50_s > 0 ? (double)row->tokens / row->p50_s : 0;
}

static FALLIBLE fill_row(struct table *table, const struct report_row *row) {
    TRY(table_row(table));
    TRY(table_cell(table, 0, "%u", row->params->layer));
    TRY(table_cell(table, 1, "%u / %u", row->params->num_experts, row->params->routing.top_k));
    TRY(table_cell(table, 2, "%" PRIu64, row->tokens));
    TRY(table_cell(table, 3, "%.3f ms", row->p50_s * 1e3));
    TRY(table_cell(table, 4, "%.0f", tokens_per_s(row)));
    TRY(table_cell(table, 5, "%" PRIu64 " rows of %" PRIu64 " requests", row->found.rows, row->requests));
    if (row->found.differing == 0) {
        return table_cell(table, 6, "equal bits");
    }
    return table_cell(table, 6, "%s%.2e, %" PRIu64 " of %" PRIu64 " values differ",
                      row->right ? "" : "WRONG: ", row->found.error_max, row->found.differing, row->found.values);
}

FALLIBLE report_print_table(const struct report *report) {
    static const char *const NAMES[] = {"LAYER", "EXPERTS", "TOKENS", "LATENCY p50", "TOKENS/S", "COMPARED", "ERROR", NULL};
    struct table table;
    err_t e = OK;
    table_init(&table, NAMES, 1u << 0 | 1u << 1 | 1u << 2 | 1u << 3 | 1u << 4);
    for (size_t i = 0; i < report->count && !err_is(e); i++) {
        e = fill_row(&table, &report->rows[i]);
    }
    if (!err_is(e)) {
        table_print(&table, stdout);
    }
    table_deinit(&table);
    return e;
}

static json_t *row_json(const struct report_row *row) {
    json_t *error = isfinite(row->found.error_max) ? json_real(row->found.error_max) : json_null();
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:o, s:b}", "layer", (json_int_t)row->params->layer,
                     "num_experts", (json_int_t)row->params->num_experts, "top_k", (json_int_t)row->params->routing.top_k, "tokens",
                     (json_int_t)row->tokens, "latency_p50_seconds", row->p50_s, "tokens_per_second", tokens_per_s(row),
                     "timed_calls", (json_int_t)row->calls, "requests", (json_int_t)row->requests, "rows_compared",
                     (json_int_t)row->found.rows, "values_compared", (json_int_t)row->found.values, "values_differing",
                     (json_int_t)row->found.differing, "error_max", error, "right", row->right);
}

FALLIBLE report_print_json(const struct report *report) {
    json_t *rows = json_array();
    for (size_t i = 0; i < report->count; i++) {
        json_array_append_new(rows, row_json(&report->rows[i]));
    }
    return json_print_take(json_pack("{s:o, s:o, s:o, s:s, s:o, s:b}", "model", json_text(report->model), "numerics_id",
                                     json_text(report->numerics_id), "daemon_numerics_id", json_text(report->daemon_numerics_id),
                                     "demand", report->same_numerics ? "equal bits" : "error within the bound", "rows", rows,
                                     "right", report_all_right(report)));
}
