// A bare gRPC echo server, to measure the overhead of the daemon's service: one NEXT queue, one thread, the daemon's channel
// arguments. Answers consist of the request's slices: nothing is parsed or copied, and nothing is allocated except by gRPC.
//
//     grpc-echo unix:PATH | HOST:PORT
//
// The method's path selects the answer. /unary/N and /stream/N return the first N bytes of each message. /copy/N/M does the same
// after a memcpy of M bytes within shared memory (a memfd), which stands for tensors in a region. Runs until the process is killed.
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"

enum { CALLS = 64, READ_CHUNK = 1 << 20, LOOKAHEAD = 65536, SLICES_MAX = 512, MMAP_THRESHOLD = 32 << 20, TOP_PAD = 64 << 20 };
enum { SHARED_BYTES = 64 << 20 }; // copied from one half to the other
static const int TRIM_THRESHOLD = 2000000000;

// A slot for one call at a time, reused after the call's end.
struct call {
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    bool is_stream, started;
    size_t answer_bytes, copied_bytes;
    int cancelled;
    grpc_byte_buffer *message;
    enum { CALL_ACCEPT, CALL_READ, CALL_ENDED } waits_for;
};

struct echo {
    grpc_server *server;
    grpc_completion_queue *queue;
    uint8_t *shared; // [2 * SHARED_BYTES]
    struct call calls[CALLS];
};

static void start(struct call *call, const grpc_op *ops, size_t count) {
    INVARIANT(grpc_call_start_batch(call->call, ops, count, call, NULL) == GRPC_CALL_OK);
}

static void accept_next(struct echo *echo, struct call *call) {
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    call->waits_for = CALL_ACCEPT;
    INVARIANT(grpc_server_request_call(echo->server, &call->call, &call->details, &call->metadata, echo->queue, echo->queue,
                                       call) == GRPC_CALL_OK);
}

static void on_accepted(struct call *call) {
    char path[64] = "";
    size_t length = GRPC_SLICE_LENGTH(call->details.method);
    memcpy(path, GRPC_SLICE_START_PTR(call->details.method), length < sizeof path ? length : sizeof path - 1);
    call->is_stream = strncmp(path, "/stream/", strlen("/stream/")) == 0;
    char *rest = strchr(path + 1, '/');
    call->answer_bytes = rest ? strtoul(rest + 1, &rest, 10) : 0;
    call->copied_bytes = rest && *rest == '/' ? strtoul(rest + 1, NULL, 10) : 0;
    INVARIANT(call->copied_bytes <= SHARED_BYTES);
    call->started = false;
    grpc_call_details_destroy(&call->details);
    grpc_metadata_array_destroy(&call->metadata);
    grpc_op read = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->message};
    call->waits_for = CALL_READ;
    start(call, &read, 1);
}

// The first `bytes` bytes of the message, as references to its slices.
static grpc_byte_buffer *first_bytes(const grpc_byte_buffer *message, size_t bytes) {
    const grpc_slice_buffer *from = &message->data.raw.slice_buffer;
    grpc_slice slices[SLICES_MAX];
    size_t count = 0;
    for (; count < from->count && bytes > 0; count++) {
        INVARIANT(count < SLICES_MAX);
        size_t length = GRPC_SLICE_LENGTH(from->slices[count]);
        length = length < bytes ? length : bytes;
        slices[count] = grpc_slice_sub(from->slices[count], 0, length);
        bytes -= length;
    }
    INVARIANT(bytes == 0);
    grpc_byte_buffer *answer = grpc_raw_byte_buffer_create(slices, count);
    for (size_t i = 0; i < count; i++) {
        grpc_slice_unref(slices[i]);
    }
    return answer;
}

static size_t add_start(struct call *call, grpc_op *ops) {
    if (call->started) {
        return 0;
    }
    call->started = true;
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    return 1;
}

static size_t add_end(struct call *call, grpc_op *ops) {
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER, .data.send_status_from_server.status = GRPC_STATUS_OK};
    ops[1] = (grpc_op){.op = GRPC_OP_RECV_CLOSE_ON_SERVER, .data.recv_close_on_server.cancelled = &call->cancelled};
    call->waits_for = CALL_ENDED;
    return 2;
}

// Answers the message that was read. A unary call ends with the answer; a stream starts the next read in the same batch.
static void on_read(const struct echo *echo, struct call *call) {
    grpc_op ops[4];
    memcpy(echo->shared + SHARED_BYTES, echo->shared, call->copied_bytes);
    size_t count = add_start(call, ops);
    grpc_byte_buffer *answer = NULL;
    if (call->message) {
        answer = first_bytes(call->message, call->answer_bytes);
        grpc_byte_buffer_destroy(call->message);
        ops[count++] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = answer};
    }
    if (call->message && call->is_stream) {
        ops[count++] = (grpc_op){.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->message};
    } else {
        count += add_end(call, ops + count);
    }
    call->message = NULL;
    start(call, ops, count);
    if (answer) {
        grpc_byte_buffer_destroy(answer); // gRPC has referenced its slices when the batch started
    }
}

static void on_ended(struct echo *echo, struct call *call) {
    grpc_call_unref(call->call);
    call->call = NULL;
    accept_next(echo, call);
}

static void serve(struct echo *echo) {
    for (;;) {
        grpc_event event = grpc_completion_queue_next(echo->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        struct call *call = event.tag;
        if (call->waits_for == CALL_ACCEPT) {
            on_accepted(call);
        } else if (call->waits_for == CALL_READ) {
            on_read(echo, call);
        } else {
            on_ended(echo, call);
        }
    }
}

static grpc_arg integer(const char *key, int value) {
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

// Uses the process settings and channel arguments of the daemon that affect speed.
static grpc_server *create_server(void) {
    setenv("GRPC_EXPERIMENTS", "-tcp_read_chunks", 0);
    mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD);
    mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD);
    mallopt(M_TOP_PAD, TOP_PAD);
    grpc_init();
    grpc_arg args[] = {
        integer(GRPC_ARG_TCP_READ_CHUNK_SIZE, READ_CHUNK),
        integer(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, READ_CHUNK),
        integer(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 * READ_CHUNK),
        integer(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        integer(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, LOOKAHEAD),
        integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, -1),
        integer(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1),
        integer(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        integer(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0),
    };
    grpc_channel_args list = {sizeof args / sizeof *args, args};
    return grpc_server_create(&list, NULL);
}

// Maps shared memory as the daemon does for a region.
static uint8_t *map_shared(void) {
    int fd = memfd_create("grpc-echo", MFD_CLOEXEC);
    INVARIANT(fd >= 0 && ftruncate(fd, 2 * (off_t)SHARED_BYTES) == 0);
    void *shared = mmap(NULL, 2 * (size_t)SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    INVARIANT(shared != MAP_FAILED);
    close(fd);
    return shared;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s unix:PATH | HOST:PORT\n", argv[0]);
        return 64;
    }
    static struct echo echo;
    echo.shared = map_shared();
    echo.server = create_server();
    echo.queue = grpc_completion_queue_create_for_next(NULL);
    grpc_server_register_completion_queue(echo.server, echo.queue, NULL);
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    if (!grpc_server_add_http2_port(echo.server, argv[1], credentials)) {
        fprintf(stderr, "%s: cannot listen on %s\n", argv[0], argv[1]);
        return 69;
    }
    grpc_server_start(echo.server);
    for (size_t i = 0; i < CALLS; i++) {
        accept_next(&echo, &echo.calls[i]);
    }
    printf("ready\n");
    fflush(stdout);
    serve(&echo);
}
