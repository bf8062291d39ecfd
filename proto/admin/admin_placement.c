// Encodes and decodes Placement, and Load: the part of a placement that changes with every request.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/admin/admin_wire.h"
#include "proto/wire/wire_tensor.h"

enum {
    PLACEMENT_LAYER = 1,
    PLACEMENT_EPOCH = 2,
    PLACEMENT_RANKS = 3,
    PLACEMENT_COPIES = 4,
    PLACEMENT_HOLDERS = 5,
    PLACEMENT_ROWS = 6,
    PLACEMENT_IMBALANCE = 7,
};

static const struct wire_rule PLACEMENT_RULES[] = {
    [PLACEMENT_LAYER] = {.name = "layer", .type = WIRE_VARINT},
    [PLACEMENT_EPOCH] = {.name = "epoch", .type = WIRE_VARINT},
    [PLACEMENT_RANKS] = {.name = "ranks", .type = WIRE_VARINT},
    [PLACEMENT_COPIES] = {.name = "copies", .type = WIRE_VARINT, .repeated = true},
    [PLACEMENT_HOLDERS] = {.name = "holders", .type = WIRE_VARINT, .repeated = true},
    [PLACEMENT_ROWS] = {.name = "rows", .type = WIRE_VARINT, .repeated = true},
    [PLACEMENT_IMBALANCE] = {.name = "imbalance", .type = WIRE_FIXED64},
};
static const struct wire_message PLACEMENT = {"Placement", PLACEMENT_RULES, sizeof PLACEMENT_RULES / sizeof *PLACEMENT_RULES};

enum { LOAD_LAYER = 1, LOAD_EPOCH = 2, LOAD_ROWS = 3, LOAD_IMBALANCE = 4 };

static const struct wire_rule LOAD_RULES[] = {
    [LOAD_LAYER] = {.name = "layer", .type = WIRE_VARINT},
    [LOAD_EPOCH] = {.name = "epoch", .type = WIRE_VARINT},
    [LOAD_ROWS] = {.name = "rows", .type = WIRE_VARINT, .repeated = true},
    [LOAD_IMBALANCE] = {.name = "imbalance", .type = WIRE_FIXED64},
};
static const struct wire_message LOAD = {"Load", LOAD_RULES, sizeof LOAD_RULES / sizeof *LOAD_RULES};

void proto_placement_deinit(struct proto_placement *placement) {
    free(placement->first);
    free(placement->holders);
    free(placement->rows);
    *placement = (struct proto_placement){0};
}

// ---- writing

static void put_copies(struct wire_writer *writer, const struct proto_placement *p) {
    for (uint32_t e = 0; e < p->num_experts; e++) {
        wire_put_varint(writer, p->first[e + 1] - p->first[e]);
    }
}

void admin_put_placement(struct wire_writer *writer, const void *placement) {
    const struct proto_placement *p = placement;
    wire_put_number(writer, PLACEMENT_LAYER, p->layer);
    wire_put_number(writer, PLACEMENT_EPOCH, p->epoch);
    wire_put_number(writer, PLACEMENT_RANKS, p->ranks);
    if (p->num_experts > 0) {
        struct wire_writer measure = {0};
        put_copies(&measure, p);
        wire_put_prefix(writer, PLACEMENT_COPIES, measure.used);
        put_copies(writer, p);
        admin_put_numbers_32(writer, PLACEMENT_HOLDERS, p->holders, p->first[p->num_experts]);
    }
    admin_put_numbers_64(writer, PLACEMENT_ROWS, p->rows, p->rows ? p->num_experts : 0);
    admin_put_double(writer, PLACEMENT_IMBALANCE, p->imbalance);
}

void admin_put_load(struct wire_writer *writer, const void *placement) {
    const struct proto_placement *p = placement;
    wire_put_number(writer, LOAD_LAYER, p->layer);
    wire_put_number(writer, LOAD_EPOCH, p->epoch);
    admin_put_numbers_64(writer, LOAD_ROWS, p->rows, p->rows ? p->num_experts : 0);
    admin_put_double(writer, LOAD_IMBALANCE, p->imbalance);
}

// ---- reading

struct parts {
    struct proto_placement *out; // scalar fields only; assemble() fills its arrays from the lists
    struct number_list copies, holders, rows;
};

static void parts_deinit(struct parts *parts) {
    free(parts->copies.values);
    free(parts->holders.values);
    free(parts->rows.values);
}

static FALLIBLE on_placement(const struct wire_field *field, const struct wire_cursor *cursor, void *context) {
    struct parts *parts = context;
    switch (field->number) {
    case PLACEMENT_LAYER:
        return wire_read_uint32(field->value, cursor->path, "layer", &parts->out->layer);
    case PLACEMENT_EPOCH:
        parts->out->epoch = field->value;
        return OK;
    case PLACEMENT_RANKS:
        return wire_read_uint32(field->value, cursor->path, "ranks", &parts->out->ranks);
    case PLACEMENT_COPIES:
        return admin_read_numbers(field, cursor->path, "copies", UINT32_MAX, &parts->copies);
    case PLACEMENT_HOLDERS:
        return admin_read_numbers(field, cursor->path, "holders", UINT32_MAX, &parts->holders);
    case PLACEMENT_ROWS:
        return admin_read_numbers(field, cursor->path, "rows", UINT64_MAX, &parts->rows);
    default:
        parts->out->imbalance = admin_double(field->value);
        return OK;
    }
}

