#include "daemon/admin/admin_shards.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/log/log.h"
#include "proto/admin/admin_shards.h"

// ---- ListShards

static void convert(const struct front_shard *from, struct proto_shard *to) {
    *to = (struct proto_shard){.shard = from->shard,
                               .local = from->is_local,
                               .listed = from->is_listed,
                               .live = from->is_live,
                               .draining = from->is_draining,
                               .drained = from->is_drained,
                               .ready = from->ready,
                               .loading = from->loading,
                               .retiring = from->retiring,
                               .failed = from->failed,
                               .bytes = from->bytes,
                               .bytes_max = from->bytes_max,
                               .bytes_left = from->bytes_left,
                               .bytes_per_second = from->bytes_per_second,
                               .heard_age_ns = from->heard_age_ns,
                               .round_trip_ns = from->round_trip_ns,
                               .false_alarms = from->false_alarms,
                               .connections = from->connections,
                               .batches = from->batches,
                               .pieces = from->pieces,
                               .rows = from->rows,
                               .bytes_sent = from->bytes_sent,
                               .rows_answered = from->rows_answered,
                               .bytes_received = from->bytes_received,
                               .compute_ns = from->compute_ns,
                               .errors = from->errors,
                               .refused = from->refused,
                               .rows_per_second = from->rows_per_second};
    snprintf(to->address, sizeof to->address, "%s", from->address);
    snprintf(to->state, sizeof to->state, "%s", from->state);
    snprintf(to->reason, sizeof to->reason, "%s", from->reason);
    snprintf(to->message, sizeof to->message, "%s", from->message);
}

static FALLIBLE encode_listing(const struct shard_listing *listing, struct proto_bytes *out) {
    const struct front_summary *s = &listing->summary;
    struct proto_shards shards = {.summary = {.shards = s->shards,
                                              .live = s->live,
                                              .experts = s->experts,
                                              .uncovered = s->uncovered,
                                              .below_copies = s->below_copies,
                                              .places = s->places,
                                              .stalls = s->stalls}};
    shards.items = calloc(listing->count + 1, sizeof *shards.items);
    if (!shards.items) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a list of %zu shards", listing->count);
    }
    for (size_t i = 0; i < listing->count; i++) {
        convert(&listing->shards[i], &shards.items[i]);
    }
    shards.count = listing->count;
    err_t e = proto_encode_list_shards_response(&shards, out);
    proto_shards_deinit(&shards);
    return e;
}

static FALLIBLE answer_list(const struct admin_shards *shards, const struct rpc_buffer *message, struct proto_bytes *out) {
    struct shard_listing listing;
    TRY(proto_decode_list_shards_request(message->data, message->length));
    TRY(shards->list(shards->view, &listing));
    err_t e = encode_listing(&listing, out);
    shard_listing_deinit(&listing);
    return e;
}

// ---- ChangeShard

static FALLIBLE answer_change(const struct admin_shards *shards, const struct rpc_buffer *message, struct proto_bytes *out) {
    static const struct {
        enum shard_change change;
        const char *name;
    } CHANGES[PROTO_SHARD_CHANGES] = {[PROTO_SHARD_DRAIN] = {SHARD_DRAIN, "drain"},
                                      [PROTO_SHARD_KEEP] = {SHARD_KEEP, "keep"},
                                      [PROTO_SHARD_ADD] = {SHARD_ADD, "add"},
                                      [PROTO_SHARD_REMOVE] = {SHARD_REMOVE, "remove"}};
    struct proto_change_shard request;
    char quoted[2 * PROTO_SHARD_ADDRESS_MAX];
    TRY(proto_decode_change_shard_request(message->data, message->length, &request));
    TRY(shards->change(shards->view, request.address, CHANGES[request.change].change));
    log_line(LOG_LEVEL_INFO, "shard_change_asked", "change=%s address=%s", CHANGES[request.change].name,
             log_quote(request.address, quoted, sizeof quoted));
    return proto_encode_change_shard_response(out);
}

FALLIBLE admin_answer_shards(struct admin_call *call, const struct rpc_buffer *message, struct proto_bytes *out) {
    const struct admin_shards *shards = &call->admin->options.shards;
    if (!shards->view) {
        FAIL(EXPERTD_ERR_UNIMPLEMENTED, "this daemon has no shards in other processes: start it with --shard-hosts");
    }
    return call->method == RPC_ADMIN_LIST_SHARDS ? answer_list(shards, message, out) : answer_change(shards, message, out);
}
