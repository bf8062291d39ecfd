// The distribution of the number of tokens per call. Pure.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_TOKENS_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "client/expertctl/bench/load/bench_random.h"

enum { TOKENS_LIST_MAX = 64 };

enum tokens_kind { TOKENS_FIXED, TOKENS_UNIFORM, TOKENS_LIST, TOKENS_LOGNORMAL };

struct bench_tokens {
    enum tokens_kind kind;
    uint32_t low, high;                // bounds of all draws; fixed: both are the number
    uint32_t count;                    // list
    uint32_t values[TOKENS_LIST_MAX];  // list
    double cumulated[TOKENS_LIST_MAX]; // list: cumulative weights, the last is 1
    double median, sigma;              // lognormal
    bool cut;                          // lognormal without MAX: `high` is the most that a call can carry
};

// "N", "uniform:A-B", "list:N@WEIGHT,N@WEIGHT,…" (a weight left out is 1), "lognormal:MEDIAN,SIGMA[,MAX]". EXPERTD_ERR_USAGE.
FALLIBLE tokens_parse(const char *text, struct bench_tokens *out);

// Bounds a lognormal distribution without MAX by `cut`, the most tokens that a call can carry (by 1 if that is 0).
// EXPERTD_ERR_USAGE: a bound is above max_tokens, the daemon's limit.
FALLIBLE tokens_limit(struct bench_tokens *tokens, uint32_t max_tokens, uint32_t cut);

// Draws a number in [low, high].
uint32_t tokens_draw(const struct bench_tokens *tokens, struct bench_random *random);

#endif
