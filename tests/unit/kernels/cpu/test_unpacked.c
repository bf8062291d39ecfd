// The kernels for small m by unpacked weights [k, n] (unpacked_n_major.h) and [n, k] (unpacked_k_major.h), compared with the
// contract's sums: every number of rows, columns around the ends of vectors and lines, odd k, strides, K in two calls. Operands are
// surrounded by unreadable memory.
#include "kernels/cpu/backend/unpacked_k_major.h"
#include "kernels/cpu/backend/unpacked_n_major.h"
#include "kernels/cpu/common/fma_flushed.h"
#include "tests/unit/kernels/guarded.h"

enum {
    ROUNDS = 1200,
    K_MAX = 23,
    COLUMNS_MAX = 150,
    GAP = 5,
    K_MAJOR_ROUNDS = 400,
    K_MAJOR_ROWS = 14,   // a tile of 12 rows and an incomplete one
    K_MAJOR_K_MAX = 560, // two blocks of int8
    K_MAJOR_COLUMNS_MAX = 50,
};

struct problem {
    enum expertd_dtype x_dtype, dtype;
    bool k_major;
    size_t rows, k, columns, stride, sums_stride; // strides in elements
    struct guarded x[K_MAJOR_ROWS], weights, sums;
    float *want; // [rows, columns]
};

static void put(enum expertd_dtype dtype, void *data, size_t at, float value) {
    expertd_dtype_narrow(&value, 1, dtype, (char *)data + at * expertd_dtype_size(dtype));
}

static float get(enum expertd_dtype dtype, const void *data, size_t at) {
    float value;
    expertd_dtype_widen(dtype, (const char *)data + at * expertd_dtype_size(dtype), 1, &value);
    return value;
}

static float weight(const struct problem *p, size_t k, size_t column) {
    return get(p->dtype, p->weights.data, p->k_major ? column * p->stride + k : k * p->stride + column);
}

// The expected sum. bf16: pairs, the odd k first, an odd tail padded with +0. int8: the bits of an int32 that wraps. f32: one fma
// per k.
static float sum_of(const struct problem *p, size_t row, size_t column, size_t k_end) {
    float sum = 0.0f;
    if (p->x_dtype == EXPERTD_DTYPE_I8) {
        uint32_t wrapped = 0;
        for (size_t k = 0; k < k_end; k++) {
            size_t at = p->k_major ? column * p->stride + k : k * p->stride + column;
            wrapped += (uint32_t)(((const int8_t *)p->x[row].data)[k] * ((const int8_t *)p->weights.data)[at]);
        }
        return expertd_f32_from_bits(wrapped);
    }
    if (p->x_dtype == EXPERTD_DTYPE_F32) {
        for (size_t k = 0; k < k_end; k++) {
            sum = fmaf(get(EXPERTD_DTYPE_F32, p->x[row].data, k), weight(p, k, column), sum);
        }
        return sum;
    }
    for (size_t k = 0; k < k_end; k += 2) {
        for (size_t odd = 2; odd-- > 0;) {
            bool is = k + odd < k_end;
            float x = is ? get(EXPERTD_DTYPE_BF16, p->x[row].data, k + odd) : 0.0f;
            sum = fma_flushed(x, is ? weight(p, k + odd, column) : 0.0f, sum);
        }
    }
    return sum;
}

static void fill(struct random *random, enum expertd_dtype dtype, void *data, size_t count) {
    if (dtype == EXPERTD_DTYPE_I8) {
        for (size_t i = 0; i < count; i++) {
            static const int8_t ENDS[] = {-128, 127, -1, 0};
            uint32_t any = random_below(random, 1u << 10);
            ((int8_t *)data)[i] = any < 1u << 8 ? ENDS[any % 4] : (int8_t)any;
        }
        return;
    }
    enum values values = random_below(random, VALUES_COUNT);
    for (size_t i = 0; i < count; i++) {
        put(dtype, data, i, random_f32(random, values));
    }
}

