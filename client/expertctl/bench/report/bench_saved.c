#include "client/expertctl/bench/report/bench_saved.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "client/expertctl/bench/report/bench_json.h"
#include "client/expertctl/print/json_out.h"
#include "client/expertctl/print/table.h"

static FALLIBLE load_file(const char *path, json_t **out) {
    json_error_t error;
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!*out) {
        if (error.line < 1) {
            FAIL(EXPERTD_ERR_INVALID, "--compare %s: %s", path, error.text);
        }
        FAIL(EXPERTD_ERR_INVALID, "--compare %s: line %d: %s", path, error.line, error.text);
    }
    if (json_integer_value(json_object_get(*out, "bench")) != REPORT_VERSION) {
        FAIL(EXPERTD_ERR_INVALID, "--compare %s: not a result of this version: write it with expertctl bench --save", path);
    }
    return OK;
}

// The number at a key such as "a.b".
static const json_t *find_number(const json_t *object, const char *name) {
    char outer[64];
    const char *dot = strchr(name, '.');
    if (dot) {
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - name), name);
        return json_object_get(json_object_get(object, outer), dot + 1);
    }
    return json_object_get(object, name);
}

static FALLIBLE read_verdict(const json_t *object, const char *path, bool *out) {
    const json_t *verdict = json_object_get(object, "verdict"), *valid = json_object_get(verdict, "valid");
    const char *outcome = json_string_value(json_object_get(verdict, "outcome"));
    if (!json_is_boolean(valid)) {
        FAIL(EXPERTD_ERR_INVALID, "--compare %s: verdict.valid is missing", path);
    }
    if (json_is_true(json_object_get(object, "interrupted"))) {
        FAIL(EXPERTD_ERR_INVALID, "--compare %s: it was interrupted, so it is not comparable: run the load again", path);
    }
    *out = json_is_true(valid) || (outcome && strcmp(outcome, verdict_name(VERDICT_FAILED)) == 0);
    return OK;
}

// Adds up the wrong answers of all steps: the step that held has none.
static void read_search(const json_t *found, struct compare_run *out) {
    size_t i;
    json_t *step;
    out->values[COMPARE_WRONG] = 0;
    json_array_foreach(json_object_get(found, "steps"), i, step) {
        out->values[COMPARE_WRONG] += json_number_value(json_object_get(step, "wrong"));
    }
}

static FALLIBLE read_run(const json_t *object, const char *path, struct compare_run *out) {
    const json_t *found = json_object_get(object, "find_max");
    *out = (struct compare_run){.search = json_is_object(found)};
    TRY(read_verdict(object, path, &out->valid));
    for (int i = 0; i < COMPARE_MEASURES; i++) {
        const char *name = compare_name((enum compare_measure)i);
        const json_t *number = find_number(object, name);
        out->values[i] = json_number_value(number);
        bool expected = out->search || i != COMPARE_RATE_HELD;
        if (expected && (!json_is_number(number) || !(out->values[i] >= 0))) {
            FAIL(EXPERTD_ERR_INVALID, "--compare %s: %s is missing or not a number >= 0", path, name);
        }
    }
    out->answered = json_number_value(json_object_get(object, "answers")) > 0;
    if (out->search) {
        read_search(found, out);
    }
    return OK;
}

static FALLIBLE check_same(const json_t *a, const json_t *b, const char *key, const char *in, const char *const paths[2]) {
    const json_t *of_a = json_object_get(a, key), *of_b = json_object_get(b, key);
    if (!json_equal(of_a ? of_a : json_null(), of_b ? of_b : json_null())) {
        FAIL(EXPERTD_ERR_INVALID, "--compare: %s and %s are not of the same load: %s%s differs", paths[0], paths[1], in, key);
    }
    return OK;
}

