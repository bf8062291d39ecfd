#include "client/expertctl/print/shard_table.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/clock.h"
#include "client/expertctl/print/json_out.h"
#include "client/expertctl/print/quantity.h"
#include "client/expertctl/print/table.h"

// ---- text

static FALLIBLE put_experts(struct table *table, const struct proto_shard *s) {
    char more[64] = "";
    size_t used = 0;
    if (s->loading > 0) {
        used = (size_t)snprintf(more, sizeof more, " + %" PRIu32 " loading", s->loading);
    }
    if (s->failed > 0) {
        snprintf(more + used, sizeof more - used, ", %" PRIu32 " failed", s->failed);
    }
    return table_cell(table, 3, "%" PRIu32 "%s", s->ready, more);
}

static FALLIBLE put_memory(struct table *table, const struct proto_shard *s) {
    char used[QUANTITY_TEXT_MAX], limit[QUANTITY_TEXT_MAX];
    return s->bytes_max ? table_cell(table, 4, "%s / %s", bytes_text(s->bytes, used), bytes_text(s->bytes_max, limit))
                        : table_cell(table, 4, "-");
}

static FALLIBLE put_time(struct table *table, size_t column, int64_t ns, bool is_known) {
    char text[QUANTITY_TEXT_MAX];
    return table_cell(table, column, "%s", is_known ? duration_text((double)ns / NS_PER_US, text) : "-");
}

static FALLIBLE put_shard(struct table *table, const struct proto_shard *s, bool has_rows) {
    TRY(table_row(table));
    TRY(table_cell(table, 0, "%" PRIu32, s->shard));
    TRY(table_cell(table, 1, "%s", s->address));
    TRY(table_cell(table, 2, "%s", s->drained ? "drained" : s->state));
    TRY(put_experts(table, s));
    TRY(put_memory(table, s));
    TRY(has_rows ? table_cell(table, 5, "%.0f", s->rows_per_second) : table_cell(table, 5, "-"));
    TRY(put_time(table, 6, s->round_trip_ns, !s->local && s->round_trip_ns > 0));
    TRY(put_time(table, 7, s->heard_age_ns, !s->local && s->heard_age_ns >= 0));
    return s->local ? table_cell(table, 8, "-") : table_cell(table, 8, "%" PRIu64, s->false_alarms);
}

static FALLIBLE fill(struct table *table, const struct proto_shards *shards, bool has_local_rows) {
    for (size_t i = 0; i < shards->count; i++) {
        TRY(put_shard(table, &shards->items[i], has_local_rows || !shards->items[i].local));
    }
    return OK;
}

// Why a shard is not used. Shards that are being connected to or loaded for the first time need no reason.
static void explain(const struct proto_shard *s, FILE *out) {
    char address[PROTO_SHARD_ADDRESS_MAX], state[PROTO_SHARD_NAME_MAX], reason[PROTO_SHARD_NAME_MAX],
        message[PROTO_SHARD_MESSAGE_MAX];
    memcpy(address, s->address, sizeof address);
    memcpy(state, s->state, sizeof state);
    memcpy(reason, s->reason, sizeof reason);
    memcpy(message, s->message, sizeof message);
    fprintf(out, "%s is %s (%s)%s%s\n", table_text(address), table_text(state), table_text(reason), message[0] ? ": " : "",
            table_text(message));
}

static void print_summary(const struct proto_shards_summary *s, FILE *out) {
    fprintf(out, "%" PRIu32 " of %" PRIu32 " shards take rows; ", s->live, s->shards);
    if (s->uncovered > 0) {
        fprintf(out, "%" PRIu32 " of %" PRIu32 " experts are on none of them: calls that need one fail\n", s->uncovered,
                s->experts);
    } else {
        fprintf(out, "each of the %" PRIu32 " experts is on one of them\n", s->experts);
    }
    if (s->below_copies > s->uncovered) {
        fprintf(out, "%" PRIu32 " of %" PRIu32 " experts are on fewer of them than --copies asks for\n", s->below_copies,
                s->experts);
    }
    if (!s->places) {
        fprintf(out, "this front does not decide which experts each shard holds: another one does, or none (--placement-owner)\n");
    }
}

