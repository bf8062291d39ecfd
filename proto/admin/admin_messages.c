// Encoders and decoders of the requests and answers of expertd.admin.v1, one section per method.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/admin/admin_wire.h"
#include "proto/wire/wire_tensor.h"

// Limits the entries of a repeated message field, because a decoded entry needs more memory than its bytes.
enum { ENTRIES_MAX = 4096 };

#define COUNT(rules) (sizeof(rules) / sizeof *(rules))

// Messages whose only field, number 1, is a list.
static const struct wire_rule LAYERS_RULES[] = {[1] = {.name = "layers", .type = WIRE_VARINT, .repeated = true}};
static const struct wire_rule PLACEMENTS_RULES[] = {[1] = {.name = "placements", .type = WIRE_BYTES, .repeated = true}};
static const struct wire_rule PLANS_RULES[] = {[1] = {.name = "plans", .type = WIRE_BYTES, .repeated = true}};
static const struct wire_rule LOADS_RULES[] = {[1] = {.name = "loads", .type = WIRE_BYTES, .repeated = true}};

// Extends *items by one zeroed entry of `size` bytes.
static FALLIBLE grow(void **items, size_t count, size_t size, const char *name) {
    if (count >= ENTRIES_MAX) {
        return wire_fail(EXPERTD_ERR_TOO_LARGE, "", name, "more than %d entries", ENTRIES_MAX);
    }
    void *grown = realloc(*items, (count + 1) * size);
    if (!grown) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu entries", count + 1);
    }
    memset((char *)grown + count * size, 0, size);
    *items = grown;
    return OK;
}

static FALLIBLE add_placement(struct proto_placements *list, const char *name, struct proto_placement **out) {
    void *items = list->items;
    TRY(grow(&items, list->count, sizeof *list->items, name));
    list->items = items;
    *out = &list->items[list->count++];
    return OK;
}

// ---- ShowPlacement, and the request of GetLoad

static void put_layers(struct wire_writer *writer, const void *value) {
    const struct proto_layers *layers = value;
    admin_put_numbers_32(writer, 1, layers->layers, layers->count);
}

FALLIBLE proto_encode_show_request(const struct proto_layers *layers, struct proto_bytes *out) {
    return admin_encode(put_layers, layers, out);
}

static FALLIBLE on_layers(const struct wire_field *field, const struct wire_cursor *cursor, void *out) {
    return admin_read_numbers(field, cursor->path, "layers", UINT32_MAX, out);
}

FALLIBLE proto_decode_show_request(const uint8_t *bytes, size_t length, struct proto_layers *out) {
    static const struct wire_message MESSAGE = {"request", LAYERS_RULES, COUNT(LAYERS_RULES)};
    *out = (struct proto_layers){0};
    struct number_list list = {0};
    err_t e = admin_decode(&MESSAGE, "", (struct wire_span){bytes, length}, WIRE_REFUSE_UNKNOWN, on_layers, &list);
    if (!err_is(e)) {
        e = admin_numbers_32(&list, &out->layers);
        out->count = err_is(e) ? 0 : list.count;
    }
    free(list.values);
    return e;
}

void proto_placements_deinit(struct proto_placements *placements) {
    for (size_t i = 0; i < placements->count; i++) {
        proto_placement_deinit(&placements->items[i]);
    }
    free(placements->items);
    *placements = (struct proto_placements){0};
}

static void put_placements(struct wire_writer *writer, const void *value) {
    const struct proto_placements *placements = value;
    for (size_t i = 0; i < placements->count; i++) {
        admin_put_message(writer, 1, admin_put_placement, &placements->items[i]);
    }
}

FALLIBLE proto_encode_show_response(const struct proto_placements *placements, struct proto_bytes *out) {
    return admin_encode(put_placements, placements, out);
}

static FALLIBLE on_placements(const struct wire_field *field, const struct wire_cursor *cursor, void *context) {
    struct proto_placements *out = context;
    struct proto_placement *placement;
    TRY(add_placement(out, "placements", &placement));
    return admin_read_placement(field->span, "placements", cursor->unknown, placement);
}

