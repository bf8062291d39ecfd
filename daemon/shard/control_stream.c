#include "daemon/shard/control_stream.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/log/log.h"
#include "daemon/shard/core/inventory.h"
#include "daemon/shard/core/shard_hello.h"
#include "daemon/shard/session.h"
#include "daemon/shard/shard_stream.h"

// ---- hello

static FALLIBLE connect_front(struct shard_stream *stream, struct shard_session *session, bool asks_lease) {
    struct shard_service *service = stream->service;
    pthread_mutex_lock(&service->mutex);
    session->number = ++service->last_session;
    err_t e = holder_connect(&service->holder, session->number, session->front, asks_lease, clock_now_ns());
    if (!err_is(e)) {
        session->is_listed = true;
        TAILQ_INSERT_TAIL(&service->sessions, session, link);
        service->num_sessions++;
        service->count.sessions++;
        session->failures_told = service->num_failures;
        shard_stream_join(stream, session);
    }
    session_holder_changed(service);
    bool last = session_drop(session);
    pthread_mutex_unlock(&service->mutex);
    if (last) {
        session_free(session);
    }
    return e;
}

static FALLIBLE take_hello(struct shard_stream *stream, const struct shard_request *request) {
    struct shard_service *service = stream->service;
    if (request->kind != SHARD_FRONT_HELLO) {
        FAIL(EXPERTD_ERR_INVALID, "the first message of a control stream is a hello");
    }
    const struct shard_front_hello *hello = &request->hello;
    struct shard_hello_limits limits = {rank_engine_max_rows(service->engine), rank_engine_max_hidden(service->engine)};
    TRY(shard_hello_check(hello, &service->identity, &limits));
    struct shard_session *session;
    TRY(session_create(service, hello->instance, hello->version, &session));
    TRY(connect_front(stream, session, hello->asks_lease));
    char version[2 * VERSION_MAX], names[RPC_IDENTITY_MAX], quoted[2 * RPC_IDENTITY_MAX];
    log_line(LOG_LEVEL_INFO, "front_connected", "front=%016" PRIx64 " peer=%s names=%s version=%s lease=%s", hello->instance,
             rpc_call_peer(stream->rpc), log_quote(rpc_call_identity(stream->rpc, names), quoted, sizeof quoted),
             log_quote(stream->session->version, version, sizeof version), hello->asks_lease ? "asked" : "none");
    return OK;
}

// ---- commands

// The catalogue's index of a layer number. UINT16_MAX: not served, which no expert_id of the catalogue has.
static uint16_t layer_index(const struct model *model, uint32_t number) {
    const struct model_layer *layer = model_find_layer(model, number);
    return layer ? (uint16_t)(layer - model->layers) : UINT16_MAX;
}

// All experts of a message in one list, which the caller frees. At most as many as a message has bytes.
static FALLIBLE list_experts(const struct shard_service *service, const struct shard_expert_lists *lists, struct expert_id **out,
                             size_t *count) {
    size_t all = 0;
    for (size_t i = 0; i < lists->count; i++) {
        all += lists->lists[i].count;
    }
    *count = 0;
    *out = malloc((all + 1) * sizeof **out); // + 1: malloc of 0 may return NULL
    if (!*out) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a list of %zu experts", all);
    }
    for (size_t i = 0; i < lists->count; i++) {
        uint16_t layer = layer_index(service->backend.model, lists->lists[i].layer);
        for (size_t e = 0; e < lists->lists[i].count; e++) {
            uint32_t expert = lists->lists[i].experts[e];
            (*out)[(*count)++] = (struct expert_id){layer, expert < UINT16_MAX ? (uint16_t)expert : UINT16_MAX};
        }
    }
    return OK;
}

static FALLIBLE command(struct shard_stream *stream, const struct shard_request *request, const struct expert_id *experts,
                        size_t count) {
    struct holder *holder = &stream->service->holder;
    uint32_t session = stream->session->number, number = (uint32_t)request->number;
    if (request->number > UINT32_MAX) {
        FAIL(EXPERTD_ERR_INVALID, "number %" PRIu64 " of a command or an inventory message: no stream has so many",
             request->number);
    }
    switch (request->kind) {
    case SHARD_ASSIGN:
        return holder_assign(holder, session, number, experts, count);
    case SHARD_RETIRE:
        return holder_retire(holder, session, number, experts, count);
    default:
        return holder_release(holder, session, number, experts, count);
    }
}

