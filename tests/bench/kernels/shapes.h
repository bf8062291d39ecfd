// The measured shapes with their names, and the distribution of rows over groups.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_SHAPES_H
#define EXPERTD_TESTS_BENCH_KERNELS_SHAPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum spread {
    SPREAD_EVEN,  // evenly over the first `active` groups
    SPREAD_ZIPF,  // group g gets a share of 1 / (g + 1)
    SPREAD_TOP_K, // each token has `top_k` rows in different groups, drawn with a fixed seed
};

struct bench_shape {
    const char *name;
    const char *text;    // a description
    size_t groups, k, n; // G matrices of [k, n]
    size_t rows;         // in all groups
    enum spread spread;
    size_t active;   // for EVEN
    size_t top_k;    // for TOP_K
    bool by_request; // measured only if it is named
};

enum { SHAPE_GROUPS_MAX = 128 };

// The i-th shape; NULL past the end.
const struct bench_shape *shape_at(size_t i);

// EXPERTD_ERR_USAGE: the message suggests the nearest name.
FALLIBLE shape_find(const char *name, size_t length, const struct bench_shape **out);

// Fills in the rows of each group, sizes [groups]. Returns the number of groups that have rows.
size_t shape_sizes(const struct bench_shape *shape, int32_t *sizes);

#endif
