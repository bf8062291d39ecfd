#include "proto/shard/shard_control.h"

#include <stdlib.h>
#include <string.h>

#include "generated/expertd/shard/v1/shard.pb-c.h"
#include "proto/control/control_pack.h"
#include "proto/control/control_text.h"

_Static_assert((int)SHARD_CONTROL_MESSAGE_MAX == (int)CONTROL_REQUEST_MAX, "control_check_size");

typedef Expertd__Shard__V1__ControlRequest pb_request;
typedef Expertd__Shard__V1__ControlReply pb_reply;
typedef Expertd__Shard__V1__Identity pb_identity;
typedef Expertd__Shard__V1__Experts pb_experts;
typedef Expertd__Shard__V1__Layer pb_layer;
typedef Expertd__Shard__V1__Copies pb_copies;

static char *text_or_empty(const char *text) {
    return (char *)(text ? text : "");
}

// ---- encoding: the generated messages exist while a message is packed; `scratch` is what a message needs of a list

// `count` zeroed messages of `size` bytes, preceded by pointers to them. The caller frees *list.
static FALLIBLE take_list(size_t count, size_t size, void ***list, void **items) {
    *list = calloc(count + 1, sizeof(void *) + size);
    if (!*list) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu entries of a message", count);
    }
    *items = *list + count + 1;
    for (size_t i = 0; i < count; i++) {
        (*list)[i] = (char *)*items + i * size;
    }
    return OK;
}

static void identity_to_wire(const struct shard_identity *from, pb_identity *to) {
    expertd__shard__v1__identity__init(to);
    to->protocol = from->protocol;
    to->numerics_id = text_or_empty(from->numerics_id);
    to->compute_dtype = text_or_empty(from->compute_dtype);
    to->model_digest = (ProtobufCBinaryData){sizeof from->model_digest, (uint8_t *)from->model_digest};
}

static FALLIBLE experts_to_wire(const struct shard_expert_lists *from, pb_experts ***list) {
    void **pointers, *items;
    TRY(take_list(from->count, sizeof(pb_experts), &pointers, &items));
    for (size_t i = 0; i < from->count; i++) {
        pb_experts *to = pointers[i];
        expertd__shard__v1__experts__init(to);
        to->layer = from->lists[i].layer;
        to->n_experts = from->lists[i].count;
        to->experts = (uint32_t *)from->lists[i].experts;
    }
    *list = (pb_experts **)pointers;
    return OK;
}

static FALLIBLE encode_front_hello(const struct shard_front_hello *from, struct proto_bytes *out) {
    pb_request request = EXPERTD__SHARD__V1__CONTROL_REQUEST__INIT;
    Expertd__Shard__V1__FrontHello hello = EXPERTD__SHARD__V1__FRONT_HELLO__INIT;
    pb_identity identity;
    identity_to_wire(&from->identity, &identity);
    hello.identity = &identity;
    hello.instance = from->instance;
    hello.version = text_or_empty(from->version);
    hello.asks_lease = from->asks_lease;
    hello.max_batch_rows = from->max_batch_rows;
    hello.max_batch_hidden = from->max_batch_hidden;
    request.message_case = EXPERTD__SHARD__V1__CONTROL_REQUEST__MESSAGE_HELLO;
    request.hello = &hello;
    return control_pack(&request.base, out);
}

static FALLIBLE encode_lists(const struct shard_request *from, struct proto_bytes *out) {
    pb_request request = EXPERTD__SHARD__V1__CONTROL_REQUEST__INIT;
    Expertd__Shard__V1__Command command = EXPERTD__SHARD__V1__COMMAND__INIT;
    Expertd__Shard__V1__Release release = EXPERTD__SHARD__V1__RELEASE__INIT;
    pb_experts **experts;
    TRY(experts_to_wire(&from->experts, &experts));
    release.sequence = from->number;
    command.number = (uint32_t)from->number;
    release.n_experts = command.n_experts = from->experts.count;
    release.experts = command.experts = experts;
    if (from->kind == SHARD_RELEASE) {
        request.message_case = EXPERTD__SHARD__V1__CONTROL_REQUEST__MESSAGE_RELEASE;
        request.release = &release;
    } else if (from->kind == SHARD_ASSIGN) {
        request.message_case = EXPERTD__SHARD__V1__CONTROL_REQUEST__MESSAGE_ASSIGN;
        request.assign = &command;
    } else {
        request.message_case = EXPERTD__SHARD__V1__CONTROL_REQUEST__MESSAGE_RETIRE;
        request.retire = &command;
    }
    err_t e = control_pack(&request.base, out);
    free(experts);
    return e;
}

