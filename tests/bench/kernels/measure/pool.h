// A pool of weights for measuring: more groups of one shape than any cache holds, used in rotation, so that each product and each
// plain read finds its weights in DRAM. All groups have the same values, which does not change the speed.
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
    enum expertd_dtype dtype;                      // of the rows, and of unquantised weights
    const struct expertd_quantised_format *format; // NULL: not quantised
    enum expertd_packed_layout layout;             // of unquantised weights
    size_t k, n;
    size_t active;      // groups that one product reads
    size_t groups;      // of the product, including unread ones
    uint64_t all_bytes; // size of the pool
};

struct pool {
    struct arena memory;
    struct expertd_packed_weights weights; // data: `table`
    void **table;                          // [groups] the current blocks
    char *blocks;                          // [count] of weights.group_bytes
    size_t count, next;                    // number of blocks; the next to use
};

// The memory that pool_create will allocate.
uint64_t pool_bytes(const struct pool_options *options);

// EXPERTD_ERR_NOMEM. Fills the blocks on the team.
FALLIBLE pool_create(const struct pool_options *options, struct expertd_team *team, struct pool *out);
void pool_destroy(struct pool *pool); // legal on a zeroed struct

// Points the groups that have rows at the next blocks, and the others at any block.
void pool_advance(struct pool *pool, const int32_t *group_sizes);

#endif
