#include "client/c/grpc/call_end.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_FIRST_BYTES = 1 << 16 };
void call_end_init(struct call_end *end) {
    *end = (struct call_end){.status_text = grpc_empty_slice()};
    grpc_metadata_array_init(&end->trailing);
}

void call_end_deinit(struct call_end *end) {
    grpc_slice_unref(end->status_text);
    grpc_metadata_array_destroy(&end->trailing);
    *end = (struct call_end){.status_text = grpc_empty_slice()};
}

grpc_op call_end_op(struct call_end *end) {
    return (grpc_op){.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                     .data.recv_status_on_client = {
                         .trailing_metadata = &end->trailing, .status = &end->status, .status_details = &end->status_text}};
}

void calls_describe_end(struct calls *calls, const struct call_end *end, struct calls_end *out) {
    struct proto_error_text *failure = &calls->failure;
    if (!channel_details(&end->trailing, failure)) {
        *failure = (struct proto_error_text){.grpc_code = (int)end->status};
        snprintf(failure->reason, sizeof failure->reason, "%s", proto_status_of((int)end->status).name);
        snprintf(failure->message, sizeof failure->message, "%.*s", (int)GRPC_SLICE_LENGTH(end->status_text),
                 (const char *)GRPC_SLICE_START_PTR(end->status_text));
    }
    out->grpc_code = (int)end->status;
    out->reason = failure->reason;
    out->message = failure->message;
}

static bool reserve_bytes(struct calls *calls, size_t length) {
    if (length > calls->capacity) {
        size_t capacity = length > ANSWER_FIRST_BYTES ? length : ANSWER_FIRST_BYTES;
        free(calls->bytes); // the previous answer is no longer valid
        calls->bytes = malloc(capacity);
        calls->capacity = calls->bytes ? capacity : 0;
    }
    return length <= calls->capacity;
}

static bool copy_answer(struct calls *calls, grpc_byte_buffer *answer, size_t length) {
    grpc_byte_buffer_reader reader;
    if (!reserve_bytes(calls, length) || !grpc_byte_buffer_reader_init(&reader, answer)) {
        return false;
    }
    grpc_slice *slice;
    size_t used = 0;
    while (grpc_byte_buffer_reader_peek(&reader, &slice) && GRPC_SLICE_LENGTH(*slice) <= length - used) {
        memcpy(calls->bytes + used, GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice));
        used += GRPC_SLICE_LENGTH(*slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
    return used == length;
}

bool calls_invalid_answer(struct calls *calls, const char *why, struct calls_end *out) {
    struct proto_error_text *failure = &calls->failure;
    *failure = (struct proto_error_text){.grpc_code = GRPC_STATUS_INTERNAL};
    snprintf(failure->message, sizeof failure->message, "%s", why);
    out->answered = false;
    out->grpc_code = failure->grpc_code;
    out->reason = "BAD_ANSWER";
    out->message = failure->message;
    return false;
}

bool calls_read_answer(struct calls *calls, grpc_byte_buffer *answer, struct calls_end *out) {
    if (!answer) {
        return calls_invalid_answer(calls, "the call ended with OK but without an answer", out);
    }
    size_t length = grpc_byte_buffer_length(answer);
    if (!copy_answer(calls, answer, length)) {
        return calls_invalid_answer(calls, "no memory for the answer, or it cannot be read", out);
    }
    if (err_is(wire_decode_reply(calls->bytes, length, &calls->reply))) {
        return calls_invalid_answer(calls, expertd_err_message(), out);
    }
    if (calls->reply.has_error) { // only for requests in a stream
        calls->failure = calls->reply.error;
        out->grpc_code = calls->failure.grpc_code;
        out->reason = calls->failure.reason[0] ? calls->failure.reason : proto_status_of(calls->failure.grpc_code).name;
        out->message = calls->failure.message;
        return true;
    }
    out->answered = true;
    out->reply = &calls->reply;
    return true;
}