static struct problem problem_at_random(struct random *random, enum expertd_dtype x_dtype, bool k_major) {
    static const enum expertd_dtype DTYPES[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_F16, EXPERTD_DTYPE_BF16};
    int at_end = (int)random_below(random, 2);
    struct problem p = {.x_dtype = x_dtype,
                        .dtype = x_dtype == EXPERTD_DTYPE_F32 ? DTYPES[random_below(random, 3)] : x_dtype,
                        .k_major = k_major,
                        .rows = 1 + random_below(random, k_major ? K_MAJOR_ROWS : N_MAJOR_ROWS),
                        .k = k_major ? 1 + random_below(random, K_MAJOR_K_MAX) : random_below(random, K_MAX + 1),
                        .columns = 1 + random_below(random, k_major ? K_MAJOR_COLUMNS_MAX : COLUMNS_MAX)};
    p.stride = (k_major ? p.k : p.columns) + random_below(random, GAP);
    p.sums_stride = p.columns + random_below(random, GAP);
    size_t lines = k_major ? p.columns : p.k;
    size_t weights = lines ? (lines - 1) * p.stride + (k_major ? p.k : p.columns) : 0;
    p.weights = guarded_take(weights * expertd_dtype_size(p.dtype), at_end);
    fill(random, p.dtype, p.weights.data, weights);
    p.sums = guarded_take(((p.rows - 1) * p.sums_stride + p.columns) * sizeof(float), at_end);
    p.want = test_alloc(p.rows * p.columns * sizeof *p.want);
    for (size_t r = 0; r < p.rows; r++) {
        p.x[r] = guarded_take(p.k * expertd_dtype_size(p.x_dtype), at_end);
        fill(random, p.x_dtype, p.x[r].data, p.k);
        for (size_t c = 0; c < p.columns; c++) {
            p.want[r * p.columns + c] = sum_of(&p, r, c, p.k);
        }
    }
    return p;
}

static void problem_free(struct problem *p) {
    for (size_t r = 0; r < p->rows; r++) {
        guarded_free(&p->x[r]);
    }
    guarded_free(&p->weights);
    guarded_free(&p->sums);
    free(p->want);
}

static void run_k_major(const struct kernel_backend *backend, const struct problem *p, const void *const *x, size_t first,
                        size_t end) {
    struct k_major_args args = {.x = x,
                                .rows = p->rows,
                                .dtype = p->dtype,
                                .weights = (const char *)p->weights.data + first * expertd_dtype_size(p->dtype),
                                .stride = p->stride * expertd_dtype_size(p->dtype),
                                .k = end - first,
                                .columns = p->columns,
                                .sums = p->sums.data,
                                .sums_stride = p->sums_stride,
                                .accumulate = first > 0};
    backend_kernels(backend, p->x_dtype)->k_major(&args);
}

static void run_n_major(const struct kernel_backend *backend, const struct problem *p, const void *const *x, size_t first,
                        size_t end, size_t shares) {
    struct n_major_args args = {.x = x,
                                .rows = p->rows,
                                .dtype = p->dtype,
                                .weights = (const char *)p->weights.data + first * p->stride * expertd_dtype_size(p->dtype),
                                .stride = p->stride * expertd_dtype_size(p->dtype),
                                .k = end - first,
                                .columns = p->columns,
                                .sums = p->sums.data,
                                .sums_stride = p->sums_stride,
                                .ahead = 16,
                                .share = shares - 1,
                                .shares = shares,
                                .accumulate = first > 0};
    backend_kernels(backend, p->x_dtype)->n_major(&args);
}

// Multiplies k in [first, end).
static void run(const struct kernel_backend *backend, const struct problem *p, size_t first, size_t end, size_t shares) {
    const void *x[K_MAJOR_ROWS];
    for (size_t r = 0; r < p->rows; r++) {
        x[r] = (const char *)p->x[r].data + first * expertd_dtype_size(p->x_dtype);
    }
    if (p->k_major) {
        run_k_major(backend, p, x, first, end);
    } else {
        run_n_major(backend, p, x, first, end, shares);
    }
}

