// Every backend's int8 panel kernel and macrokernel compared with the reference, on weights packed by expertd_pack_weights.
#include "tests/unit/kernels/guarded.h"
#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/weights.h"
#include "kernels/layout/packed_i8.h"

enum { GUARD = 3, ROWS_MAX = KERNEL_CALL_ROWS, POISON = 0x5a5a5a5a };

struct shape {
    size_t rows, n, k;
    int transposed; // W as [k][n]
};

struct operands {
    struct shape shape;
    int8_t *x, *w; // [rows][k], W
    void *packed;
    size_t stride;
    int32_t *out;
    float *sums; // int32
    const int8_t *rows[ROWS_MAX];
};

static void fill(struct random *random, int8_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t r = (uint32_t)random_next(random);
        values[i] = (int8_t)(r % 5 == 0 ? -128 : r % 7 == 0 ? 127 : (int8_t)(r >> 8));
    }
}

static void operands_init(struct operands *o, const struct shape *shape, struct random *random) {
    *o = (struct operands){.shape = *shape, .stride = shape->n + GUARD};
    o->x = test_alloc(shape->rows * shape->k);
    o->w = test_alloc(shape->n * shape->k);
    o->packed = test_alloc(expertd_packed_group_bytes(EXPERTD_DTYPE_I8, shape->k, shape->n));
    o->out = test_alloc(shape->rows * o->stride * sizeof *o->out);
    o->sums = test_alloc(shape->rows * KERNEL_SUMS * sizeof *o->sums);
    fill(random, o->x, shape->rows * shape->k);
    fill(random, o->w, shape->n * shape->k);
    for (size_t i = 0; i < shape->rows * o->stride; i++) {
        o->out[i] = POISON;
    }
    for (size_t r = 0; r < shape->rows; r++) {
        o->rows[r] = o->x + (r * 5 + 3) % shape->rows * shape->k; // gathered
    }
}

static void operands_deinit(struct operands *o) {
    free(o->x), free(o->w), free(o->packed), free(o->out), free(o->sums);
}

static void multiply(struct operands *o, const struct kernel_backend *backend) {
    const struct shape *s = &o->shape;
    struct expertd_weight_source source = {o->w, EXPERTD_DTYPE_I8, s->transposed ? 1 : s->k, s->transposed ? s->n : 1};
    expertd_pack_weights(&source, s->k, s->n, EXPERTD_DTYPE_I8, EXPERTD_PACKED_PANELS, o->packed);
    size_t panel_bytes = expertd_packed_group_bytes(EXPERTD_DTYPE_I8, s->k, EXPERTD_KERNEL_PANEL);
    for (size_t n = 0; n < s->n; n += EXPERTD_KERNEL_PANEL) {
        struct panel_args args = {
            .x = (const void *const *)o->rows,
            .rows = s->rows,
            .panel = (const char *)o->packed + n / EXPERTD_KERNEL_PANEL * panel_bytes,
            .k = s->k,
            .out = (float *)(o->out + n),
            .out_stride = o->stride,
            .columns = s->n - n < EXPERTD_KERNEL_PANEL ? s->n - n : EXPERTD_KERNEL_PANEL,
        };
        backend->i8.panel(&args);
    }
}

