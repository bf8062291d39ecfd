// The hidden rows that one front has sent of its batch under way: later pieces of the batch refer to them. One thread at a time.
//
// A connection has one batch at a time. The first piece of a later batch replaces the one before, whether that was completed or
// abandoned; so a connection never holds more than the rows of one batch, in memory reserved when it is created.
#ifndef EXPERTD_EXPERT_RANK_RANK_BATCH_H
#define EXPERTD_EXPERT_RANK_RANK_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "shard/remote/remote_links.h"

// A piece as the transport has received it. It has passed no check but that groups and hidden_rows have the stated lengths.
struct rank_piece {
    uint64_t batch, epoch;
    uint32_t layer;                    // the checkpoint's number of the decoder layer
    size_t row_bytes;                  // of a hidden row and of a result row
    const struct remote_group *groups; // [num_groups]
    size_t num_groups;
    size_t first_row, rows;
    const uint32_t *hidden_rows; // [rows]
    size_t first_hidden, num_hidden;
    // Copies the next bytes of the hidden rows to `to`. Called for consecutive ranges, num_hidden * row_bytes bytes in total.
    void (*copy)(void *context, void *to, size_t bytes);
    void *context;
};

struct rank_batch;

// Reserves max_rows rows of up to row_bytes_max bytes; pages are populated on first use. EXPERTD_ERR_NOMEM.
FALLIBLE rank_batch_create(size_t max_rows, size_t row_bytes_max, struct rank_batch **out);
void rank_batch_destroy(struct rank_batch *batch); // NULL is legal

// True if the piece needs no answer: its batch is older than the latest one, or has failed.
bool rank_batch_skips(const struct rank_batch *batch, uint64_t number);
// The batch has failed: its later pieces need no answer.
void rank_batch_fail(struct rank_batch *batch, uint64_t number);

// Copies the piece's hidden rows behind those of earlier pieces. The first piece of a later batch starts anew. The caller has
// compared row_bytes with the layer's row. Nothing is copied on an error:
//   EXPERTD_ERR_INVALID    the piece is not the next one of its batch, or a row refers to a hidden row that was not sent
//   EXPERTD_ERR_TOO_LARGE  the batch has more than max_rows hidden rows
FALLIBLE rank_batch_take(struct rank_batch *batch, const struct rank_piece *piece);

// The batch's hidden rows, *stride bytes from row to row, 64-byte aligned.
const void *rank_batch_hidden(const struct rank_batch *batch, size_t *stride);

#endif
