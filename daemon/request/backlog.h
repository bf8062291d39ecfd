// How long the work that was admitted will take: a pure decider over tokens and the times of past batches. It foresees a deadline
// that cannot be met, and says when to come back. No clock, no threads: daemon/serve/serve.c guards it.
//
// A batch takes a time of its own (weights are read, whatever the rows) and a time per token: a line through the last batches, each
// weighing nine tenths of the next. The line is kept flat where batches were all of one size: those that are not full then grow
// with the queue, and tell. What waits leaves in a batch per layer, and in a batch more for each further piece, and for each full
// batch of tokens or of requests.
//
// Nobody knows who else will come before a request's batch leaves and ride with it, so the estimate is stretched, and the stretch
// is steered by what it is for: as little as keeps those admitted in time. Nothing is foreseen before the engine has computed
// BACKLOG_SURE batches without a pause.
#ifndef EXPERTD_DAEMON_REQUEST_BACKLOG_H
#define EXPERTD_DAEMON_REQUEST_BACKLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Of more layers some share a count.
enum { BACKLOG_SURE = 2, BACKLOG_LAYERS = 256 };

struct backlog_limits {
    uint32_t batch_tokens, batch_requests; // most of a batch
    uint32_t piece_tokens;                 // larger requests are computed in pieces, with small ones in between
};

struct backlog {
    struct backlog_limits limits;
    uint64_t small_tokens, large_tokens, small_requests;
    uint32_t requests[BACKLOG_LAYERS];
    uint32_t layers; // that requests wait for
    // decayed sums over batches: their number, tokens, nanoseconds, and products of those
    double count, tokens, spent_ns, tokens_tokens, tokens_spent;
    uint32_t busy_batches; // without a pause, up to BACKLOG_SURE
    // Of small requests and of large ones, which are foreseen differently.
    struct backlog_margin {
        double stretch; // of the estimate
        double used;    // of their time, most that a request needed since the last batch
        bool refused;   // the estimate was too long for one since then
    } margins[2];
};

void backlog_init(struct backlog *backlog, const struct backlog_limits *limits);
void backlog_enter(struct backlog *backlog, size_t layer, uint32_t tokens);
void backlog_leave(struct backlog *backlog, size_t layer, uint32_t tokens); // computed, or given up
// A batch was computed; idle: nothing had waited before it.
void backlog_batch(struct backlog *backlog, uint64_t tokens, int64_t spent_ns, bool idle);

// How long a request of so many tokens would take from now, by the line alone; 0 where that cannot be said. Ask before it enters.
int64_t backlog_foreseen_ns(const struct backlog *backlog, uint32_t tokens);
// The time within which a request of so many tokens is done, as good as surely; 0 where that cannot be said. Where
// that is more than it is allowed, the caller refuses it.
int64_t backlog_wait_ns(struct backlog *backlog, uint32_t tokens, int64_t allowed_ns);
// A request that was allowed so much took so much, whether it was computed or given up.
void backlog_came(struct backlog *backlog, uint32_t tokens, int64_t took_ns, int64_t allowed_ns);
// When to come back: the time until what is here is done, within 10 ms and 5 s.
int64_t backlog_pushback_ms(const struct backlog *backlog);

#endif
