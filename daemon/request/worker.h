// The compute thread: takes batches from the batcher, computes them with expert/layer, and returns each request after its last
// piece. One batch is computed at a time. On devices, a large next batch is converted and copied meanwhile. This thread is also the
// first thread of the team.
#ifndef EXPERTD_DAEMON_REQUEST_WORKER_H
#define EXPERTD_DAEMON_REQUEST_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/request/batcher.h"
#include "expert/layer/layer.h"

struct worker;
struct metrics;

// A request. The submitter owns the memory; the worker uses it from worker_submit until `done` or a successful worker_withdraw.
struct worker_item {
    struct batcher_entry entry; // layer, tokens, choices, priority, deadline
    struct layer_request request;
    int64_t submitted_ns;
    // set before `done`
    enum expertd_err_code error; // EXPERTD_ERR_OK: request.output holds the answer
    char message[EXPERTD_ERR_MESSAGE_MAX];
    int64_t started_ns;
    struct layer_timings timings;          // sum over its batches
    uint32_t batch_tokens, batch_requests; // of its largest batch
    unsigned batches;                      // batches that hold a piece of it now; guarded by the worker's mutex
};

struct worker_options {
    const struct model *model; // borrowed
    struct engine *engine;     // borrowed; used on one thread at a time
    struct batcher_limits limits;
    struct metrics *metrics;                               // borrowed, may be NULL
    void (*done)(void *context, struct worker_item *item); // on the compute thread; must not block
    // A batch was computed. idle: the worker had waited for it. On the compute thread, before `done` of its requests. May be NULL.
    void (*batched)(void *context, uint64_t tokens, int64_t spent_ns, bool idle);
    void *context;
    // A device has failed permanently: no further batch can be computed. Once, on the compute thread. May be NULL.
    void (*lost)(void *context);
    void *lost_context;
};

FALLIBLE worker_start(const struct worker_options *options, struct worker **out);
void worker_submit(struct worker *worker, struct worker_item *item); // any thread
// Removes the part of a request that is not in a batch yet. True: the worker no longer uses its memory. False: a batch holds a
// piece of it, and `done` follows when that batch ends, or `done` was already called. Any thread.
bool worker_withdraw(struct worker *worker, struct worker_item *item);
// Finishes the running batch and joins the thread. Waiting requests are returned with EXPERTD_ERR_DRAINING. NULL is legal.
void worker_stop(struct worker *worker);

#endif
