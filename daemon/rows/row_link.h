// The shared structs of the links: a rank's link and its stream. Private to daemon/rows/.
//
// Lock. row_link.mutex guards the state of a link and of its streams. It is held for a few instructions, never while a function of
// another module is called: dial.h, remote_results.h and the owner's callbacks are called without it. Two counters make such calls
// safe: row_link.calls (the results must not go away) and row_stream.users (the stream and its channel must not).
#ifndef EXPERTD_DAEMON_ROWS_ROW_LINK_H
#define EXPERTD_DAEMON_ROWS_ROW_LINK_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/rows/row_links.h"
#include "daemon/rows/row_message.h"

struct remote_results;

enum { ROW_WHY_MAX = 512 };

// One call of row_links_open; freed after `ended`.
struct row_stream {
    struct row_link *link;
    uint32_t connection;
    struct dial_channel *channel; // borrowed until `ended`
    uint8_t token[ROWS_TOKEN_LENGTH];
    // Guarded by link->mutex.
    struct dial_stream *dial; // from the dialler's `opened` on
    bool is_ready;            // the token was sent
    bool is_ending;           // nothing is sent and no answer is taken any more
    bool is_writing;          // a write is under way or about to start; at first that of the token
    struct row_message *leaving;
    struct row_queue queue;
    unsigned users;        // threads that are in, or about to enter, a function of dial.h with the stream or its channel
    uint64_t rows_sent;    // also of messages that were discarded
    int64_t unused_ns;     // when the owner took the rank out of use after rows were sent; 0: it is in use, or none were
    char why[ROW_WHY_MAX]; // set with is_ending, constant afterwards
    // The channel's thread only.
    uint64_t rows_answered; // an error counts as a row
};

struct row_link {
    struct row_links *links;
    uint32_t rank;
    _Atomic uint64_t generation; // 0: the rank takes no rows. Written under the mutex
    pthread_mutex_t mutex;       // guards the fields up to the next comment
    pthread_cond_t changed;      // signalled when `calls` or a stream's `users` become 0
    uint64_t last_generation, last_batch;
    bool in_use; // the owner's row_links_use
    struct remote_results *results;
    unsigned calls;            // of remote_results.h that are under way or about to start
    struct row_stream *stream; // the latest; NULL: it has ended
    char why[ROW_WHY_MAX];     // why the latest generation ended
    // Any thread; struct row_link_figures.
    _Atomic uint64_t connections, generations, batches, pieces, rows, bytes_sent;
    _Atomic uint64_t answers, rows_answered, bytes_received, compute_ns, errors, refused;
};

struct row_links {
    struct row_links_options options;
    struct remote_links interface;
    atomic_uint streams;    // whose `ended` was not called yet
    struct row_link link[]; // [ranks - local_ranks]
};

static inline struct row_link *row_link_of(const struct row_links *links, uint32_t rank) {
    INVARIANT(rank >= links->options.local_ranks && rank < links->options.ranks);
    return (struct row_link *)&links->link[rank - links->options.local_ranks];
}

static inline void row_count(_Atomic uint64_t *counter, uint64_t more) {
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

// ---- row_table.c: for row_links.interface

extern const struct remote_links_table ROW_TABLE;

// ---- row_link.c: generations

FALLIBLE row_link_init(struct row_link *link, struct row_links *links, uint32_t rank);
void row_link_deinit(struct row_link *link); // legal on a zeroed struct

// A generation that has ended, until the exchange knows it.
struct row_loss {
    uint64_t generation;
    struct remote_results *results; // NULL: there was no generation, or there is no exchange
    struct row_queue discarded;
};

// Begins a generation if the rank is in use and its stream can take rows. The caller holds the mutex.
void row_link_begin_generation(struct row_link *link);
// Ends the generation, if there is one, and empties the queue of the rank's stream. The caller holds the mutex, releases it, and
// calls row_link_report_loss.
void row_link_end_generation(struct row_link *link, const char *why, struct row_loss *loss);
void row_link_report_loss(struct row_link *link, struct row_loss *loss, const char *why);

// Begins a call of remote_results.h: NULL if there is no exchange. The caller holds the mutex, and calls row_link_end_call later.
struct remote_results *row_link_begin_call(struct row_link *link);
void row_link_end_call(struct row_link *link); // without the mutex

// ---- row_stream.c: the stream

FALLIBLE row_stream_create(struct row_link *link, uint32_t connection, struct dial_channel *channel, const uint8_t *token,
                           struct row_stream **out);
// Becomes link->stream and is dialled. Frees the stream on an error.
FALLIBLE row_stream_open(struct row_stream *stream, int64_t connect_timeout_ns);

// The next message to be written, or NULL: none, or another one is being written. The caller holds the mutex, releases it, and
// passes the message to row_stream_write.
struct row_message *row_stream_next(struct row_stream *stream);
void row_stream_write(struct row_stream *stream, struct row_message *message);

// Ends a rank's stream, if it is not ending, and its generation: `ended` follows. The caller holds the mutex; it is released and
// not taken again. stream: that of the link, or NULL.
void row_stream_end_unlock(struct row_link *link, struct row_stream *stream, const char *why);

// ---- row_answers.c: messages of the shard

bool row_answers_body_of(void *data, const struct wire_parts *message, struct wire_range *body);
void row_answers_on_message(void *data, struct dial_stream *dial, struct rpc_buffer *message);

#endif
