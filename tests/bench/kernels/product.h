// One shape in one dtype, to be multiplied repeatedly, each time with weights that no cache holds.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_PRODUCT_H
#define EXPERTD_TESTS_BENCH_KERNELS_PRODUCT_H

#include "expertd/kernels/grouped_matmul.h"
#include "tests/bench/kernels/measure/plain_read.h"
#include "tests/bench/kernels/measure/pool.h"
#include "tests/bench/kernels/selection.h"

struct product {
    const struct bench_shape *shape;
    const struct bench_dtype *dtype;
    int32_t sizes[SHAPE_GROUPS_MAX];
    size_t active; // groups that have rows
    struct pool pool;
    struct arena memory; // lhs, out
    struct expertd_grouped_matmul_args args;
    void *scratch;
    struct expertd_team *team;
    struct read_piece pieces[SHAPE_GROUPS_MAX];
};

// The memory that product_init will allocate, without scratch.
uint64_t product_bytes(const struct bench_shape *shape, const struct bench_dtype *dtype, uint64_t weights_bytes);

// Uses weights_bytes, layout and out of the selection. team is borrowed. EXPERTD_ERR_NOMEM. Call product_deinit
// also after an error.
FALLIBLE product_init(struct product *p, const struct bench_shape *shape, const struct bench_dtype *dtype,
                      const struct selection *selection, struct expertd_team *team);
void product_deinit(struct product *p); // legal on a zeroed struct

void product_next_weights(void *product);                        // points the groups at the next weights
err_t product_run_ns(void *product, int64_t *span_ns);           // multiplies with the next weights
int64_t product_read_ns(void *product, enum plain_read_way way); // reads the next weights
double product_weights_bytes(void *product);                     // of one repetition

#endif
