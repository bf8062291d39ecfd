// The compute thread: takes batches from the batcher, runs them through expert/layer, and hands each request back when its last
// piece is computed. One batch at a time; on devices a large next one is taken in meanwhile, so that copies overlap with work. This
// thread is the team's first.
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

// A request as the worker sees it. Memory is the submitter's; from worker_submit until `done` (or a successful worker_withdraw) it
// belongs to the worker.
struct worker_item {
    struct batcher_entry entry; // layer, tokens, choices, priority, deadline
    struct layer_request request;
    int64_t submitted_ns;
    // filled in before `done`
    enum expertd_err_code error; // EXPERTD_ERR_OK: request.output holds the answer
    char message[EXPERTD_ERR_MESSAGE_MAX];
    int64_t started_ns;
    struct layer_timings timings;          // of its batches together
    uint32_t batch_tokens, batch_requests; // of the largest of them
    unsigned batches;                      // that have a piece of it now; the worker's, under its mutex
};

struct worker_options {
    const struct model *model; // borrowed
    struct engine *engine;     // borrowed; used on one thread at a time
    struct batcher_limits limits;
    struct metrics *metrics;                               // borrowed, may be NULL
    void (*done)(void *context, struct worker_item *item); // on the computing thread; must not block
    // A batch was computed; idle: nothing had waited before it. On the same thread, before its requests' `done`. May be NULL.
    void (*batched)(void *context, uint64_t tokens, int64_t spent_ns, bool idle);
    void *context;
    // The engine can answer nothing any more: a device has failed for good. Once, on the same thread. May be NULL.
    void (*lost)(void *context);
    void *lost_context;
};

FALLIBLE worker_start(const struct worker_options *options, struct worker **out);
void worker_submit(struct worker *worker, struct worker_item *item); // any thread
// Takes back what has not been computed of a request. True: its memory is the submitter's again. False: a batch has some of it, and
// `done` comes when that batch ends, or has been called already. Any thread.
bool worker_withdraw(struct worker *worker, struct worker_item *item);
// Finishes the running batch and joins; what still waits is handed back with EXPERTD_ERR_DRAINING. NULL is legal.
void worker_stop(struct worker *worker);

#endif
