// Saved reports: read, checked to be of the same load, compared (bench_report.h).
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "client/expertctl/bench_json.h"
#include "client/expertctl/json_out.h"
#include "client/expertctl/table.h"

static FALLIBLE load_file(const char *path, json_t **out) {
    json_error_t error;
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!*out) {
        if (error.line < 1) {
            FAIL(ERR_INVALID, "--compare %s: %s", path, error.text);
        }
        FAIL(ERR_INVALID, "--compare %s: line %d: %s", path, error.line, error.text);
    }
    if (json_integer_value(json_object_get(*out, "bench")) != REPORT_VERSION) {
        FAIL(ERR_INVALID, "--compare %s: it is not what expertctl bench --save of this version writes", path);
    }
    return OK;
}

// The number at "a.b".
static const json_t *find_number(const json_t *object, const char *name) {
    char outer[64];
    const char *dot = strchr(name, '.');
    if (dot) {
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - name), name);
        return json_object_get(json_object_get(object, outer), dot + 1);
    }
    return json_object_get(object, name);
}

static FALLIBLE read_run(const json_t *object, const char *path, struct compare_run *out) {
    const json_t *valid = json_object_get(json_object_get(object, "verdict"), "valid");
    if (!json_is_boolean(valid)) {
        FAIL(ERR_INVALID, "--compare %s: verdict.valid is missing", path);
    }
    out->valid = json_is_true(valid);
    for (int i = 0; i < COMPARE_MEASURES; i++) {
        const json_t *number = find_number(object, compare_name((enum compare_measure)i));
        out->values[i] = json_number_value(number);
        if (!json_is_number(number) || !(out->values[i] >= 0)) {
            FAIL(ERR_INVALID, "--compare %s: %s is missing or no number from 0 on", path, compare_name((enum compare_measure)i));
        }
    }
    return OK;
}

// Not the seed, the times, the client's own shape: they change the precision, not the load. Not the rate of a search: it is the
// result.
static FALLIBLE check_same_load(const json_t *a, const json_t *b, const char *const paths[2]) {
    static const char *const KEYS[] = {"mode",    "rate",   "concurrency", "trace",  "arrivals", "tokens",
                                       "routing", "layers", "dtype",       "stream", "region"};
    bool searched = json_is_object(json_object_get(a, "find_max")) && json_is_object(json_object_get(b, "find_max"));
    const json_t *load_a = json_object_get(a, "load"), *load_b = json_object_get(b, "load");
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        bool skipped = searched && strcmp(KEYS[i], "rate") == 0;
        if (!skipped && !json_equal(json_object_get(load_a, KEYS[i]), json_object_get(load_b, KEYS[i]))) {
            FAIL(ERR_INVALID, "--compare: %s and %s are not of the same load: load.%s differs", paths[0], paths[1], KEYS[i]);
        }
    }
    return OK;
}

static const char *outcome_text(enum compare_outcome outcome) {
    static const char *const TEXTS[] = {"no regression", "regression", "INVALID: a run is without a verdict on the daemon"};
    return TEXTS[outcome];
}

static FALLIBLE print_rows_json(const struct compare_row *rows, double tolerance, enum compare_outcome outcome) {
    static const char *const NAMES[] = {"same", "regression", "invalid"};
    json_t *measures = json_array();
    for (int i = 0; i < COMPARE_MEASURES; i++) {
        json_array_append_new(measures, json_pack("{s:s, s:f, s:f, s:f, s:b, s:b}", "name", rows[i].name, "before", rows[i].before,
                                                  "after", rows[i].after, "change", rows[i].change, "regression",
                                                  rows[i].regression, "improvement", rows[i].improvement));
    }
    return json_print_take(json_pack("{s:s, s:f, s:o}", "outcome", NAMES[outcome], "tolerance", tolerance, "measures", measures));
}

static FALLIBLE fill_table(struct table *table, const struct compare_row *rows) {
    for (int i = 0; i < COMPARE_MEASURES; i++) {
        TRY(table_row(table));
        TRY(table_cell(table, 0, "%s", rows[i].name));
        TRY(table_cell(table, 1, "%.6g", rows[i].before));
        TRY(table_cell(table, 2, "%.6g", rows[i].after));
        bool relative = i != COMPARE_WRONG;
        TRY(table_cell(table, 3, relative ? "%+.1f %%" : "%+.0f", rows[i].change * (relative ? 100 : 1)));
        TRY(table_cell(table, 4, "%s", rows[i].regression ? "worse" : rows[i].improvement ? "better" : ""));
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
