// unpacked_n_major.h's kernels for one instruction set: rows_TARGET.c includes this after row_body.h, whose vectors it takes. A few
// k are read side by side, as many streams as the hardware follows, and the sums pass through L1 once for them all, which is exact.
#include "base/err.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/cpu/unpacked_n_major.h"

enum { ACROSS_STEP = 4, ACROSS_LINE = 64 }; // k of a pass along the columns, even; bytes

PANEL_INLINE float across_x(const struct across_args *a, size_t row, size_t k, bool pairs) {
    float value;
    uint16_t half;
    if (pairs) {
        memcpy(&half, (const char *)a->x[row] + k * sizeof half, sizeof half);
        return expertd_f32_from_bf16(half);
    }
    memcpy(&value, (const char *)a->x[row] + k * sizeof value, sizeof value);
    return value;
}

// ACROSS_STEP k along all whole vectors of columns. pairs: bf16's order, the odd k first.
PANEL_INLINE void across_pass(struct across_args a, size_t rows, enum expertd_dtype dtype, bool pairs, size_t k) {
    const char *weights = (const char *)a.weights + k * a.stride;
    vec x[ACROSS_ROWS][ACROSS_STEP];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t i = 0; i < ACROSS_STEP; i++) {
            x[r][i] = vec_set(across_x(&a, r, k + (pairs ? i ^ 1 : i), pairs));
        }
    }
    uintptr_t fetch = (uintptr_t)weights + (a.ahead + ACROSS_STEP * a.share / a.shares) * a.stride;
    uintptr_t end = (uintptr_t)weights + (a.ahead + ACROSS_STEP * (a.share + 1) / a.shares) * a.stride;
    size_t size = dtype == EXPERTD_DTYPE_F32 ? 4 : 2;
    const bool far = fetch_as_zen4();
    for (size_t column = 0; column + LANES <= a.columns; column += LANES) {
        if (column % (ACROSS_LINE / size) == 0) {
            for (uintptr_t at = fetch + column * size; at < end; at += a.stride) {
                fetch_into((const void *)at, far);
            }
        }
        vec w[ACROSS_STEP];
        PANEL_UNROLL for (size_t i = 0; i < ACROSS_STEP; i++) {
            w[i] = row_load(dtype, weights + (pairs ? i ^ 1 : i) * a.stride, column, LANES);
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            float *at = a.sums + r * a.sums_stride + column;
            vec sum = vec_load(at, LANES);
            PANEL_UNROLL for (size_t i = 0; i < ACROSS_STEP; i++) {
                sum = vec_fma(x[r][i], w[i], sum);
            }
            vec_store(at, sum, LANES);
        }
    }
}

// What passes leave over: n columns over k [first, a.k). An odd last k of pairs is the even one of a pair with +0.
PANEL_INLINE void across_rest(const struct across_args *a, enum expertd_dtype dtype, bool pairs, size_t first, size_t column,
                              size_t n) {
    for (size_t r = 0; r < a->rows; r++) {
        float *at = a->sums + r * a->sums_stride + column;
        vec sum = vec_load(at, n);
        for (size_t i = first; i < (pairs ? (a->k + 1) / 2 * 2 : a->k); i++) {
            size_t k = pairs ? i ^ 1 : i;
            vec w = k < a->k ? row_load(dtype, (const char *)a->weights + k * a->stride, column, n) : vec_set(0.0f);
            sum = vec_fma(vec_set(k < a->k ? across_x(a, r, k, pairs) : 0.0f), w, sum);
        }
        vec_store(at, sum, n);
    }
}

PANEL_INLINE void across_passes(struct across_args a, size_t rows, enum expertd_dtype dtype, bool pairs) {
    for (size_t k = 0; k + ACROSS_STEP <= a.k; k += ACROSS_STEP) {
        across_pass(a, rows, dtype, pairs, k);
    }
}

PANEL_INLINE void across_any_rows(const struct across_args *args, enum expertd_dtype dtype, bool pairs) {
    const struct across_args a = *args; // which no store can change
    for (size_t r = 0; r < a.rows && !a.goes_on; r++) {
        memset(a.sums + r * a.sums_stride, 0, a.columns * sizeof *a.sums);
    }
    switch (a.rows) {
    case 1:
        across_passes(a, 1, dtype, pairs);
        break;
    case 2:
        across_passes(a, 2, dtype, pairs);
        break;
    case 3:
        across_passes(a, 3, dtype, pairs);
        break;
    default:
        across_passes(a, ACROSS_ROWS, dtype, pairs);
        break;
    }
    size_t taken = a.k / ACROSS_STEP * ACROSS_STEP;
    for (size_t column = 0, n; column < a.columns; column += n) {
        n = a.columns - column < LANES ? a.columns - column : LANES;
        if (n < LANES || taken < a.k) {
            across_rest(args, dtype, pairs, n < LANES ? 0 : taken, column, n);
        }
    }
}

void ROW_TARGET(across_f32)(const struct across_args *args) {
    switch (args->dtype) {
    case EXPERTD_DTYPE_F32:
        across_any_rows(args, EXPERTD_DTYPE_F32, false);
        return;
    case EXPERTD_DTYPE_F16:
        across_any_rows(args, EXPERTD_DTYPE_F16, false);
        return;
    default:
        INVARIANT(args->dtype == EXPERTD_DTYPE_BF16);
        across_any_rows(args, EXPERTD_DTYPE_BF16, false);
        return;
    }
}

#if defined(__x86_64__) // whose flush is the contract's
// Not inlined: no fma may move across a change of the floating-point mode.
static __attribute__((noinline)) void across_pairs(const struct across_args *args) {
    across_any_rows(args, EXPERTD_DTYPE_BF16, true);
}

void ROW_TARGET(across_bf16)(const struct across_args *args) {
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    across_pairs(args);
    float_mode_restore(before);
}
#endif
