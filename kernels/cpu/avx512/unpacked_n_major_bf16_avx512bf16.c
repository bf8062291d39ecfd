// The kernel of unpacked_n_major.h for bf16 by VDPBF16PS. Two rows of weights are interleaved to pairs of k, 32 columns at a time.
// A pass takes 8 k, so that sums are loaded and stored once for 8 k; that is exact.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx512/bf16_pair_avx512bf16.h"
#include "kernels/cpu/avx512/interleave_avx512.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/backend/unpacked_n_major.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum { LANES = 16, COLUMNS = 2 * LANES, PAIRS = 4, STEP = 2 * PAIRS }; // STEP: k of a pass

// A pair of k of COLUMNS columns.
struct pair {
    __m512bh low, high;
};

PANEL_INLINE struct pair pair_interleave(__m512i even, __m512i odd) {
    __m512i words[INTERLEAVE_PAIR];
    interleave_pair(even, odd, words);
    return (struct pair){(__m512bh)words[0], (__m512bh)words[1]};
}

// STEP k of all full vectors of columns. `rows` is a constant in each copy.
PANEL_INLINE void n_major_pass(const struct n_major_args *a, size_t rows, size_t k) {
    const char *weights = (const char *)a->weights + k * a->stride;
    const uintptr_t prefetch = (uintptr_t)weights + (a->ahead + STEP * a->share / a->shares) * a->stride;
    const uintptr_t end = (uintptr_t)weights + (a->ahead + STEP * (a->share + 1) / a->shares) * a->stride;
    const bool far = prefetch_as_zen4();
    __m512bh x[N_MAJOR_ROWS][PAIRS];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t i = 0; i < PAIRS; i++) {
            x[r][i] = pair_broadcast((const uint16_t *)a->x[r] + k + 2 * i);
        }
    }
    for (size_t column = 0; column + COLUMNS <= a->columns; column += COLUMNS) {
        const char *from = weights + column * sizeof(uint16_t);
        float *sums = a->sums + column;
        __m512 low[N_MAJOR_ROWS], high[N_MAJOR_ROWS];
        for (uintptr_t at = prefetch + column * sizeof(uint16_t); at < end; at += a->stride) {
            prefetch_into((const void *)at, far);
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            low[r] = _mm512_loadu_ps(sums + r * a->sums_stride);
            high[r] = _mm512_loadu_ps(sums + r * a->sums_stride + LANES);
        }
        PANEL_UNROLL for (size_t i = 0; i < PAIRS; i++) {
            struct pair w =
                pair_interleave(_mm512_loadu_si512(from + 2 * i * a->stride), _mm512_loadu_si512(from + (2 * i + 1) * a->stride));
            PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
                low[r] = _mm512_dpbf16_ps(low[r], x[r][i], w.low);
                high[r] = _mm512_dpbf16_ps(high[r], x[r][i], w.high);
            }
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            _mm512_storeu_ps(sums + r * a->sums_stride, low[r]);
            _mm512_storeu_ps(sums + r * a->sums_stride + LANES, high[r]);
        }
    }
}

// The remainder of the passes: n columns, at most COLUMNS, over k [first, a->k). The last k of an odd K is a pair with +0.
static void n_major_remainder(const struct n_major_args *a, size_t first, size_t column, size_t n) {
    const __mmask32 mask = n < COLUMNS ? ((__mmask32)1 << n) - 1 : ~(__mmask32)0;
    const __mmask16 low_mask = (__mmask16)mask, high_mask = (__mmask16)(mask >> LANES);
    for (size_t r = 0; r < a->rows; r++) {
        float *sums = a->sums + r * a->sums_stride + column;
        __m512 low = _mm512_maskz_loadu_ps(low_mask, sums), high = _mm512_maskz_loadu_ps(high_mask, sums + LANES);
        for (size_t k = first; k < a->k; k += 2) {
            const char *from = (const char *)a->weights + k * a->stride + column * sizeof(uint16_t);
            const uint16_t *row = (const uint16_t *)a->x[r] + k;
            const bool last = a->k - k < 2;
            __m512i odd = last ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16(mask, from + a->stride);
            struct pair w = pair_interleave(_mm512_maskz_loadu_epi16(mask, from), odd);
            __m512bh x = last ? pair_broadcast_last(row) : pair_broadcast(row);
            low = _mm512_dpbf16_ps(low, x, w.low);
            high = _mm512_dpbf16_ps(high, x, w.high);
        }
        _mm512_mask_storeu_ps(sums, low_mask, low);
        _mm512_mask_storeu_ps(sums + LANES, high_mask, high);
    }
}

PANEL_INLINE void n_major_passes(const struct n_major_args *args, size_t rows) {
    const struct n_major_args a = *args; // a copy that no store can alias
    for (size_t k = 0; k + STEP <= a.k; k += STEP) {
        n_major_pass(&a, rows, k);
    }
}

void avx512bf16_n_major_bf16(const struct n_major_args *args) {
    const size_t full_k = args->k / STEP * STEP;
    for (size_t r = 0; r < args->rows && !args->accumulate; r++) {
        memset(args->sums + r * args->sums_stride, 0, args->columns * sizeof *args->sums);
    }
    switch (args->rows) {
    case 1:
        n_major_passes(args, 1);
        break;
    case 2:
        n_major_passes(args, 2);
        break;
    case 3:
        n_major_passes(args, 3);
        break;
    default:
        n_major_passes(args, N_MAJOR_ROWS);
        break;
    }
    for (size_t column = 0, n; column < args->columns; column += n) {
        n = args->columns - column < COLUMNS ? args->columns - column : COLUMNS;
        if (n < COLUMNS || full_k < args->k) {
            n_major_remainder(args, n < COLUMNS ? 0 : full_k, column, n);
        }
    }
}
#endif
