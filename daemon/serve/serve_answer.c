#include "daemon/serve/serve_answer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/log/log.h"
#include "daemon/serve/serve_budget.h"

enum { STATUS_BYTES_MAX = 8192 };

static struct proto_error error_of(struct serve *serve, const struct err_copy *error) {
    return (struct proto_error){
        .grpc_code = proto_grpc_code(error->code),
        .reason = expertd_err_name(error->code),
        .field = error->field,
        .message = error->message,
        .retry_after_ms = serve_retry_after_ms(serve, error->code),
    };
}

// Calls that are refused during the load are not counted: the backend, and with it the metrics, may be read once `ready` is set.
void serve_count_call(const struct call *call, int grpc_code) {
    struct metrics *metrics = atomic_load(&call->serve->ready) ? call->serve->backend.metrics : NULL;
    if (metrics) {
        const char *name = strrchr(rpc_method_name(call->method), '/');
        metrics_call(metrics, name ? name + 1 : rpc_method_name(call->method), grpc_code);
    }
}

// Whether a lost request is logged: at most one per second and thread, because every one fails while an expert has no shard.
// *since_last: those left out.
static bool is_loss_due(const struct call *call, unsigned long *since_last) {
    struct serve_thread *thread = &call->serve->threads[call->thread];
    const int64_t now_ns = clock_now_ns();
    const bool is_due = now_ns >= thread->next_lost_ns;
    *since_last = thread->losses_unlogged;
    thread->losses_unlogged = is_due ? 0 : thread->losses_unlogged + 1;
    thread->next_lost_ns = is_due ? clock_add_ns(now_ns, NS_PER_S) : thread->next_lost_ns;
    return is_due;
}

// The daemon's own errors are logged as errors. A client's mistakes are logged for debugging only: the client sees them.
static void log_failure(const struct call *call, const struct err_copy *error, uint64_t id) {
    unsigned long since_last = 0;
    bool is_internal = error->code == EXPERTD_ERR_INTERNAL || error->code == EXPERTD_ERR_IO || error->code == EXPERTD_ERR_NOMEM ||
                       (error->code == EXPERTD_ERR_SHARD_LOST && is_loss_due(call, &since_last));
    char quoted[EXPERTD_ERR_MESSAGE_MAX + 64];
    log_line(is_internal ? LOG_LEVEL_ERROR : LOG_LEVEL_DEBUG, "request_failed",
             "method=%s req=%" PRIu64 " reason=%s since_last=%lu message=%s", rpc_method_name(call->method), id,
             expertd_err_name(error->code), since_last, log_quote(error->message, quoted, sizeof quoted));
}

void serve_finish_call(struct call *call, const struct err_copy *error) {
    if (call->finished) {
        return;
    }
    call->finished = true;
    if (!error) {
        rpc_finish(call->rpc, &(struct rpc_status){.message = "", .retry_after_ms = -1});
        return;
    }
    struct proto_error proto = error_of(call->serve, error);
    struct proto_bytes details = {0};
    struct rpc_status status = {.code = proto.grpc_code, .message = error->message, .retry_after_ms = proto.retry_after_ms};
    if (!err_is(proto_encode_status(&proto, &details))) {
        status.details = details.data;
        status.details_length = details.length;
    }
    rpc_finish(call->rpc, &status);
    free(details.data);
}

void serve_fail_call(struct call *call, err_t e) {
    struct err_copy error;
    err_save(e, &error);
    serve_finish_call(call, &error);
}

static struct wire_timings timings_of(const struct serve_request *r, int64_t now_ns) {
    return (struct wire_timings){
        .queue = (uint64_t)(r->item.started_ns - r->read_ns),
        .route = r->item.timings.route,
        .exchange = r->item.timings.exchange,
        .compute = r->item.timings.compute,
        .combine = r->item.timings.combine,
        .total = (uint64_t)(now_ns - r->read_ns),
        .batch_tokens = r->item.batch_tokens,
        .batch_requests = r->item.batch_requests,
    };
}

// Bytes after the answer's header: none if the output is in the caller's shared memory.
static size_t body_bytes(const struct serve_request *r) {
    return r->regions.output ? 0 : r->output_bytes;
}

// NULL: the body is zeros.
static const uint8_t *body_of(const struct serve_request *r) {
    return r->output ? r->output->data : NULL;
}

