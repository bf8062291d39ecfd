// Rows between the front and its ranks: one interface, an engine behind it (in process here; UCX and NCCL are to follow).
//
// A batch is dispatch (hidden rows leave for their ranks), each local rank's work between exchange_inbox and its outbox, and
// collect (result rows are back at the front). Rows are D, H wide; a result row per (token, choice) travels, never a partial sum.
// Collective per batch: every rank of the epoch takes part, also with no rows. One thread calls; batches do not overlap yet.
#ifndef EXPERTD_SHARD_EXCHANGE_H
#define EXPERTD_SHARD_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"
#include "shard/plan.h"

struct exchange;

struct exchange_options {
    uint32_t ranks;
    uint32_t layers;      // whose epochs are told apart
    size_t max_rows;      // result rows of a batch, over all ranks
    size_t row_bytes_max; // H * sizeof(D) of the widest layer
};

struct exchange_batch {
    uint32_t layer;          // below options.layers
    uint64_t epoch, batch;   // of the placement that the plan was made from; the batch's number
    const struct plan *plan; // borrowed until collect
    const void *hidden;      // [T, H] in D, or [rows, H] where `expanded`: borrowed until collect
    size_t hidden_stride;    // bytes between rows
    int expanded;            // one hidden row per plan row (weights on the input), not per token
};

// What lies before one local rank: its rows of the hidden states, and where its result rows go.
struct exchange_work {
    struct plan_rank plan;
    const void *hidden; // rows, hidden_stride bytes apart
    size_t hidden_stride;
    const uint32_t *hidden_rows; // [plan.rows] row of `hidden` for each of the rank's rows; NULL: in order
    void *results;               // [plan.rows] rows of results_stride bytes, to be filled
    size_t results_stride;
};

// ERR_NOMEM where max_rows * row_bytes_max cannot be reserved.
FALLIBLE exchange_create_inproc(const struct exchange_options *options, struct exchange **out);
void exchange_destroy(struct exchange *exchange); // NULL is legal

// ERR_SHARD_LOST where the layer has had a batch of a later epoch, or the plan is of another: a placement that is out of force may
// name ranks that hold its experts no more.
FALLIBLE exchange_dispatch(struct exchange *exchange, const struct exchange_batch *batch, size_t row_bytes);
FALLIBLE exchange_inbox(struct exchange *exchange, uint32_t rank, struct exchange_work *out);
// After every local rank has filled its results: row i of the plan lies at exchange_result(exchange, i) until the next dispatch.
// ERR_SHARD_LOST where a rank did not answer.
FALLIBLE exchange_collect(struct exchange *exchange);
const void *exchange_result(const struct exchange *exchange, uint32_t row);

#endif
