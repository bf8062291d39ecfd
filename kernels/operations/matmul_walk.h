// The walk that every grouped matmul takes: spans of rows of one group against groups of panels, claimed by the threads of a team,
// and what becomes of the sums while they are still in cache. Private to kernels/.
#ifndef EXPERTD_KERNELS_OPERATIONS_MATMUL_WALK_H
#define EXPERTD_KERNELS_OPERATIONS_MATMUL_WALK_H

#include <stddef.h>
#include <stdint.h>

#include "expertd/kernels/grouped_matmul.h"

enum { WALK_OPERANDS = 2 };

// Sums of a span of rows over some columns, in the thread's scratch.
struct walk_sums {
    size_t first_row, rows; // of the product
    size_t group;           // local
    size_t column, columns;
    const float *sums[WALK_OPERANDS]; // of each operand: [rows] rows of `columns` sums, KERNEL_SUMS elements apart; of int8 int32
};

struct matmul_walk {
    const struct expertd_grouped_matmul_args *args; // rows, groups and schedule; has passed its check. Its out is not written
    const struct expertd_packed_weights
        *rhs[WALK_OPERANDS]; // of one k, n and dtype; formats may differ, where both have one, which they do or neither does
    size_t operands;         // 1 or 2: both are multiplied by the same rows in one pass
    size_t out_element; // bytes of an element of out, which lines of few rows are asked for early; 0: it is written past the caches
    void (*epilogue)(const void *context, const struct walk_sums *sums); // any thread; each element comes once
    void (*zero)(const void *context, size_t begin, size_t end);         // rows that belong to no local group; any thread
    const void *context;
};

// Bytes of scratch for up to m rows over num_groups groups.
size_t matmul_walk_scratch_bytes(size_t m, size_t num_groups);

// team NULL: the calling thread, with KERNEL_SCRATCH_BYTES and the sums on its stack. scratch: 64-byte aligned.
void matmul_walk(const struct matmul_walk *walk, struct expertd_team *team, void *scratch);

#endif