FALLIBLE proto_decode_show_response(const uint8_t *bytes, size_t length, struct proto_placements *out) {
    static const struct wire_message MESSAGE = {"ShowPlacementResponse", PLACEMENTS_RULES, COUNT(PLACEMENTS_RULES)};
    *out = (struct proto_placements){0};
    err_t e = admin_decode(&MESSAGE, "", (struct wire_span){bytes, length}, WIRE_SKIP_UNKNOWN, on_placements, out);
    if (err_is(e)) {
        proto_placements_deinit(out);
    }
    return e;
}

// ---- PlanPlacement

static const struct wire_rule COUNTS_RULES[] = {
    [1] = {.name = "layer", .type = WIRE_VARINT},
    [2] = {.name = "rows", .type = WIRE_VARINT, .repeated = true},
};
static const struct wire_message COUNTS = {"Counts", COUNTS_RULES, COUNT(COUNTS_RULES)};

static const struct wire_rule PLAN_REQUEST_RULES[] = {
    [1] = {.name = "layers", .type = WIRE_VARINT, .repeated = true},
    [2] = {.name = "policy", .type = WIRE_VARINT},
    [3] = {.name = "replicas", .type = WIRE_VARINT},
    [4] = {.name = "counts", .type = WIRE_BYTES, .repeated = true},
};

static const struct wire_rule PLAN_RULES[] = {
    [1] = {.name = "now", .type = WIRE_BYTES},
    [2] = {.name = "planned", .type = WIRE_BYTES},
    [3] = {.name = "copies", .type = WIRE_VARINT},
    [4] = {.name = "copy_bytes", .type = WIRE_VARINT},
};
static const struct wire_message PLAN = {"Plan", PLAN_RULES, COUNT(PLAN_RULES)};

void proto_plan_request_deinit(struct proto_plan_request *request) {
    for (size_t i = 0; i < request->num_counts; i++) {
        free(request->counts[i].rows);
    }
    free(request->counts);
    free(request->layers.layers);
    *request = (struct proto_plan_request){0};
}

static void put_counts(struct wire_writer *writer, const void *value) {
    const struct proto_counts *counts = value;
    wire_put_number(writer, 1, counts->layer);
    admin_put_numbers_64(writer, 2, counts->rows, counts->num_rows);
}

static void put_plan_request(struct wire_writer *writer, const void *value) {
    const struct proto_plan_request *request = value;
    put_layers(writer, &request->layers);
    wire_put_number(writer, 2, request->policy);
    wire_put_number(writer, 3, request->replicas);
    for (size_t i = 0; i < request->num_counts; i++) {
        admin_put_message(writer, 4, put_counts, &request->counts[i]);
    }
}

FALLIBLE proto_encode_plan_request(const struct proto_plan_request *request, struct proto_bytes *out) {
    return admin_encode(put_plan_request, request, out);
}

struct counts_parts {
    struct proto_counts *out;
    struct number_list rows;
};

static FALLIBLE on_counts(const struct wire_field *field, const struct wire_cursor *cursor, void *context) {
    struct counts_parts *parts = context;
    return field->number == 1 ? wire_read_uint32(field->value, cursor->path, "layer", &parts->out->layer)
                              : admin_read_numbers(field, cursor->path, "rows", UINT64_MAX, &parts->rows);
}

// On error the entry keeps the rows that were read; proto_plan_request_deinit frees them.
static FALLIBLE read_counts(struct wire_span span, struct proto_counts *out) {
    struct counts_parts parts = {.out = out};
    err_t e = admin_decode(&COUNTS, "counts", span, WIRE_REFUSE_UNKNOWN, on_counts, &parts);
    out->rows = parts.rows.values;
    out->num_rows = parts.rows.count;
    return e;
}

static FALLIBLE read_one_count(struct wire_span span, struct proto_plan_request *out) {
    void *counts = out->counts;
    TRY(grow(&counts, out->num_counts, sizeof *out->counts, "counts"));
    out->counts = counts;
    return read_counts(span, &out->counts[out->num_counts++]);
}

