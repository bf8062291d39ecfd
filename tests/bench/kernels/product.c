#include "tests/bench/kernels/product.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"

enum { ROW_TABLE = 8192, ROW_STEP = 977, I8_DEVIATION = 25 };

static struct pool_options pool_options_of(const struct product *p, uint64_t weights_bytes) {
    return (struct pool_options){.dtype = p->dtype->dtype,
                                 .format = p->dtype->format,
                                 .k = p->shape->k,
                                 .n = p->shape->n,
                                 .active = p->active,
                                 .groups = p->shape->groups,
                                 .all_bytes = weights_bytes};
}

static size_t lhs_bytes(const struct product *p) {
    return p->shape->rows * p->shape->k * expertd_dtype_size(p->dtype->dtype);
}

static size_t out_bytes(const struct product *p) {
    return p->shape->rows * p->shape->n * sizeof(float);
}

static size_t work_bytes(const struct product *p) {
    return arena_rounded(lhs_bytes(p)) + arena_rounded(out_bytes(p));
}

uint64_t product_bytes(const struct bench_shape *shape, const struct bench_dtype *dtype, uint64_t weights_bytes) {
    struct product p = {.shape = shape, .dtype = dtype};
    p.active = shape_sizes(shape, p.sizes);
    struct pool_options options = pool_options_of(&p, weights_bytes);
    return pool_bytes(&options) + work_bytes(&p);
}

// Fills a table with normally distributed numbers, since hidden states are nearly normal and the speed of 4-bit kernels depends on
// how much elements differ in magnitude. Each row begins at another position in the table.
static void fill_table(float table[ROW_TABLE]) {
    const double two_pi = 6.283185307179586;
    uint64_t state = 1;
    for (size_t i = 0; i < ROW_TABLE; i += 2) { // Box-Muller transform
        double u[2];
        for (size_t j = 0; j < 2; j++) {
            state = state * 6364136223846793005u + 1442695040888963407u; // Knuth's MMIX
            u[j] = ((double)(state >> 32) + 0.5) * 0x1p-32;
        }
        double radius = sqrt(-2 * log(u[0]));
        table[i] = (float)(radius * cos(two_pi * u[1]));
        table[i + 1] = (float)(radius * sin(two_pi * u[1]));
    }
}

static void fill_rows(const struct product *p, void *lhs) {
    float table[ROW_TABLE];
    fill_table(table);
    for (size_t i = 0; i < p->shape->rows * p->shape->k; i++) {
        float value = table[(i + i / p->shape->k * ROW_STEP) % ROW_TABLE];
        if (p->dtype->dtype == EXPERTD_DTYPE_I8) {
            ((int8_t *)lhs)[i] = (int8_t)(value * I8_DEVIATION); // the table has at most 4.9 standard deviations
        } else {
            expertd_dtype_narrow(&value, 1, p->dtype->dtype, (char *)lhs + i * expertd_dtype_size(p->dtype->dtype));
        }
    }
}

FALLIBLE product_init(struct product *p, const struct bench_shape *shape, const struct bench_dtype *dtype,
                      const struct selection *selection, struct expertd_team *team) {
    *p = (struct product){.shape = shape, .dtype = dtype, .team = team};
    p->active = shape_sizes(shape, p->sizes);
    struct pool_options options = pool_options_of(p, selection->weights_bytes);
    TRY(bench_layout_of(selection->layout, dtype->format ? EXPERTD_DTYPE_I8 : dtype->dtype, &options.layout));
    TRY(pool_create(&options, team, &p->pool));
    void *lhs, *out;
    TRY(arena_init(&p->memory, work_bytes(p)));
    TRY(arena_take(&p->memory, lhs_bytes(p), &lhs));
    TRY(arena_take(&p->memory, out_bytes(p), &out));
    fill_rows(p, lhs);
    p->args = (struct expertd_grouped_matmul_args){.lhs = lhs,
                                                   .lhs_stride = shape->k,
                                                   .rhs = expertd_rhs_packed(&p->pool.weights),
                                                   .group_sizes = p->sizes,
                                                   .num_groups = shape->groups,
                                                   .num_actual_groups = shape->groups,
                                                   .m = shape->rows,
                                                   .out = out,
                                                   .out_dtype = selection->out,
                                                   .out_stride = shape->n};
    size_t scratch_bytes = arena_rounded(expertd_grouped_matmul_workspace_bytes(&p->args, team));
    p->scratch = aligned_alloc(ARENA_ALIGN, scratch_bytes);
    if (!p->scratch) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu bytes of scratch", scratch_bytes);
    }
    return OK;
}

void product_deinit(struct product *p) {
    free(p->scratch);
    arena_deinit(&p->memory);
    pool_destroy(&p->pool);
}

void product_next_weights(void *product) {
    struct product *p = product;
    pool_advance(&p->pool, p->sizes);
}

err_t product_run_ns(void *product, int64_t *span_ns) {
    struct product *p = product;
    product_next_weights(p);
    int64_t start_ns = clock_now_ns();
    TRY(expertd_grouped_matmul(&p->args, p->team, p->scratch));
    *span_ns = clock_now_ns() - start_ns;
    return OK;
}

int64_t product_read_ns(void *product, enum plain_read_way way) {
    struct product *p = product;
    product_next_weights(p);
    size_t count = 0;
    for (size_t g = 0; g < p->shape->groups; g++) {
        if (p->sizes[g] > 0) {
            p->pieces[count++] = (struct read_piece){p->pool.table[g], p->pool.weights.group_bytes};
        }
    }
    return plain_read_ns(p->pieces, count, way, p->team);
}

double product_weights_bytes(void *product) {
    const struct product *p = product;
    return (double)p->active * (double)p->pool.weights.group_bytes;
}
