// int8 rows times int8 [k,n] weights in place (unpacked_n_major.h), by VPMADDWD. Two rows of weights are widened to int16 and
// interleaved to pairs of k, 16 columns at a time. A pass multiplies several pairs of k, so that each sum is loaded and stored once
// for all of them.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/backend/unpacked_n_major.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    PAIR_K = 2,
    SMALL_M_PAIRS = 2, // pairs of k of a pass: one and two rows,
    PAIRS = 4,         // more rows
    COLUMNS = 16,
    LINE = 64, // bytes
};

// COLUMNS columns in the order that interleaving within 128-bit halves gives: `low` has 0 to 3 and 8 to 11, `high` 4 to 7 and 12 to
// 15.
struct column_sums {
    __m256i low, high;
};

PANEL_INLINE struct column_sums sums_load(const void *at) {
    __m256i first = _mm256_loadu_si256(at), last = _mm256_loadu_si256((const __m256i *)at + 1);
    return (struct column_sums){_mm256_permute2x128_si256(first, last, 0x20), _mm256_permute2x128_si256(first, last, 0x31)};
}

PANEL_INLINE void sums_store(void *at, struct column_sums s) {
    _mm256_storeu_si256(at, _mm256_permute2x128_si256(s.low, s.high, 0x20));
    _mm256_storeu_si256((__m256i *)at + 1, _mm256_permute2x128_si256(s.low, s.high, 0x31));
}

// The weights of two k, as pairs of int16, of COLUMNS columns.
PANEL_INLINE struct column_sums pairs_of(const void *even, const void *odd) {
    __m256i a = _mm256_cvtepi8_epi16(_mm_loadu_si128(even)), b = _mm256_cvtepi8_epi16(_mm_loadu_si128(odd));
    return (struct column_sums){_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)};
}

PANEL_INLINE struct column_sums sums_add(struct column_sums sums, struct column_sums w, uint32_t x) {
    __m256i value = _mm256_set1_epi32((int)x);
    sums.low = _mm256_add_epi32(sums.low, _mm256_madd_epi16(value, w.low));
    sums.high = _mm256_add_epi32(sums.high, _mm256_madd_epi16(value, w.high));
    return sums;
}

// 1 or 2 consecutive elements as two int16; a missing one is 0.
PANEL_INLINE uint32_t pair_of(const int8_t *x, size_t count) {
    return (uint16_t)x[0] | (uint32_t)(uint16_t)(count > 1 ? x[1] : 0) << 16;
}

// `pairs` pairs of k, over all full groups of COLUMNS columns. `rows` and `pairs` are compile-time constants in each copy.
PANEL_INLINE void n_major_pass(const struct n_major_args *a, size_t rows, size_t pairs, size_t k) {
    const size_t step = pairs * PAIR_K;
    const char *weights = (const char *)a->weights + k * a->stride;
    const uintptr_t prefetch = (uintptr_t)weights + (a->ahead + step * a->share / a->shares) * a->stride;
    const uintptr_t end = (uintptr_t)weights + (a->ahead + step * (a->share + 1) / a->shares) * a->stride;
    uint32_t x[N_MAJOR_ROWS][PAIRS];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t i = 0; i < pairs; i++) {
            x[r][i] = pair_of((const int8_t *)a->x[r] + k + i * PAIR_K, PAIR_K);
        }
    }
    for (size_t column = 0; column + COLUMNS <= a->columns; column += COLUMNS) {
        struct column_sums sums[N_MAJOR_ROWS];
        if (column % LINE == 0) {
            for (uintptr_t at = prefetch + column; at < end; at += a->stride) {
                prefetch_into((const void *)at, false);
            }
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            sums[r] = sums_load(a->sums + r * a->sums_stride + column);
        }
        PANEL_UNROLL for (size_t i = 0; i < pairs; i++) {
            const char *even = weights + i * PAIR_K * a->stride + column;
            const struct column_sums w = pairs_of(even, even + a->stride);
            PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
                sums[r] = sums_add(sums[r], w, x[r][i]);
            }
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            sums_store(a->sums + r * a->sums_stride + column, sums[r]);
        }
    }
}

// The remainder of the passes: n columns, at most COLUMNS, over k [first, a->k).
static void n_major_remainder(const struct n_major_args *a, size_t first, size_t column, size_t n) {
    for (size_t r = 0; r < a->rows; r++) {
        float *to = a->sums + r * a->sums_stride + column, block[COLUMNS] = {0};
        memcpy(block, to, n * sizeof *to);
        struct column_sums sums = sums_load(block);
        for (size_t k = first; k < a->k; k += PAIR_K) {
            const size_t count = a->k - k < PAIR_K ? a->k - k : PAIR_K;
            int8_t lines[PAIR_K][COLUMNS] = {{0}};
            for (size_t i = 0; i < count; i++) {
                memcpy(lines[i], (const char *)a->weights + (k + i) * a->stride + column, n);
            }
            sums = sums_add(sums, pairs_of(lines[0], lines[1]), pair_of((const int8_t *)a->x[r] + k, count));
        }
        sums_store(block, sums);
        memcpy(to, block, n * sizeof *to);
    }
}

// All full passes. Returns the number of k that they covered.
PANEL_INLINE size_t n_major_passes(const struct n_major_args *args, size_t rows, size_t pairs) {
    const struct n_major_args a = *args; // a local copy, which the compiler knows that no store changes
    size_t k = 0;
    for (; k + pairs * PAIR_K <= a.k; k += pairs * PAIR_K) {
        n_major_pass(&a, rows, pairs, k);
    }
    return k;
}

static size_t n_major_by_rows(const struct n_major_args *args) {
    switch (args->rows) {
    case 1:
        return n_major_passes(args, 1, SMALL_M_PAIRS);
    case 2:
        return n_major_passes(args, 2, SMALL_M_PAIRS);
    case 3:
        return n_major_passes(args, 3, PAIRS);
    default:
        return n_major_passes(args, N_MAJOR_ROWS, PAIRS);
    }
}

void avx2_n_major_i8(const struct n_major_args *args) {
    for (size_t r = 0; r < args->rows && !args->accumulate; r++) {
        memset(args->sums + r * args->sums_stride, 0, args->columns * sizeof *args->sums);
    }
    const size_t taken = n_major_by_rows(args);
    for (size_t column = 0, n; column < args->columns; column += n) {
        n = args->columns - column < COLUMNS ? args->columns - column : COLUMNS;
        if (n < COLUMNS || taken < args->k) {
            n_major_remainder(args, n < COLUMNS ? 0 : taken, column, n);
        }
    }
}
#endif
