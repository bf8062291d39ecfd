// Corner cases of the ragged grouped GEMM that random tests seldom reach, with their answers. There is one group, and all elements
// of an operand are equal, so all outputs are one sum, which is exact in any order.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_OPERATIONS_GEMM_CORNERS_H
#define EXPERTD_TESTS_UNIT_KERNELS_OPERATIONS_GEMM_CORNERS_H

#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/grouped_gemm.h"

enum { CORNER_ROWS_MAX = 40, CORNER_COLUMNS = 70, CORNER_K_MAX = 2200 };

struct gemm_corner {
    enum expertd_dtype dtype; // of both operands
    enum expertd_dtype out_dtype;
    size_t k;
    int a, b; // each element's code
    float alpha, beta;
    double c, want; // exact in out_dtype
};

// The same for operands with scales.
struct scaled_corner {
    struct gemm_corner of;
    enum expertd_gemm_scaling scaling; // EXPERTD_GEMM_TENSOR or EXPERTD_GEMM_MXFP8_1X32
    float scale_a, scale_b;
};

enum { CORNER_SCALES_MAX = CORNER_COLUMNS * 4 };

struct corner_run {
    struct expertd_grouped_gemm_args args; // without out
    float tensor_scales[2];
    uint8_t a_scales[CORNER_SCALES_MAX], b_scales[CORNER_SCALES_MAX];
    float alpha, beta;
    uint8_t a[CORNER_ROWS_MAX * CORNER_K_MAX], b[CORNER_COLUMNS * CORNER_K_MAX];
    uint32_t c[CORNER_ROWS_MAX * CORNER_COLUMNS], want[CORNER_ROWS_MAX * CORNER_COLUMNS];
};

static inline void corner_value(enum expertd_dtype dtype, double value, size_t count, void *out) {
    for (size_t i = 0; i < count; i++) {
        float narrow = (float)value;
        int32_t whole = dtype == EXPERTD_DTYPE_I32 ? (int32_t)value : 0;
        if (dtype == EXPERTD_DTYPE_I32) {
            memcpy((int32_t *)out + i, &whole, sizeof whole);
        } else {
            expertd_dtype_narrow(&narrow, 1, dtype, (char *)out + i * expertd_dtype_size(dtype));
        }
    }
}

// The case's operands and answer for a number of rows.
static inline void corner_fill(const struct gemm_corner *corner, size_t rows, struct corner_run *run) {
    assert_true(rows <= CORNER_ROWS_MAX && corner->k <= CORNER_K_MAX && (corner->k == 0 || expertd_dtype_size(corner->dtype) == 1));
    size_t count = rows * CORNER_COLUMNS;
    memset(run->a, corner->a, sizeof run->a);
    memset(run->b, corner->b, sizeof run->b);
    corner_value(corner->out_dtype, corner->c, count, run->c);
    corner_value(corner->out_dtype, corner->want, count, run->want);
    run->alpha = corner->alpha, run->beta = corner->beta;
    const struct expertd_gemm_dim m = {.same = rows}, n = {.same = CORNER_COLUMNS}, k = {.same = corner->k};
    run->args = (struct expertd_grouped_gemm_args){
        .num_groups = 1,
        .a = {.data = run->a, .dtype = corner->dtype, .count = rows * corner->k, .first = m, .last = k},
        .b = {.data = run->b, .dtype = corner->dtype, .count = CORNER_COLUMNS * corner->k, .first = n, .last = k},
        .trans_b = true,
        .out_first = m,
        .out_last = n,
        .out_dtype = corner->out_dtype,
        .out_count = count,
        .alpha = &run->alpha,
        .beta = &run->beta,
        .alpha_count = 1,
        .beta_count = 1,
        .c = run->c,
        .c_count = count,
    };
}

static inline void corner_scale_operand(struct expertd_gemm_operand *operand, enum expertd_gemm_scaling scaling, float *scale,
                                        uint8_t *codes) {
    operand->scaling = scaling;
    operand->scales = scaling == EXPERTD_GEMM_TENSOR ? (void *)scale : codes;
    operand->scale_dtype = scaling == EXPERTD_GEMM_TENSOR ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_F8_E8M0;
    operand->scale_count = scaling == EXPERTD_GEMM_TENSOR ? 1 : operand->first.same * ((operand->last.same + 31) / 32);
    assert_true(operand->scale_count <= CORNER_SCALES_MAX);
    memset(codes, ilogbf(*scale) + 127, CORNER_SCALES_MAX);
}

static inline void corner_fill_scaled(const struct scaled_corner *corner, size_t rows, struct corner_run *run) {
    corner_fill(&corner->of, rows, run);
    run->tensor_scales[0] = corner->scale_a, run->tensor_scales[1] = corner->scale_b;
    corner_scale_operand(&run->args.a, corner->scaling, &run->tensor_scales[0], run->a_scales);
    corner_scale_operand(&run->args.b, corner->scaling, &run->tensor_scales[1], run->b_scales);
}

