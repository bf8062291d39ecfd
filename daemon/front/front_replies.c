#include "daemon/front/front_replies.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/front/front_step.h"
#include "daemon/log/log.h"

static struct membership_event event_of(const struct front_connection *c, enum membership_event_kind kind) {
    return (struct membership_event){.kind = kind, .member = c->member, .connection = c->number};
}

// The index of the checkpoint's layer.
static FALLIBLE find_layer(const struct front *front, uint32_t number, uint32_t *index) {
    const struct model *model = front->options.model;
    const struct model_layer *layer = model_find_layer(model, number);
    if (!layer) {
        FAIL(EXPERTD_ERR_MALFORMED, "the shard names layer %u, which is not served here", number);
    }
    *index = (uint32_t)(layer - model->layers);
    return OK;
}

static FALLIBLE check_layers(const struct front *front, const struct shard_hello *hello) {
    uint32_t index;
    if (hello->num_layers != front->catalogue.layers) {
        FAIL(EXPERTD_ERR_MALFORMED, "the shard has %zu layers, and this front %u: give both the same --layers", hello->num_layers,
             front->catalogue.layers);
    }
    for (size_t i = 0; i < hello->num_layers; i++) {
        const struct shard_layer *layer = &hello->layers[i];
        TRY(find_layer(front, layer->layer, &index));
        if (layer->num_experts != front->layer_experts[index]) {
            FAIL(EXPERTD_ERR_MALFORMED, "layer %u has %u experts on the shard, and %u here", layer->layer, layer->num_experts,
                 front->layer_experts[index]);
        }
        for (size_t j = 0; j < i; j++) {
            if (hello->layers[j].layer == layer->layer) {
                FAIL(EXPERTD_ERR_MALFORMED, "the shard names layer %u twice", layer->layer);
            }
        }
    }
    return OK;
}

static FALLIBLE take_hello(struct front_connection *c, const struct shard_hello *hello) {
    struct membership_event event = event_of(c, MEMBERSHIP_HELLO);
    memcpy(c->token, hello->rows_token, sizeof c->token);
    event.hello = (struct member_hello){.identity = {.protocol = hello->identity.protocol,
                                                     .numerics_id = hello->identity.numerics_id,
                                                     .compute_dtype = hello->identity.compute_dtype},
                                        .instance = hello->instance,
                                        .bytes_max = hello->bytes_max,
                                        .is_draining = hello->draining};
    memcpy(event.hello.identity.model_digest, hello->identity.model_digest, sizeof event.hello.identity.model_digest);
    front_event(c->front, &event); // refuses another model, which may have other layers
    return c->is_closing ? OK : check_layers(c->front, hello);
}

static enum copy_state state_of(enum shard_copy_state state) {
    switch (state) {
    case SHARD_COPY_LOADING:
        return COPY_LOADING;
    case SHARD_COPY_READY:
        return COPY_READY;
    case SHARD_COPY_RETIRING:
        return COPY_RETIRING;
    case SHARD_COPY_FAILED:
        return COPY_FAILED;
    default:
        return COPY_NONE;
    }
}

static FALLIBLE take_copies(struct front *front, const struct shard_copies *copies, size_t *count) {
    uint32_t layer;
    TRY(find_layer(front, copies->layer, &layer));
    for (size_t i = 0; i < copies->count; i++) {
        if (copies->experts[i] >= front->layer_experts[layer]) {
            FAIL(EXPERTD_ERR_MALFORMED, "the shard names expert %u of layer %u, which has experts 0 to %u", copies->experts[i],
                 copies->layer, front->layer_experts[layer] - 1);
        }
        INVARIANT(*count < FRONT_REPORTS_MAX);
        front->reports[(*count)++] = (struct copy_report){.id = {(uint16_t)layer, (uint16_t)copies->experts[i]},
                                                          .state = state_of(copies->state),
                                                          .digest = copies->digests ? copies->digests[i] : 0};
    }
    return OK;
}

