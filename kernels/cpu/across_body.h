// across.h's kernels for one instruction set: rows_TARGET.c includes this after row_body.h, whose vectors it takes. A few k are
// read side by side, as many streams as the hardware follows, and the sums pass through L1 once for them all, which is exact.
#include "kernels/across.h"
#include "kernels/cpu/float_mode.h"

enum { ACROSS_STEP = 4, ACROSS_LINE = 64 }; // k of a pass along the columns, even; bytes

// Passes over `depth` k, of which `there` have weights: the other one, the odd k of a last pair, is padded with +0. pairs: bf16's
// order, the odd k first.
struct across_pass {
    size_t rows, depth, there;
    bool pairs;
};

PANEL_INLINE void across_columns(struct across_args a, struct across_pass p, enum dtype dtype, const char *weights,
                                 vec x[ACROSS_ROWS][ACROSS_STEP], size_t column, size_t n) {
    vec w[ACROSS_STEP];
    PANEL_UNROLL for (size_t i = 0; i < p.depth; i++) {
        w[i] = i < p.there ? row_load(dtype, weights + i * a.stride, column, n) : vec_set(0.0f);
    }
    PANEL_UNROLL for (size_t r = 0; r < p.rows; r++) {
        float *at = a.sums + r * a.sums_stride + column;
        vec sum = vec_load(at, n);
        PANEL_UNROLL for (size_t i = 0; i < p.depth; i++) {
            size_t k = p.pairs ? i ^ 1 : i;
            sum = vec_fma(x[r][k], w[k], sum);
        }
        vec_store(at, sum, n);
    }
}

PANEL_INLINE float across_x(const void *row, size_t k, bool pairs) {
    float value;
    uint16_t half;
    if (pairs) {
        memcpy(&half, (const char *)row + k * sizeof half, sizeof half);
        return f32_from_bf16(half);
    }
    memcpy(&value, (const char *)row + k * sizeof value, sizeof value);
    return value;
}

// From k on, along all columns.
PANEL_INLINE void across_k(struct across_args a, struct across_pass p, enum dtype dtype, size_t k) {
    const char *weights = (const char *)a.weights + k * a.stride;
    vec x[ACROSS_ROWS][ACROSS_STEP];
    PANEL_UNROLL for (size_t r = 0; r < p.rows; r++) {
        PANEL_UNROLL for (size_t i = 0; i < p.depth; i++) {
            x[r][i] = vec_set(i < p.there ? across_x(a.x[r], k + i, p.pairs) : 0.0f);
        }
    }
    uintptr_t fetch = (uintptr_t)weights + (a.ahead + p.depth * a.share / a.shares) * a.stride;
    uintptr_t end = (uintptr_t)weights + (a.ahead + p.depth * (a.share + 1) / a.shares) * a.stride;
    size_t column = 0, size = dtype == DTYPE_F32 ? 4 : 2, line = ACROSS_LINE / size;
    for (; column + line <= a.columns; column += line) {
        for (uintptr_t at = fetch + column * size; at < end; at += a.stride) {
            vec_prefetch((const void *)at);
        }
        PANEL_UNROLL for (size_t v = 0; v < line; v += LANES) {
            across_columns(a, p, dtype, weights, x, column + v, LANES);
        }
    }
    for (; column + LANES <= a.columns; column += LANES) {
        across_columns(a, p, dtype, weights, x, column, LANES);
    }
    if (column < a.columns) {
        across_columns(a, p, dtype, weights, x, column, a.columns - column);
    }
}

PANEL_INLINE void across_rows(struct across_args a, size_t rows, enum dtype dtype, bool pairs) {
    size_t k = 0, step = pairs ? 2 : 1;
    for (; k + ACROSS_STEP <= a.k; k += ACROSS_STEP) {
        across_k(a, (struct across_pass){rows, ACROSS_STEP, ACROSS_STEP, pairs}, dtype, k);
    }
    for (; k + step <= a.k; k += step) {
        across_k(a, (struct across_pass){rows, step, step, pairs}, dtype, k);
    }
    if (k < a.k) {
        across_k(a, (struct across_pass){rows, 2, 1, pairs}, dtype, k);
    }
}

PANEL_INLINE void across_any_rows(const struct across_args *args, enum dtype dtype, bool pairs) {
    const struct across_args a = *args; // which no store can change
    for (size_t r = 0; r < a.rows && !a.goes_on; r++) {
        memset(a.sums + r * a.sums_stride, 0, a.columns * sizeof *a.sums);
    }
    switch (a.rows) {
    case 1:
        across_rows(a, 1, dtype, pairs);
        return;
    case 2:
        across_rows(a, 2, dtype, pairs);
        return;
    case 3:
        across_rows(a, 3, dtype, pairs);
        return;
    default:
        across_rows(a, ACROSS_ROWS, dtype, pairs);
        return;
    }
}

void ROW_TARGET(across_f32)(const struct across_args *args) {
    switch (args->dtype) {
    case DTYPE_F32:
        across_any_rows(args, DTYPE_F32, false);
        return;
    case DTYPE_F16:
        across_any_rows(args, DTYPE_F16, false);
        return;
    default:
        INVARIANT(args->dtype == DTYPE_BF16);
        across_any_rows(args, DTYPE_BF16, false);
        return;
    }
}

#if defined(__x86_64__) // whose flush is the contract's
// Not inlined: no fma may move across a change of the floating-point mode.
static __attribute__((noinline)) void across_pairs(const struct across_args *args) {
    across_any_rows(args, DTYPE_BF16, true);
}

void ROW_TARGET(across_bf16)(const struct across_args *args) {
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    across_pairs(args);
    float_mode_restore(before);
}
#endif
