// The links of the exchange with remote ranks (shard/remote/remote_links.h) over gRPC: one stream expertd.shard.v1.Shard/Rows to
// each connected shard. The owner dials and decides which ranks are used; the exchange sends pieces and receives rows.
//
// A stream belongs to a rank and a connection number of the owner. It ends by itself, by row_links_close, when the exchange drops
// the rank, or after an answer that no correct shard sends, which is logged ("rows_refused"). A stream that ends here is cut with
// its channel, because a peer that does not read would hold the write.
//
// A rank takes rows, and its link has a generation, while it is in use (row_links_use) and its stream is open. Each time both
// become true is a new generation.
//
// Memory: a piece is encoded and its hidden rows are gathered into one buffer of the dialler's pool, from which gRPC sends. The
// pieces of at most one batch wait for each rank, besides the piece that is leaving. Result rows are copied from gRPC's slices to
// where the batch expects them. Messages of 16 KiB and less are copied once more on each way (dial.h, message.h). Nothing else is
// allocated per batch; row_links_open allocates a record of the stream.
//
// Threads. The exchange calls row_links_remote's functions, on its compute thread. The channels' threads receive. The owner calls
// row_links_use, row_links_renew, row_links_close and row_links_figures on any thread, and row_links_open on one thread at a time
// for each rank; all of them also inside `opened` and `ended`.
#ifndef EXPERTD_DAEMON_ROWS_ROW_LINKS_H
#define EXPERTD_DAEMON_ROWS_ROW_LINKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/shard/rows_wire.h"
#include "shard/remote/remote_links.h"

struct dialler;
struct dial_channel;
struct row_links;

struct row_links_options {
    uint32_t ranks, local_ranks; // as in the exchange: ranks [local_ranks, ranks) have a link
    const uint32_t *layers;      // [num_layers] the checkpoint's number of each layer index; borrowed
    size_t num_layers;
    struct dialler *dialler; // borrowed: its pool has the buffers
    const char *method;      // of the streams; borrowed. NULL: "expertd.shard.v1.Shard/Rows"
    // Both are called on the channel's thread, without a lock, and must not block.
    // The stream is open and its token was sent. At most once per row_links_open. The shard may still refuse the token.
    void (*opened)(void *context, uint32_t rank, uint32_t connection);
    // The stream has ended. Once per successful row_links_open, as its last call; `connection` and its channel are not used any
    // more. why: cause and remedy, valid during the call.
    void (*ended)(void *context, uint32_t rank, uint32_t connection, const char *why);
    void *context;
};

// EXPERTD_ERR_NOMEM.
FALLIBLE row_links_create(const struct row_links_options *options, struct row_links **out);
// After the exchange was destroyed, and `ended` was called for each stream. NULL is legal.
void row_links_destroy(struct row_links *links);

// For engine_options.links. Valid until row_links_destroy.
const struct remote_links *row_links_remote(const struct row_links *links);

// Opens the rank's stream and sends the token. A stream of the rank that has not ended is closed first. `channel` is borrowed until
// `ended` and has no other stream, since it is cut with this one. `opened` or `ended` may be called before this returns.
// connect_timeout_ns: until the connection is up. EXPERTD_ERR_NOMEM: nothing was opened, and `ended` does not follow.
FALLIBLE row_links_open(struct row_links *links, uint32_t rank, uint32_t connection, struct dial_channel *channel,
                        const uint8_t token[ROWS_TOKEN_LENGTH], int64_t connect_timeout_ns);

// Whether the rank may take rows; at first it may not. Outlives streams. True: a generation begins, now or when a stream is open;
// no effect while there is one. False: the generation ends, pieces that have not left are discarded, and a batch that waits for the
// rank fails at once with `why`. The stream stays, and answers to what was sent before are ignored.
void row_links_use(struct row_links *links, uint32_t rank, bool may_take_rows, const char *why);

// The rank was silent and is heard again: call this before row_links_use. Ends the stream (`ended`) if rows were under way when the
// rank went out of use, 400 ms ago or more: its TCP connection may be silent for as long again.
void row_links_renew(struct row_links *links, uint32_t rank);

// Ends the rank's generation and stream, and cuts the channel; `ended` follows with `why`. No effect without a stream.
void row_links_close(struct row_links *links, uint32_t rank, const char *why);

// Numbers since creation, over all streams of a rank. Bytes are those of whole messages.
struct row_link_figures {
    uint64_t connections;                       // streams that opened
    uint64_t generations;                       // times that the rank began to take rows
    uint64_t batches, pieces, rows, bytes_sent; // given to gRPC, rows and pieces also those that were discarded later
    uint64_t answers, rows_answered;            // received, late ones included
    uint64_t bytes_received;
    uint64_t compute_ns; // as the rank reports it
    uint64_t errors;     // answers that are an error
    uint64_t refused;    // answers that ended their stream
};
void row_links_figures(const struct row_links *links, uint32_t rank, struct row_link_figures *out); // any thread

#endif