static inline void corner_expect(const struct gemm_corner *corner, const struct corner_run *run, const void *out, const char *by) {
    size_t size = expertd_dtype_size(corner->out_dtype);
    for (size_t i = 0; i < run->args.out_count; i++) {
        const char *got = (const char *)out + i * size;
        if (memcmp(got, (const char *)run->want + i * size, size) != 0) {
            float value = NAN;
            int32_t whole = 0;
            if (corner->out_dtype == EXPERTD_DTYPE_I32) {
                memcpy(&whole, got, sizeof whole);
            } else {
                expertd_dtype_widen(corner->out_dtype, got, 1, &value);
            }
            fail_msg("%s by %s to %s, k %zu, alpha %g, beta %g, by %s: element %zu is %.10g, not %.10g",
                     expertd_dtype_name(corner->dtype), expertd_dtype_name(corner->dtype), expertd_dtype_name(corner->out_dtype),
                     corner->k, (double)corner->alpha, (double)corner->beta, by, i,
                     corner->out_dtype == EXPERTD_DTYPE_I32 ? whole : (double)value, corner->want);
        }
    }
}

static const struct gemm_corner CORNERS[] = {
    // k = 0: beta * C, or +0 where beta is 0
    {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_F32, 0, 0, 0, INFINITY, 2, 3, 6},
    {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_F32, 0, 0, 0, -INFINITY, 0, 3, 0},
    {EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_BF16, 0, 0, 0, NAN, 0, 3, 0},
    {EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F16, 0, 0, 0, NAN, -1, 3, -3},
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_F32, 0, 0, 0, INFINITY, 0.5f, 3, 1.5},
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_BF16, 0, 0, 0, -1, 0, 3, 0},
    // I32 output: integer factors, and everything wraps
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_I32, 7, 3, 5, 2, 0, 10, 210},
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_I32, 7, 3, 5, -2, 3, 10, -180},
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_I32, 7, 3, 5, 0, -1, 10, -10},
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_I32, 7, 3, 5, 0x1p30f, 1, 10, 0x1p30 + 10}, // 105 * 2^30 is 26 * 2^32 + 2^30
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_I32, 7, 3, 5, -0x1p31f, 0x1p24f, 255,
     0x1p31 - 0x1p24}, // an odd number of 2^31, and 2^32 - 2^24
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_I32, 0, 0, 0, 5, 3, 10, 30},
    // int8 with existing output: sums that fp32 or double would round too early
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_F32, 1041, 127, 127, 1, 1, 1, 16790290},        // 16790289 + 1
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_F32, 1041, 127, 127, 0.5f, 1, 0.25, 8395145},   // 8395144.5 + .25
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_F32, 2099, 127, 126, 1, -1, 0x1p-30, 33588196}, // 33588198, halfway to ...200, less 2^-30
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_F32, 2099, 127, 126, 1, 0.5f, 0x1p-100, 33588200},
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_F32, 2099, 127, 126, 1, 1, INFINITY, INFINITY},
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_BF16, 2194, 121, 127, 1, 1, 232448, 33816576}, // 33715198 + 232448
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_F16, 683, 6, 1, 1, 0x1p-10f, 0x1p-24, 4100},   // 4098, halfway from 4096, and 2^-34
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_F16, 683, 6, 1, 1, -0x1p-10f, 0x1p-24, 4096},
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_F16, 683, 6, 1, 0, 0x1p-10f, 0x1p-24, 0},
    {EXPERTD_DTYPE_I8, EXPERTD_DTYPE_BF16, 7, 3, 5, 0, -0x1p-60f, 0x1p-120, -0.0},
};

// Scales whose product overflows or underflows fp32, with codes 0, 2^-9 (0x01), 1 (0x38) and 448 (0x7e).
static const struct scaled_corner SCALED_CORNERS[] = {
    {{EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_F32, 1, 0x00, 0x38, 1, 0, 0, 0}, EXPERTD_GEMM_MXFP8_1X32, 0x1p127f, 0x1p127f},
    {{EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_F32, 1, 0x01, 0x01, 1, 0, 0, 0x1p111}, EXPERTD_GEMM_MXFP8_1X32, 0x1p64f, 0x1p65f},
    {{EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_F32, 96, 0x01, 0x81, 1, 0, 0, -96 * 0x1p111}, EXPERTD_GEMM_MXFP8_1X32, 0x1p2f, 0x1p127f},
    {{EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_F32, 1, 0x38, 0x38, 1, 0, 0, INFINITY}, EXPERTD_GEMM_MXFP8_1X32, 0x1p65f, 0x1p64f},
    {{EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_F32, 32, 0x7e, 0x7e, 1, 0, 0, 49 * 0x1p-143},
     EXPERTD_GEMM_MXFP8_1X32,
     0x1p-100f,
     0x1p-60f},
    {{EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_F32, 32, 0x7e, 0x7e, 1, 0, 0, 49 * 0x1p-110}, EXPERTD_GEMM_MXFP8_1X32, 0x1p-127f, 1},
    {{EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_F32, 9, 0x00, 0x38, 1, 0, 0, 0}, EXPERTD_GEMM_TENSOR, 3e38f, 3e38f},
    {{EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_F32, 32, 0x7e, 0x7e, 1, 0, 0, 49 * 4097 * 0x1p-135},
     EXPERTD_GEMM_TENSOR,
     0x1.001p-100f,
     0x1p-40f},
    {{EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_F32, 32, 0x7e, 0x7e, 1, 0, 0, -49 * 4097 * 0x1p-135},
     EXPERTD_GEMM_TENSOR,
     0x1p-40f,
     -0x1.001p-100f},
    {{EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_F32, 32, 0x7e, 0x7e, 1, 0, 0, 0}, EXPERTD_GEMM_TENSOR, 0, 3e38f},
};

#endif
