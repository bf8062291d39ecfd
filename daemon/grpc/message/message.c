#include "daemon/grpc/message/message.h"

#include <grpc/slice_buffer.h>
#include <string.h>

enum {
    // Larger bodies are borrowed. A smaller one is copied: the copy is cheaper than reference counts, and a peer that does not read
    // its answer then holds no memory of the handler.
    BODY_COPIED_MAX = 16384,
    DEFERRED_MIN = 16384,  // bytes of a message whose body may stay in the transport's memory
    ZEROS_BYTES = 1 << 16, // half of a second-level cache: the socket reads the zeros from there
};

static const uint8_t ZEROS[ZEROS_BYTES];

// ---- received messages

// A position in the slices of a message.
struct cursor {
    size_t slice, first; // a slice, and the offset of its first byte in the message
};

// Copies bytes [first, end) of the message to `out`, from a cursor that is not behind `first`. Returns a cursor for what follows.
static struct cursor gather_from(const grpc_byte_buffer *bytes, struct cursor at, size_t first, size_t end, uint8_t *out) {
    const grpc_slice_buffer *slices = &bytes->data.raw.slice_buffer;
    while (at.slice < slices->count) {
        const uint8_t *slice = GRPC_SLICE_START_PTR(slices->slices[at.slice]);
        size_t slice_end = at.first + GRPC_SLICE_LENGTH(slices->slices[at.slice]);
        size_t from = first > at.first ? first : at.first, to = end < slice_end ? end : slice_end;
        if (from < to) {
            memcpy(out + (from - first), slice + (from - at.first), to - from);
        }
        if (end < slice_end) {
            break;
        }
        at = (struct cursor){at.slice + 1, slice_end};
    }
    return at;
}

static void gather(const grpc_byte_buffer *bytes, size_t first, size_t end, uint8_t *out) {
    (void)gather_from(bytes, (struct cursor){0}, first, end, out);
}

static struct wire_part slice_at(const void *context, size_t index) {
    const grpc_slice_buffer *slices = context;
    return (struct wire_part){GRPC_SLICE_START_PTR(slices->slices[index]), GRPC_SLICE_LENGTH(slices->slices[index])};
}

static struct wire_range find_body(const struct message_rules *rules, const grpc_byte_buffer *bytes) {
    const grpc_slice_buffer *slices = &bytes->data.raw.slice_buffer;
    struct wire_parts parts = {.context = slices, .count = slices->count, .part = slice_at};
    struct wire_range body = {0};
    bool found = slices->length >= DEFERRED_MIN && rules->body_of && rules->body_of(rules->context, &parts, &body);
    return found ? body : (struct wire_range){0};
}

static err_t check(const struct message_rules *rules, const grpc_byte_buffer *bytes) {
    if (bytes->type != GRPC_BB_RAW || bytes->data.raw.compression != GRPC_COMPRESS_NONE) {
        FAIL(EXPERTD_ERR_UNIMPLEMENTED,
             "the message is compressed, and %s takes only grpc-encoding identity: turn compression off in "
             "the client",
             rules->receiver);
    }
    size_t length = bytes->data.raw.slice_buffer.length;
    if (length > rules->max_bytes) {
        FAIL(EXPERTD_ERR_TOO_LARGE, "the message has %zu bytes, and %s takes at most %llu: send fewer rows at a time", length,
             rules->receiver, (unsigned long long)rules->max_bytes);
    }
    return OK;
}

static struct pool_buffer *pooled(struct rpc_buffer *buffer) {
    return (struct pool_buffer *)(void *)buffer;
}

FALLIBLE message_gather(const struct message_rules *rules, grpc_byte_buffer *bytes, struct rpc_buffer **out) {
    *out = NULL;
    err_t e = check(rules, bytes);
    if (err_is(e)) {
        grpc_byte_buffer_destroy(bytes);
        return e;
    }
    size_t length = bytes->data.raw.slice_buffer.length;
    struct rpc_buffer *buffer = pool_take_borrowed(rules->pool, length);
    if (!buffer) {
        grpc_byte_buffer_destroy(bytes);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a message of %zu bytes", length);
    }
    struct wire_range body = find_body(rules, bytes);
    gather(bytes, 0, body.first, buffer->data);
    gather(bytes, body.first + body.length, length, buffer->data + body.first + body.length);
    pooled(buffer)->deferred = bytes;
    pooled(buffer)->body = body;
    pooled(buffer)->slice = pooled(buffer)->slice_first = 0;
    if (body.length == 0) {
        rpc_buffer_drop(buffer);
    }
    *out = buffer;
    return OK;
}

