// The kernel of unpacked_n_major.h for int8 by VPDPBUSD. Four rows of weights are interleaved to quads of k, 64 columns at a time.
// A pass takes 16 k, so that sums are loaded and stored once for 16 k.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx512/interleave_avx512.h"
#include "kernels/cpu/avx512/quad_avx512vnni.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/backend/unpacked_n_major.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum { LANES = 16, VECS = 4, COLUMNS = VECS * LANES, QUADS = 4, STEP = QUADS * QUAD_K }; // COLUMNS, STEP: columns and k of a pass

// Quads of k of COLUMNS columns, each byte plus 128.
PANEL_INLINE void quads_interleave(const __m512i lines[QUAD_K], __m512i w[VECS]) {
    __m512i flipped[QUAD_K];
    PANEL_UNROLL for (size_t i = 0; i < QUAD_K; i++) {
        flipped[i] = quad_add_128(lines[i]);
    }
    interleave_quad(flipped, w);
}

// STEP k of all full vectors of columns. `rows` is a constant in each copy.
PANEL_INLINE void n_major_pass(const struct n_major_args *a, size_t rows, size_t k) {
    const char *weights = (const char *)a->weights + k * a->stride;
    const uintptr_t prefetch = (uintptr_t)weights + (a->ahead + STEP * a->share / a->shares) * a->stride;
    const uintptr_t end = (uintptr_t)weights + (a->ahead + STEP * (a->share + 1) / a->shares) * a->stride;
    const bool far = prefetch_as_zen4();
    __m512i x[N_MAJOR_ROWS][QUADS], offset[N_MAJOR_ROWS];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        const char *row = (const char *)a->x[r] + k;
        offset[r] = _mm512_set1_epi32(quad_offset(row, STEP));
        PANEL_UNROLL for (size_t i = 0; i < QUADS; i++) {
            x[r][i] = quad_broadcast(row + i * QUAD_K, QUAD_K);
        }
    }
    for (size_t column = 0; column + COLUMNS <= a->columns; column += COLUMNS) {
        const char *from = weights + column;
        float *sums_at = a->sums + column;
        __m512i sums[N_MAJOR_ROWS][VECS];
        for (uintptr_t at = prefetch + column; at < end; at += a->stride) {
            prefetch_into((const void *)at, far);
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
                sums[r][v] = _mm512_add_epi32(_mm512_loadu_si512(sums_at + r * a->sums_stride + v * LANES), offset[r]);
            }
        }
        PANEL_UNROLL for (size_t i = 0; i < QUADS; i++) {
            __m512i lines[QUAD_K], w[VECS];
            PANEL_UNROLL for (size_t j = 0; j < QUAD_K; j++) {
                lines[j] = _mm512_loadu_si512(from + (i * QUAD_K + j) * a->stride);
            }
            quads_interleave(lines, w);
            PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
                PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
                    sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], w[v], x[r][i]);
                }
            }
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
                _mm512_storeu_si512(sums_at + r * a->sums_stride + v * LANES, sums[r][v]);
            }
        }
    }
}

// The remainder of the passes: n columns, at most COLUMNS, over k [first, a->k).
static void n_major_remainder(const struct n_major_args *a, size_t first, size_t column, size_t n) {
    const __mmask64 mask = n < COLUMNS ? ((__mmask64)1 << n) - 1 : ~(__mmask64)0;
    for (size_t r = 0; r < a->rows; r++) {
        float *to = a->sums + r * a->sums_stride + column;
        const char *row = a->x[r];
        const __m512i offset = _mm512_set1_epi32(quad_offset(row + first, a->k - first));
        __m512i sums[VECS];
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            sums[v] = _mm512_add_epi32(_mm512_maskz_loadu_epi32((__mmask16)(mask >> (v * LANES)), to + v * LANES), offset);
        }
        for (size_t k = first; k < a->k; k += QUAD_K) {
            const size_t left = a->k - k < QUAD_K ? a->k - k : QUAD_K;
            __m512i lines[QUAD_K], w[VECS];
            PANEL_UNROLL for (size_t j = 0; j < QUAD_K; j++) {
                const char *from = (const char *)a->weights + (k + j) * a->stride + column;
                lines[j] = j < left ? _mm512_maskz_loadu_epi8(mask, from) : _mm512_setzero_si512();
            }
            quads_interleave(lines, w);
            const __m512i x = quad_broadcast(row + k, left);
            PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
                sums[v] = _mm512_dpbusd_epi32(sums[v], w[v], x);
            }
        }
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            _mm512_mask_storeu_epi32(to + v * LANES, (__mmask16)(mask >> (v * LANES)), sums[v]);
        }
    }
}

PANEL_INLINE void n_major_passes(const struct n_major_args *args, size_t rows) {
    const struct n_major_args a = *args; // a copy that no store can alias
    for (size_t k = 0; k + STEP <= a.k; k += STEP) {
        n_major_pass(&a, rows, k);
    }
}

void avx512vnni_n_major_i8(const struct n_major_args *args) {
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
