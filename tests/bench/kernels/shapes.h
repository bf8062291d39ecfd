// The shapes that are measured, by the names under which figures are exchanged, and how rows fall to groups. Pure.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_SHAPES_H
#define EXPERTD_TESTS_BENCH_KERNELS_SHAPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum spread {
    SPREAD_EVEN,  // over the first `active` groups
    SPREAD_ZIPF,  // group g gets a share of 1 / (g + 1)
    SPREAD_TOP_K, // tokens of `top_k` rows each, in as many groups drawn by a fixed seed
};

struct bench_shape {
    const char *name;
    const char *text;    // what it stands for
    size_t groups, k, n; // G matrices of [k, n]
    size_t rows;         // of all groups
    enum spread spread;
    size_t active;   // EVEN
    size_t top_k;    // TOP_K
    bool by_request; // measured only where it is named
};

enum { SHAPE_GROUPS_MAX = 128 };

// The i-th shape; NULL past the end.
const struct bench_shape *shape_at(size_t i);

// EXPERTD_ERR_USAGE names the nearest.
FALLIBLE shape_find(const char *name, size_t length, const struct bench_shape **out);

// Rows of each group, sizes [groups]; returns the number of groups that have any.
size_t shape_sizes(const struct bench_shape *shape, int32_t *sizes);

#endif
