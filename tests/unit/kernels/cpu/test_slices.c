// Every backend's kernels for panels packed as slices, of each width, compared bit for bit with the reference: every number of rows
// of a tile, several tiles, cached rows and others, complete and incomplete lines of words. Operands are surrounded by unreadable
// memory.
#include "tests/unit/kernels/guarded.h"

#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/weights.h"
#include "kernels/cpu/backend/backends.h"

enum { GUARD = 3, TILE = 24 };

struct slices_case {
    const struct kernel_backend *backend;
    enum expertd_packed_layout layout;
    enum expertd_dtype dtype;
    size_t rows, k, panels;
    enum values values;
};

struct slices_data {
    struct guarded x[KERNEL_CALL_ROWS], packed[KERNEL_PANELS_MAX], scratch, sums;
    const void *rows[KERNEL_CALL_ROWS], *panels[KERNEL_PANELS_MAX];
    char *w;
    size_t element, more;
};

static void fill(struct random *random, const struct slices_case *c, void *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (c->dtype == EXPERTD_DTYPE_F32) {
            ((float *)values)[i] = random_f32(random, c->values);
        } else {
            ((uint16_t *)values)[i] = random_bf16(random, c->values);
        }
    }
}

// more: scratch_more.
static void data_init(const struct slices_case *c, size_t more, struct slices_data *d) {
    struct random random = {1 + c->rows * 7919 + c->k * 31 + c->panels};
    *d = (struct slices_data){.element = expertd_dtype_size(c->dtype), .more = more};
    for (size_t r = 0; r < c->rows; r++) {
        d->x[r] = guarded_take(c->k * d->element, r % 2 == 0);
        d->rows[r] = d->x[r].data;
        fill(&random, c, d->x[r].data, c->k);
    }
    d->w = test_alloc(c->panels * EXPERTD_KERNEL_PANEL * c->k * d->element);
    fill(&random, c, d->w, c->panels * EXPERTD_KERNEL_PANEL * c->k);
    for (size_t p = 0; p < c->panels; p++) {
        d->packed[p] = guarded_take(expertd_packed_group_bytes(c->dtype, c->k, EXPERTD_KERNEL_PANEL), p % 2 == 0);
        d->panels[p] = d->packed[p].data;
        struct expertd_weight_source source = {d->w + p * EXPERTD_KERNEL_PANEL * c->k * d->element, c->dtype, c->k, 1};
        expertd_pack_weights(&source, c->k, EXPERTD_KERNEL_PANEL, c->dtype, c->layout, d->packed[p].data);
    }
    d->scratch = guarded_take(KERNEL_SCRATCH_BYTES + more, 1);
    d->sums = guarded_take(c->rows * KERNEL_SUMS * sizeof(float), 1);
    poison_f32(d->scratch.data, (KERNEL_SCRATCH_BYTES + more) / sizeof(float));
    poison_f32(d->sums.data, c->rows * KERNEL_SUMS);
}

static void data_deinit(const struct slices_case *c, struct slices_data *d) {
    for (size_t r = 0; r < c->rows; r++) {
        guarded_free(&d->x[r]);
    }
    for (size_t p = 0; p < c->panels; p++) {
        guarded_free(&d->packed[p]);
    }
    guarded_free(&d->scratch), guarded_free(&d->sums), free(d->w);
}

static float want_sum(const struct slices_case *c, const struct slices_data *d, size_t row, size_t column) {
    const void *w = d->w + column * c->k * d->element;
    return c->dtype == EXPERTD_DTYPE_F32 ? expertd_dot_f32_reference(d->rows[row], w, 1, c->k)
                                         : expertd_dot_bf16_reference(d->rows[row], w, 1, c->k);
}