static FALLIBLE take_command(struct shard_stream *stream, const struct shard_request *request) {
    struct shard_service *service = stream->service;
    struct expert_id *experts;
    size_t count;
    TRY(list_experts(service, &request->experts, &experts, &count));
    pthread_mutex_lock(&service->mutex);
    err_t e = command(stream, request, experts, count);
    session_holder_changed(service);
    pthread_mutex_unlock(&service->mutex);
    free(experts);
    return e;
}

static void take_drain(struct shard_stream *stream, bool drains) {
    struct shard_service *service = stream->service;
    pthread_mutex_lock(&service->mutex);
    bool changes = !service->process_ends && service->draining != drains;
    if (changes) {
        service->draining = drains;
        holder_drain(&service->holder, drains);
        session_holder_changed(service);
    }
    bool is_logged = changes && log_limit_allows(&service->drain_log, clock_now_ns(), "shard_draining");
    pthread_mutex_unlock(&service->mutex);
    if (is_logged) {
        log_line(LOG_LEVEL_INFO, "shard_draining", "drains=%s front=%016" PRIx64, drains ? "true" : "false",
                 stream->session->front);
    }
}

// Without the mutex, so that the echo waits for nothing.
static void take_heartbeat(struct shard_session *session, uint64_t number) {
    atomic_store(&session->heard_ns, clock_now_ns());
    session->echo = number;
    session->echo_due = true;
}

static FALLIBLE take_request(struct shard_stream *stream, const struct shard_request *request) {
    if (!stream->session) {
        return take_hello(stream, request);
    }
    switch (request->kind) {
    case SHARD_HEARTBEAT:
        take_heartbeat(stream->session, request->heartbeat);
        return OK;
    case SHARD_DRAIN:
        take_drain(stream, request->drains);
        return OK;
    case SHARD_FRONT_HELLO:
        FAIL(EXPERTD_ERR_INVALID, "a second hello: only the first message of a control stream is one");
    default:
        return take_command(stream, request);
    }
}

static FALLIBLE take_bytes(struct shard_stream *stream, const struct rpc_buffer *message) {
    struct shard_request request;
    struct shard_message *owner;
    if (message->length > SHARD_CONTROL_MESSAGE_MAX) {
        FAIL(EXPERTD_ERR_TOO_LARGE, "a control message of %zu bytes: at most %d, longer lists are divided", message->length,
             SHARD_CONTROL_MESSAGE_MAX);
    }
    TRY(shard_decode_request(message->data, message->length, &request, &owner));
    err_t e = take_request(stream, &request);
    shard_message_free(owner);
    return e;
}

void control_stream_message(struct shard_stream *stream, const struct rpc_buffer *message) {
    err_t e = take_bytes(stream, message);
    if (err_is(e)) {
        shard_stream_fail(stream, e);
        return;
    }
    control_stream_write(stream);
    shard_stream_read(stream);
}

// ---- messages to the front

static FALLIBLE encode_hello(struct shard_stream *stream, struct proto_bytes *out) {
    struct shard_service *service = stream->service;
    struct shard_reply reply = {.kind = SHARD_HELLO,
                                .hello = {.identity = service->identity,
                                          .instance = service->instance,
                                          .version = EXPERTD_VERSION,
                                          .layers = service->layers,
                                          .num_layers = service->backend.model->num_layers,
                                          .bytes_max = service->backend.bytes_max}};
    memcpy(reply.hello.rows_token, stream->session->token, sizeof reply.hello.rows_token);
    pthread_mutex_lock(&service->mutex);
    reply.hello.draining = service->holder.is_draining;
    pthread_mutex_unlock(&service->mutex);
    return shard_encode_reply(&reply, out);
}

