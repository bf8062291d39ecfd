// The walk: computes one product on packed weights, or two with the same rows (gate and up), on a team. Threads claim tasks
// (walk_tasks.h), call the kernels, and run the caller's epilogue while the sums are in cache. Private to kernels/.
#ifndef EXPERTD_KERNELS_OPERATIONS_MATMUL_WALK_H
#define EXPERTD_KERNELS_OPERATIONS_MATMUL_WALK_H

#include <stddef.h>
#include <stdint.h>

#include "expertd/kernels/grouped_matmul.h"

enum { WALK_OPERANDS = 2 };

// Sums of a span of rows over some columns, in the thread's scratch.
struct walk_sums {
    size_t first_row, rows; // of the product
    size_t group;           // local number
    size_t column, columns;
    const float *sums[WALK_OPERANDS]; // of each operand: [rows][columns], rows KERNEL_SUMS elements apart; int32 for int8
};

struct matmul_walk {
    const struct expertd_grouped_matmul_args *args; // checked. The walk reads rows, groups and schedule; the epilogue writes out
    const struct expertd_packed_weights *rhs[WALK_OPERANDS]; // of equal k, n and dtype; formats may differ
    size_t operands;                                         // 1 or 2
    size_t out_element; // bytes of an element of out, whose lines are prefetched with small m; 0: non-temporal stores, no prefetch
    void (*epilogue)(const void *context, const struct walk_sums *sums); // called once per output element, on any thread
    void (*zero)(const void *context, size_t begin, size_t end);         // sets rows outside the local groups to 0; any thread
    const void *context;
};

// Bytes of scratch for up to m rows over num_groups groups.
size_t matmul_walk_scratch_bytes(size_t m, size_t num_groups);

// team NULL: runs on the calling thread, with the sums and KERNEL_SCRATCH_BYTES on its stack. scratch: matmul_walk_scratch_bytes,
// 64-byte aligned.
void matmul_walk(const struct matmul_walk *walk, struct expertd_team *team, void *scratch);

#endif
