// Estimates how long the admitted work will take: it predicts deadlines that cannot be met, and the delay after which a refused
// request should be repeated. Pure: tokens, and the times of past batches. No clock, no threads; daemon/serve/serve_budget.c guards
// it.
//
// The model of a batch is a line: a fixed time (the weights are read for any number of rows) plus a time per token. It is
// fitted to the last batches, where each batch weighs nine tenths of the next. If all batches had nearly the same size, the fitted
// slope is near 0. That is harmless: batches that are not full grow with the queue, and their different sizes then determine the
// slope. The queue needs one batch per layer, one more for each further piece of a large request, and one more for each full batch
// of tokens or of requests.
//
// Later requests may join a request's batch, so the estimate is multiplied by a stretch factor. A control loop keeps the factor as
// small as possible while admitted requests meet their deadlines. Nothing is predicted before the engine has computed BACKLOG_SURE
// batches without a pause.
#ifndef EXPERTD_DAEMON_REQUEST_BACKLOG_H
#define EXPERTD_DAEMON_REQUEST_BACKLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Models with more than BACKLOG_LAYERS layers share counts between layers.
enum { BACKLOG_SURE = 2, BACKLOG_LAYERS = 256 };

struct backlog_limits {
    uint32_t batch_tokens, batch_requests; // maxima of a batch
    uint32_t piece_tokens;                 // larger requests are split into pieces, with batches of small requests in between
};

struct backlog {
    struct backlog_limits limits;
    uint64_t small_tokens, large_tokens, small_requests;
    uint32_t requests[BACKLOG_LAYERS];
    uint32_t layers; // layers with waiting requests
    // exponentially weighted sums over batches: count, tokens, nanoseconds, and products
    double count, tokens, spent_ns, tokens_tokens, tokens_spent;
    uint32_t busy_batches; // without a pause, up to BACKLOG_SURE
    // [0]: small requests, [1]: large ones, which have different estimates.
    struct backlog_margin {
        double stretch; // factor of the estimate
        double used;    // greatest part of its allowed time that a request took since the last batch
        bool refused;   // the estimate was too long for a request since then
    } margins[2];
};

void backlog_init(struct backlog *backlog, const struct backlog_limits *limits);
void backlog_enter(struct backlog *backlog, size_t layer, uint32_t tokens);
void backlog_leave(struct backlog *backlog, size_t layer, uint32_t tokens); // computed or abandoned
// A batch was computed. idle: the worker had waited for it.
void backlog_batch(struct backlog *backlog, uint64_t tokens, int64_t spent_ns, bool idle);

// The estimated time until a request of `tokens` tokens is computed, without the stretch factor; 0: unknown. Before backlog_enter.
int64_t backlog_estimate_ns(const struct backlog *backlog, uint32_t tokens);
// The same, with the stretch factor. If the result exceeds allowed_ns the caller refuses the request, and the control loop counts
// it.
int64_t backlog_wait_ns(struct backlog *backlog, uint32_t tokens, int64_t allowed_ns);
// Records that a request, computed or abandoned, took took_ns of its allowed_ns: input of the control loop.
void backlog_observe(struct backlog *backlog, uint32_t tokens, int64_t took_ns, int64_t allowed_ns);
// The retry delay of a refused request: the time until the current work is done, between 10 ms and 5 s.
int64_t backlog_pushback_ms(const struct backlog *backlog);

#endif