// Two runs have the same load if these keys are equal. The seed, the times and the number of processes and connections may differ:
// they change the precision, not the load. So may the rate of a search, which is its result.
static FALLIBLE check_same_load(const json_t *a, const json_t *b, const char *const paths[2]) {
    static const char *const KEYS[] = {"mode",    "rate",   "concurrency", "trace",  "arrivals", "tokens",
                                       "routing", "layers", "dtype",       "stream", "region",   "tokens_max"};
    const json_t *found_a = json_object_get(a, "find_max"), *found_b = json_object_get(b, "find_max");
    TRY(check_same(a, b, "model", "", paths));
    TRY(check_same(a, b, "numerics_id", "", paths)); // another arithmetic is another load
    if (json_is_object(found_a) != json_is_object(found_b)) {
        FAIL(EXPERTD_ERR_INVALID, "--compare: of %s and %s one is a search of --find-max and the other is not", paths[0], paths[1]);
    }
    TRY(check_same(found_a, found_b, "slo", "find_max.", paths));
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        if (!json_is_object(found_a) || strcmp(KEYS[i], "rate") != 0) {
            TRY(check_same(json_object_get(a, "load"), json_object_get(b, "load"), KEYS[i], "load.", paths));
        }
    }
    return OK;
}

static const char *outcome_text(enum compare_outcome outcome) {
    static const char *const TEXTS[] = {"no regression", "regression", "INVALID: one of the runs is INVALID"};
    return TEXTS[outcome];
}

static FALLIBLE print_rows_json(const struct compare_row *rows, double tolerance, enum compare_outcome outcome) {
    static const char *const NAMES[] = {"same", "regression", "invalid"};
    json_t *measures = json_array();
    for (int i = 0; i < COMPARE_MEASURES; i++) {
        if (rows[i].compared) {
            json_t *change = isfinite(rows[i].change) ? json_real(rows[i].change) : json_null();
            json_array_append_new(measures, json_pack("{s:s, s:f, s:f, s:o, s:b, s:b}", "name", rows[i].name, "before",
                                                      rows[i].before, "after", rows[i].after, "change", change, "regression",
                                                      rows[i].regression, "improvement", rows[i].improvement));
        }
    }
    return json_print_take(json_pack("{s:s, s:f, s:o}", "outcome", NAMES[outcome], "tolerance", tolerance, "measures", measures));
}

static FALLIBLE fill_row(struct table *table, const struct compare_row *row, bool relative) {
    TRY(table_row(table));
    TRY(table_cell(table, 0, "%s", row->name));
    TRY(table_cell(table, 1, "%.6g", row->before));
    TRY(table_cell(table, 2, "%.6g", row->after));
    if (isfinite(row->change)) {
        TRY(table_cell(table, 3, relative ? "%+.1f %%" : "%+.0f", row->change * (relative ? 100 : 1)));
    }
    return table_cell(table, 4, "%s", row->regression ? "worse" : row->improvement ? "better" : "");
}

static FALLIBLE fill_table(struct table *table, const struct compare_row *rows) {
    for (int i = 0; i < COMPARE_MEASURES; i++) {
        if (rows[i].compared) {
            TRY(fill_row(table, &rows[i], i != COMPARE_WRONG));
        }
    }
    return OK;
}

static FALLIBLE print_rows(const struct compare_row *rows, double tolerance, enum compare_outcome outcome) {
    static const char *const NAMES[] = {"", "BEFORE", "AFTER", "CHANGE", "", NULL};
    struct table table;
    table_init(&table, NAMES, 1u << 1 | 1u << 2 | 1u << 3);
    err_t e = fill_table(&table, rows);
    if (!err_is(e)) {
        table_print(&table, stdout);
        printf("%s (tolerance %g %%)\n", outcome_text(outcome), 100 * tolerance);
    }
    table_deinit(&table);
    return e;
}

static FALLIBLE compare_objects(json_t *const objects[2], const char *const paths[2], double tolerance, bool json,
                                enum compare_outcome *out) {
    struct compare_run runs[2];
    TRY(read_run(objects[0], paths[0], &runs[0]));
    TRY(read_run(objects[1], paths[1], &runs[1]));
    TRY(check_same_load(objects[0], objects[1], paths));
    struct compare_row rows[COMPARE_MEASURES];
    *out = compare_runs(&runs[0], &runs[1], tolerance, rows);
    return json ? print_rows_json(rows, tolerance, *out) : print_rows(rows, tolerance, *out);
}

FALLIBLE report_compare(const char *const paths[2], double tolerance, bool json, enum compare_outcome *out) {
    json_t *objects[2] = {NULL, NULL};
    err_t e;
    TRY_OUT(e, load_file(paths[0], &objects[0]));
    TRY_OUT(e, load_file(paths[1], &objects[1]));
    e = compare_objects(objects, paths, tolerance, json, out);
out:
    json_decref(objects[0]);
    json_decref(objects[1]);
    return e;
}
