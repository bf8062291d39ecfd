// Every backend's f32 and bf16 macrokernels compared bit for bit with the reference, on weights packed by expertd_pack_weights:
// just below and above every block size of K and rows, with odd tails, and with outputs poisoned by NaN.
#include "tests/unit/kernels/guarded.h"

#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/weights.h"
#include "kernels/cpu/backend/backends.h"

enum { STRIDE_PAST = 3 }; // elements between two rows

struct macrokernel_case {
    const struct kernel_backend *backend;
    enum expertd_dtype dtype;
    size_t rows, k, panels;
    enum values values;
    size_t more; // bytes of scratch beyond KERNEL_SCRATCH_BYTES
};

struct macrokernel_data {
    char *x, *w;
    struct guarded pages; // holds the scratch; memory after it is unreadable
    void *packed, *scratch;
    float *sums;
    size_t element, stride; // bytes; elements
};

static void fill(struct random *random, const struct macrokernel_case *c, void *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (c->dtype == EXPERTD_DTYPE_F32) {
            ((float *)values)[i] = random_f32(random, c->values);
        } else {
            ((uint16_t *)values)[i] = random_bf16(random, c->values);
        }
    }
}

static void data_init(const struct macrokernel_case *c, struct macrokernel_data *d) {
    struct random random = {1 + c->rows * 7919 + c->k * 31 + c->panels};
    size_t n = c->panels * EXPERTD_KERNEL_PANEL;
    *d = (struct macrokernel_data){.element = expertd_dtype_size(c->dtype), .stride = c->k + STRIDE_PAST};
    d->x = test_alloc(c->rows * d->stride * d->element);
    d->w = test_alloc(n * c->k * d->element);
    d->packed = test_alloc(expertd_packed_group_bytes(c->dtype, c->k, n));
    d->pages = guarded_take(KERNEL_SCRATCH_BYTES + c->more, 1);
    d->scratch = d->pages.data;
    d->sums = test_alloc(c->rows * KERNEL_SUMS * sizeof(float));
    fill(&random, c, d->x, c->rows * d->stride);
    fill(&random, c, d->w, n * c->k);
    expertd_pack_weights(&(struct expertd_weight_source){d->w, c->dtype, c->k, 1}, c->k, n, c->dtype, EXPERTD_PACKED_PANELS,
                         d->packed);
    poison_f32(d->sums, c->rows * KERNEL_SUMS);
    poison_f32(d->scratch, (KERNEL_SCRATCH_BYTES + c->more) / sizeof(float));
}

static float want_sum(const struct macrokernel_case *c, const struct macrokernel_data *d, size_t row, size_t column) {
    const void *x = d->x + row * d->stride * d->element, *w = d->w + column * c->k * d->element;
    if (c->dtype == EXPERTD_DTYPE_F32) {
        return expertd_dot_f32_reference(x, w, 1, c->k);
    }
    return c->backend->arithmetic == ARITHMETIC_CPU_AMX ? expertd_dot_bf16_amx_reference(x, w, 1, c->k)
                                                        : expertd_dot_bf16_reference(x, w, 1, c->k);
}

