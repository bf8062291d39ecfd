#include "client/expertctl/files/plan_file.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/regular_file.h"
#include "client/expertctl/print/json_out.h"

enum { FILE_BYTES_MAX = 64 << 20, LAYERS_MAX = 4096, EXPERTS_MAX = 1 << 16 };

// ---- writing

static json_t *experts_json(const struct proto_placement *p) {
    json_t *experts = json_array();
    for (uint32_t e = 0; e < p->num_experts; e++) {
        json_t *holders = json_array();
        for (uint32_t i = p->first[e]; i < p->first[e + 1]; i++) {
            json_array_append_new(holders, json_integer(p->holders[i]));
        }
        json_array_append_new(experts, holders);
    }
    return experts;
}

static json_t *rows_json(const struct proto_placement *p) {
    json_t *rows = json_array();
    for (uint32_t e = 0; e < p->num_experts; e++) {
        json_array_append_new(rows, json_integer((json_int_t)p->rows[e]));
    }
    return rows;
}

json_t *plan_file_entry(const struct proto_placement *placement) {
    return json_pack("{s:I, s:I, s:I, s:f, s:o, s:o}", "layer", (json_int_t)placement->layer, "epoch", (json_int_t)placement->epoch,
                     "ranks", (json_int_t)placement->ranks, "imbalance", placement->imbalance, "experts", experts_json(placement),
                     "rows", rows_json(placement));
}

static FALLIBLE write_object(int fd, const json_t *object) {
    if (json_dumpfd(object, fd, JSON_INDENT(1) | JSON_ENSURE_ASCII) != 0) {
        FAIL(EXPERTD_ERR_IO, "%s", strerror(errno));
    }
    return OK;
}

FALLIBLE plan_file_write_take(const char *path, json_t *object) {
    if (!object) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the plan");
    }
    struct regular_file_new file;
    err_t e = regular_file_begin(path, REGULAR_FILE_OR_STREAM, &file);
    if (!err_is(e)) {
        e = regular_file_end(&file, write_object(file.fd, object));
    }
    json_decref(object);
    return err_context(e, "%s: cannot be written", path);
}

// ---- reading

// Reads an integer from 0 to `greatest`.
static FALLIBLE read_number(const json_t *value, const char *name, uint64_t greatest, uint64_t *out) {
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || (uint64_t)number > greatest) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: an integer from 0 to %llu is expected", name, (unsigned long long)greatest);
    }
    *out = (uint64_t)number;
    return OK;
}

static FALLIBLE read_member(const json_t *object, const char *name, uint64_t greatest, uint64_t *out) {
    return read_number(json_object_get(object, name), name, greatest, out);
}

static FALLIBLE read_array(const json_t *object, const char *name, size_t greatest, const json_t **out) {
    *out = json_object_get(object, name);
    if (!json_is_array(*out) || json_array_size(*out) == 0 || json_array_size(*out) > greatest) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: a list of 1 to %zu is expected", name, greatest);
    }
    return OK;
}

// Appends the holders of one expert.
static FALLIBLE read_holders(const json_t *list, uint32_t expert, struct proto_placement *out) {
    uint32_t used = out->first[expert];
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint64_t rank = 0;
        TRY_IN(read_number(json_array_get(list, i), "rank", UINT32_MAX, &rank), "expert %u", expert);
        out->holders[used++] = (uint32_t)rank;
    }
    if (used == out->first[expert]) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "expert %u: a list of the ranks that hold it is expected, one at least", expert);
    }
    out->first[expert + 1] = used;
    return OK;
}

