// Streams of a dialler that record what happened to them, and an exchange with the echo of rpc_fixture.h.
#ifndef EXPERTD_TESTS_UNIT_DAEMON_GRPC_DIAL_FIXTURE_H
#define EXPERTD_TESTS_UNIT_DAEMON_GRPC_DIAL_FIXTURE_H

#include "rpc_fixture.h"

#include "daemon/grpc/dial.h"

enum { MIB = 1 << 20 };
#define CONNECT_NS (FIXTURE_WAIT_S * (int64_t)NS_PER_S) // no test reaches it: a server under load may be slow

// What happened to one stream, written by the dialler's thread.
struct seen {
    struct dialler *dialler;
    struct dial_stream *stream;
    atomic_int opened, messages, no_message, written, lost, closed;
    struct rpc_buffer *message; // the last; taken by the test
    bool reads_on;              // reads again after each message
    bool defers;                // leaves the body in the transport
    struct dial_end end;
    char text[EXPERTD_ERR_MESSAGE_MAX], reason[64];
    char identity[DIAL_IDENTITY_MAX];
    char thread_name[16];
};

static inline void on_opened(void *data, struct dial_stream *stream) {
    struct seen *seen = data;
    snprintf(seen->identity, sizeof seen->identity, "%s", dial_identity(stream));
    pthread_getname_np(pthread_self(), seen->thread_name, sizeof seen->thread_name);
    seen->opened++;
}

static inline void on_message(void *data, struct dial_stream *stream, struct rpc_buffer *message) {
    struct seen *seen = data;
    if (!message) {
        seen->no_message++;
        return;
    }
    if (seen->reads_on) {
        dial_buffer_release(seen->dialler, message);
        dial_read(stream);
    } else {
        seen->message = message;
    }
    seen->messages++;
}

static inline void on_written(void *data, struct dial_stream *stream, bool ok) {
    struct seen *seen = data;
    (void)stream;
    *(ok ? &seen->written : &seen->lost) += 1;
}

static inline void on_closed(void *data, struct dial_stream *stream, const struct dial_end *end) {
    struct seen *seen = data;
    (void)stream;
    seen->end = *end;
    snprintf(seen->text, sizeof seen->text, "%s", end->message);
    snprintf(seen->reason, sizeof seen->reason, "%s", end->reason);
    seen->closed++;
}

static inline bool body_of(void *data, const struct wire_parts *message, struct wire_range *body) {
    const struct seen *seen = data;
    size_t length = 0;
    for (size_t i = 0; i < message->count; i++) {
        length += message->part(message->context, i).length;
    }
    *body = (struct wire_range){length / 3, length / 2};
    return seen->defers;
}

static const struct dial_handler HANDLER = {
    .body_of = body_of, .opened = on_opened, .message = on_message, .written = on_written, .closed = on_closed};

static inline struct dialler *start_dialler(uint64_t max_message_bytes) {
    struct dialler *dialler;
    struct dialler_options options = {.threads = 2, .name = "dial", .max_message_bytes = max_message_bytes};
    assert_false(err_is(dialler_create(&options, &dialler)));
    return dialler;
}

static inline struct dial_channel *open_channel(struct dialler *dialler, const char *address, struct tls_store *tls,
                                                const char *allowed) {
    struct dial_channel *channel;
    struct dial_channel_options options = {.address = address, .thread = 1, .tls = tls, .allowed_servers = allowed};
    if (err_is(dial_channel_create(dialler, &options, &channel))) {
        fail_msg("%s", expertd_err_message());
    }
    return channel;
}

static inline struct seen *open_stream(struct dialler *dialler, struct dial_channel *channel, const char *method,
                                       int64_t timeout_ns) {
    struct seen *seen = calloc(1, sizeof *seen);
    seen->dialler = dialler;
    struct dial_stream_options options = {.method = method, .handler = &HANDLER, .data = seen, .connect_timeout_ns = timeout_ns};
    assert_false(err_is(dial_open(channel, &options, &seen->stream)));
    return seen;
}

static inline void release(struct seen *seen) {
    assert_true(fixture_wait(&seen->closed, 1));
    dial_release(seen->stream);
    free(seen);
}

static inline void cancel_and_release(struct seen *seen) {
    dial_cancel(seen->stream);
    assert_true(fixture_wait(&seen->closed, 1));
    assert_true(seen->end.cancelled);
    assert_int_equal(seen->end.code, EXPERTD_ERR_CANCELLED);
    release(seen);
}

static inline struct rpc_buffer *await_message(struct seen *seen, int number) {
    assert_true(fixture_wait(&seen->messages, number));
    struct rpc_buffer *message = seen->message;
    seen->message = NULL;
    return message;
}

static inline uint8_t *pattern(size_t length, uint32_t x) {
    uint8_t *bytes = malloc(length + 1);
    for (size_t i = 0; i < length; i++) {
        x = x * 1664525 + 1013904223;
        bytes[i] = (uint8_t)(x >> 24);
    }
    return bytes;
}

// Sends header and parts, and checks that the echo has the same bytes.
static inline void exchange(struct seen *seen, const struct rpc_part *parts, size_t num_parts, const uint8_t *header,
                            size_t header_length, int number) {
    assert_true(dial_read(seen->stream));
    assert_true(dial_write(seen->stream, header, header_length, parts, num_parts));
    struct rpc_buffer *message = await_message(seen, number);
    assert_true(fixture_wait(&seen->written, number));
    size_t at = header_length;
    if (seen->defers) {
        uint8_t *copy = malloc(message->length + 1);
        size_t piece = message->length > 100000 ? 70001 : 1000;
        for (size_t i = 0; i < message->length; i += piece) { // pieces across the ends of slices and of the body
            rpc_buffer_copy(message, i, message->length - i < piece ? message->length - i : piece, copy + i);
        }
        rpc_buffer_copy(message, message->length / 2, message->length / 4, copy + message->length / 2); // and backwards
        rpc_buffer_fill(message);
        assert_memory_equal(copy, message->data, message->length);
        free(copy);
    }
    assert_memory_equal(message->data, header, header_length);
    for (size_t i = 0; i < num_parts; i++) {
        assert_memory_equal(message->data + at, parts[i].data, parts[i].length);
        at += parts[i].length;
    }
    assert_int_equal(message->length, at);
    dial_buffer_release(seen->dialler, message);
}

static inline void exchange_sizes(struct seen *seen, size_t bytes_max) {
    static const size_t SIZES[] = {0, 1, 9, 4096, 16384, 16385, 65537, 300000, (5 << 20) + 3};
    int number = 0;
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES && SIZES[i] <= bytes_max; i++) {
        for (size_t num_parts = 0; num_parts <= 3; num_parts++) {
            uint8_t *bytes = pattern(SIZES[i], (uint32_t)(i * 7 + num_parts)), header[] = "head";
            struct rpc_part parts[3];
            size_t at = 0;
            for (size_t p = 0; p < num_parts; p++) {
                size_t length = p + 1 == num_parts ? SIZES[i] - at : SIZES[i] / 3;
                parts[p] = (struct rpc_part){bytes + at, length};
                at += length;
            }
            exchange(seen, parts, num_parts, header, num_parts ? sizeof header : 0, ++number);
            free(bytes);
        }
    }
    assert_int_equal(seen->lost, 0);
}

#endif
