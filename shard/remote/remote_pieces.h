// Cuts a rank's share of a batch into pieces (struct remote_piece): whole experts where possible, so that the rank reads each
// expert's weights once; an expert with more rows than a piece is cut into nearly equal parts. Pure: no I/O, clock or threads.
#ifndef EXPERTD_SHARD_REMOTE_REMOTE_PIECES_H
#define EXPERTD_SHARD_REMOTE_REMOTE_PIECES_H

#include <stdbool.h>

#include "shard/exchange_types.h"
#include "shard/remote/remote_links.h"

// The target size of a piece's result rows, and so the limit of its hidden rows. A piece has at least one row.
enum { REMOTE_PIECE_BYTES = 256 << 10 };

// How far a rank's share has been cut.
struct remote_cursor {
    uint32_t slot, slot_end; // of the placement: the next expert
    uint32_t taken;          // rows of that expert in earlier pieces
    size_t row, hidden;      // the next row among the rank's rows; hidden rows of earlier pieces
};

// Memory for one batch at a time.
struct remote_pieces {
    size_t piece_bytes;
    uint64_t *seen; // [max_tokens] equal to `stamp` if the rank being indexed already has the token
    uint64_t stamp;
    uint32_t *token_hidden;        // [max_tokens] the index of the token's row among that rank's hidden rows
    uint32_t *hidden_rows;         // [max_rows] by row of the plan: the index of its hidden row among those of its rank
    uint32_t *tokens;              // [max_rows] the tokens of a rank's hidden rows, from the first of the rank's rows on
    struct remote_group *groups;   // [max_rows] of the piece that was cut last
    struct remote_cursor *cursors; // [ranks]
};

// Bytes for batches within the options; remote_pieces_init places the arrays in `memory` (zeroed, 64-byte aligned).
size_t remote_pieces_bytes(const struct exchange_options *options);
void remote_pieces_init(struct remote_pieces *pieces, void *memory, const struct exchange_options *options, size_t piece_bytes);

// Starts with a rank's share: numbers its hidden rows in order of first use.
void remote_pieces_begin(struct remote_pieces *pieces, const struct exchange_batch *batch, uint32_t rank);

// Cuts the rank's next piece. row_bytes > 0. False: there is none. *out is valid until the next call for any rank; it borrows the
// batch.
bool remote_pieces_next(struct remote_pieces *pieces, const struct exchange_batch *batch, uint32_t rank, size_t row_bytes,
                        struct remote_piece *out);

#endif
