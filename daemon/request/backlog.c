#include "daemon/request/backlog.h"

#include "base/clock.h"
#include "base/err.h"

enum { PUSHBACK_MS_MIN = 10, PUSHBACK_MS_MAX = 5000 };

static const double DECAY = 0.9;
// This part of the squared mean size is added to the variance: batch sizes that differ by less than a tenth give no slope.
static const double VARIANCE_MIN = 0.01;
// The control loop of the stretch factor, once per batch. It rises by the amount by which the batch's latest request exceeded
// USED_TARGET of its allowed time. Otherwise it falls by STEP_DOWN if the estimate refused a request, and else drifts slowly to
// STRETCH_FIRST. The values are from tests/unit/daemon/request/test_overload.c: with a smaller margin its noisy engine misses
// deadlines, with a larger one requests are refused too early.
static const double STRETCH_FIRST = 1.5, STRETCH_MIN = 0.5, STRETCH_MAX = 4;
static const double USED_TARGET = 0.7, USED_MAX = 2, STEP_UP = 1, STEP_DOWN = 0.01, DRIFT = 1.0 / 256;

void backlog_init(struct backlog *backlog, const struct backlog_limits *limits) {
    *backlog = (struct backlog){.limits = *limits, .margins = {{.stretch = STRETCH_FIRST}, {.stretch = STRETCH_FIRST}}};
}

static bool is_large(const struct backlog *backlog, uint32_t tokens) {
    return tokens > backlog->limits.piece_tokens;
}

void backlog_enter(struct backlog *backlog, size_t layer, uint32_t tokens) {
    *(is_large(backlog, tokens) ? &backlog->large_tokens : &backlog->small_tokens) += tokens;
    backlog->small_requests += !is_large(backlog, tokens);
    backlog->layers += backlog->requests[layer % BACKLOG_LAYERS]++ == 0;
}

void backlog_leave(struct backlog *backlog, size_t layer, uint32_t tokens) {
    uint64_t *kind = is_large(backlog, tokens) ? &backlog->large_tokens : &backlog->small_tokens;
    INVARIANT(*kind >= tokens && backlog->requests[layer % BACKLOG_LAYERS] > 0);
    *kind -= tokens;
    backlog->small_requests -= !is_large(backlog, tokens);
    backlog->layers -= --backlog->requests[layer % BACKLOG_LAYERS] == 0;
}

static void adjust_stretch(struct backlog_margin *margin) {
    double *stretch = &margin->stretch;
    if (margin->used > USED_TARGET) {
        *stretch += (margin->used - USED_TARGET) * STEP_UP;
    } else if (margin->refused) {
        *stretch -= STEP_DOWN;
    } else {
        *stretch += (STRETCH_FIRST - *stretch) * DRIFT;
    }
    *stretch = *stretch < STRETCH_MIN ? STRETCH_MIN : *stretch > STRETCH_MAX ? STRETCH_MAX : *stretch;
    margin->used = 0;
    margin->refused = false;
}

void backlog_batch(struct backlog *backlog, uint64_t tokens, int64_t spent_ns, bool idle) {
    adjust_stretch(&backlog->margins[0]);
    adjust_stretch(&backlog->margins[1]);
    double x = (double)tokens, y = (double)spent_ns;
    backlog->count = backlog->count * DECAY + 1;
    backlog->tokens = backlog->tokens * DECAY + x;
    backlog->spent_ns = backlog->spent_ns * DECAY + y;
    backlog->tokens_tokens = backlog->tokens_tokens * DECAY + x * x;
    backlog->tokens_spent = backlog->tokens_spent * DECAY + x * y;
    backlog->busy_batches = idle ? 1 : backlog->busy_batches < BACKLOG_SURE ? backlog->busy_batches + 1 : BACKLOG_SURE;
}

// Time of a batch: batch_ns + token_ns × tokens. Both are >= 0.
struct line {
    double batch_ns, token_ns;
};

static struct line line_of(const struct backlog *backlog) {
    if (backlog->count <= 0) {
        return (struct line){0};
    }
    double x = backlog->tokens / backlog->count, y = backlog->spent_ns / backlog->count;
    double variance = backlog->tokens_tokens / backlog->count - x * x + VARIANCE_MIN * x * x;
    double slope = variance > 0 ? (backlog->tokens_spent / backlog->count - x * y) / variance : 0;
    slope = slope > 0 ? slope : 0;
    double start = y - slope * x;
    return start >= 0 ? (struct line){start, slope} : (struct line){0, y / x};
}

// The time of `batches` batches that have `tokens` tokens together.
static double spent_ns(const struct backlog *backlog, uint64_t tokens, uint64_t batches) {
    struct line line = line_of(backlog);
    return line.batch_ns * (double)batches + line.token_ns * (double)tokens;
}

// Batches in addition to one per layer.
static uint64_t full_batches(const struct backlog *backlog) {
    uint64_t by_tokens = backlog->small_tokens / backlog->limits.batch_tokens;
    uint64_t by_requests = backlog->small_requests / backlog->limits.batch_requests;
    return by_tokens > by_requests ? by_tokens : by_requests;
}

static int64_t clamp_to_int64(double ns) {
    return ns < (double)INT64_MAX / 2 ? (int64_t)ns : INT64_MAX / 2;
}

int64_t backlog_estimate_ns(const struct backlog *backlog, uint32_t tokens) {
    const struct backlog_limits *limits = &backlog->limits;
    if (backlog->busy_batches < BACKLOG_SURE) {
        return 0;
    }
    uint64_t large = backlog->large_tokens, pieces = 0;
    if (is_large(backlog, tokens)) {
        pieces = (large + tokens) / limits->piece_tokens;
    } else if (large > 2 * (uint64_t)limits->piece_tokens) {
        large = 2 * (uint64_t)limits->piece_tokens; // the piece being computed, and the piece in the request's own batch
    }
    uint64_t queued = backlog->small_tokens + large + tokens;
    return clamp_to_int64(spent_ns(backlog, queued, backlog->layers + 1 + pieces + full_batches(backlog)));
}

int64_t backlog_wait_ns(struct backlog *backlog, uint32_t tokens, int64_t allowed_ns) {
    struct backlog_margin *margin = &backlog->margins[is_large(backlog, tokens)];
    int64_t wait_ns = clamp_to_int64((double)backlog_estimate_ns(backlog, tokens) * margin->stretch);
    margin->refused |= wait_ns > allowed_ns;
    return wait_ns;
}

void backlog_observe(struct backlog *backlog, uint32_t tokens, int64_t took_ns, int64_t allowed_ns) {
    struct backlog_margin *margin = &backlog->margins[is_large(backlog, tokens)];
    double used = allowed_ns > 0 ? (double)took_ns / (double)allowed_ns : USED_MAX;
    used = used > USED_MAX ? USED_MAX : used;
    margin->used = used > margin->used ? used : margin->used;
}

int64_t backlog_pushback_ms(const struct backlog *backlog) {
    const struct backlog_limits *limits = &backlog->limits;
    uint64_t batches = backlog->layers + full_batches(backlog) + backlog->large_tokens / limits->piece_tokens;
    double ms = spent_ns(backlog, backlog->small_tokens + backlog->large_tokens, batches) / NS_PER_MS;
    return ms < PUSHBACK_MS_MIN ? PUSHBACK_MS_MIN : ms > PUSHBACK_MS_MAX ? PUSHBACK_MS_MAX : (int64_t)ms;
}