// Heartbeats and drains.
static FALLIBLE encode_number(const struct shard_request *from, struct proto_bytes *out) {
    pb_request request = EXPERTD__SHARD__V1__CONTROL_REQUEST__INIT;
    Expertd__Shard__V1__Heartbeat heartbeat = EXPERTD__SHARD__V1__HEARTBEAT__INIT;
    Expertd__Shard__V1__Drain drain = EXPERTD__SHARD__V1__DRAIN__INIT;
    if (from->kind == SHARD_DRAIN) {
        drain.drains = from->drains;
        request.message_case = EXPERTD__SHARD__V1__CONTROL_REQUEST__MESSAGE_DRAIN;
        request.drain = &drain;
    } else {
        INVARIANT(from->kind == SHARD_HEARTBEAT);
        heartbeat.number = from->heartbeat;
        request.message_case = EXPERTD__SHARD__V1__CONTROL_REQUEST__MESSAGE_HEARTBEAT;
        request.heartbeat = &heartbeat;
    }
    return control_pack(&request.base, out);
}

FALLIBLE shard_encode_request(const struct shard_request *from, struct proto_bytes *out) {
    *out = (struct proto_bytes){0};
    switch (from->kind) {
    case SHARD_FRONT_HELLO:
        return encode_front_hello(&from->hello, out);
    case SHARD_ASSIGN:
    case SHARD_RETIRE:
    case SHARD_RELEASE:
        return encode_lists(from, out);
    default:
        return encode_number(from, out);
    }
}

static FALLIBLE layers_to_wire(const struct shard_hello *from, pb_layer ***list) {
    void **pointers, *items;
    TRY(take_list(from->num_layers, sizeof(pb_layer), &pointers, &items));
    for (size_t i = 0; i < from->num_layers; i++) {
        pb_layer *to = pointers[i];
        expertd__shard__v1__layer__init(to);
        to->layer = from->layers[i].layer;
        to->num_experts = from->layers[i].num_experts;
        to->format = text_or_empty(from->layers[i].format);
        to->expert_bytes = from->layers[i].expert_bytes;
    }
    *list = (pb_layer **)pointers;
    return OK;
}

static FALLIBLE encode_hello(const struct shard_hello *from, struct proto_bytes *out) {
    pb_reply reply = EXPERTD__SHARD__V1__CONTROL_REPLY__INIT;
    Expertd__Shard__V1__ShardHello hello = EXPERTD__SHARD__V1__SHARD_HELLO__INIT;
    pb_identity identity;
    TRY(layers_to_wire(from, &hello.layers));
    identity_to_wire(&from->identity, &identity);
    hello.identity = &identity;
    hello.instance = from->instance;
    hello.version = text_or_empty(from->version);
    hello.rows_token = (ProtobufCBinaryData){sizeof from->rows_token, (uint8_t *)from->rows_token};
    hello.n_layers = from->num_layers;
    hello.bytes_max = from->bytes_max;
    hello.draining = from->draining;
    reply.message_case = EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_HELLO;
    reply.hello = &hello;
    err_t e = control_pack(&reply.base, out);
    free(hello.layers);
    return e;
}

static FALLIBLE encode_inventory(const struct shard_inventory *from, struct proto_bytes *out) {
    pb_reply reply = EXPERTD__SHARD__V1__CONTROL_REPLY__INIT;
    Expertd__Shard__V1__Inventory inventory = EXPERTD__SHARD__V1__INVENTORY__INIT;
    void **pointers, *items;
    TRY(take_list(from->count, sizeof(pb_copies), &pointers, &items));
    for (size_t i = 0; i < from->count; i++) {
        const struct shard_copies *copies = &from->copies[i];
        pb_copies *to = pointers[i];
        expertd__shard__v1__copies__init(to);
        to->layer = copies->layer;
        to->state = (Expertd__Shard__V1__CopyState)copies->state;
        to->n_experts = copies->count;
        to->experts = (uint32_t *)copies->experts;
        to->n_digests = copies->digests ? copies->count : 0;
        to->digests = (uint64_t *)copies->digests;
    }
    inventory.sequence = from->sequence;
    inventory.commands_seen = from->commands_seen;
    inventory.complete = from->complete;
    inventory.n_copies = from->count;
    inventory.copies = (pb_copies **)pointers;
    inventory.bytes_used = from->bytes_used;
    reply.message_case = EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_INVENTORY;
    reply.inventory = &inventory;
    err_t e = control_pack(&reply.base, out);
    free(pointers);
    return e;
}