FALLIBLE shard_table_print(const struct proto_shards *shards, bool has_local_rows, FILE *out) {
    static const char *const NAMES[] = {"SHARD",  "ADDRESS",    "STATE", "EXPERTS",      "MEMORY",
                                        "ROWS/S", "ROUND TRIP", "HEARD", "FALSE ALARMS", NULL};
    struct table table;
    table_init(&table, NAMES, 0x1e1);
    err_t e = fill(&table, shards, has_local_rows);
    if (!err_is(e)) {
        table_print(&table, out);
        for (size_t i = 0; i < shards->count; i++) {
            if (!shards->items[i].live) {
                explain(&shards->items[i], out);
            }
        }
        print_summary(&shards->summary, out);
    }
    table_deinit(&table);
    return e;
}

// ---- JSON: the keys of /api/status

static json_t *seconds_json(int64_t ns, bool is_known) {
    return is_known ? json_real((double)ns / NS_PER_S) : json_null();
}

static void set_count(json_t *object, const char *key, uint64_t count) {
    json_object_set_new(object, key, json_integer((json_int_t)count));
}

static void add_traffic(const struct proto_shard *s, json_t *object) {
    json_object_set_new(object, "heard_age_s", seconds_json(s->heard_age_ns, s->heard_age_ns >= 0));
    json_object_set_new(object, "round_trip_s", seconds_json(s->round_trip_ns, s->round_trip_ns > 0));
    json_object_set_new(object, "rows_per_s", json_real(s->rows_per_second));
    json_object_set_new(object, "compute_s", json_real((double)s->compute_ns / NS_PER_S));
    set_count(object, "false_alarms", s->false_alarms);
    set_count(object, "connections", s->connections);
    set_count(object, "batches", s->batches);
    set_count(object, "pieces", s->pieces);
    set_count(object, "rows", s->rows);
    set_count(object, "bytes_sent", s->bytes_sent);
    set_count(object, "rows_answered", s->rows_answered);
    set_count(object, "bytes_received", s->bytes_received);
    set_count(object, "errors", s->errors);
    set_count(object, "refused", s->refused);
}

json_t *shard_json(const struct proto_shard *s) {
    json_t *experts = json_pack("{s:I, s:I, s:I, s:I}", "ready", (json_int_t)s->ready, "loading", (json_int_t)s->loading,
                                "retiring", (json_int_t)s->retiring, "failed", (json_int_t)s->failed);
    json_t *object =
        json_pack("{s:I, s:o, s:o, s:o, s:b, s:b, s:b, s:b, s:b, s:o}", "shard", (json_int_t)s->shard, "address",
                  json_text(s->address), "state", json_text(s->state), "reason", json_text(s->reason), "local", s->local, "live",
                  s->live, "listed", s->listed, "draining", s->draining, "drained", s->drained, "experts", experts);
    if (!object) {
        return NULL;
    }
    if (s->message[0]) {
        json_object_set_new(object, "message", json_text(s->message));
    }
    set_count(object, "bytes", s->bytes);
    set_count(object, "bytes_max", s->bytes_max);
    set_count(object, "bytes_left", s->bytes_left);
    set_count(object, "bytes_per_s", s->bytes_per_second);
    if (!s->local) {
        add_traffic(s, object);
    }
    return object;
}

json_t *shard_summary_json(const struct proto_shards_summary *s) {
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:I}", "shards", (json_int_t)s->shards, "live", (json_int_t)s->live, "experts",
                     (json_int_t)s->experts, "uncovered", (json_int_t)s->uncovered, "below_copies", (json_int_t)s->below_copies,
                     "places", s->places, "stalls", (json_int_t)s->stalls);
}
