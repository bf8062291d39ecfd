// The grouped matmul on packed weights: out[rows of group i] = lhs[rows of group i] @ W_i^T, fp32 sums, one accumulator per
// element, K ascending from +0 (F32: one IEEE fma per k; BF16: two flushed fmas per pair of k, the odd one first).
// Bits depend on the row and the weights alone: not on m, the grouping, tiling, threads or instruction set.
#ifndef EXPERTD_KERNELS_GROUPED_MATMUL_H
#define EXPERTD_KERNELS_GROUPED_MATMUL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/operand.h"
#include "kernels/team.h"

struct grouped_matmul_args {
    const void *lhs;            // rows of k elements in the dtype of rhs, 64-byte aligned rows not required
    size_t lhs_stride;          // elements between rows of lhs, >= k
    const uint32_t *lhs_rows;   // [m]: row of lhs for each row of the product (gather); NULL: the identity
    struct matmul_rhs rhs;      // num_actual_groups groups: rhs group i is global group group_offset + i
    const int32_t *group_sizes; // [num_groups]
    size_t num_groups;          // G
    size_t group_offset;        // the first group held here
    size_t num_actual_groups;   // groups held here, = those of rhs
    size_t m;                   // rows of the product, >= sum of group_sizes
    float *out;                 // [m, n] sums; rows outside the local groups are set to 0
    size_t out_stride;          // elements, >= n
};

// Bytes of scratch that grouped_matmul needs for up to m rows over num_groups groups.
size_t grouped_matmul_scratch_bytes(size_t m, size_t num_groups);

// Runs on `team` (NULL: the calling thread). scratch: 64-byte aligned, at least grouped_matmul_scratch_bytes. No allocation.
// ERR_INVALID names the argument at fault; out is then untouched.
FALLIBLE grouped_matmul(const struct grouped_matmul_args *args, struct team *team, void *scratch);

// Do the arguments fit together? ERR_INVALID with the argument as the field: lhs, rhs, group_sizes, group_offset,
// num_actual_groups, m, out. grouped_matmul and its twin ask it first.
FALLIBLE grouped_matmul_check(const struct grouped_matmul_args *args);

// The scalar twin: the same contract on the same packed weights, plain portable C, one thread. What tests compare against, bit for
// bit.
FALLIBLE grouped_matmul_reference(const struct grouped_matmul_args *args);

// The scalar sums themselves, on unpacked rows: x[k] . w[k] in the contract's order. w_stride in elements.
float dot_f32_reference(const float *x, const float *w, size_t w_stride, size_t k);
float dot_bf16_reference(const uint16_t *x, const uint16_t *w, size_t w_stride, size_t k);
int32_t dot_i8_reference(const int8_t *x, const int8_t *w, size_t w_stride, size_t k); // wraps

#endif
