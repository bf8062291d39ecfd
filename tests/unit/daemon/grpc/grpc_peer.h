// A blocking gRPC client on the C core, for the tests of the transport: one thread, one pluck queue, bounded waits.
#ifndef EXPERTD_TESTS_UNIT_DAEMON_GRPC_GRPC_PEER_H
#define EXPERTD_TESTS_UNIT_DAEMON_GRPC_GRPC_PEER_H

#include <grpc/grpc.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "daemon/grpc/queue/tag.h"

enum { PEER_WAIT_S = 60, PEER_NO_DEADLINE = 0 };

struct peer {
    grpc_channel *channel;
    grpc_completion_queue *queue;
};

static inline void peer_open(struct peer *peer, const char *target, int fd, int compression) {
    grpc_arg args[] = {
        {.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, .value.integer = -1},
        {.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, .value.integer = 1},
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)(uintptr_t)GRPC_COMPRESSION_CHANNEL_DEFAULT_ALGORITHM,
         .value.integer = compression},
    };
    grpc_channel_args all = {.num_args = 3, .args = args};
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    peer->channel =
        fd >= 0 ? grpc_channel_create_from_fd("peer", fd, credentials, &all) : grpc_channel_create(target, credentials, &all);
    peer->queue = grpc_completion_queue_create_for_pluck(NULL);
    grpc_channel_credentials_release(credentials);
}

static inline void peer_close(struct peer *peer) {
    grpc_channel_destroy(peer->channel);
    grpc_completion_queue_shutdown(peer->queue);
    grpc_completion_queue_destroy(peer->queue);
}

struct peer_call {
    struct peer *peer;
    grpc_call *call;
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice details;
    char tags[3]; // their addresses are the tags of: initial metadata, status, everything else
};

static inline bool peer_batch(struct peer_call *call, const grpc_op *ops, size_t count) {
    void *tag = &call->tags[2];
    TAG_HAND_OVER(tag);
    grpc_call_error failed = grpc_call_start_batch(call->call, ops, count, tag, NULL);
    INVARIANT(failed == GRPC_CALL_OK);
    grpc_event event = grpc_completion_queue_pluck(
        call->peer->queue, tag, gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(PEER_WAIT_S, GPR_TIMESPAN)), NULL);
    INVARIANT(event.type == GRPC_OP_COMPLETE);
    TAG_TAKE(tag);
    return event.success != 0;
}

static inline void peer_start(struct peer_call *call, struct peer *peer, const char *method, int deadline_ms) {
    memset(call, 0, sizeof *call);
    call->peer = peer;
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    gpr_timespec until = deadline_ms ? gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(deadline_ms, GPR_TIMESPAN))
                                     : gpr_inf_future(GPR_CLOCK_MONOTONIC);
    char path[160];
    snprintf(path, sizeof path, "/%s", method);
    grpc_slice slice = grpc_slice_from_copied_string(path);
    call->call = grpc_channel_create_call(peer->channel, NULL, GRPC_PROPAGATE_DEFAULTS, peer->queue, slice, NULL, until, NULL);
    grpc_slice_unref(slice);
    const grpc_op first = {.op = GRPC_OP_RECV_INITIAL_METADATA, .data.recv_initial_metadata.recv_initial_metadata = &call->initial};
    const grpc_op last = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                          .data.recv_status_on_client = {
                              .trailing_metadata = &call->trailing, .status = &call->status, .status_details = &call->details}};
    const grpc_op send = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    grpc_call_start_batch(call->call, &first, 1, &call->tags[0], NULL);
    grpc_call_start_batch(call->call, &last, 1, &call->tags[1], NULL);
    peer_batch(call, &send, 1);
}

static inline bool peer_send(struct peer_call *call, const void *bytes, size_t length) {
    grpc_slice slice = grpc_slice_from_copied_buffer(bytes, length);
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    const grpc_op op = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = message};
    bool ok = peer_batch(call, &op, 1);
    grpc_byte_buffer_destroy(message);
    return ok;
}

static inline void peer_half_close(struct peer_call *call) {
    const grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    peer_batch(call, &op, 1);
}

// Allocated with malloc; NULL at the end of the stream.
static inline uint8_t *peer_receive(struct peer_call *call, size_t *length) {
    grpc_byte_buffer *message = NULL;
    const grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &message};
    peer_batch(call, &op, 1);
    *length = 0;
    if (!message) {
        return NULL;
    }
    const grpc_slice_buffer *slices = &message->data.raw.slice_buffer;
    uint8_t *bytes = malloc(slices->length + 1);
    for (size_t i = 0; i < slices->count; i++) {
        memcpy(bytes + *length, GRPC_SLICE_START_PTR(slices->slices[i]), GRPC_SLICE_LENGTH(slices->slices[i]));
        *length += GRPC_SLICE_LENGTH(slices->slices[i]);
    }
    grpc_byte_buffer_destroy(message);
    return bytes;
}

struct peer_end {
    int status;
    char message[512];
    size_t details_length; // of grpc-status-details-bin
    char pushback[32];     // of grpc-retry-pushback-ms
    uint8_t *reply;        // peer_unary: allocated with malloc; NULL without a reply
    size_t reply_length;
};

static inline void peer_copy(grpc_slice from, char *to, size_t size) {
    snprintf(to, size, "%.*s", (int)GRPC_SLICE_LENGTH(from), (const char *)GRPC_SLICE_START_PTR(from));
}

// Waits for the status and frees the call.
static inline struct peer_end peer_finish(struct peer_call *call) {
    for (int i = 0; i < 2; i++) {
        grpc_event event = grpc_completion_queue_pluck(
            call->peer->queue, &call->tags[i],
            gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(PEER_WAIT_S, GPR_TIMESPAN)), NULL);
        INVARIANT(event.type == GRPC_OP_COMPLETE);
    }
    struct peer_end end = {.status = (int)call->status};
    peer_copy(call->details, end.message, sizeof end.message);
    for (size_t i = 0; i < call->trailing.count; i++) {
        const grpc_metadata *entry = &call->trailing.metadata[i];
        if (grpc_slice_str_cmp(entry->key, "grpc-status-details-bin") == 0) {
            end.details_length = GRPC_SLICE_LENGTH(entry->value);
        } else if (grpc_slice_str_cmp(entry->key, "grpc-retry-pushback-ms") == 0) {
            peer_copy(entry->value, end.pushback, sizeof end.pushback);
        }
    }
    grpc_slice_unref(call->details);
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_call_unref(call->call);
    return end;
}

static inline void peer_cancel(struct peer_call *call) {
    grpc_call_cancel(call->call, NULL);
}

static inline struct peer_end peer_unary(struct peer *peer, const char *method, const void *bytes, size_t length) {
    struct peer_call call;
    peer_start(&call, peer, method, PEER_WAIT_S * 1000);
    peer_send(&call, bytes, length);
    peer_half_close(&call);
    size_t reply_length;
    uint8_t *reply = peer_receive(&call, &reply_length);
    struct peer_end end = peer_finish(&call);
    end.reply = reply;
    end.reply_length = reply_length;
    return end;
}

#endif