static void check_sums(const struct slices_case *c, const struct slices_data *d) {
    for (size_t r = 0; r < c->rows; r++) {
        const float *sums = (const float *)d->sums.data + r * KERNEL_SUMS;
        for (size_t n = 0; n < c->panels * EXPERTD_KERNEL_PANEL;
             n += 1 + c->k * c->rows / 3000 * test_share()) { // all columns, if the case is small
            float want = want_sum(c, d, r, n);
            assert_same_f32(&sums[n], &want, 1, c->backend->name);
        }
        for (size_t n = c->panels * EXPERTD_KERNEL_PANEL; n < KERNEL_SUMS; n++) {
            assert_true(isnan(sums[n])); // nothing is written past the last panel
        }
    }
}

static const struct slices_kernels *kernels_of(const struct slices_case *c) {
    return &backend_kernels(c->backend, c->dtype)->slices[c->layout];
}

// A call, and a second one with cached rows; both have a next call to prefetch.
static void check_group(const struct slices_case *c, size_t more) {
    struct slices_data d;
    data_init(c, more, &d);
    struct macrokernel_args args = {.x = d.rows,
                                    .rows = c->rows,
                                    .panels = d.panels,
                                    .count = c->panels,
                                    .k = c->k,
                                    .sums = d.sums.data,
                                    .scratch = d.scratch.data,
                                    .scratch_more = more,
                                    .next = c->rows % 2 ? d.panels : NULL,
                                    .next_x = d.rows,
                                    .next_rows = c->rows % 3 ? c->rows : 0};
    kernels_of(c)->macrokernel(&args);
    check_sums(c, &d);
    poison_f32(d.sums.data, c->rows * KERNEL_SUMS);
    args.rows_cached = true;
    kernels_of(c)->macrokernel(&args);
    check_sums(c, &d);
    data_deinit(c, &d);
}

// The kernel for one panel, which has no scratch, writing less than 64 columns.
static void check_panel(const struct slices_case *c) {
    struct slices_data d;
    data_init(c, 0, &d);
    const size_t columns = EXPERTD_KERNEL_PANEL - c->rows % EXPERTD_KERNEL_PANEL, stride = columns + GUARD;
    struct guarded out = guarded_take(c->rows * stride * sizeof(float), 1);
    poison_f32(out.data, c->rows * stride);
    kernels_of(c)->panel(&(struct panel_args){
        .x = d.rows, .rows = c->rows, .panel = d.panels[0], .k = c->k, .out = out.data, .out_stride = stride, .columns = columns});
    for (size_t r = 0; r < c->rows; r++) {
        const float *got = (const float *)out.data + r * stride;
        for (size_t n = 0; n < columns; n += 1 + c->k / 100 * test_share()) {
            float want = want_sum(c, &d, r, n);
            assert_same_f32(&got[n], &want, 1, c->backend->name);
        }
        for (size_t n = columns; n < stride; n++) {
            assert_true(isnan(got[n]));
        }
    }
    guarded_free(&out);
    data_deinit(c, &d);
}

static int is_first(const struct kernel_backend *backend, enum expertd_packed_layout layout, enum expertd_dtype dtype) {
    const size_t slot = layout * sizeof(struct slices_kernels), f32 = offsetof(struct kernel_backend, f32.slices);
    return backend_kernels(backend, dtype)->slices[layout].macrokernel &&
           first_with(backend, (dtype == EXPERTD_DTYPE_F32 ? f32 : offsetof(struct kernel_backend, bf16.slices)) + slot, 0);
}

static void check_layout(const struct kernel_backend *backend, enum expertd_packed_layout layout, enum expertd_dtype dtype) {
    static const size_t DEPTHS[] = {1, 2, 15, 31, 32, 33, 129, 256, 517};
    for (size_t rows = 1; rows <= 2 * TILE + 2; rows += rows < TILE + 3 ? 1 : 7) {
        for (size_t d = 0; d < COUNT_OF(DEPTHS); d++) {
            if (!takes_case()) {
                continue;
            }
            struct slices_case c = {backend,
                                    layout,
                                    dtype,
                                    rows,
                                    DEPTHS[d],
                                    1 + (rows + d) % KERNEL_PANELS_MAX,
                                    (enum values)((rows + 2 * d) % VALUES_COUNT)};
            check_group(&c, 0);
            if (d % 3 == rows % 3) {
                check_panel(&c);
            }
        }
    }
}