static FALLIBLE take_inventory(struct front_connection *c, const struct shard_inventory *inventory) {
    struct front *front = c->front;
    size_t count = 0;
    if (inventory->sequence > UINT32_MAX) {
        FAIL(EXPERTD_ERR_MALFORMED, "the shard sends an inventory with the sequence number %" PRIu64, inventory->sequence);
    }
    for (size_t i = 0; i < inventory->count; i++) {
        TRY(take_copies(front, &inventory->copies[i], &count));
    }
    struct membership_event event = event_of(c, MEMBERSHIP_INVENTORY);
    event.inventory = (struct member_inventory){.sequence = (uint32_t)inventory->sequence,
                                                .commands_seen = inventory->commands_seen,
                                                .is_complete = inventory->complete,
                                                .reports = front->reports,
                                                .count = count};
    front_event(front, &event);
    return OK;
}

// The number of a heartbeat is the time at which it left.
static FALLIBLE take_echo(struct front_connection *c, uint64_t number) {
    int64_t round_trip_ns = clock_now_ns() - (int64_t)number;
    if (number > INT64_MAX || round_trip_ns < 0 || (int64_t)number < c->dialled_ns) {
        FAIL(EXPERTD_ERR_MALFORMED, "the shard echoes heartbeat %" PRIu64 ", which was not sent to it", number);
    }
    struct membership_event event = event_of(c, MEMBERSHIP_ECHO);
    event.round_trip_ns = round_trip_ns;
    if (c->front->membership.members[c->member].health.suspect) {
        row_links_renew(c->front->links, c->member); // at once, and not when the shard is needed
    }
    front_event(c->front, &event);
    return OK;
}

static void log_failure(const struct front_connection *c, uint32_t layer, uint32_t expert, const char *message) {
    struct front_note *note = &c->front->notes[c->member];
    char address[2 * MEMBER_ADDRESS_MAX], quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    const char *name = c->front->membership.members[c->member].address;
    if (!log_limit_allows(&note->log, clock_now_ns(), name)) {
        return;
    }
    log_line(LOG_LEVEL_ERROR, "shard_load_failed", "shard=%u address=%s layer=%u expert=%u message=%s", c->member,
             log_quote(name, address, sizeof address), layer, expert, log_quote(message, quoted, sizeof quoted));
}

static void take_progress(struct front_connection *c, const struct shard_reply *reply) {
    struct front_note *note = &c->front->notes[c->member];
    note->loading = reply->progress.loading;
    note->bytes_left = reply->progress.bytes_left;
    note->bytes_per_second = reply->progress.bytes_per_second;
}

static FALLIBLE take(struct front_connection *c, const struct shard_reply *reply) {
    struct membership_event event;
    if (!c->is_greeted) {
        if (reply->kind != SHARD_HELLO) {
            FAIL(EXPERTD_ERR_MALFORMED, "the shard's first message is no hello");
        }
        return take_hello(c, &reply->hello);
    }
    switch (reply->kind) {
    case SHARD_HELLO:
        FAIL(EXPERTD_ERR_MALFORMED, "the shard has sent a second hello");
    case SHARD_INVENTORY:
        return take_inventory(c, &reply->inventory);
    case SHARD_LEASE:
        event = event_of(c, MEMBERSHIP_LEASE);
        event.lease.is_granted = reply->lease.granted;
        event.lease.owner = reply->lease.owner;
        front_event(c->front, &event);
        return OK;
    case SHARD_PROGRESS:
        take_progress(c, reply);
        return OK;
    case SHARD_FAILURE:
        log_failure(c, reply->failure.layer, reply->failure.expert, reply->failure.message);
        return OK;
    case SHARD_ECHO:
        return take_echo(c, reply->echo);
    default:
        event = event_of(c, MEMBERSHIP_SHARD_DRAINS);
        event.drains = reply->draining.drains;
        front_event(c->front, &event);
        return OK;
    }
}

FALLIBLE front_replies_take(struct front_connection *c, const uint8_t *bytes, size_t length) {
    struct shard_reply reply;
    struct shard_message *message;
    TRY_IN(shard_decode_reply(bytes, length, &reply, &message), "a control message of the shard");
    err_t e = take(c, &reply);
    shard_message_free(message);
    return e;
}