// The messages without lists.
static FALLIBLE encode_small(const struct shard_reply *from, struct proto_bytes *out) {
    pb_reply reply = EXPERTD__SHARD__V1__CONTROL_REPLY__INIT;
    Expertd__Shard__V1__Lease lease = EXPERTD__SHARD__V1__LEASE__INIT;
    Expertd__Shard__V1__LoadProgress progress = EXPERTD__SHARD__V1__LOAD_PROGRESS__INIT;
    Expertd__Shard__V1__LoadFailure failure = EXPERTD__SHARD__V1__LOAD_FAILURE__INIT;
    Expertd__Shard__V1__Heartbeat echo = EXPERTD__SHARD__V1__HEARTBEAT__INIT;
    Expertd__Shard__V1__Draining draining = EXPERTD__SHARD__V1__DRAINING__INIT;
    char text[EXPERTD_ERR_MESSAGE_MAX];
    switch (from->kind) {
    case SHARD_LEASE:
        lease.granted = from->lease.granted;
        lease.owner = from->lease.owner;
        reply.message_case = EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_LEASE;
        reply.lease = &lease;
        break;
    case SHARD_PROGRESS:
        progress.loading = from->progress.loading;
        progress.bytes_left = from->progress.bytes_left;
        progress.bytes_per_second = from->progress.bytes_per_second;
        reply.message_case = EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_PROGRESS;
        reply.progress = &progress;
        break;
    case SHARD_FAILURE:
        failure.layer = from->failure.layer;
        failure.expert = from->failure.expert;
        failure.message = control_clean_text(from->failure.message, text, sizeof text);
        reply.message_case = EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_FAILURE;
        reply.failure = &failure;
        break;
    case SHARD_ECHO:
        echo.number = from->echo;
        reply.message_case = EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_ECHO;
        reply.echo = &echo;
        break;
    default:
        INVARIANT(from->kind == SHARD_DRAINING);
        draining.drains = from->draining.drains;
        draining.reason = control_clean_text(from->draining.reason, text, sizeof text);
        reply.message_case = EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_DRAINING;
        reply.draining = &draining;
    }
    return control_pack(&reply.base, out);
}

FALLIBLE shard_encode_reply(const struct shard_reply *from, struct proto_bytes *out) {
    *out = (struct proto_bytes){0};
    return from->kind == SHARD_HELLO       ? encode_hello(&from->hello, out)
           : from->kind == SHARD_INVENTORY ? encode_inventory(&from->inventory, out)
                                           : encode_small(from, out);
}

// ---- decoding

struct shard_message {
    pb_request *request; // owns texts and numbers; one of these is NULL
    pb_reply *reply;
    void *list; // the decoded entries of the message's list
};

void shard_message_free(struct shard_message *owner) {
    if (!owner) {
        return;
    }
    if (owner->request) {
        expertd__shard__v1__control_request__free_unpacked(owner->request, NULL);
    }
    if (owner->reply) {
        expertd__shard__v1__control_reply__free_unpacked(owner->reply, NULL);
    }
    free(owner->list);
    free(owner);
}

static FALLIBLE take_entries(struct shard_message *owner, size_t count, size_t size, void **out) {
    *out = owner->list = calloc(count + 1, size);
    if (!owner->list) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu entries of a message", count);
    }
    return OK;
}

static FALLIBLE copy_bytes(const char *field, const ProtobufCBinaryData *from, size_t bytes, uint8_t *to) {
    if (from->len != bytes) {
        FAIL_FIELD(EXPERTD_ERR_MALFORMED, field, "%s: %zu bytes instead of %zu", field, from->len, bytes);
    }
    memcpy(to, from->data, bytes);
    return OK;
}

static FALLIBLE identity_from_wire(const pb_identity *from, struct shard_identity *to) {
    if (!from) {
        FAIL_FIELD(EXPERTD_ERR_MALFORMED, "hello.identity", "hello.identity: missing");
    }
    TRY(control_check_text("hello.identity.numerics_id", from->numerics_id));
    TRY(control_check_text("hello.identity.compute_dtype", from->compute_dtype));
    TRY(copy_bytes("hello.identity.model_digest", &from->model_digest, sizeof to->model_digest, to->model_digest));
    to->protocol = from->protocol;
    to->numerics_id = from->numerics_id;
    to->compute_dtype = from->compute_dtype;
    return OK;
}

static FALLIBLE check_instance(uint64_t instance, const char *version) {
    if (instance == 0) {
        FAIL_FIELD(EXPERTD_ERR_MALFORMED, "hello.instance", "hello.instance: missing");
    }
    return control_check_text("hello.version", version);
}