static FALLIBLE on_load(const struct wire_field *field, const struct wire_cursor *cursor, void *context) {
    struct parts *parts = context;
    switch (field->number) {
    case LOAD_LAYER:
        return wire_read_uint32(field->value, cursor->path, "layer", &parts->out->layer);
    case LOAD_EPOCH:
        parts->out->epoch = field->value;
        return OK;
    case LOAD_ROWS:
        return admin_read_numbers(field, cursor->path, "rows", UINT64_MAX, &parts->rows);
    default:
        parts->out->imbalance = admin_double(field->value);
        return OK;
    }
}

static FALLIBLE check_holders(const struct parts *parts, uint64_t begin, uint64_t end, size_t expert, const char *path) {
    for (uint64_t i = begin; i < end; i++) {
        uint64_t rank = parts->holders.values[i];
        if (rank >= parts->out->ranks || (i > begin && rank <= parts->holders.values[i - 1])) {
            return wire_fail(EXPERTD_ERR_INVALID, path, "holders",
                             "expert %zu: rank %" PRIu64 " is not below the %" PRIu32 " ranks, or not above the rank before it",
                             expert, rank, parts->out->ranks);
        }
    }
    return OK;
}

// Computes first[] from copies, and checks the holders of each expert.
static FALLIBLE fill_first(const struct parts *parts, const char *path) {
    struct proto_placement *out = parts->out;
    uint64_t used = 0;
    for (size_t e = 0; e < parts->copies.count; e++) {
        uint64_t copies = parts->copies.values[e];
        if (copies == 0 || copies > parts->holders.count - used) {
            return wire_fail(EXPERTD_ERR_INVALID, path, "copies",
                             "expert %zu has %" PRIu64 " copies, but %" PRIu64 " holders are left: each expert needs 1 or more", e,
                             copies, parts->holders.count - used);
        }
        TRY(check_holders(parts, used, used + copies, e, path));
        used += copies;
        out->first[e + 1] = (uint32_t)used;
    }
    if (used != parts->holders.count) {
        return wire_fail(EXPERTD_ERR_INVALID, path, "holders", "%zu holders, but the copies add up to %" PRIu64,
                         parts->holders.count, used);
    }
    return OK;
}

static FALLIBLE fill_rows(struct number_list *rows, const char *path, struct proto_placement *out) {
    if (rows->count && rows->count != out->num_experts) {
        return wire_fail(EXPERTD_ERR_INVALID, path, "rows", "%zu counts for %" PRIu32 " experts", rows->count, out->num_experts);
    }
    out->rows = calloc((size_t)out->num_experts + 1, sizeof *out->rows);
    if (!out->rows) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the rows of %" PRIu32 " experts", out->num_experts);
    }
    if (rows->count) {
        memcpy(out->rows, rows->values, rows->count * sizeof *rows->values);
    }
    return OK;
}

static FALLIBLE assemble(struct parts *parts, const char *path) {
    struct proto_placement *out = parts->out;
    out->num_experts = (uint32_t)parts->copies.count; // at most the bytes of the message
    out->first = calloc(parts->copies.count + 1, sizeof *out->first);
    if (!out->first) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a placement of %zu experts", parts->copies.count);
    }
    TRY(fill_first(parts, path));
    TRY(admin_numbers_32(&parts->holders, &out->holders));
    return fill_rows(&parts->rows, path, out);
}

FALLIBLE admin_read_placement(struct wire_span span, const char *path, enum wire_unknown unknown, struct proto_placement *out) {
    *out = (struct proto_placement){0};
    struct parts parts = {.out = out};
    err_t e = admin_decode(&PLACEMENT, path, span, unknown, on_placement, &parts);
    if (!err_is(e)) {
        e = assemble(&parts, path);
    }
    parts_deinit(&parts);
    if (err_is(e)) {
        proto_placement_deinit(out);
    }
    return e;
}

FALLIBLE admin_read_load(struct wire_span span, struct proto_placement *out) {
    *out = (struct proto_placement){0};
    struct parts parts = {.out = out};
    err_t e = admin_decode(&LOAD, "loads", span, WIRE_SKIP_UNKNOWN, on_load, &parts);
    if (!err_is(e)) {
        out->num_experts = (uint32_t)parts.rows.count;
        e = fill_rows(&parts.rows, "loads", out);
    }
    parts_deinit(&parts);
    if (err_is(e)) {
        proto_placement_deinit(out);
    }
    return e;
}
