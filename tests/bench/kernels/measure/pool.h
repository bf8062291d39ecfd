// Weights to measure on: more groups of one shape than any cache holds, dealt out in rotation, so that each product and each plain
// read finds its weights in DRAM. All groups hold the same numbers (they cost no more or less to multiply than others).
#ifndef EXPERTD_TESTS_BENCH_KERNELS_MEASURE_POOL_H
#define EXPERTD_TESTS_BENCH_KERNELS_MEASURE_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "expertd/kernels/quantised.h"
#include "expertd/kernels/team.h"
#include "expertd/kernels/weights.h"

struct pool_options {
    enum expertd_dtype dtype;                      // of the rows, and of plain weights
    const struct expertd_quantised_format *format; // NULL: plain weights
    enum expertd_packed_layout layout;             // of those
    size_t k, n;
    size_t active;      // groups that one product reads
    size_t groups;      // of the product, the unread ones counted
    uint64_t all_bytes; // to rotate over
};

struct pool {
    struct arena memory;
    struct expertd_packed_weights weights; // data: the table of the deal at hand
    void **table;                          // [groups]
    char *blocks;                          // [count] of weights.group_bytes
    size_t count, next;                    // blocks; the next to deal
};

// Bytes that pool_create will use.
uint64_t pool_bytes(const struct pool_options *options);

// EXPERTD_ERR_NOMEM. Fills the blocks on the team.
FALLIBLE pool_create(const struct pool_options *options, struct expertd_team *team, struct pool *out);
void pool_destroy(struct pool *pool); // legal on a zeroed struct

// Points the groups that have rows at the next blocks, the others at any.
void pool_deal(struct pool *pool, const int32_t *group_sizes);

#endif