static FALLIBLE front_hello_from_wire(const Expertd__Shard__V1__FrontHello *from, struct shard_front_hello *to) {
    *to = (struct shard_front_hello){.instance = from->instance,
                                     .version = from->version,
                                     .asks_lease = from->asks_lease,
                                     .max_batch_rows = from->max_batch_rows,
                                     .max_batch_hidden = from->max_batch_hidden};
    TRY(check_instance(from->instance, from->version));
    return identity_from_wire(from->identity, &to->identity);
}

static FALLIBLE lists_from_wire(size_t count, pb_experts *const *from, struct shard_message *owner,
                                struct shard_expert_lists *out) {
    void *entries;
    TRY(take_entries(owner, count, sizeof(struct shard_experts), &entries));
    struct shard_experts *lists = entries;
    for (size_t i = 0; i < count; i++) {
        lists[i] = (struct shard_experts){from[i]->layer, from[i]->experts, from[i]->n_experts};
    }
    *out = (struct shard_expert_lists){lists, count};
    return OK;
}

static FALLIBLE command_from_wire(const Expertd__Shard__V1__Command *from, struct shard_message *owner, struct shard_request *out) {
    out->number = from->number;
    return lists_from_wire(from->n_experts, from->experts, owner, &out->experts);
}

static FALLIBLE request_from_wire(const pb_request *from, struct shard_message *owner, struct shard_request *out) {
    switch (from->message_case) {
    case EXPERTD__SHARD__V1__CONTROL_REQUEST__MESSAGE_HELLO:
        out->kind = SHARD_FRONT_HELLO;
        return front_hello_from_wire(from->hello, &out->hello);
    case EXPERTD__SHARD__V1__CONTROL_REQUEST__MESSAGE_ASSIGN:
        out->kind = SHARD_ASSIGN;
        return command_from_wire(from->assign, owner, out);
    case EXPERTD__SHARD__V1__CONTROL_REQUEST__MESSAGE_RETIRE:
        out->kind = SHARD_RETIRE;
        return command_from_wire(from->retire, owner, out);
    case EXPERTD__SHARD__V1__CONTROL_REQUEST__MESSAGE_RELEASE:
        out->kind = SHARD_RELEASE;
        out->number = from->release->sequence;
        return lists_from_wire(from->release->n_experts, from->release->experts, owner, &out->experts);
    case EXPERTD__SHARD__V1__CONTROL_REQUEST__MESSAGE_HEARTBEAT:
        out->kind = SHARD_HEARTBEAT;
        out->heartbeat = from->heartbeat->number;
        return OK;
    case EXPERTD__SHARD__V1__CONTROL_REQUEST__MESSAGE_DRAIN:
        out->kind = SHARD_DRAIN;
        out->drains = from->drain->drains;
        return OK;
    default:
        FAIL(EXPERTD_ERR_MALFORMED, "a ControlRequest without a message that this version knows");
    }
}

// Ends a decoder: on an error the owner is freed.
static err_t give(err_t e, struct shard_message *message, struct shard_message **owner) {
    if (err_is(e)) {
        shard_message_free(message);
        message = NULL;
    }
    *owner = message;
    return e;
}

FALLIBLE shard_decode_request(const uint8_t *bytes, size_t length, struct shard_request *out, struct shard_message **owner) {
    *out = (struct shard_request){0};
    *owner = NULL;
    TRY(control_check_size("ControlRequest", length));
    struct shard_message *message = calloc(1, sizeof *message);
    if (!message) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a ControlRequest");
    }
    message->request = expertd__shard__v1__control_request__unpack(NULL, length, bytes);
    if (!message->request) {
        shard_message_free(message);
        FAIL(EXPERTD_ERR_MALFORMED, "the bytes are not a valid ControlRequest");
    }
    return give(request_from_wire(message->request, message, out), message, owner);
}

static FALLIBLE hello_from_wire(const Expertd__Shard__V1__ShardHello *from, struct shard_message *owner, struct shard_hello *to) {
    void *entries;
    *to = (struct shard_hello){
        .instance = from->instance, .version = from->version, .bytes_max = from->bytes_max, .draining = from->draining};
    TRY(check_instance(from->instance, from->version));
    TRY(identity_from_wire(from->identity, &to->identity));
    TRY(copy_bytes("hello.rows_token", &from->rows_token, sizeof to->rows_token, to->rows_token));
    TRY(take_entries(owner, from->n_layers, sizeof(struct shard_layer), &entries));
    struct shard_layer *layers = entries;
    for (size_t i = 0; i < from->n_layers; i++) {
        const pb_layer *layer = from->layers[i];
        TRY(control_check_text("hello.layers.format", layer->format));
        layers[i] = (struct shard_layer){layer->layer, layer->num_experts, layer->format, layer->expert_bytes};
    }
    to->layers = layers;
    to->num_layers = from->n_layers;
    return OK;
}