struct plan_request_parts {
    struct proto_plan_request *out;
    struct number_list layers;
};

static FALLIBLE on_plan_request(const struct wire_field *field, const struct wire_cursor *cursor, void *context) {
    struct plan_request_parts *parts = context;
    struct proto_plan_request *out = parts->out;
    switch (field->number) {
    case 1:
        return admin_read_numbers(field, cursor->path, "layers", UINT32_MAX, &parts->layers);
    case 2:
        if (field->value > PROTO_POLICY_BALANCED) {
            return wire_fail(EXPERTD_ERR_INVALID, "", "policy", "%" PRIu64 " is not a Policy; use 0, 1 or 2", field->value);
        }
        out->policy = (enum proto_policy)field->value;
        return OK;
    case 3:
        return wire_read_uint32(field->value, cursor->path, "replicas", &out->replicas);
    default:
        return read_one_count(field->span, out);
    }
}

FALLIBLE proto_decode_plan_request(const uint8_t *bytes, size_t length, struct proto_plan_request *out) {
    static const struct wire_message MESSAGE = {"PlanPlacementRequest", PLAN_REQUEST_RULES, COUNT(PLAN_REQUEST_RULES)};
    *out = (struct proto_plan_request){0};
    struct plan_request_parts parts = {.out = out};
    err_t e = admin_decode(&MESSAGE, "", (struct wire_span){bytes, length}, WIRE_REFUSE_UNKNOWN, on_plan_request, &parts);
    if (!err_is(e)) {
        e = admin_numbers_32(&parts.layers, &out->layers.layers);
        out->layers.count = err_is(e) ? 0 : parts.layers.count;
    }
    free(parts.layers.values);
    if (err_is(e)) {
        proto_plan_request_deinit(out);
    }
    return e;
}

void proto_plans_deinit(struct proto_plans *plans) {
    for (size_t i = 0; i < plans->count; i++) {
        proto_placement_deinit(&plans->items[i].now);
        proto_placement_deinit(&plans->items[i].planned);
    }
    free(plans->items);
    *plans = (struct proto_plans){0};
}

static void put_plan(struct wire_writer *writer, const void *value) {
    const struct proto_plan *plan = value;
    admin_put_message(writer, 1, admin_put_placement, &plan->now);
    admin_put_message(writer, 2, admin_put_placement, &plan->planned);
    wire_put_number(writer, 3, plan->copies);
    wire_put_number(writer, 4, plan->copy_bytes);
}

static void put_plans(struct wire_writer *writer, const void *value) {
    const struct proto_plans *plans = value;
    for (size_t i = 0; i < plans->count; i++) {
        admin_put_message(writer, 1, put_plan, &plans->items[i]);
    }
}

FALLIBLE proto_encode_plan_response(const struct proto_plans *plans, struct proto_bytes *out) {
    return admin_encode(put_plans, plans, out);
}

static FALLIBLE on_plan(const struct wire_field *field, const struct wire_cursor *cursor, void *context) {
    struct proto_plan *out = context;
    switch (field->number) {
    case 1:
        return admin_read_placement(field->span, "plans.now", cursor->unknown, &out->now);
    case 2:
        return admin_read_placement(field->span, "plans.planned", cursor->unknown, &out->planned);
    case 3:
        return wire_read_uint32(field->value, cursor->path, "copies", &out->copies);
    default:
        out->copy_bytes = field->value;
        return OK;
    }
}

static FALLIBLE on_plans(const struct wire_field *field, const struct wire_cursor *cursor, void *context) {
    struct proto_plans *out = context;
    void *items = out->items;
    TRY(grow(&items, out->count, sizeof *out->items, "plans"));
    out->items = items;
    return admin_decode(&PLAN, "plans", field->span, cursor->unknown, on_plan, &out->items[out->count++]);
}

