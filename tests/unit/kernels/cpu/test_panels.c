// Every backend's f32 and bf16 panel kernels compared bit for bit with the reference, on weights packed by expertd_pack_weights.
#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/weights.h"

enum { ARITHMETICS = ARITHMETIC_SM_90 + 1, GUARD = 3, ROWS_MAX = 38 }; // several tiles of rows and a part of one

struct panel_case {
    size_t rows, n, k;
    enum values values;
    struct random random;
};

// Operands of a case, and the expected results of each arithmetic.
struct panel_data {
    enum expertd_dtype dtype;
    char *x, *w;
    void *panel;
    float *want[ARITHMETICS]; // [rows][n]; NULL until first used
    float *out;               // [rows][stride]
    size_t stride;
    const void *rows[ROWS_MAX];
};

static void fill(struct panel_case *c, enum expertd_dtype dtype, void *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (dtype == EXPERTD_DTYPE_F32) {
            ((float *)values)[i] = random_f32(&c->random, c->values);
        } else {
            ((uint16_t *)values)[i] = random_bf16(&c->random, c->values);
        }
    }
}

static void data_init(struct panel_case *c, enum expertd_dtype dtype, struct panel_data *d) {
    size_t size = expertd_dtype_size(dtype);
    *d = (struct panel_data){.dtype = dtype, .stride = c->n + GUARD};
    d->x = test_alloc(c->rows * c->k * size);
    d->w = test_alloc(c->n * c->k * size);
    d->panel = test_alloc(expertd_packed_group_bytes(dtype, c->k, c->n));
    d->out = test_alloc(c->rows * d->stride * sizeof(float));
    fill(c, dtype, d->x, c->rows * c->k);
    fill(c, dtype, d->w, c->n * c->k);
    expertd_pack_weights(&(struct expertd_weight_source){d->w, dtype, c->k, 1}, c->k, c->n, dtype, EXPERTD_PACKED_PANELS, d->panel);
    for (size_t r = 0; r < c->rows; r++) {
        d->rows[r] = d->x + r * c->k * size;
    }
}

static void data_deinit(struct panel_data *d) {
    for (size_t a = 0; a < ARITHMETICS; a++) {
        free(d->want[a]);
    }
    free(d->x), free(d->w), free(d->panel), free(d->out);
}

static float reference(enum kernel_arithmetic arithmetic, enum expertd_dtype dtype, const void *x, const void *w, size_t k) {
    if (dtype == EXPERTD_DTYPE_F32) {
        return expertd_dot_f32_reference(x, w, 1, k);
    }
    switch (arithmetic) {
    case ARITHMETIC_CPU_AMX:
        return expertd_dot_bf16_amx_reference(x, w, 1, k);
    case ARITHMETIC_SM_90:
        return expertd_dot_bf16_sm90_reference(x, w, 1, k);
    default:
        return expertd_dot_bf16_reference(x, w, 1, k);
    }
}

static const float *wanted(const struct panel_case *c, struct panel_data *d, enum kernel_arithmetic arithmetic) {
    if (!d->want[arithmetic]) {
        d->want[arithmetic] = test_alloc(c->rows * c->n * sizeof(float));
        for (size_t i = 0; i < c->rows * c->n; i++) {
            d->want[arithmetic][i] =
                reference(arithmetic, d->dtype, d->rows[i / c->n], d->w + i % c->n * c->k * expertd_dtype_size(d->dtype), c->k);
        }
    }
    return d->want[arithmetic];
}

static void check_backend(const struct panel_case *c, struct panel_data *d, const struct kernel_backend *backend) {
    const float *want = wanted(c, d, d->dtype == EXPERTD_DTYPE_F32 ? ARITHMETIC_CPU : backend->arithmetic);
    poison_f32(d->out, c->rows * d->stride);
    struct panel_args args = {d->rows, c->rows, d->panel, c->k, d->out, d->stride, c->n};
    (d->dtype == EXPERTD_DTYPE_F32 ? backend->f32.panel : backend->bf16.panel)(&args);
    for (size_t r = 0; r < c->rows; r++) {
        assert_same_f32(d->out + r * d->stride, want + r * c->n, c->n, backend->name);
        for (size_t g = 0; g < GUARD; g++) {
            assert_true(isnan(d->out[r * d->stride + c->n + g])); // nothing is written past the columns
        }
    }
}

static void check_case(struct panel_case c) {
    static const enum expertd_dtype DTYPES[] = {EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F32};
    for (size_t t = 0; t < COUNT_OF(DTYPES); t++) {
        struct panel_data d;
        bool usable;
        const struct kernel_backend *backend;
        data_init(&c, DTYPES[t], &d);
        for (size_t i = 0; (backend = wanted_backend_at(i, &usable)); i++) {
            if (usable && (d.dtype == EXPERTD_DTYPE_F32 ? FIRST_WITH(backend, f32.panel, 0) : FIRST_WITH(backend, bf16.panel, 1))) {
                check_backend(&c, &d, backend);
            }
        }
        data_deinit(&d);
    }
}