static void check_one(const struct kernel_backend *backend, struct random *random, enum expertd_dtype x_dtype, bool k_major) {
    struct problem p = problem_at_random(random, x_dtype, k_major);
    size_t shares = 1 + random_below(random, 8), sums = (p.rows - 1) * p.sums_stride + p.columns;
    for (int parts = 1; parts <= 2; parts++) {
        size_t middle = parts == 2 ? random_below(random, (uint32_t)(p.k_major ? p.k : p.k + 1)) / 2 * 2 : 0;
        memset(p.sums.data, 0x7f, sums * sizeof(float));
        if (middle) {
            run(backend, &p, 0, middle, shares);
        }
        run(backend, &p, middle, p.k, shares);
        for (size_t r = 0; r < p.rows; r++) {
            const float *row = (const float *)p.sums.data + r * p.sums_stride;
            if (x_dtype == EXPERTD_DTYPE_I8) { // compared as int32: assert_same_f32 treats all NaN as equal
                assert_memory_equal(row, p.want + r * p.columns, p.columns * sizeof *row);
            } else {
                assert_same_f32(row, p.want + r * p.columns, p.columns, backend->name);
            }
            for (size_t c = p.columns; c < p.sums_stride && r + 1 < p.rows; c++) {
                assert_int_equal(expertd_f32_bits(row[c]), 0x7f7f7f7f);
            }
        }
    }
    problem_free(&p);
}

static void n_major_sums_are_the_contracts(const struct kernel_backend *backend) {
    struct random random = {share_start(1618)};
    for (size_t i = 0; i < share_of(CASES_OF(ROUNDS)); i++) {
        if (backend->f32.n_major && FIRST_WITH(backend, f32.n_major, 0)) {
            check_one(backend, &random, EXPERTD_DTYPE_F32, false);
        }
        if (backend->bf16.n_major && FIRST_WITH(backend, bf16.n_major, 0)) {
            check_one(backend, &random, EXPERTD_DTYPE_BF16, false);
        }
        if (backend->i8.n_major && FIRST_WITH(backend, i8.n_major, 0)) {
            check_one(backend, &random, EXPERTD_DTYPE_I8, false);
        }
    }
}

static void k_major_sums_are_the_contracts(const struct kernel_backend *backend) {
    struct random random = {share_start(2718)};
    for (size_t i = 0; i < share_of(CASES_OF(K_MAJOR_ROUNDS)); i++) {
        if (backend->f32.k_major && FIRST_WITH(backend, f32.k_major, 0)) {
            check_one(backend, &random, EXPERTD_DTYPE_F32, true);
        }
        if (backend->bf16.k_major && FIRST_WITH(backend, bf16.k_major, 0)) {
            check_one(backend, &random, EXPERTD_DTYPE_BF16, true);
        }
        if (backend->i8.k_major && FIRST_WITH(backend, i8.k_major, 0)) {
            check_one(backend, &random, EXPERTD_DTYPE_I8, true);
        }
    }
}

static void every_n_major_kernel_gives_the_contracts_sums(void **state) {
    (void)state;
    for_each_backend(n_major_sums_are_the_contracts);
}

static void every_k_major_kernel_gives_the_contracts_sums(void **state) {
    (void)state;
    for_each_backend(k_major_sums_are_the_contracts);
}

// The bf16 kernels for unpacked weights have the bits of ARITHMETIC_CPU, so backends of other arithmetics must not have them.
static void only_arithmetic_cpu_has_unpacked_bf16_kernels(void **state) {
    (void)state;
    bool usable;
    const struct kernel_backend *backend;
    for (size_t i = 0; (backend = kernel_backend_at(i, &usable)); i++) {
        assert_true(backend->arithmetic == ARITHMETIC_CPU || (!backend->bf16.n_major && !backend->bf16.k_major));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_n_major_kernel_gives_the_contracts_sums),
        cmocka_unit_test(every_k_major_kernel_gives_the_contracts_sums),
        cmocka_unit_test(only_arithmetic_cpu_has_unpacked_bf16_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