// The same by the macrokernel, for the last k (accumulate) or the first k of K.
static void multiply_groups(struct operands *o, const struct kernel_backend *backend, size_t k, bool accumulate) {
    const struct shape *s = &o->shape;
    size_t first = accumulate ? s->k - k : 0, panel_bytes = expertd_packed_group_bytes(EXPERTD_DTYPE_I8, k, EXPERTD_KERNEL_PANEL);
    struct expertd_weight_source source = {o->w + first * (s->transposed ? s->n : 1), EXPERTD_DTYPE_I8, s->transposed ? 1 : s->k,
                                           s->transposed ? s->n : 1};
    expertd_pack_weights(&source, k, s->n, EXPERTD_DTYPE_I8, EXPERTD_PACKED_PANELS, o->packed);
    const void *x[ROWS_MAX], *panels[KERNEL_PANELS_MAX];
    for (size_t r = 0; r < s->rows; r++) {
        x[r] = o->rows[r] + first;
    }
    for (size_t p = 0; p * EXPERTD_KERNEL_PANEL < s->n; p++) {
        panels[p] = (const char *)o->packed + p * panel_bytes;
    }
    struct guarded scratch = guarded_take(KERNEL_SCRATCH_BYTES, 1); // memory after it is unwritable
    const bool again = !accumulate && k % 3 == 1;                   // call twice, the second time with rows_cached
    struct macrokernel_args args = {.x = x,
                                    .rows = s->rows,
                                    .panels = panels,
                                    .count = (s->n + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL,
                                    .k = k,
                                    .sums = o->sums,
                                    .scratch = scratch.data,
                                    .next = k % 2 ? panels : NULL,
                                    .accumulate = accumulate};
    memset(args.scratch, POISON & 0xff, KERNEL_SCRATCH_BYTES);
    for (int call = 0; call <= again; call++) {
        args.rows_cached = call > 0;
        backend->i8.macrokernel(&args);
    }
    guarded_free(&scratch);
}

static void check_groups(const struct kernel_backend *backend, struct operands *o) {
    const struct shape *s = &o->shape;
    size_t first = s->k / 2 / PACKED_I8_K * PACKED_I8_K;
    if (!backend->i8.macrokernel || s->n > KERNEL_SUMS) {
        return;
    }
    memset(o->sums, POISON & 0xff, s->rows * KERNEL_SUMS * sizeof *o->sums);
    if (first && s->rows % 2) {
        multiply_groups(o, backend, first, false);
        multiply_groups(o, backend, s->k - first, true);
    } else {
        multiply_groups(o, backend, s->k, false);
    }
    for (size_t r = 0; r < s->rows; r++) {
        assert_memory_equal(o->sums + r * KERNEL_SUMS, o->out + r * o->stride, s->n * sizeof(int32_t));
    }
}

static void check_shape(const struct kernel_backend *backend, const struct shape *shape, struct random *random) {
    struct operands o;
    operands_init(&o, shape, random);
    multiply(&o, backend);
    for (size_t r = 0; r < shape->rows; r++) {
        for (size_t n = 0; n < shape->n; n++) {
            const int8_t *w = o.w + (shape->transposed ? n : n * shape->k);
            int32_t want = expertd_dot_i8_reference(o.rows[r], w, shape->transposed ? shape->n : 1, shape->k);
            if (o.out[r * o.stride + n] != want) {
                fail_msg("%s: rows %zu, n %zu, k %zu: out[%zu][%zu] is %d, not %d", backend->name, shape->rows, shape->n, shape->k,
                         r, n, o.out[r * o.stride + n], want);
            }
        }
        for (size_t g = 0; g < GUARD; g++) {
            assert_int_equal(o.out[r * o.stride + shape->n + g], POISON); // nothing is written past the columns
        }
    }
    check_groups(backend, &o);
    operands_deinit(&o);
}

static void check_shapes(const struct kernel_backend *backend) {
    static const size_t DEPTHS[] = {0, 1, 2, 3, 4, 5, 17, 63, 64, 65, 130, 511, 512, 513, 1030};
    static const size_t WIDTHS[] = {1, 15, 16, 17, 48, 63, 64, 65, 130};
    static const size_t ROWS[] = {1, 2, 3, 4, 5, 6, 7, 13, 16, 17, 31, 32, 33, 38};
    struct random random = {17};
    if (!FIRST_WITH(backend, i8.panel, 0) && !FIRST_WITH(backend, i8.macrokernel, 0)) {
        return;
    }
    for (size_t d = 0; d < COUNT_OF(DEPTHS); d++) {
        for (size_t w = 0; w < COUNT_OF(WIDTHS); w++) {
            size_t rows = ROWS[(d * COUNT_OF(WIDTHS) + w) % COUNT_OF(ROWS)];
            if (!takes_case()) {
                continue;
            }
            check_shape(backend, &(struct shape){rows, WIDTHS[w], DEPTHS[d], (int)(d % 2)}, &random);
        }
    }
    for (size_t r = 0; r < COUNT_OF(ROWS); r++) {
        if (!takes_case()) {
            continue;
        }
        check_shape(backend, &(struct shape){ROWS[r], 64, 515, 0}, &random);
        check_shape(backend, &(struct shape){ROWS[r], 256, 2100, 0}, &random); // more than one block of K of every macrokernel
    }
}

// Rows of more k than fit into scratch.
static void check_most_rows(const struct kernel_backend *backend) {
    struct random random = {18};
    if (FIRST_WITH(backend, i8.macrokernel, 0) && takes_case()) {
        check_shape(backend, &(struct shape){KERNEL_CALL_ROWS, 65, 1303, 0}, &random);
        check_shape(backend, &(struct shape){KERNEL_CALL_ROWS - 1, 65, 1303, 0}, &random);
        // K just below and above twice what fits into scratch, however a kernel rounds it, so that the rest is as small as
        // possible.
        for (size_t k = 2296; k <= 2344; k += 8) {
            check_shape(backend, &(struct shape){KERNEL_CALL_ROWS, 1, k, 0}, &random);
        }
    }
}

static void most_rows_fit_the_scratch(void **state) {
    (void)state;
    for_each_backend(check_most_rows);
}

static void every_backend_sums_int8_as_the_scalar_twin(void **state) {
    (void)state;
    for_each_backend(check_shapes);
}

// Each product is 2^14: 131072 of them are 2^31, which wraps to -2^31.
static void check_wrap(const struct kernel_backend *backend) {
    enum { K = 131072 + 3 };
    struct random random = {3};
    struct operands o;
    if (!FIRST_WITH(backend, i8.panel, 0)) {
        return;
    }
    operands_init(&o, &(struct shape){2, 2, K, 0}, &random);
    memset(o.x, -128, (size_t)2 * K);
    memset(o.w, -128, (size_t)2 * K);
    memset(o.w + K, 127, K);
    multiply(&o, backend);
    for (size_t r = 0; r < 2; r++) {
        assert_int_equal(o.out[r * o.stride], INT32_MIN + 3 * 16384);
        assert_int_equal(o.out[r * o.stride + 1], -128 * 127 * K); // fits
    }
    operands_deinit(&o);
}

static void int32_sums_wrap_as_twos_complement(void **state) {
    (void)state;
    for_each_backend(check_wrap);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_backend_sums_int8_as_the_scalar_twin),
        cmocka_unit_test(most_rows_fit_the_scratch),
        cmocka_unit_test(int32_sums_wrap_as_twos_complement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