// Encodes the part of the answer before the output. Returns its length.
static size_t encode_result(const struct serve_request *r, uint8_t *header, size_t header_bytes) {
    struct wire_timings timings = timings_of(r, clock_now_ns());
    struct wire_response response = {
        .id = r->wire.id,
        .weights_id = r->layer->weights_id,
        .placement_epoch = r->item.timings.placement_epoch,
        .timings = r->wire.timings ? &timings : NULL,
        .has_output = true,
        .output_dtype = r->item.request.output_dtype,
        .output_shape = {r->item.request.tokens, r->layer->params.hidden_size},
        .output_in_extent = r->wire.has_output,
        .output = r->wire.output,
    };
    return wire_encode_response(&response, header, header_bytes);
}

static size_t encode_error(const struct serve_request *r, uint8_t *header, size_t header_bytes) {
    struct proto_error proto = error_of(r->serve, &r->error);
    struct proto_bytes status = {0};
    struct wire_response response = {.id = r->wire.id};
    if (!err_is(proto_encode_status(&proto, &status)) && status.length <= STATUS_BYTES_MAX) {
        response.status = status.data;
        response.status_bytes = status.length;
    }
    size_t length = wire_encode_response(&response, header, header_bytes);
    free(status.data);
    return length;
}

// The peer must take the answer within the send timeout from here.
static void await_reader(struct call *call) {
    call->write_deadline_ns = clock_add_ns(clock_now_ns(), call->serve->options.send_timeout_ns);
    serve_call_due(call, call->write_deadline_ns);
}

static void send_stream_answer(struct call *call, struct serve_request *r) {
    uint8_t header[WIRE_HEADER_MAX + STATUS_BYTES_MAX];
    bool failed = r->core.error != EXPERTD_ERR_OK;
    size_t length = failed ? encode_error(r, header, sizeof header) : encode_result(r, header, sizeof header);
    call->writing = r;
    await_reader(call);
    rpc_write(call->rpc, header, length, body_of(r), failed ? 0 : body_bytes(r));
}

void serve_next_answer(struct call *call) {
    struct serve_request *r = STAILQ_FIRST(&call->answers);
    if (!r || call->writing || call->closed || call->finished) { // finished: the other answers are released when the call is closed
        return;
    }
    STAILQ_REMOVE_HEAD(&call->answers, answer);
    send_stream_answer(call, r);
}

static void observe(const struct serve_request *r) {
    struct metrics *metrics = r->item.started_ns > 0 ? r->serve->backend.metrics : NULL; // a started request implies a backend
    int64_t now_ns = clock_now_ns();
    if (metrics) {
        metrics_stage(metrics, STAGE_QUEUE, (uint64_t)(r->item.started_ns - r->read_ns));
        metrics_stage(metrics, STAGE_TOTAL, (uint64_t)(now_ns - r->read_ns));
    }
}

static void write_output(const struct serve_request *r) {
    if (r->is_empty) {
        memset(r->regions.output, 0, r->output_bytes);
    } else {
        memcpy(r->regions.output, r->output->data, r->output_bytes);
    }
}

void serve_answer(struct serve_request *r) {
    struct call *call = r->call;
    if (r->regions.output && r->output_bytes > 0) { // only a result changes the caller's memory
        write_output(r);
    }
    observe(r);
    serve_count_call(call, 0);
    if (r->is_stream) {
        STAILQ_INSERT_TAIL(&call->answers, r, answer);
        serve_next_answer(call);
        return;
    }
    uint8_t header[WIRE_HEADER_MAX];
    size_t length = encode_result(r, header, sizeof header);
    call->writing = r;
    call->finished = true;
    await_reader(call);
    rpc_reply(call->rpc, header, length, body_of(r), body_bytes(r));
}

bool serve_fail(struct serve_request *r) {
    struct call *call = r->call;
    log_failure(call, &r->error, r->wire.id);
    serve_count_call(call, proto_grpc_code(r->error.code));
    if (r->is_stream && r->is_active) {
        STAILQ_INSERT_TAIL(&call->answers, r, answer);
        serve_next_answer(call);
        return true;
    }
    if (r->is_stream && call->inflight > 0 && !call->finished) { // after the answers of the requests in flight
        call->last_request = r;
        call->reading = NULL;
        return true;
    }
    serve_finish_call(call, &r->error); // unary, or a stream that cannot continue
    return false;
}