FALLIBLE proto_decode_plan_response(const uint8_t *bytes, size_t length, struct proto_plans *out) {
    static const struct wire_message MESSAGE = {"PlanPlacementResponse", PLANS_RULES, COUNT(PLANS_RULES)};
    *out = (struct proto_plans){0};
    err_t e = admin_decode(&MESSAGE, "", (struct wire_span){bytes, length}, WIRE_SKIP_UNKNOWN, on_plans, out);
    if (err_is(e)) {
        proto_plans_deinit(out);
    }
    return e;
}

// ---- ApplyPlacement

static const struct wire_rule APPLY_RULES[] = {[1] = {.name = "placement", .type = WIRE_BYTES}};

static const struct wire_rule PROGRESS_RULES[] = {
    [1] = {.name = "moved_bytes", .type = WIRE_VARINT},   [2] = {.name = "all_bytes", .type = WIRE_VARINT},
    [3] = {.name = "moved_experts", .type = WIRE_VARINT}, [4] = {.name = "all_experts", .type = WIRE_VARINT},
    [5] = {.name = "done", .type = WIRE_VARINT},          [6] = {.name = "epoch", .type = WIRE_VARINT},
};

static void put_apply_request(struct wire_writer *writer, const void *value) {
    admin_put_message(writer, 1, admin_put_placement, value);
}

FALLIBLE proto_encode_apply_request(const struct proto_placement *placement, struct proto_bytes *out) {
    return admin_encode(put_apply_request, placement, out);
}

static FALLIBLE on_apply_request(const struct wire_field *field, const struct wire_cursor *cursor, void *out) {
    return admin_read_placement(field->span, "placement", cursor->unknown, out);
}

FALLIBLE proto_decode_apply_request(const uint8_t *bytes, size_t length, struct proto_placement *out) {
    static const struct wire_message MESSAGE = {"ApplyPlacementRequest", APPLY_RULES, COUNT(APPLY_RULES)};
    *out = (struct proto_placement){0};
    err_t e = admin_decode(&MESSAGE, "", (struct wire_span){bytes, length}, WIRE_REFUSE_UNKNOWN, on_apply_request, out);
    if (!err_is(e) && out->num_experts == 0) {
        e = wire_fail(EXPERTD_ERR_INVALID, "placement", "copies", "missing: a placement lists the holders of every expert");
    }
    if (err_is(e)) {
        proto_placement_deinit(out);
    }
    return e;
}

static void put_progress(struct wire_writer *writer, const void *value) {
    const struct proto_progress *progress = value;
    wire_put_number(writer, 1, progress->moved_bytes);
    wire_put_number(writer, 2, progress->all_bytes);
    wire_put_number(writer, 3, progress->moved_experts);
    wire_put_number(writer, 4, progress->all_experts);
    wire_put_number(writer, 5, progress->done);
    wire_put_number(writer, 6, progress->epoch);
}

FALLIBLE proto_encode_progress(const struct proto_progress *progress, struct proto_bytes *out) {
    return admin_encode(put_progress, progress, out);
}

static FALLIBLE on_progress(const struct wire_field *field, const struct wire_cursor *cursor, void *context) {
    struct proto_progress *out = context;
    switch (field->number) {
    case 1:
        out->moved_bytes = field->value;
        return OK;
    case 2:
        out->all_bytes = field->value;
        return OK;
    case 3:
        return wire_read_uint32(field->value, cursor->path, "moved_experts", &out->moved_experts);
    case 4:
        return wire_read_uint32(field->value, cursor->path, "all_experts", &out->all_experts);
    case 5:
        out->done = field->value != 0;
        return OK;
    default:
        out->epoch = field->value;
        return OK;
    }
}

FALLIBLE proto_decode_progress(const uint8_t *bytes, size_t length, struct proto_progress *out) {
    static const struct wire_message MESSAGE = {"ApplyPlacementResponse", PROGRESS_RULES, COUNT(PROGRESS_RULES)};
    *out = (struct proto_progress){0};
    return admin_decode(&MESSAGE, "", (struct wire_span){bytes, length}, WIRE_SKIP_UNKNOWN, on_progress, out);
}

// ---- Drain