void message_release(struct pool *pool, struct rpc_buffer *buffer) {
    rpc_buffer_drop(buffer);
    pool_give(pool, buffer);
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

void rpc_buffer_copy(struct rpc_buffer *buffer, size_t first, size_t length, void *out) {
    struct pool_buffer *own = pooled(buffer);
    INVARIANT(first <= buffer->length && length <= buffer->length - first);
    if (!own->deferred) {
        memcpy(out, buffer->data + first, length);
        return;
    }
    bool ascending = own->slice_first <= first;
    struct cursor at = {ascending ? own->slice : 0, ascending ? own->slice_first : 0};
    at = gather_from(own->deferred, at, first, first + length, out);
    own->slice = at.slice;
    own->slice_first = at.first;
}

// ---- sent messages

enum { EVENT_SENT = 1, EVENT_FREED = 2 };

// gRPC dropped its last reference to one slice of a body. Any thread, inside gRPC.
static void on_slice_freed(void *user_data) {
    struct sent_body *body = user_data;
    if (atomic_fetch_sub(&body->slices, 1) > 1) {
        return;
    }
    if (atomic_fetch_or(&body->events, EVENT_FREED) & EVENT_SENT) {
        queue_thread_post(body->thread, &body->job);
    } // otherwise the batch's tag is still outstanding, and message_body_sent finds the event
}

static void add(grpc_byte_buffer *message, grpc_slice slice) {
    grpc_slice_buffer_add(&message->data.raw.slice_buffer, slice); // owns the slice
}

static grpc_byte_buffer *begin(struct sent_body *body, const uint8_t *header, size_t header_length) {
    atomic_store(&body->slices, 0);
    atomic_store(&body->events, EVENT_FREED); // until a part is borrowed
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(NULL, 0);
    if (header_length) {
        add(message, grpc_slice_from_copied_buffer((const char *)header, header_length));
    }
    return message;
}

static size_t bytes_of(const struct rpc_part *parts, size_t num_parts) {
    size_t bytes = 0;
    for (size_t i = 0; i < num_parts; i++) {
        bytes += parts[i].length;
    }
    return bytes;
}

static grpc_slice copy_parts(const struct rpc_part *parts, size_t num_parts, size_t bytes) {
    grpc_slice slice = grpc_slice_malloc(bytes);
    uint8_t *out = GRPC_SLICE_START_PTR(slice);
    for (size_t i = 0; i < num_parts; i++) {
        if (parts[i].length) {
            memcpy(out, parts[i].data, parts[i].length);
            out += parts[i].length;
        }
    }
    return slice;
}

static void borrow_parts(struct sent_body *body, grpc_byte_buffer *message, const struct rpc_part *parts, size_t num_parts) {
    unsigned count = 0;
    for (size_t i = 0; i < num_parts; i++) {
        count += parts[i].length > 0;
    }
    atomic_store(&body->events, 0);
    atomic_store(&body->slices, count);
    for (size_t i = 0; i < num_parts; i++) {
        if (parts[i].length) {
            // gRPC only reads the body; its type lacks the const.
            add(message, grpc_slice_new_with_user_data((void *)(uintptr_t)parts[i].data, parts[i].length, on_slice_freed, body));
        }
    }
}

grpc_byte_buffer *message_compose(struct sent_body *body, const uint8_t *header, size_t header_length, const struct rpc_part *parts,
                                  size_t num_parts) {
    grpc_byte_buffer *message = begin(body, header, header_length);
    size_t bytes = bytes_of(parts, num_parts);
    if (bytes > BODY_COPIED_MAX) {
        borrow_parts(body, message, parts, num_parts);
    } else if (bytes > 0) {
        add(message, copy_parts(parts, num_parts, bytes));
    }
    return message;
}

grpc_byte_buffer *message_of_zeros(struct sent_body *body, const uint8_t *header, size_t header_length, size_t zeros) {
    grpc_byte_buffer *message = begin(body, header, header_length);
    while (zeros > 0) {
        size_t part = zeros < ZEROS_BYTES ? zeros : ZEROS_BYTES;
        add(message, grpc_slice_from_static_buffer(ZEROS, part));
        zeros -= part;
    }
    return message;
}

bool message_body_sent(struct sent_body *body) {
    return atomic_fetch_or(&body->events, EVENT_SENT) & EVENT_FREED;
}
