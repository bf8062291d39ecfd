// Rows between the front and its ranks: one interface, an engine behind it: inside the process, or over NCCL between devices (UCX
// is to follow).
//
// A batch is dispatch (hidden rows leave for their ranks), each local rank's work between exchange_inbox and its outbox, and
// collect (result rows leave for the front); after exchange_wait they are there. Rows are D, as wide as its experts read and give;
// a result row per (token, choice) travels, never a partial sum. Collective per batch: every rank of the epoch takes part, also
// with no rows. One thread calls; batches do not overlap.
//
// Where rows lie is the engine's: in process it is the host's memory. Over NCCL the front is the first device: hidden rows and
// results are its memory, a rank's work is that of its own device, and dispatch, inbox and collect only put work into the devices'
// streams, where a rank's kernels follow.
#ifndef EXPERTD_SHARD_EXCHANGE_H
#define EXPERTD_SHARD_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertd/base/dtype.h"
#include "shard/plan.h"

struct exchange;

struct exchange_options {
    uint32_t ranks;
    uint32_t layers;      // whose epochs are told apart
    size_t max_tokens;    // of a batch
    size_t max_rows;      // result rows of a batch, over all ranks
    size_t row_bytes_max; // of the widest layer's rows
    bool expanded;        // batches may be `expanded`
};

struct exchange_batch {
    uint32_t layer;          // below options.layers
    uint64_t epoch, batch;   // of the placement that the plan was made from; the batch's number
    const struct plan *plan; // borrowed until collect
    const void *hidden;      // [T, H] in D, or [rows, H] where `expanded`: borrowed until collect
    size_t hidden_stride;    // bytes between rows
    // [plan.rows] over NCCL what plan->row_token says, in the first device's memory, borrowed as `hidden` is; else not read
    const uint32_t *row_token;
    bool expanded; // one hidden row per plan row (weights on the input), not per token
};

// What lies before one local rank: its rows of the hidden states, and where its result rows go.
struct exchange_work {
    struct plan_rank plan;
    const void *hidden; // rows, hidden_stride bytes apart
    size_t hidden_stride;
    const uint32_t *hidden_rows; // [plan.rows], where the rows are: row of `hidden` for each of the rank's rows; NULL: in order
    void *results;               // [plan.rows] rows of results_stride bytes, to be filled
    size_t results_stride;
};

// EXPERTD_ERR_NOMEM where max_rows * row_bytes_max cannot be reserved.
FALLIBLE exchange_create_inproc(const struct exchange_options *options, struct exchange **out);

struct expertd_devices;
struct exchange_over_nccl {
    struct expertd_devices
        *devices;            // borrowed; each is a rank of NCCL's, and has the plan's ranks that expertd_device_of_rank says
    int64_t timeout_ns;      // of a batch, from exchange_wait; what takes longer is a rank that does not answer, or, of one device
                             // alone, a kernel that does not end. From creation on the devices' own (devices.h)
    int64_t join_timeout_ns; // of a communicator
};
// Reserves on every device what exchange_nccl_bytes says; NCCL takes more, for which exchange_nccl_margin is to be left.
// EXPERTD_ERR_NOMEM; EXPERTD_ERR_UNAVAILABLE: see links_create, or a first transfer fails.
FALLIBLE exchange_create_nccl(const struct exchange_options *options, const struct exchange_over_nccl *over, struct exchange **out);
size_t exchange_nccl_bytes(const struct exchange_options *options, const struct exchange_over_nccl *over, uint32_t device);
size_t exchange_nccl_margin(const struct expertd_devices *devices, uint32_t device);

void exchange_destroy(struct exchange *exchange); // NULL is legal

// Before any row of a batch is brought to a rank: EXPERTD_ERR_SHARD_LOST where one has failed for good, or has yet to end what an
// earlier batch gave it, which would still be written where these rows go.
FALLIBLE exchange_alive(struct exchange *exchange);
// Before a batch is worked on: EXPERTD_ERR_SHARD_LOST where a rank has failed for good, or no new communicator is to be had.
FALLIBLE exchange_ready(struct exchange *exchange);

// EXPERTD_ERR_SHARD_LOST where the layer has had a batch of a later epoch, or the plan is of another: a placement that is out of
// force may name ranks that hold its experts no more. From here to exchange_wait EXPERTD_ERR_SHARD_LOST also says that a rank
// failed or did not answer: then exchange_settle, and the next batch finds a new communicator.
FALLIBLE exchange_dispatch(struct exchange *exchange, const struct exchange_batch *batch, size_t row_bytes);
FALLIBLE exchange_inbox(struct exchange *exchange, uint32_t rank, struct exchange_work *out);
// After every local rank has filled its results: row i of the plan lies at exchange_result(exchange, i) until the next dispatch.
FALLIBLE exchange_collect(struct exchange *exchange);
const void *exchange_result(const struct exchange *exchange, uint32_t row);
// Until the results are there, with everything that the streams were given since.
FALLIBLE exchange_wait(struct exchange *exchange);
// After an error, also the caller's own: nothing of the batch is under way any more.
void exchange_settle(struct exchange *exchange);

// Bytes of the results that no memory stands behind yet; 0 where they lie on devices. Any thread.
size_t exchange_untouched(const struct exchange *exchange);

struct exchange_state {
    uint64_t rebuilds; // communicators that took the place of one that was given up
    bool lost;         // a rank has failed for good: every batch will be EXPERTD_ERR_SHARD_LOST
};
void exchange_state(const struct exchange *exchange, struct exchange_state *out); // any thread

#endif
