#include "daemon/shard_view/shard_json.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

// Text that may come from a peer: without UTF-8, its bytes beyond ASCII become '?'.
static json_t *text_json(const char *text) {
    json_t *json = json_string(text);
    if (json) {
        return json;
    }
    char ascii[FRONT_MESSAGE_MAX];
    snprintf(ascii, sizeof ascii, "%s", text);
    for (char *at = ascii; *at; at++) {
        *at = (unsigned char)*at < 0x80 ? *at : '?';
    }
    return json_string(ascii);
}

static json_t *seconds_json(int64_t ns, bool is_known) {
    return is_known ? json_real((double)ns / NS_PER_S) : json_null();
}

static json_t *experts_json(const struct front_shard *s) {
    return json_pack("{s:I, s:I, s:I, s:I}", "ready", (json_int_t)s->ready, "loading", (json_int_t)s->loading, "retiring",
                     (json_int_t)s->retiring, "failed", (json_int_t)s->failed);
}

static void set_count(json_t *object, const char *key, uint64_t count) {
    json_object_set_new(object, key, json_integer((json_int_t)count));
}

static void add_traffic(const struct front_shard *s, json_t *object) {
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

static json_t *shard_json(const struct front_shard *s) {
    json_t *object = json_pack("{s:I, s:o, s:s, s:s, s:b, s:b, s:b, s:b, s:o}", "shard", (json_int_t)s->shard, "address",
                               text_json(s->address), "state", s->state, "reason", s->reason, "live", s->is_live, "listed",
                               s->is_listed, "draining", s->is_draining, "drained", s->is_drained, "experts", experts_json(s));
    if (!object) {
        return NULL;
    }
    if (s->message[0]) {
        json_object_set_new(object, "message", text_json(s->message));
    }
    set_count(object, "bytes", s->bytes);
    set_count(object, "bytes_max", s->bytes_max);
    set_count(object, "bytes_left", s->bytes_left);
    set_count(object, "bytes_per_s", s->bytes_per_second);
    if (!s->is_local) {
        add_traffic(s, object);
    }
    return object;
}

static json_t *list_json(const struct shard_listing *listing, bool is_local) {
    json_t *list = json_array();
    for (size_t i = 0; i < listing->count; i++) {
        if (listing->shards[i].is_local == is_local) {
            json_array_append_new(list, shard_json(&listing->shards[i]));
        }
    }
    return list;
}

void shard_json_add(const struct shard_listing *listing, json_t *object) {
    const struct front_summary *s = &listing->summary;
    json_object_set_new(object, "shards_remote", list_json(listing, false));
    json_object_set_new(object, "shards_local", list_json(listing, true));
    json_object_set_new(object, "shards_summary",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:I}", "shards", (json_int_t)s->shards, "live",
                                  (json_int_t)s->live, "experts", (json_int_t)s->experts, "uncovered", (json_int_t)s->uncovered,
                                  "below_copies", (json_int_t)s->below_copies, "places", s->places, "stalls",
                                  (json_int_t)s->stalls));
}
