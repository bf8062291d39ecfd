// The shard's messages: result rows and errors, checked and passed to the exchange.
//
// What the exchange cannot know is checked here: that the message can be decoded, that it answers something, and that a shard does
// not answer more rows than it was sent, so that the work which late answers cost is bounded by the work that was asked for.
#include <inttypes.h>
#include <stdio.h>

#include "base/printable.h"
#include "daemon/log/log.h"
#include "daemon/rows/row_link.h"
#include "shard/remote/remote_results.h"

struct answer {
    struct rows_reply reply;
    struct wire_range results; // its rows in the message
};

bool row_answers_body_of(void *data, const struct wire_parts *message, struct wire_range *body) {
    struct rows_reply reply;
    (void)data;
    return !err_is(rows_decode_reply(message, &reply, body)) && body->length > 0;
}

static struct wire_part whole(const void *context, size_t index) {
    const struct rpc_buffer *message = context;
    (void)index;
    return (struct wire_part){message->data, message->length};
}

// Does not read the rows, which may still be in the transport.
static FALLIBLE decode(const struct rpc_buffer *message, struct answer *out) {
    struct wire_parts parts = {.context = message, .count = 1, .part = whole};
    TRY(rows_decode_reply(&parts, &out->reply, &out->results));
    if (out->reply.batch == 0) {
        FAIL(EXPERTD_ERR_MALFORMED, "an answer without the number of its batch");
    }
    if (out->reply.rows == 0 && !out->reply.has_error) {
        FAIL(EXPERTD_ERR_MALFORMED, "an answer to batch %" PRIu64 " with neither rows nor an error", out->reply.batch);
    }
    return OK;
}

static void count(struct row_link *link, const struct answer *answer, size_t bytes) {
    row_count(&link->rows_answered, answer->reply.rows);
    row_count(&link->bytes_received, bytes);
    row_count(&link->compute_ns, answer->reply.compute_ns);
    row_count(&link->errors, answer->reply.has_error);
}

// ---- to the exchange

struct reader {
    struct rpc_buffer *message;
    size_t at;
};

static void read_rows(void *context, void *to, size_t bytes) {
    struct reader *reader = context;
    rpc_buffer_copy(reader->message, reader->at, bytes, to);
    reader->at += bytes;
}

static void pass_error(struct remote_results *results, uint32_t rank, uint64_t generation, const struct rows_reply *reply) {
    char reason[4 * ROWS_REASON_MAX], message[ROW_WHY_MAX], why[sizeof reason + sizeof message + 4];
    printable_escape(reply->reason, reason, sizeof reason);
    printable_escape(reply->message, message, sizeof message);
    snprintf(why, sizeof why, "%s: %s", reason[0] ? reason : "an error without a reason", message);
    remote_results_deliver_error(results, rank, generation, reply->batch, why);
}

static FALLIBLE pass(struct remote_results *results, uint32_t rank, uint64_t generation, const struct answer *answer,
                     struct rpc_buffer *message) {
    const struct rows_reply *reply = &answer->reply;
    struct reader reader = {message, answer->results.first};
    struct remote_rows rows = {.batch = reply->batch,
                               .epoch = reply->epoch,
                               .first_row = reply->first_row,
                               .rows = reply->rows,
                               .bytes = answer->results.length,
                               .copy = read_rows,
                               .context = &reader};
    if (reply->has_error) {
        pass_error(results, rank, generation, reply);
        return OK;
    }
    return remote_results_deliver(results, rank, generation, &rows);
}

// An answer that arrives without a generation belongs to one that has ended, and is ignored.
static FALLIBLE deliver(struct row_stream *stream, const struct answer *answer, struct rpc_buffer *message) {
    struct row_link *link = stream->link;
    pthread_mutex_lock(&link->mutex);
    uint64_t generation = stream->is_ending ? 0 : link->generation, rows_sent = stream->rows_sent;
    struct remote_results *results = generation > 0 ? row_link_begin_call(link) : NULL;
    pthread_mutex_unlock(&link->mutex);
    if (results) {
        err_t e = pass(results, link->rank, generation, answer, message);
        row_link_end_call(link);
        TRY(e);
    }
    stream->rows_answered += answer->reply.has_error ? 1 : answer->reply.rows;
    if (stream->rows_answered > rows_sent) {
        FAIL(EXPERTD_ERR_MALFORMED, "%" PRIu64 " rows were sent over this connection, and %" PRIu64 " are answered", rows_sent,
             stream->rows_answered);
    }
    return OK;
}

// ---- from the transport

static void refuse(struct row_stream *stream, const char *message) {
    struct row_link *link = stream->link;
    char why[ROW_WHY_MAX], quoted[ROW_WHY_MAX];
    pthread_mutex_lock(&link->mutex);
    bool is_ending = stream->is_ending;
    pthread_mutex_unlock(&link->mutex);
    if (is_ending) {
        return;
    }
    row_count(&link->refused, 1);
    log_line(LOG_LEVEL_WARNING, "rows_refused", "rank=%" PRIu32 " address=%s message=%s", link->rank,
             dial_channel_address(stream->channel), log_quote(message, quoted, sizeof quoted));
    snprintf(why, sizeof why, "an answer was refused: %s", message);
    pthread_mutex_lock(&link->mutex);
    row_stream_end_unlock(link, stream, why);
}

void row_answers_on_message(void *data, struct dial_stream *dial, struct rpc_buffer *message) {
    struct row_stream *stream = data;
    struct row_link *link = stream->link;
    struct answer answer;
    if (!message) {
        return; // `closed` follows
    }
    err_t e = decode(message, &answer);
    if (!err_is(e)) {
        count(link, &answer, message->length);
        e = deliver(stream, &answer, message);
    }
    dial_buffer_release(link->links->options.dialler, message);
    if (err_is(e)) {
        refuse(stream, expertd_err_message());
    }
    row_count(&link->answers, 1);
    if (!err_is(e)) {
        (void)dial_read(dial); // false: the stream has ended
    }
}