static void every_backend_sums_as_the_scalar_twin_over_all_shapes(void **state) {
    (void)state;
    static const size_t DEPTHS[] = {0, 1, 2, 17, 31, 33, 127, 128, 130, 259, 545};
    static const size_t WIDTHS[] = {1, 15, 33, 64};
    for (size_t d = 0; d < COUNT_OF(DEPTHS); d++) {
        for (size_t w = 0; w < COUNT_OF(WIDTHS); w++) {
            for (size_t rows = 1; rows <= ROWS_MAX; rows += rows < 14 ? 1 : 6) {
                if (!takes_case()) {
                    continue;
                }
                enum values values = (enum values)((d + w + rows) % VALUES_COUNT);
                check_case((struct panel_case){rows, WIDTHS[w], DEPTHS[d], values, {1 + d * 1000 + w * 10 + rows}});
            }
        }
    }
}

static void every_backend_sums_as_the_scalar_twin_over_all_values(void **state) {
    (void)state;
    for (int values = 0; values < VALUES_COUNT; values++) {
        for (size_t k = 1; k <= 40; k++) {
            if (takes_case()) {
                check_case((struct panel_case){1 + k % ROWS_MAX, 64, k, (enum values)values, {99 + k}});
            }
        }
    }
}

#if defined(__x86_64__) || defined(__aarch64__)
#include "kernels/cpu/backend/backends.h"
#include "tests/unit/kernels/odd_mode.h"

// bf16 kernels give the same sums in any floating-point mode of the caller, and restore that mode.
static void check_mode(const struct kernel_backend *backend) {
    uint16_t x[8], panel[8 * EXPERTD_KERNEL_PANEL];
    const void *rows[1] = {x};
    float want[EXPERTD_KERNEL_PANEL], got[EXPERTD_KERNEL_PANEL];
    struct random random = {5};
    for (size_t i = 0; i < COUNT_OF(x); i++) {
        x[i] = random_bf16(&random, VALUES_FLUSH);
    }
    for (size_t i = 0; i < COUNT_OF(panel); i++) {
        panel[i] = random_bf16(&random, VALUES_FLUSH);
    }
    struct panel_args args = {rows, 1, panel, 8, want, EXPERTD_KERNEL_PANEL, EXPERTD_KERNEL_PANEL};
    backend->bf16.panel(&args);
    args.out = got;
    float_mode before = float_mode_set(FLOAT_MODE_ODD);
    backend->bf16.panel(&args);
    float_mode after = float_mode_set(before);
    assert_int_equal(after, FLOAT_MODE_ODD);
    if (backend != backend_twin(backend)) { // scalar twins do not set the mode
        assert_same_f32(got, want, EXPERTD_KERNEL_PANEL, backend->name);
    }
}

static void bf16_kernels_leave_the_callers_floating_point_mode(void **state) {
    (void)state;
    for_each_backend(check_mode);
}
#else
static void bf16_kernels_leave_the_callers_floating_point_mode(void **state) {
    (void)state;
    skip();
}
#endif

static void odd_tail_is_a_pair_with_plus_zero(void **state) {
    (void)state;
    // -0 + 0 * 0 is +0, so padding affects the result.
    uint16_t x[1] = {0x8000}, w[1] = {0x3f80}; // -0 * 1
    assert_true(same_f32(expertd_dot_bf16_reference(x, w, 1, 1), 0.0f));
    uint16_t x3[3] = {0x0080, 0, 0x8000}, w3[3] = {0x8080, 0, 0x3f80}; // a sum that is flushed to -0, then the odd tail
    assert_true(same_f32(expertd_dot_bf16_reference(x3, w3, 1, 2), -0.0f));
    assert_true(same_f32(expertd_dot_bf16_reference(x3, w3, 1, 3), 0.0f));
}

static void odd_k_of_a_pair_is_added_first(void **state) {
    (void)state;
    // A 1 is lost if it is added to 2^30, and not if it is added after 2^30 - 2^30.
    uint16_t one = 0x3f80, big = 0x4e80, minus = 0xbf80;
    uint16_t x[4] = {big, one, big, one}, w[4] = {one, one, minus, one};
    // k=1: 1; k=0: 2^30 + 1 -> 2^30; k=3: 2^30 + 1 -> 2^30; k=2: 0
    assert_true(same_f32(expertd_dot_bf16_reference(x, w, 1, 4), 0.0f));
    uint16_t y[4] = {one, big, one, big}, v[4] = {one, one, one, minus};
    // k=1: 2^30; k=0: 2^30; k=3: 0; k=2: 1
    assert_true(same_f32(expertd_dot_bf16_reference(y, v, 1, 4), 1.0f));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_backend_sums_as_the_scalar_twin_over_all_shapes),
        cmocka_unit_test(every_backend_sums_as_the_scalar_twin_over_all_values),
        cmocka_unit_test(bf16_kernels_leave_the_callers_floating_point_mode),
        cmocka_unit_test(odd_tail_is_a_pair_with_plus_zero),
        cmocka_unit_test(odd_k_of_a_pair_is_added_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