static const struct wire_rule DRAIN_RULES[] = {[1] = {.name = "reason", .type = WIRE_BYTES}};
static const struct wire_rule DRAIN_RESPONSE_RULES[] = {[1] = {.name = "active", .type = WIRE_VARINT}};

static void put_drain_request(struct wire_writer *writer, const void *value) {
    size_t length = strlen(value);
    if (length > 0) {
        wire_put_prefix(writer, 1, length);
        wire_put_raw(writer, value, length);
    }
}

FALLIBLE proto_encode_drain_request(const char *reason, struct proto_bytes *out) {
    return admin_encode(put_drain_request, reason, out);
}

static FALLIBLE on_drain_request(const struct wire_field *field, const struct wire_cursor *cursor, void *context) {
    char *reason = context;
    if (field->span.length > PROTO_REASON_MAX) {
        return wire_fail(EXPERTD_ERR_INVALID, cursor->path, "reason", "the text has %zu bytes; the limit is %d", field->span.length,
                         PROTO_REASON_MAX);
    }
    if (!wire_text_valid(field->span.bytes, field->span.length)) {
        return wire_fail(EXPERTD_ERR_MALFORMED, cursor->path, "reason", "the text is not UTF-8, or contains a NUL");
    }
    memcpy(reason, field->span.bytes, field->span.length);
    reason[field->span.length] = '\0';
    return OK;
}

FALLIBLE proto_decode_drain_request(const uint8_t *bytes, size_t length, char reason[PROTO_REASON_MAX + 1]) {
    static const struct wire_message MESSAGE = {"DrainRequest", DRAIN_RULES, COUNT(DRAIN_RULES)};
    reason[0] = '\0';
    return admin_decode(&MESSAGE, "", (struct wire_span){bytes, length}, WIRE_REFUSE_UNKNOWN, on_drain_request, reason);
}

static void put_drain_response(struct wire_writer *writer, const void *value) {
    wire_put_number(writer, 1, *(const uint64_t *)value);
}

FALLIBLE proto_encode_drain_response(uint64_t active, struct proto_bytes *out) {
    return admin_encode(put_drain_response, &active, out);
}

static FALLIBLE on_drain_response(const struct wire_field *field, const struct wire_cursor *cursor, void *out) {
    (void)cursor;
    *(uint64_t *)out = field->value;
    return OK;
}

FALLIBLE proto_decode_drain_response(const uint8_t *bytes, size_t length, uint64_t *active) {
    static const struct wire_message MESSAGE = {"DrainResponse", DRAIN_RESPONSE_RULES, COUNT(DRAIN_RESPONSE_RULES)};
    *active = 0;
    return admin_decode(&MESSAGE, "", (struct wire_span){bytes, length}, WIRE_SKIP_UNKNOWN, on_drain_response, active);
}

// ---- the answer of GetLoad

static void put_loads(struct wire_writer *writer, const void *value) {
    const struct proto_placements *loads = value;
    for (size_t i = 0; i < loads->count; i++) {
        admin_put_message(writer, 1, admin_put_load, &loads->items[i]);
    }
}

FALLIBLE proto_encode_load_response(const struct proto_placements *loads, struct proto_bytes *out) {
    return admin_encode(put_loads, loads, out);
}

static FALLIBLE on_loads(const struct wire_field *field, const struct wire_cursor *cursor, void *context) {
    struct proto_placements *out = context;
    (void)cursor;
    struct proto_placement *load;
    TRY(add_placement(out, "loads", &load));
    return admin_read_load(field->span, load);
}

FALLIBLE proto_decode_load_response(const uint8_t *bytes, size_t length, struct proto_placements *out) {
    static const struct wire_message MESSAGE = {"GetLoadResponse", LOADS_RULES, COUNT(LOADS_RULES)};
    *out = (struct proto_placements){0};
    err_t e = admin_decode(&MESSAGE, "", (struct wire_span){bytes, length}, WIRE_SKIP_UNKNOWN, on_loads, out);
    if (err_is(e)) {
        proto_placements_deinit(out);
    }
    return e;
}
