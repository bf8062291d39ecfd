// Exchange of rows between the front and its ranks. Three engines implement the interface: one for ranks in this process, one for
// ranks on devices, which uses NCCL between several devices, and one for ranks in this process and in others, which uses links
// (remote/remote_links.h). An engine over UCX is planned.
//
// A batch is: exchange_dispatch sends hidden rows to their ranks; each local rank computes from exchange_inbox into its result
// rows; exchange_collect sends result rows to the front; after exchange_wait they have arrived. Rows have the compute dtype. One
// result row per (token, choice) is sent, never a partial sum. Over NCCL the calls are collective: every rank of the epoch takes
// part in each batch, even if it has no rows. One thread calls these functions, for one batch at a time.
//
// Memory: without devices, rows are in host memory. Over NCCL the front is the first device: hidden rows and results are in its
// memory, and a rank's rows are in the memory of its own device. Dispatch, inbox and collect only put work into the devices'
// streams, where the ranks' kernels follow.
#ifndef EXPERTD_SHARD_EXCHANGE_H
#define EXPERTD_SHARD_EXCHANGE_H

#include "base/err.h"
#include "shard/exchange_types.h"

// EXPERTD_ERR_NOMEM: max_rows * row_bytes_max cannot be reserved.
FALLIBLE exchange_create_inproc(const struct exchange_options *options, struct exchange **out);

struct expertd_devices;
struct exchange_over_nccl {
    // Borrowed. Each device is an NCCL rank; expertd_device_of_rank assigns the plan's ranks to devices.
    struct expertd_devices *devices;
    // The time limit of exchange_wait, and of the start of each transfer. A rank that takes longer counts as not answering; with a
    // single device it limits a kernel that does not end. Becomes the devices' timeout (devices.h) when the exchange is created.
    int64_t timeout_ns;
    int64_t join_timeout_ns; // for creating a communicator
};
// Reserves exchange_nccl_bytes on every device. NCCL allocates more memory itself; exchange_nccl_margin is an estimate of it.
// EXPERTD_ERR_NOMEM. EXPERTD_ERR_UNAVAILABLE: see links_create, or a first transfer failed.
FALLIBLE exchange_create_nccl(const struct exchange_options *options, const struct exchange_over_nccl *over, struct exchange **out);
size_t exchange_nccl_bytes(const struct exchange_options *options, const struct exchange_over_nccl *over, uint32_t device);
size_t exchange_nccl_margin(const struct expertd_devices *devices, uint32_t device);

struct remote_links;
struct exchange_over_remote {
    const struct remote_links *links; // borrowed
    uint32_t local_ranks;             // ranks [0, local_ranks) compute in this process, the others have a link; 0 to options.ranks
    int64_t timeout_ns;               // from dispatch. A rank that has not answered then is lost: its connection is ended
    size_t piece_bytes;               // target size of a message's rows; 0: REMOTE_PIECE_BYTES
    // A rank that answers nothing for so long, although it owes rows, is left out of the batch if other live ranks hold the experts
    // of its rows, and its connection is ended after eight times as long. More for a rank whose answers take longer. 0: 250 ms
    int64_t patience_ns;
};
// Reserves exchange_remote_bytes, and attaches itself to the links until it is destroyed. EXPERTD_ERR_NOMEM.
FALLIBLE exchange_create_remote(const struct exchange_options *options, const struct exchange_over_remote *over,
                                struct exchange **out);
size_t exchange_remote_bytes(const struct exchange_options *options); // beside the result rows

void exchange_destroy(struct exchange *exchange); // NULL is legal

uint32_t exchange_local_ranks(const struct exchange *exchange); // ranks [0, ...) whose work exchange_inbox returns

// The ranks that can take rows now, for the plan of a batch; NULL: all. attempt: how often this batch has been planned before. The
// mask is a snapshot, valid until the next call. From attempt 1 on, it leaves out ranks that have failed earlier attempts and would
// fail again.
const bool *exchange_live(struct exchange *exchange, unsigned attempt);
// After dispatch or collect has failed with EXPERTD_ERR_SHARD_LOST, and exchange_settle: true if a rank of the batch has failed, so
// that the next exchange_live differs, and a new plan may succeed on other holders of its experts.
bool exchange_may_plan_again(const struct exchange *exchange);

// Call this before any row of a batch is copied to a rank. EXPERTD_ERR_SHARD_LOST: a rank has failed for good, or has not ended
// work of an earlier batch, which could still overwrite the new rows.
FALLIBLE exchange_alive(struct exchange *exchange);
// Call this before a batch is computed. EXPERTD_ERR_SHARD_LOST: a rank has failed for good, or no new communicator can be created.
FALLIBLE exchange_ready(struct exchange *exchange);

// EXPERTD_ERR_SHARD_LOST: the layer has already had a batch of a later epoch, or the plan belongs to another epoch, so that the
// placement may name ranks that no longer hold its experts. From here to exchange_wait the same error also means that a rank failed
// or did not answer; then call exchange_settle. The next batch gets a new communicator, or a plan for the ranks that are left.
FALLIBLE exchange_dispatch(struct exchange *exchange, const struct exchange_batch *batch, size_t row_bytes);
FALLIBLE exchange_inbox(struct exchange *exchange, uint32_t rank, struct exchange_work *out); // rank < exchange_local_ranks
// Call this when every local rank has filled its results. Row i of the plan is at exchange_result(exchange, i) until
// the next dispatch. EXPERTD_ERR_DEADLINE: the batch's deadline has passed while remote ranks computed.
FALLIBLE exchange_collect(struct exchange *exchange);
const void *exchange_result(const struct exchange *exchange, uint32_t row);
// Waits until the results have arrived and all work that was put into the streams since has ended.
FALLIBLE exchange_wait(struct exchange *exchange);
// Call this after any error, also after an error of the caller: waits until no work of the batch is in progress. Afterwards no
// thread reads or writes the batch's memory.
void exchange_settle(struct exchange *exchange);

// Bytes of the results' memory in pages that have no physical memory yet; 0 if the results are on devices. Any thread.
size_t exchange_untouched(const struct exchange *exchange);

void exchange_state(const struct exchange *exchange, struct exchange_state *out); // any thread

#endif
