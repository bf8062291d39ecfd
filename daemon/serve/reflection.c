#include "daemon/serve/reflection.h"

#include <stdlib.h>

#include "proto/control/control.h"

// The only state is the call: the next message is read after the previous one was answered.
void *reflection_opened(struct rpc_call *call) {
    rpc_read(call);
    return call;
}

static void fail(struct rpc_call *call, err_t e) {
    rpc_finish(call, &(struct rpc_status){.code = proto_grpc_code(e.code), .message = expertd_err_message(), .retry_after_ms = -1});
}

void reflection_message(void *stream, const struct rpc_buffer *message, err_t error) {
    struct rpc_call *call = stream;
    if (!call || !rpc_call_open(call)) {
        return;
    }
    if (err_is(error)) {
        fail(call, error);
        return;
    }
    if (!message) {
        rpc_finish(call, &(struct rpc_status){.code = 0, .retry_after_ms = -1});
        return;
    }
    struct proto_bytes bytes;
    err_t e = proto_reflect(message->data, message->length, &bytes);
    if (err_is(e)) {
        fail(call, e);
        return;
    }
    rpc_write(call, bytes.data, bytes.length, NULL, 0);
    free(bytes.data);
}

void reflection_written(void *stream, bool ok) {
    struct rpc_call *call = stream;
    if (call && ok && rpc_call_open(call)) {
        rpc_read(call);
    }
}

void reflection_closed(void *stream, bool cancelled) {
    (void)stream;
    (void)cancelled;
}

void reflection_released(void *stream) {
    (void)stream;
}

void reflection_end(void *stream) {
    if (stream) {
        fail(stream, err_record(EXPERTD_ERR_DRAINING, NULL, "the service is shutting down"));
    }
}
