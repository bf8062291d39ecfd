// Between gRPC's slices and the daemon's contiguous buffers.
#include <string.h>

#include "daemon/grpc/core.h"

// Bodies up to this are copied: cheaper than counting references, and a peer that does not read then holds no memory of the
// caller's.
enum { BODY_COPIED_MAX = 16384 };

static void gather(const grpc_byte_buffer *bytes, uint8_t *out) {
    const grpc_slice_buffer *slices = &bytes->data.raw.slice_buffer;
    for (size_t i = 0; i < slices->count; i++) {
        size_t length = GRPC_SLICE_LENGTH(slices->slices[i]);
        memcpy(out, GRPC_SLICE_START_PTR(slices->slices[i]), length);
        out += length;
    }
}

static err_t take(struct rpc_server *server, const grpc_byte_buffer *bytes, struct rpc_buffer **out) {
    if (bytes->type != GRPC_BB_RAW || bytes->data.raw.compression != GRPC_COMPRESS_NONE) {
        FAIL(ERR_UNIMPLEMENTED, "the message is compressed, and this server takes only grpc-encoding identity: "
                                "turn compression off in the client");
    }
    size_t length = bytes->data.raw.slice_buffer.length;
    if (length > server->max_message_bytes) {
        FAIL(ERR_TOO_LARGE, "the message has %zu bytes, and this server takes at most %llu: send fewer rows at a time", length,
             (unsigned long long)server->max_message_bytes);
    }
    *out = pool_take(&server->pool, length);
    if (!*out) {
        FAIL(ERR_NOMEM, "no memory for a message of %zu bytes", length);
    }
    gather(bytes, (*out)->data);
    return OK;
}

err_t message_gather(struct rpc_server *server, grpc_byte_buffer *bytes, struct rpc_buffer **out) {
    *out = NULL;
    err_t e = take(server, bytes, out);
    grpc_byte_buffer_destroy(bytes);
    return e;
}

struct rpc_buffer *rpc_buffer_take(struct rpc_server *server, size_t length) {
    return pool_take(&server->pool, length);
}

void rpc_buffer_release(struct rpc_server *server, struct rpc_buffer *buffer) {
    pool_give(&server->pool, buffer);
}

// The last reference to a borrowed body went. Any thread, inside gRPC.
static void on_body_freed(void *user_data) {
    struct rpc_call *call = user_data;
    struct rpc_thread *thread = call->thread;
    if (!(atomic_fetch_or(&call->body, BODY_FREED) & BODY_SENT)) {
        return; // the batch's tag is yet to come and reports
    }
    struct rpc_call *head = atomic_load(&thread->freed);
    do {
        call->next_freed = head;
    } while (!atomic_compare_exchange_weak(&thread->freed, &head, call));
    thread_wake(thread);
}

grpc_byte_buffer *message_compose(struct rpc_call *call, const uint8_t *header, size_t header_length, const uint8_t *body,
                                  size_t body_length, bool *borrowed) {
    grpc_slice slices[2];
    size_t count = 0;
    *borrowed = body_length > BODY_COPIED_MAX;
    if (header_length) {
        slices[count++] = grpc_slice_from_copied_buffer((const char *)header, header_length);
    }
    if (*borrowed) {
        atomic_store(&call->body, 0);
        // gRPC only reads what it sends; its type lacks the const.
        slices[count++] = grpc_slice_new_with_user_data((void *)(uintptr_t)body, body_length, on_body_freed, call);
    } else if (body_length) {
        slices[count++] = grpc_slice_from_copied_buffer((const char *)body, body_length);
    }
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(slices, count);
    for (size_t i = 0; i < count; i++) {
        grpc_slice_unref(slices[i]);
    }
    return message;
}