static FALLIBLE copies_from_wire(const pb_copies *from, struct shard_copies *to) {
    bool has_digests = from->state == EXPERTD__SHARD__V1__COPY_STATE__COPY_STATE_READY ||
                       from->state == EXPERTD__SHARD__V1__COPY_STATE__COPY_STATE_RETIRING;
    if (from->state < 0 || from->state > (int)SHARD_COPY_FAILED) {
        FAIL_FIELD(EXPERTD_ERR_MALFORMED, "inventory.copies.state", "inventory.copies.state: %d is not a CopyState",
                   (int)from->state);
    }
    if (from->n_digests != (has_digests ? from->n_experts : 0)) {
        FAIL_FIELD(EXPERTD_ERR_MALFORMED, "inventory.copies.digests",
                   "inventory.copies.digests: %zu digests of %zu experts of layer %u in state %d", from->n_digests, from->n_experts,
                   from->layer, (int)from->state);
    }
    *to = (struct shard_copies){from->layer, (enum shard_copy_state)from->state, from->experts, from->n_experts,
                                has_digests ? from->digests : NULL};
    return OK;
}

static FALLIBLE inventory_from_wire(const Expertd__Shard__V1__Inventory *from, struct shard_message *owner,
                                    struct shard_inventory *to) {
    void *entries;
    TRY(take_entries(owner, from->n_copies, sizeof(struct shard_copies), &entries));
    struct shard_copies *copies = entries;
    for (size_t i = 0; i < from->n_copies; i++) {
        TRY(copies_from_wire(from->copies[i], &copies[i]));
    }
    *to = (struct shard_inventory){.sequence = from->sequence,
                                   .commands_seen = from->commands_seen,
                                   .complete = from->complete,
                                   .copies = copies,
                                   .count = from->n_copies,
                                   .bytes_used = from->bytes_used};
    return OK;
}

static FALLIBLE reply_from_wire(const pb_reply *from, struct shard_message *owner, struct shard_reply *out) {
    switch (from->message_case) {
    case EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_HELLO:
        out->kind = SHARD_HELLO;
        return hello_from_wire(from->hello, owner, &out->hello);
    case EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_INVENTORY:
        out->kind = SHARD_INVENTORY;
        return inventory_from_wire(from->inventory, owner, &out->inventory);
    case EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_LEASE:
        out->kind = SHARD_LEASE;
        out->lease.granted = from->lease->granted;
        out->lease.owner = from->lease->owner;
        return OK;
    case EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_PROGRESS:
        out->kind = SHARD_PROGRESS;
        out->progress.loading = from->progress->loading;
        out->progress.bytes_left = from->progress->bytes_left;
        out->progress.bytes_per_second = from->progress->bytes_per_second;
        return OK;
    case EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_FAILURE:
        out->kind = SHARD_FAILURE;
        out->failure.layer = from->failure->layer;
        out->failure.expert = from->failure->expert;
        out->failure.message = from->failure->message;
        return control_check_text("failure.message", from->failure->message);
    case EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_ECHO:
        out->kind = SHARD_ECHO;
        out->echo = from->echo->number;
        return OK;
    case EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_DRAINING:
        out->kind = SHARD_DRAINING;
        out->draining.drains = from->draining->drains;
        out->draining.reason = from->draining->reason;
        return control_check_text("draining.reason", from->draining->reason);
    default:
        FAIL(EXPERTD_ERR_MALFORMED, "a ControlReply without a message that this version knows");
    }
}

FALLIBLE shard_decode_reply(const uint8_t *bytes, size_t length, struct shard_reply *out, struct shard_message **owner) {
    *out = (struct shard_reply){0};
    *owner = NULL;
    TRY(control_check_size("ControlReply", length));
    struct shard_message *message = calloc(1, sizeof *message);
    if (!message) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a ControlReply");
    }
    message->reply = expertd__shard__v1__control_reply__unpack(NULL, length, bytes);
    if (!message->reply) {
        shard_message_free(message);
        FAIL(EXPERTD_ERR_MALFORMED, "the bytes are not a valid ControlReply");
    }
    return give(reply_from_wire(message->reply, message, out), message, owner);
}
