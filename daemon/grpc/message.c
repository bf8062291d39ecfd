#include "daemon/grpc/message.h"

#include <grpc/slice_buffer.h>
#include <string.h>

#include "daemon/grpc/wake.h"

enum {
    // Larger bodies are borrowed. A smaller one is copied: the copy is cheaper than reference counts, and a peer that does not read
    // its answer then holds no memory of the handler.
    BODY_COPIED_MAX = 16384,
    DEFERRED_MIN = 16384,  // bytes of a message whose body may stay in the transport's memory
    ZEROS_BYTES = 1 << 16, // half of a second-level cache: the socket reads the zeros from there
};

static const uint8_t ZEROS[ZEROS_BYTES];

// ---- received messages

// Copies bytes [first, end) of the message to `out`.
static void gather(const grpc_byte_buffer *bytes, size_t first, size_t end, uint8_t *out) {
    const grpc_slice_buffer *slices = &bytes->data.raw.slice_buffer;
    size_t position = 0;
    for (size_t i = 0; i < slices->count && position < end; i++) {
        const uint8_t *slice = GRPC_SLICE_START_PTR(slices->slices[i]);
        size_t slice_end = position + GRPC_SLICE_LENGTH(slices->slices[i]);
        size_t from = first > position ? first : position, to = end < slice_end ? end : slice_end;
        if (from < to) {
            memcpy(out + (from - first), slice + (from - position), to - from);
        }
        position = slice_end;
    }
}

static struct wire_part slice_at(const void *context, size_t index) {
    const grpc_slice_buffer *slices = context;
    return (struct wire_part){GRPC_SLICE_START_PTR(slices->slices[index]), GRPC_SLICE_LENGTH(slices->slices[index])};
}

static struct wire_range find_body(const struct rpc_call *call, const grpc_byte_buffer *bytes) {
    const grpc_slice_buffer *slices = &bytes->data.raw.slice_buffer;
    struct wire_parts parts = {.context = slices, .count = slices->count, .part = slice_at};
    struct wire_range body = {0};
    bool found = slices->length >= DEFERRED_MIN && call->server->handler.body_of &&
                 call->server->handler.body_of(call->method, &parts, &body);
    return found ? body : (struct wire_range){0};
}

static err_t check(const struct rpc_server *server, const grpc_byte_buffer *bytes) {
    if (bytes->type != GRPC_BB_RAW || bytes->data.raw.compression != GRPC_COMPRESS_NONE) {
        FAIL(EXPERTD_ERR_UNIMPLEMENTED, "the message is compressed, and this server takes only grpc-encoding identity: "
                                        "turn compression off in the client");
    }
    size_t length = bytes->data.raw.slice_buffer.length;
    if (length > server->max_message_bytes) {
        FAIL(EXPERTD_ERR_TOO_LARGE, "the message has %zu bytes, and this server takes at most %llu: send fewer rows at a time",
             length, (unsigned long long)server->max_message_bytes);
    }
    return OK;
}

static struct pool_buffer *pooled(struct rpc_buffer *buffer) {
    return (struct pool_buffer *)(void *)buffer;
}

err_t message_gather(struct rpc_call *call, grpc_byte_buffer *bytes, struct rpc_buffer **out) {
    *out = NULL;
    err_t e = check(call->server, bytes);
    if (err_is(e)) {
        grpc_byte_buffer_destroy(bytes);
        return e;
    }
    size_t length = bytes->data.raw.slice_buffer.length;
    struct rpc_buffer *buffer = pool_take_borrowed(&call->server->pool, length);
    if (!buffer) {
        grpc_byte_buffer_destroy(bytes);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a message of %zu bytes", length);
    }
    struct wire_range body = find_body(call, bytes);
    gather(bytes, 0, body.first, buffer->data);
    gather(bytes, body.first + body.length, length, buffer->data + body.first + body.length);
    pooled(buffer)->deferred = bytes;
    pooled(buffer)->body = body;
    if (body.length == 0) {
        rpc_buffer_drop(buffer);
    }
    *out = buffer;
    return OK;
}

void rpc_buffer_drop(struct rpc_buffer *buffer) {
    struct pool_buffer *own = pooled(buffer);
    if (own->deferred) {
        grpc_byte_buffer_destroy(own->deferred);
        own->deferred = NULL;
    }
}

void rpc_buffer_fill(struct rpc_buffer *buffer) {
    struct pool_buffer *own = pooled(buffer);
    if (own->deferred) {
        gather(own->deferred, own->body.first, own->body.first + own->body.length, buffer->data + own->body.first);
        rpc_buffer_drop(buffer);
    }
}

void rpc_buffer_copy(const struct rpc_buffer *buffer, size_t first, size_t length, void *out) {
    const struct pool_buffer *own = (const struct pool_buffer *)(const void *)buffer;
    INVARIANT(first <= buffer->length && length <= buffer->length - first);
    if (!own->deferred) {
        memcpy(out, buffer->data + first, length);
        return;
    }
    gather(own->deferred, first, first + length, out);
}

FALLIBLE rpc_borrow_memory(struct rpc_server *server, void *memory, size_t bytes) {
    return pool_borrow_memory(&server->pool, memory, bytes);
}

void rpc_return_memory(struct rpc_server *server) {
    pool_return_memory(&server->pool);
}

struct rpc_buffer *rpc_buffer_take(struct rpc_server *server, size_t length) {
    return pool_take(&server->pool, length);
}

void rpc_buffer_release(struct rpc_server *server, struct rpc_buffer *buffer) {
    rpc_buffer_drop(buffer);
    pool_give(&server->pool, buffer);
}

// ---- sent messages

// gRPC dropped its last reference to a borrowed body. Any thread, inside gRPC.
static void on_body_freed(void *user_data) {
    struct rpc_call *call = user_data;
    struct rpc_thread *thread = call->thread;
    if (!(atomic_fetch_or(&call->body, BODY_FREED) & BODY_SENT)) {
        return; // the batch's tag is still outstanding and will report `written`
    }
    struct rpc_call *head = atomic_load(&thread->freed);
    do {
        call->next_freed = head;
    } while (!atomic_compare_exchange_weak(&thread->freed, &head, call));
    wake_thread(thread);
}

static void add_zeros(grpc_byte_buffer *message, size_t length) {
    while (length > 0) {
        size_t part = length < ZEROS_BYTES ? length : ZEROS_BYTES;
        grpc_slice_buffer_add(&message->data.raw.slice_buffer, grpc_slice_from_static_buffer(ZEROS, part));
        length -= part;
    }
}

grpc_byte_buffer *message_compose(struct rpc_call *call, const uint8_t *header, size_t header_length, const uint8_t *body,
                                  size_t body_length, bool *borrowed) {
    grpc_slice slices[2];
    size_t count = 0;
    *borrowed = body && body_length > BODY_COPIED_MAX;
    if (header_length) {
        slices[count++] = grpc_slice_from_copied_buffer((const char *)header, header_length);
    }
    if (*borrowed) {
        atomic_store(&call->body, 0);
        // gRPC only reads the body; its type lacks the const.
        slices[count++] = grpc_slice_new_with_user_data((void *)(uintptr_t)body, body_length, on_body_freed, call);
    } else if (body && body_length) {
        slices[count++] = grpc_slice_from_copied_buffer((const char *)body, body_length);
    }
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(slices, count);
    for (size_t i = 0; i < count; i++) {
        grpc_slice_unref(slices[i]);
    }
    if (!body) {
        add_zeros(message, body_length);
    }
    return message;
}
