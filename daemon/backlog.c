#include "daemon/backlog.h"

#include "base/clock.h"
#include "base/err.h"

enum { PUSHBACK_MS_MIN = 10, PUSHBACK_MS_MAX = 5000 };

static const double DECAY = 0.9;
static const double FLATTER = 0.01; // part of the mean's square that is added to the variance: sizes within a tenth say nothing
static const struct backlog_ratio RATIO_FIRST = {.mean = 1, .deviation = 0.1};
static const double RATIO_GAIN = 1.0 / 8, DEVIATION_GAIN = 1.0 / 4, FORGET_GAIN = 1.0 / 128, DEVIATIONS = 3;
static const double STRETCH_MIN = 0.5, STRETCH_MAX = 4; // beyond that something else is wrong than the estimate

void backlog_init(struct backlog *backlog, const struct backlog_limits *limits) {
    *backlog = (struct backlog){.limits = *limits, .ratios = {RATIO_FIRST, RATIO_FIRST}};
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

// What the requests of one batch met is one observation, however many they were: the worst. Whom an estimate keeps out cannot
// correct it: it is forgotten by and by.
static void learn(struct backlog_ratio *known) {
    if (known->worst > 0) {
        double apart = known->worst - known->mean;
        known->deviation += ((apart < 0 ? -apart : apart) - known->deviation) * DEVIATION_GAIN;
        known->mean += apart * RATIO_GAIN;
        known->worst = 0;
    }
    known->mean += (RATIO_FIRST.mean - known->mean) * FORGET_GAIN;
    known->deviation += (RATIO_FIRST.deviation - known->deviation) * FORGET_GAIN;
}

void backlog_batch(struct backlog *backlog, uint64_t tokens, int64_t spent_ns, bool idle) {
    learn(&backlog->ratios[0]);
    learn(&backlog->ratios[1]);
    double x = (double)tokens, y = (double)spent_ns;
    backlog->count = backlog->count * DECAY + 1;
    backlog->tokens = backlog->tokens * DECAY + x;
    backlog->spent_ns = backlog->spent_ns * DECAY + y;
    backlog->tokens_tokens = backlog->tokens_tokens * DECAY + x * x;
    backlog->tokens_spent = backlog->tokens_spent * DECAY + x * y;
    backlog->busy_batches = idle ? 1 : backlog->busy_batches < BACKLOG_SURE ? backlog->busy_batches + 1 : BACKLOG_SURE;
}

// batch_ns + token_ns x tokens, both at least 0.
struct line {
    double batch_ns, token_ns;
};

static struct line line_of(const struct backlog *backlog) {
    if (backlog->count <= 0) {
        return (struct line){0};
    }
    double x = backlog->tokens / backlog->count, y = backlog->spent_ns / backlog->count;
    double variance = backlog->tokens_tokens / backlog->count - x * x + FLATTER * x * x;
    double slope = variance > 0 ? (backlog->tokens_spent / backlog->count - x * y) / variance : 0;
    slope = slope > 0 ? slope : 0;
    double start = y - slope * x;
    return start >= 0 ? (struct line){start, slope} : (struct line){0, y / x};
}

// Tokens in so many batches that share the layers.
static double spent_ns(const struct backlog *backlog, uint64_t tokens, uint64_t batches) {
    struct line line = line_of(backlog);
    return line.batch_ns * (double)batches + line.token_ns * (double)tokens;
}

// Beyond one per layer.
static uint64_t full_batches(const struct backlog *backlog) {
    uint64_t by_tokens = backlog->small_tokens / backlog->limits.batch_tokens;
    uint64_t by_requests = backlog->small_requests / backlog->limits.batch_requests;
    return by_tokens > by_requests ? by_tokens : by_requests;
}

static int64_t within_int64(double ns) {
    return ns < (double)INT64_MAX / 2 ? (int64_t)ns : INT64_MAX / 2;
}

int64_t backlog_foreseen_ns(const struct backlog *backlog, uint32_t tokens) {
    const struct backlog_limits *limits = &backlog->limits;
    if (backlog->busy_batches < BACKLOG_SURE) {
        return 0;
    }
    uint64_t large = backlog->large_tokens, pieces = 0;
    if (is_large(backlog, tokens)) {
        pieces = (large + tokens) / limits->piece_tokens;
    } else if (large > 2 * (uint64_t)limits->piece_tokens) {
        large = 2 * (uint64_t)limits->piece_tokens; // the one that is computed, and the one it leaves with
    }
    uint64_t ahead = backlog->small_tokens + large + tokens;
    return within_int64(spent_ns(backlog, ahead, backlog->layers + 1 + pieces + full_batches(backlog)));
}

void backlog_came(struct backlog *backlog, uint32_t tokens, int64_t foreseen_ns, int64_t took_ns) {
    struct backlog_ratio *known = &backlog->ratios[is_large(backlog, tokens)];
    if (foreseen_ns <= 0) {
        return;
    }
    double ratio = (double)took_ns / (double)foreseen_ns;
    ratio = ratio > STRETCH_MAX ? STRETCH_MAX : ratio;
    known->worst = ratio > known->worst ? ratio : known->worst;
}

int64_t backlog_wait_ns(const struct backlog *backlog, uint32_t tokens) {
    const struct backlog_ratio *known = &backlog->ratios[is_large(backlog, tokens)];
    double stretch = known->mean + DEVIATIONS * known->deviation;
    stretch = stretch < STRETCH_MIN ? STRETCH_MIN : stretch > STRETCH_MAX ? STRETCH_MAX : stretch;
    return within_int64((double)backlog_foreseen_ns(backlog, tokens) * stretch);
}

int64_t backlog_pushback_ms(const struct backlog *backlog) {
    const struct backlog_limits *limits = &backlog->limits;
    uint64_t batches = backlog->layers + full_batches(backlog) + backlog->large_tokens / limits->piece_tokens;
    double ms = spent_ns(backlog, backlog->small_tokens + backlog->large_tokens, batches) / NS_PER_MS;
    return ms < PUSHBACK_MS_MIN ? PUSHBACK_MS_MIN : ms > PUSHBACK_MS_MAX ? PUSHBACK_MS_MAX : (int64_t)ms;
}
