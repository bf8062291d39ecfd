// One shape with an operation on plain operands, to be run repeatedly: gmm on a dense tensor, tgmm, or ragged grouped GEMM.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_PLAIN_PRODUCT_H
#define EXPERTD_TESTS_BENCH_KERNELS_PLAIN_PRODUCT_H

#include "base/arena.h"
#include "expertd/kernels/grouped_gemm.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/transposed_grouped_matmul.h"
#include "tests/bench/kernels/measure/plain_read.h"
#include "tests/bench/kernels/selection.h"

struct plain_product {
    const struct bench_shape *shape;
    const struct bench_dtype *dtype;
    enum bench_op op;
    bool transposed;                       // weights as [groups, n, k]
    int32_t shape_sizes[SHAPE_GROUPS_MAX]; // rows of each group
    int32_t sizes[SHAPE_GROUPS_MAX];       // in this repetition: shape_sizes rotated
    size_t rotation;                       // the number of groups by which they are rotated
    size_t active;
    struct arena memory;
    char *tensors; // [count] tensors of weights, or of tgmm's results
    size_t count, next, tensor_bytes;
    void *lhs, *rhs, *out, *scales; // rhs: for tgmm
    void *workspace;
    struct expertd_plain_weights weights;
    struct expertd_grouped_matmul_args gmm;
    struct expertd_transposed_grouped_matmul_args tgmm;
    struct expertd_grouped_gemm_args gemm;
    struct expertd_team *team;
    struct read_piece pieces[SHAPE_GROUPS_MAX];
};

// The memory that plain_product_init will allocate, without the workspace.
uint64_t plain_product_bytes(const struct bench_shape *shape, const struct bench_dtype *dtype, enum bench_op op,
                             uint64_t weights_bytes);

// As product_init. EXPERTD_ERR_NOMEM. Call plain_product_deinit also after an error.
FALLIBLE plain_product_init(struct plain_product *p, const struct bench_shape *shape, const struct bench_dtype *dtype,
                            const struct selection *selection, struct expertd_team *team);
void plain_product_deinit(struct plain_product *p); // legal on a zeroed struct

err_t plain_product_run_ns(void *product, int64_t *span_ns); // on the next weights
int64_t plain_product_read_ns(void *product,
                              enum plain_read_way way); // reads the next weights, or for tgmm the next results' memory
double plain_product_bytes_of_run(void *product);       // of weights, or of tgmm's results

#endif