static void check_case(const struct macrokernel_case *c) {
    macrokernel *group = c->dtype == EXPERTD_DTYPE_F32 ? c->backend->f32.macrokernel : c->backend->bf16.macrokernel;
    struct macrokernel_data d;
    if (!(c->dtype == EXPERTD_DTYPE_F32 ? FIRST_WITH(c->backend, f32.macrokernel, 0)
                                        : FIRST_WITH(c->backend, bf16.macrokernel, 0))) {
        return;
    }
    data_init(c, &d);
    const void *x[KERNEL_CALL_ROWS], *panels[KERNEL_PANELS_MAX];
    for (size_t r = 0; r < c->rows; r++) {
        x[r] = d.x + r * d.stride * d.element;
    }
    for (size_t p = 0; p < c->panels; p++) {
        panels[p] = (char *)d.packed + p * expertd_packed_group_bytes(c->dtype, c->k, EXPERTD_KERNEL_PANEL);
    }
    struct macrokernel_args args = {
        .x = x,
        .rows = c->rows,
        .panels = panels,
        .count = c->panels,
        .k = c->k,
        .sums = d.sums,
        .scratch = d.scratch,
        .scratch_more = c->more,
        .next = c->rows % 2 ? panels : NULL,
        .ahead = {d.x, c->rows % 3 ? c->rows : 0, c->k * d.element, d.stride * d.element}, // any memory
    };
    if (c->k % 3 == 0) { // in two calls
        size_t unit = KERNEL_K_UNIT(c->backend->arithmetic, c->dtype);
        args.k = c->k / 2 / unit * unit;
        group(&args);
        for (size_t r = 0; r < c->rows; r++) {
            x[r] = (const char *)x[r] + args.k * d.element;
        }
        for (size_t p = 0; p < c->panels; p++) {
            panels[p] = (const char *)panels[p] + args.k * EXPERTD_KERNEL_PANEL * d.element;
        }
        args.k = c->k - args.k;
        args.accumulate = true;
    } else if (c->k % 3 == 1) { // after a call for the same rows and fewer panels
        args.count = 1;
        group(&args);
        args.count = c->panels;
        poison_f32(d.sums, c->rows * KERNEL_SUMS);
        args.rows_cached = true;
    }
    group(&args);
    for (size_t r = 0; r < c->rows; r++) {
        for (size_t n = 0; n < c->panels * EXPERTD_KERNEL_PANEL; n += 1 + c->k / 100 * test_share()) { // all columns, if k is small
            float want = want_sum(c, &d, r, n);
            assert_same_f32(&d.sums[r * KERNEL_SUMS + n], &want, 1, c->backend->name);
        }
        for (size_t n = c->panels * EXPERTD_KERNEL_PANEL; n < KERNEL_SUMS; n++) {
            assert_true(isnan(d.sums[r * KERNEL_SUMS + n])); // nothing is written past the last panel
        }
    }
    free(d.x), free(d.w), free(d.packed), free(d.sums), guarded_free(&d.pages);
}

// scratch_more: none, too little for some uses, and the most.
static const size_t MORE[] = {0, 32 << 10, 128 << 10, KERNEL_SCRATCH_MORE};

static void check_backend(const struct kernel_backend *backend) {
    static const size_t ROWS[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18,
                                  19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 32, 48, 49, 61, 65, 84},
                        DEPTHS[] = {1, 2, 31, 33, 127, 129, 256, 257, 516, 1025, 1059};
    if (!backend->f32.macrokernel || !backend->bf16.macrokernel) {
        return;
    }
    for (size_t r = 0; r < COUNT_OF(ROWS); r++) {
        for (size_t d = 0; d < COUNT_OF(DEPTHS); d++) {
            if (!takes_case()) {
                continue;
            }
            struct macrokernel_case c = {backend,
                                         EXPERTD_DTYPE_BF16,
                                         ROWS[r],
                                         DEPTHS[d],
                                         1 + (r + d) % KERNEL_PANELS_MAX,
                                         (enum values)((r + 2 * d) % VALUES_COUNT),
                                         MORE[(r / 2 + d) % COUNT_OF(MORE)]};
            check_case(&c);
            c.dtype = EXPERTD_DTYPE_F32;
            check_case(&c);
        }
    }
}

static void macrokernels_sum_as_the_scalar_twin(void **state) {
    (void)state;
    for_each_backend(check_backend);
}

static void most_rows_fit_the_scratch(const struct kernel_backend *backend) {
    static const struct {
        size_t k, more;
    } CALLS[] = {{258, 0}, {1060, 0}, {1060, KERNEL_SCRATCH_MORE}}; // rows of the second one do not fit into scratch
    if (!backend->f32.macrokernel || !backend->bf16.macrokernel) {
        return;
    }
    for (size_t i = 0; i < COUNT_OF(CALLS); i++) {
        if (i > 0 && !takes_case()) {
            continue;
        }
        struct macrokernel_case c = {backend,           EXPERTD_DTYPE_BF16, KERNEL_CALL_ROWS, CALLS[i].k,
                                     KERNEL_PANELS_MAX, VALUES_PLAIN,       CALLS[i].more};
        check_case(&c);
        c.dtype = EXPERTD_DTYPE_F32;
        check_case(&c);
    }
}

static void a_call_of_most_rows_and_panels_is_complete(void **state) {
    (void)state;
    for_each_backend(most_rows_fit_the_scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(macrokernels_sum_as_the_scalar_twin),
        cmocka_unit_test(a_call_of_most_rows_and_panels_is_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
