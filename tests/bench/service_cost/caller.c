#include "tests/bench/service_cost/caller.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"

enum { READ_CHUNK = 1 << 20, MMAP_THRESHOLD = 32 << 20, TOP_PAD = 64 << 20 };
static const int TRIM_THRESHOLD = 2000000000;

struct caller {
    struct caller_options options;
    grpc_channel *channel;
    grpc_completion_queue *queue;
    grpc_slice request;
    grpc_call *call; // the stream, or the current unary call
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice status_text;
    grpc_byte_buffer *answer;
};

void caller_process(void) {
    setenv("GRPC_EXPERIMENTS", "-tcp_read_chunks", 0);
    mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD);
    mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD);
    mallopt(M_TOP_PAD, TOP_PAD);
    grpc_init();
}

static void pluck(struct caller *caller, void *tag) {
    grpc_event event = grpc_completion_queue_pluck(caller->queue, tag, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    INVARIANT(event.type == GRPC_OP_COMPLETE);
}

static void run_batch(struct caller *caller, const grpc_op *ops, size_t count) {
    INVARIANT(grpc_call_start_batch(caller->call, ops, count, caller, NULL) == GRPC_CALL_OK);
    pluck(caller, caller);
}

static void begin_call(struct caller *caller) {
    grpc_metadata_array_init(&caller->initial);
    grpc_metadata_array_init(&caller->trailing);
    caller->status_text = grpc_empty_slice();
    caller->call = grpc_channel_create_call(caller->channel, NULL, GRPC_PROPAGATE_DEFAULTS, caller->queue,
                                            grpc_slice_from_static_string(caller->options.method), NULL,
                                            gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
}

static void end_call(struct caller *caller) {
    grpc_metadata_array_destroy(&caller->initial);
    grpc_metadata_array_destroy(&caller->trailing);
    grpc_slice_unref(caller->status_text);
    grpc_call_unref(caller->call);
    caller->call = NULL;
}

static grpc_op receive_initial(struct caller *caller) {
    return (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA, .data.recv_initial_metadata.recv_initial_metadata = &caller->initial};
}

static grpc_op receive_answer(struct caller *caller) {
    return (grpc_op){.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &caller->answer};
}

static grpc_op receive_status(struct caller *caller) {
    return (grpc_op){.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                     .data.recv_status_on_client = {.trailing_metadata = &caller->trailing,
                                                    .status = &caller->status,
                                                    .status_details = &caller->status_text}};
}

static void die(const struct caller *caller, const char *failure) {
    fprintf(stderr, "service-cost: %s%s: %s (status %d: %.*s)\n", caller->options.address, caller->options.method, failure,
            (int)caller->status, (int)GRPC_SLICE_LENGTH(caller->status_text),
            (const char *)GRPC_SLICE_START_PTR(caller->status_text));
    exit(1);
}

static void check_answer(struct caller *caller) {
    if (!caller->answer) {
        die(caller, "no answer");
    }
    if (grpc_byte_buffer_length(caller->answer) != caller->options.answer_bytes) {
        die(caller, "the answer has the wrong length");
    }
    grpc_byte_buffer_destroy(caller->answer);
    caller->answer = NULL;
}

static void call_unary(struct caller *caller, grpc_byte_buffer *request) {
    begin_call(caller);
    grpc_op ops[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = request},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        receive_initial(caller),
        receive_answer(caller),
        receive_status(caller),
    };
    run_batch(caller, ops, sizeof ops / sizeof *ops);
    if (caller->status != GRPC_STATUS_OK) {
        die(caller, "the call failed");
    }
    check_answer(caller);
    end_call(caller);
}

static void call_streamed(struct caller *caller, grpc_byte_buffer *request) {
    grpc_op ops[] = {
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = request},
        receive_answer(caller),
    };
    run_batch(caller, ops, sizeof ops / sizeof *ops);
    check_answer(caller);
}

int64_t caller_call(struct caller *caller) {
    int64_t begin_ns = clock_now_ns();
    grpc_byte_buffer *request = grpc_raw_byte_buffer_create(&caller->request, 1);
    if (caller->options.streamed) {
        call_streamed(caller, request);
    } else {
        call_unary(caller, request);
    }
    grpc_byte_buffer_destroy(request);
    return clock_now_ns() - begin_ns;
}

static grpc_arg integer(const char *key, int value) {
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

static grpc_channel *create_channel(const char *address) {
    grpc_arg args[] = {
        integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, -1),       integer(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1),
        integer(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, READ_CHUNK),  integer(GRPC_ARG_TCP_READ_CHUNK_SIZE, READ_CHUNK),
        integer(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),         integer(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        integer(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
    };
    grpc_channel_args list = {sizeof args / sizeof *args, args};
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(address, credentials, &list);
    grpc_channel_credentials_release(credentials);
    return channel;
}

struct caller *caller_create(const struct caller_options *options) {
    struct caller *caller = calloc(1, sizeof *caller);
    INVARIANT(caller);
    caller->options = *options;
    caller->queue = grpc_completion_queue_create_for_pluck(NULL);
    caller->channel = create_channel(options->address);
    caller->request = grpc_slice_from_static_buffer(options->request, options->request_bytes);
    caller->status_text = grpc_empty_slice();
    if (options->streamed) {
        begin_call(caller);
        grpc_op ops[] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}};
        run_batch(caller, ops, 1);
        // Completes with the first answer; end_stream waits for it.
        grpc_op initial = receive_initial(caller);
        INVARIANT(grpc_call_start_batch(caller->call, &initial, 1, &caller->initial, NULL) == GRPC_CALL_OK);
    }
    return caller;
}

static void end_stream(struct caller *caller) {
    grpc_op ops[] = {{.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT}, receive_status(caller)};
    run_batch(caller, ops, 2);
    pluck(caller, &caller->initial);
    if (caller->status != GRPC_STATUS_OK) {
        die(caller, "the stream failed");
    }
    end_call(caller);
}

void caller_destroy(struct caller *caller) {
    if (caller->options.streamed) {
        end_stream(caller);
    }
    grpc_channel_destroy(caller->channel);
    grpc_completion_queue_shutdown(caller->queue);
    grpc_completion_queue_destroy(caller->queue);
    free(caller);
}
