// The data types of the exchange, for its interface (exchange.h) and its engines (exchange_engine.h).
#ifndef EXPERTD_SHARD_EXCHANGE_TYPES_H
#define EXPERTD_SHARD_EXCHANGE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/plan.h"

struct exchange;

struct exchange_options {
    uint32_t ranks;
    uint32_t layers;      // each layer has its own placement epoch
    size_t max_tokens;    // per batch
    size_t max_rows;      // result rows per batch, over all ranks
    size_t row_bytes_max; // row size of the widest layer
    bool expanded;        // batches may be `expanded`
};

struct exchange_batch {
    uint32_t layer;          // below options.layers
    uint64_t epoch, batch;   // epoch of the plan's placement; number of the batch, greater than that of every earlier one
    const struct plan *plan; // borrowed until collect
    const void *hidden;      // [T, H] in the compute dtype, or [rows, H] if `expanded`; borrowed until collect
    size_t hidden_stride;    // bytes between rows
    size_t width_bytes;      // bytes of a hidden row and of a result row without padding; 0: the row_bytes of exchange_dispatch
    int64_t deadline_ns;     // nobody needs the results later (clock.h); 0 or CLOCK_NEVER: none. Only with remote ranks
    // Only over NCCL: [plan.rows] a copy of plan->row_token in the first device's memory, borrowed until collect
    const uint32_t *row_token;
    bool expanded; // one hidden row per plan row instead of per token, for weights that are applied to the input
};

// The work of one local rank: its rows of the hidden states, and the memory for its result rows.
struct exchange_work {
    struct plan_rank plan;
    const void *hidden; // rows, hidden_stride bytes apart
    size_t hidden_stride;
    const uint32_t *hidden_rows; // [plan.rows] the row of `hidden` of each of the rank's rows, in the same memory; NULL: in order
    void *results;               // [plan.rows] rows of results_stride bytes, which the rank fills
    size_t results_stride;
};

// Numbers since creation, except links_down.
struct exchange_remote_state {
    uint32_t links_down;      // remote ranks whose link has no connection
    uint64_t links_lost;      // connections that ended, or did not answer in time, while a batch waited for their rows
    uint64_t plans_repeated;  // batches that were planned again after a rank had failed
    uint64_t errors;          // shares of batches that a rank answered with an error
    uint64_t answers_late;    // answers to batches that had ended
    uint64_t answers_refused; // answers that no correct peer sends
    uint64_t bytes_sent;      // of hidden rows to remote ranks
    uint64_t bytes_received;  // of result rows from them
};

struct exchange_state {
    uint64_t rebuilds; // communicators created after one was aborted
    bool lost;         // a rank has failed for good: every batch fails with EXPERTD_ERR_SHARD_LOST
    struct exchange_remote_state remote;
};

#endif
