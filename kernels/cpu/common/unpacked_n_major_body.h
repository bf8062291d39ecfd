// The kernels of unpacked_n_major.h for one instruction set. rows_TARGET.c includes this after row_body.h and its vector type. Each
// pass reads N_MAJOR_STEP rows of weights side by side, as many streams as the hardware prefetcher follows. Sums are loaded and
// stored once per pass, which is exact.
#include "base/err.h"
#include "kernels/cpu/backend/unpacked_n_major.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum { N_MAJOR_STEP = 4, N_MAJOR_LINE = 64 }; // k of a pass, even; bytes of a cache line

PANEL_INLINE float n_major_x(const struct n_major_args *a, size_t row, size_t k, bool pairs) {
    float value;
    uint16_t half;
    if (pairs) {
        memcpy(&half, (const char *)a->x[row] + k * sizeof half, sizeof half);
        return expertd_f32_from_bf16(half);
    }
    memcpy(&value, (const char *)a->x[row] + k * sizeof value, sizeof value);
    return value;
}

// N_MAJOR_STEP k by all complete vectors of columns. pairs: bf16's order, the odd k of a pair first.
PANEL_INLINE void n_major_pass(struct n_major_args a, size_t rows, enum expertd_dtype dtype, bool pairs, size_t k) {
    const char *weights = (const char *)a.weights + k * a.stride;
    vec x[N_MAJOR_ROWS][N_MAJOR_STEP];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t i = 0; i < N_MAJOR_STEP; i++) {
            x[r][i] = vec_set(n_major_x(&a, r, k + (pairs ? i ^ 1 : i), pairs));
        }
    }
    uintptr_t prefetch = (uintptr_t)weights + (a.ahead + N_MAJOR_STEP * a.share / a.shares) * a.stride;
    uintptr_t end = (uintptr_t)weights + (a.ahead + N_MAJOR_STEP * (a.share + 1) / a.shares) * a.stride;
    size_t size = dtype == EXPERTD_DTYPE_F32 ? 4 : 2;
    const bool far = prefetch_as_zen4();
    for (size_t column = 0; column + LANES <= a.columns; column += LANES) {
        if (column % (N_MAJOR_LINE / size) == 0) {
            for (uintptr_t at = prefetch + column * size; at < end; at += a.stride) {
                prefetch_into((const void *)at, far);
            }
        }
        vec w[N_MAJOR_STEP];
        PANEL_UNROLL for (size_t i = 0; i < N_MAJOR_STEP; i++) {
            w[i] = row_load(dtype, weights + (pairs ? i ^ 1 : i) * a.stride, column, LANES);
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            float *at = a.sums + r * a.sums_stride + column;
            vec sum = vec_load(at, LANES);
            PANEL_UNROLL for (size_t i = 0; i < N_MAJOR_STEP; i++) {
                sum = vec_fma(x[r][i], w[i], sum);
            }
            vec_store(at, sum, LANES);
        }
    }
}

// The remainder of the passes: n columns, k in [first, a.k). An odd last k of pairs is paired with +0.
PANEL_INLINE void n_major_remainder(const struct n_major_args *a, enum expertd_dtype dtype, bool pairs, size_t first, size_t column,
                                    size_t n) {
    for (size_t r = 0; r < a->rows; r++) {
        float *at = a->sums + r * a->sums_stride + column;
        vec sum = vec_load(at, n);
        for (size_t i = first; i < (pairs ? (a->k + 1) / 2 * 2 : a->k); i++) {
            size_t k = pairs ? i ^ 1 : i;
            vec w = k < a->k ? row_load(dtype, (const char *)a->weights + k * a->stride, column, n) : vec_set(0.0f);
            sum = vec_fma(vec_set(k < a->k ? n_major_x(a, r, k, pairs) : 0.0f), w, sum);
        }
        vec_store(at, sum, n);
    }
}

PANEL_INLINE void n_major_passes(struct n_major_args a, size_t rows, enum expertd_dtype dtype, bool pairs) {
    for (size_t k = 0; k + N_MAJOR_STEP <= a.k; k += N_MAJOR_STEP) {
        n_major_pass(a, rows, dtype, pairs, k);
    }
}

PANEL_INLINE void n_major_any_rows(const struct n_major_args *args, enum expertd_dtype dtype, bool pairs) {
    const struct n_major_args a = *args; // a copy, which no store to sums can change
    for (size_t r = 0; r < a.rows && !a.accumulate; r++) {
        memset(a.sums + r * a.sums_stride, 0, a.columns * sizeof *a.sums);
    }
    switch (a.rows) {
    case 1:
        n_major_passes(a, 1, dtype, pairs);
        break;
    case 2:
        n_major_passes(a, 2, dtype, pairs);
        break;
    case 3:
        n_major_passes(a, 3, dtype, pairs);
        break;
    default:
        n_major_passes(a, N_MAJOR_ROWS, dtype, pairs);
        break;
    }
    size_t taken = a.k / N_MAJOR_STEP * N_MAJOR_STEP;
    for (size_t column = 0, n; column < a.columns; column += n) {
        n = a.columns - column < LANES ? a.columns - column : LANES;
        if (n < LANES || taken < a.k) {
            n_major_remainder(args, dtype, pairs, n < LANES ? 0 : taken, column, n);
        }
    }
}

void ROW_TARGET(n_major_f32)(const struct n_major_args *args) {
    switch (args->dtype) {
    case EXPERTD_DTYPE_F32:
        n_major_any_rows(args, EXPERTD_DTYPE_F32, false);
        return;
    case EXPERTD_DTYPE_F16:
        n_major_any_rows(args, EXPERTD_DTYPE_F16, false);
        return;
    default:
        INVARIANT(args->dtype == EXPERTD_DTYPE_BF16);
        n_major_any_rows(args, EXPERTD_DTYPE_BF16, false);
        return;
    }
}

#if defined(__x86_64__) // flushes as the contract says (float_mode.h)
// Not inlined: no fma may move across a change of the floating-point mode.
static __attribute__((noinline)) void n_major_pairs(const struct n_major_args *args) {
    n_major_any_rows(args, EXPERTD_DTYPE_BF16, true);
}

void ROW_TARGET(n_major_bf16)(const struct n_major_args *args) {
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    n_major_pairs(args);
    float_mode_restore(before);
}
#endif
