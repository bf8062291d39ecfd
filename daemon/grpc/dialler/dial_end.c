#include "daemon/grpc/dialler/dial_end.h"

#include <stdio.h>
#include <string.h>

#include "proto/tls/tls_failure.h"

static bool find_details(const struct dial_stream *stream, struct proto_error_text *out) {
    for (size_t i = 0; i < stream->trailing.count; i++) {
        const grpc_metadata *entry = &stream->trailing.metadata[i];
        if (grpc_slice_str_cmp(entry->key, "grpc-status-details-bin") == 0) {
            return !err_is(proto_decode_status(GRPC_SLICE_START_PTR(entry->value), GRPC_SLICE_LENGTH(entry->value), out)) &&
                   out->reason[0];
        }
    }
    return false;
}

static void describe_lost(const struct dial_stream *stream, char out[EXPERTD_ERR_MESSAGE_MAX]) {
    char text[EXPERTD_ERR_MESSAGE_MAX / 2];
    snprintf(text, sizeof text, "%.*s", (int)GRPC_SLICE_LENGTH(stream->status_text),
             (const char *)GRPC_SLICE_START_PTR(stream->status_text));
    struct tls_failure_context context = {.address = stream->channel->address,
                                          .tls = stream->channel->tls != NULL,
                                          .has_answered = stream->connection && atomic_load(&stream->connection->was_up)};
    tls_failure_explain(&context, text, out, EXPERTD_ERR_MESSAGE_MAX);
}

void dial_end_describe(struct dial_stream *stream, bool cancelled) {
    struct dial_end_texts *texts = &stream->texts;
    struct dial_end *out = &stream->end;
    struct proto_status status = proto_status_of((int)stream->status);
    *out = (struct dial_end){.grpc_code = (int)stream->status, .code = status.code, .reason = "", .retry_after_ms = -1};
    out->message = texts->message;
    texts->message[0] = '\0';
    if (stream->refusal.code != EXPERTD_ERR_OK) {
        out->code = stream->refusal.code;
        out->message = stream->refusal.message;
        return;
    }
    if (find_details(stream, &texts->details)) {
        out->answered = true;
        out->code = proto_code_of_reason(texts->details.reason, (int)stream->status);
        out->reason = texts->details.reason;
        out->message = texts->details.message;
        out->retry_after_ms = texts->details.retry_after_ms;
        return;
    }
    if (stream->late) {
        out->code = EXPERTD_ERR_DEADLINE;
        snprintf(texts->message, sizeof texts->message, "%s was not connected within %lld ms", stream->channel->address,
                 (long long)(stream->connect_timeout_ns / 1000000));
        return;
    }
    // gRPC does not tell a status of the server from one that it made up for a connection without an answer, which is UNAVAILABLE.
    // Servers of this project send details with that status.
    bool lost = stream->status == GRPC_STATUS_UNAVAILABLE;
    out->cancelled = cancelled && (lost || stream->status == GRPC_STATUS_CANCELLED);
    out->answered = !out->cancelled && !lost;
    if (out->cancelled) {
        out->code = EXPERTD_ERR_CANCELLED;
        snprintf(texts->message, sizeof texts->message, "the stream to %s was cancelled here", stream->channel->address);
    } else if (lost) {
        describe_lost(stream, texts->message);
    } else {
        snprintf(texts->message, sizeof texts->message, "%.*s", (int)GRPC_SLICE_LENGTH(stream->status_text),
                 (const char *)GRPC_SLICE_START_PTR(stream->status_text));
    }
}