static void check_backend(const struct kernel_backend *backend) {
    for (size_t i = 0; i < 2 * EXPERTD_PACKED_LAYOUTS; i++) {
        enum expertd_dtype dtype = i % 2 ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16;
        if (is_first(backend, (enum expertd_packed_layout)(i / 2), dtype)) {
            check_layout(backend, (enum expertd_packed_layout)(i / 2), dtype);
        }
    }
}

static void slices_sum_as_the_scalar_twin(void **state) {
    (void)state;
    for_each_backend(check_backend);
}

// As many rows as scratch can hold for the whole of K; one row more, which needs blocks of K; the most rows of a call.
static void check_scratch_of(const struct kernel_backend *backend, enum expertd_packed_layout layout) {
    enum { K_BF16 = 1026, WORDS = (K_BF16 / 2 + 15) / 16 * 16, FIT = KERNEL_SCRATCH_BYTES / (4 * WORDS), MORE = 64 << 10 };
    enum { MOST = KERNEL_CALL_ROWS };
    _Static_assert((int)FIT > (int)TILE && (int)FIT < (int)MOST, "scratch holds several tiles of rows, but not all rows of a call");
    const enum expertd_dtype bf16 = EXPERTD_DTYPE_BF16;
    if (is_first(backend, layout, bf16)) {
        check_group(&(struct slices_case){backend, layout, bf16, FIT, K_BF16, 2, VALUES_PLAIN}, 0);
        check_group(&(struct slices_case){backend, layout, bf16, FIT + 1, K_BF16, 3, VALUES_PLAIN}, 0);
        check_group(&(struct slices_case){backend, layout, bf16, FIT + 1, K_BF16, 2, VALUES_PLAIN}, MORE);
        check_group(&(struct slices_case){backend, layout, bf16, MOST, K_BF16, KERNEL_PANELS_MAX, VALUES_PLAIN}, 0);
    }
    // Rows that are widened when they are interleaved take twice as much, in lines of 8 words.
    enum { FIT_WIDENED = KERNEL_SCRATCH_BYTES / ((K_BF16 / 2 + 7) / 8 * 64) };
    if (is_first(backend, layout, bf16) && backend_kernels(backend, bf16)->slices[layout].widened) {
        check_group(&(struct slices_case){backend, layout, bf16, FIT_WIDENED, K_BF16, 2, VALUES_PLAIN}, 0);
        check_group(&(struct slices_case){backend, layout, bf16, FIT_WIDENED + 1, K_BF16, 3, VALUES_PLAIN}, 0);
    }
    enum { TURNS = 2 * 1024 + 35 }; // more words than one turn of any tile
    if (is_first(backend, layout, bf16)) {
        check_group(&(struct slices_case){backend, layout, bf16, 15, 2 * TURNS - 1, 1, VALUES_PLAIN}, 0);
        check_group(&(struct slices_case){backend, layout, bf16, 43, 2 * TURNS, 1, VALUES_PLAIN}, 1 << 20);
    }
    if (is_first(backend, layout, EXPERTD_DTYPE_F32)) {
        check_group(&(struct slices_case){backend, layout, EXPERTD_DTYPE_F32, 29, TURNS, 1, VALUES_PLAIN}, 0);
        check_group(&(struct slices_case){backend, layout, EXPERTD_DTYPE_F32, MOST, K_BF16 / 2, KERNEL_PANELS_MAX, VALUES_PLAIN},
                    0);
    }
}

static void check_scratch(const struct kernel_backend *backend) {
    for (size_t layout = 0; layout < EXPERTD_PACKED_LAYOUTS; layout++) {
        check_scratch_of(backend, (enum expertd_packed_layout)layout);
    }
}

static void rows_that_do_not_fit_into_scratch_are_multiplied_in_blocks(void **state) {
    (void)state;
    for_each_backend(check_scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_sum_as_the_scalar_twin),
        cmocka_unit_test(rows_that_do_not_fit_into_scratch_are_multiplied_in_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