static FALLIBLE read_experts(const json_t *object, struct proto_placement *out) {
    const json_t *experts;
    TRY(read_array(object, "experts", EXPERTS_MAX, &experts));
    size_t count = json_array_size(experts), holders = 0;
    for (size_t e = 0; e < count; e++) {
        holders += json_array_size(json_array_get(experts, e)); // 0 if it is not a list
    }
    if (holders > UINT32_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "experts: %zu copies: at most 4294967295 are possible", holders);
    }
    out->first = calloc(count + 1, sizeof *out->first);
    out->holders = calloc(holders + 1, sizeof *out->holders);
    if (!out->first || !out->holders) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu experts", count);
    }
    for (size_t e = 0; e < count; e++) {
        TRY(read_holders(json_array_get(experts, e), (uint32_t)e, out));
    }
    out->num_experts = (uint32_t)count;
    return OK;
}

static FALLIBLE read_placement(const json_t *object, struct proto_placement *out) {
    uint64_t layer = 0, ranks = 0;
    TRY(read_member(object, "layer", UINT32_MAX, &layer));
    TRY(read_member(object, "epoch", INT64_MAX, &out->epoch));
    TRY(read_member(object, "ranks", UINT32_MAX, &ranks));
    out->layer = (uint32_t)layer;
    out->ranks = (uint32_t)ranks;
    return read_experts(object, out);
}

static FALLIBLE read_counts(const json_t *object, struct proto_counts *out) {
    uint64_t layer = 0;
    const json_t *rows;
    TRY(read_member(object, "layer", UINT32_MAX, &layer));
    TRY(read_array(object, "rows", EXPERTS_MAX, &rows));
    out->layer = (uint32_t)layer;
    out->num_rows = json_array_size(rows);
    out->rows = calloc(out->num_rows, sizeof *out->rows);
    if (!out->rows) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu counts", out->num_rows);
    }
    for (size_t e = 0; e < out->num_rows; e++) {
        TRY_IN(read_number(json_array_get(rows, e), "rows", INT64_MAX, &out->rows[e]), "expert %zu", e);
    }
    return OK;
}

static FALLIBLE load(const char *path, json_t **root, const json_t **layers) {
    char *text;
    size_t length;
    json_error_t where;
    TRY(regular_file_read(path, FILE_BYTES_MAX, &text, &length));
    *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &where);
    free(text);
    if (!*root) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s (line %d): %s", path, where.line, where.text);
    }
    err_t e = read_array(*root, "layers", LAYERS_MAX, layers);
    if (err_is(e)) {
        json_decref(*root);
        return err_context(e, "%s", path);
    }
    return OK;
}

FALLIBLE plan_file_read(const char *path, struct proto_placements *out) {
    *out = (struct proto_placements){0};
    json_t *root;
    const json_t *layers;
    TRY(load(path, &root, &layers));
    size_t count = json_array_size(layers);
    err_t e = OK;
    out->items = calloc(count, sizeof *out->items);
    if (!out->items) {
        e = err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %zu layers", count);
    }
    for (size_t i = 0; i < count && out->items && !err_is(e); i++) {
        out->count = i + 1;
        e = err_context(read_placement(json_array_get(layers, i), &out->items[i]), "%s: layers[%zu]", path, i);
    }
    json_decref(root);
    if (err_is(e)) {
        proto_placements_deinit(out);
    }
    return e;
}

void plan_file_free_counts(struct proto_counts *counts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        free(counts[i].rows);
    }
    free(counts);
}

FALLIBLE plan_file_read_counts(const char *path, struct proto_counts **out, size_t *count) {
    *out = NULL;
    *count = 0;
    json_t *root;
    const json_t *layers;
    TRY(load(path, &root, &layers));
    size_t all = json_array_size(layers);
    struct proto_counts *counts = calloc(all, sizeof *counts);
    err_t e = counts ? OK : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %zu layers", all);
    for (size_t i = 0; i < all && counts && !err_is(e); i++) {
        e = err_context(read_counts(json_array_get(layers, i), &counts[i]), "%s: layers[%zu]", path, i);
    }
    json_decref(root);
    if (err_is(e)) {
        plan_file_free_counts(counts, counts ? all : 0);
        return e;
    }
    *out = counts;
    *count = all;
    return OK;
}