// The caller holds the mutex.
static FALLIBLE encode_message(struct shard_service *service, const struct holder_message *message, struct proto_bytes *out) {
    struct inventory_scratch scratch;
    struct shard_reply reply = {.kind = SHARD_INVENTORY};
    switch (message->kind) {
    case HOLDER_LEASE: // a front's id is not told to others, who could take its place with it
        reply = (struct shard_reply){.kind = SHARD_LEASE, .lease = {message->is_granted, message->is_granted ? message->owner : 0}};
        break;
    case HOLDER_DRAINS:
        reply = (struct shard_reply){.kind = SHARD_DRAINING,
                                     .draining = {message->drains, service->process_ends ? "the shard's process is to end" : ""}};
        break;
    case HOLDER_INVENTORY:
        inventory_of(message, service->layer_numbers, service->holder.bytes_used, &scratch, &reply.inventory);
        break;
    }
    return shard_encode_reply(&reply, out);
}

// The next message of the holder, if something has changed since it had none.
static FALLIBLE encode_holder(struct shard_stream *stream, struct proto_bytes *out) {
    struct shard_service *service = stream->service;
    struct shard_session *session = stream->session;
    unsigned version = atomic_load(&service->holder_version);
    struct holder_message message;
    if (version == session->seen_version) {
        return OK;
    }
    err_t e = OK;
    pthread_mutex_lock(&service->mutex);
    if (holder_next_message(&service->holder, session->number, &message)) {
        e = encode_message(service, &message, out);
    } else {
        session->seen_version = version;
    }
    pthread_mutex_unlock(&service->mutex);
    return e;
}

// The oldest failed load that the front was not told of. Older ones than FAILURES_MAX are forgotten.
static FALLIBLE encode_failure(struct shard_stream *stream, struct proto_bytes *out) {
    struct shard_service *service = stream->service;
    struct shard_session *session = stream->session;
    err_t e = OK;
    pthread_mutex_lock(&service->mutex);
    if (service->num_failures > session->failures_told) {
        uint64_t oldest = service->num_failures > FAILURES_MAX ? service->num_failures - FAILURES_MAX : 0;
        uint64_t next = session->failures_told > oldest ? session->failures_told : oldest;
        const struct load_failure *failure = &service->failures[next % FAILURES_MAX];
        struct shard_reply reply = {
            .kind = SHARD_FAILURE,
            .failure = {service->layer_numbers[failure->expert.layer], failure->expert.expert, failure->message}};
        e = shard_encode_reply(&reply, out);
        session->failures_told = next + 1;
    }
    pthread_mutex_unlock(&service->mutex);
    return e;
}

static FALLIBLE encode_progress(struct shard_stream *stream, struct proto_bytes *out) {
    struct shard_service *service = stream->service;
    pthread_mutex_lock(&service->mutex);
    struct shard_progress progress = service->progress;
    pthread_mutex_unlock(&service->mutex);
    if (progress.version == stream->session->progress_told) {
        return OK;
    }
    stream->session->progress_told = progress.version;
    struct shard_reply reply = {.kind = SHARD_PROGRESS,
                                .progress = {progress.loading, progress.bytes_left, progress.bytes_per_second}};
    return shard_encode_reply(&reply, out);
}

static FALLIBLE encode_echo(struct shard_session *session, struct proto_bytes *out) {
    session->echo_due = false;
    struct shard_reply reply = {.kind = SHARD_ECHO, .echo = session->echo};
    return shard_encode_reply(&reply, out);
}

// The hello comes first; then echoes before everything else.
static FALLIBLE encode_next(struct shard_stream *stream, struct proto_bytes *out) {
    struct shard_session *session = stream->session;
    if (session->hello_due) {
        session->hello_due = false;
        return encode_hello(stream, out);
    }
    if (session->echo_due) {
        return encode_echo(session, out);
    }
    err_t e = encode_holder(stream, out);
    if (!err_is(e) && !out->data) {
        e = encode_failure(stream, out);
    }
    if (!err_is(e) && !out->data) {
        e = encode_progress(stream, out);
    }
    return e;
}

void control_stream_write(struct shard_stream *stream) {
    struct proto_bytes bytes = {0};
    if (!stream->session || !shard_stream_writes(stream)) {
        return;
    }
    err_t e = encode_next(stream, &bytes);
    if (err_is(e)) {
        shard_stream_fail(stream, e);
    } else if (bytes.data) {
        shard_stream_write(stream, bytes.data, bytes.length, NULL, 0);
    }
    free(bytes.data);
}
