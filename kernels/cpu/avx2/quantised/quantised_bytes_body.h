// The kernels of one decoder of 8-bit codes, written once. The including file defines:
//   BYTES_DECODER              the name of the resulting struct ieee_decoder
//   BYTES_FOLD, BYTES_UNFOLD   its `fold` and `unfold`
//   BYTES_ROUND_ROBIN_ROWS     its `round_robin_rows`
//   struct tables, tables_load()
//   zeros_load(zeros)          the zero points of 8 columns in the form that line_open takes; zeros is NULL where the format has
//                              none
//   struct line, line_open(codes, tables, zero)    the 4 codes of 8 columns
//   line_value(line, tables, i)                    the i-th of the 4 codes, as f32
// Sums take k in the order 1, 0, 3, 2: the odd k of each pair first.
//
// A pass has 64 columns for one row, 32 for two and 16 for more, so that there are up to 8 accumulators, which hide the latency of
// FMAs. Accumulators, tables and a line leave no registers for the rows' elements. Below BYTES_ROUND_ROBIN_ROWS rows the elements
// are loaded again for each few vectors of columns, and one panel is multiplied after the other. With more rows that costs a load
// for every two FMAs, and gcc 12 moves accumulators as well: 2.9 instructions an FMA. So there each element is stored 8 times over,
// as a vector that is the FMA's memory operand: 1.7 instructions an FMA. The vectors of 64 k are made once for all panels of the
// call, which are multiplied round-robin in bursts of 64 k.
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx2/fma_avx2.h"
#include "kernels/cpu/backend/backends.h"

enum {
    LANES = 8,
    VECS = EXPERTD_KERNEL_PANEL / LANES, // vectors of columns at most
    LINE_K = 4,
    LINE_BYTES = 32, // of 8 columns
    ROW_BYTES = VECS * LINE_BYTES,
    BURST_LINES = 16, // lines of a panel in a burst
};

// A row's element, 8 times.
typedef float bytes_factor[LANES] __attribute__((aligned(32)));

// Some consecutive lines of one scale group of one panel.
struct burst {
    const float *x[SMALL_M_ROWS]; // the rows' elements; below BYTES_ROUND_ROBIN_ROWS rows
    const bytes_factor *factors;  // [k][rows]; from BYTES_ROUND_ROBIN_ROWS rows on
    const uint8_t *codes, *zeros;
    const float *scale;
    size_t lines;
    size_t column;     // of the panel's first sum in a row of sums
    bool starts, ends; // the burst has the group's first k, its last k
    uintptr_t ahead;   // the next line to prefetch
};

// Keeps the compiler from widening all columns before it multiplies any: the registers are needed for the sums.
PANEL_INLINE void compiler_barrier(void) {
    __asm__ __volatile__("" ::: "memory");
}

// sum + value * *factor with a memory operand; gcc would load the factor into a register first.
PANEL_INLINE __m256 bytes_fma(__m256 sum, __m256 value, const bytes_factor *factor) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(value), "m"(*factor));
    return sum;
}

// One line of `at_once` vectors of columns, from vector j on. The 4 FMAs of one vector alone would wait for each other.
PANEL_INLINE void bytes_small_m_rows(const uint8_t *codes, size_t rows, size_t at_once, const struct tables *t, const __m256i *zero,
                                     const float *const *x, size_t k, __m256 sums[][VECS], size_t j) {
    struct line lines[VECS];
    PANEL_UNROLL for (size_t v = 0; v < at_once; v++) {
        lines[v] = line_open(codes + v * LINE_BYTES, t, zero[v]);
    }
    PANEL_UNROLL for (size_t i = 0; i < LINE_K; i++) {
        __m256 values[VECS];
        PANEL_UNROLL for (size_t v = 0; v < at_once; v++) {
            values[v] = line_value(&lines[v], t, i ^ 1);
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            __m256 factor = _mm256_broadcast_ss(x[r] + k + (i ^ 1));
            PANEL_UNROLL for (size_t v = 0; v < at_once; v++) {
                sums[r][j + v] = fma_over(factor, values[v], sums[r][j + v]);
            }
        }
    }
}

// One line of 8 columns, with factors in memory.
PANEL_INLINE void bytes_more_rows(const uint8_t *codes, size_t rows, const struct tables *t, __m256i zero, const bytes_factor *x,
                                  __m256 sums[][VECS], size_t j) {
    struct line line = line_open(codes, t, zero);
    PANEL_UNROLL for (size_t i = 0; i < LINE_K; i++) {
        __m256 value = line_value(&line, t, i ^ 1);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            sums[r][j] = bytes_fma(sums[r][j], value, x + (i ^ 1) * rows + r);
        }
    }
}

// Stores the partial sums, or closes the scale group: sum = fma(partial, scale, sum).
PANEL_INLINE void bytes_store(const struct small_m_args *a, const struct burst *burst, size_t rows, size_t vecs, size_t column,
                              __m256 sums[][VECS]) {
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        __m256 scale = _mm256_load_ps(burst->scale + column + j * LANES);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            size_t at = burst->column + column + j * LANES;
            float *partial = a->partials[r] + at, *sum = a->sums[r] + at;
            if (burst->ends) {
                __m256 partial_sum = BYTES_UNFOLD == 1 ? sums[r][j] : _mm256_mul_ps(sums[r][j], _mm256_set1_ps(BYTES_UNFOLD));
                _mm256_store_ps(sum, _mm256_fmadd_ps(partial_sum, scale, _mm256_load_ps(sum)));
            } else {
                _mm256_store_ps(partial, sums[r][j]);
            }
        }
    }
}

// The burst against `vecs` vectors of columns from `column` on.
PANEL_INLINE void bytes_columns(const struct small_m_args *a, struct burst *burst, size_t rows, size_t vecs, size_t column,
                                const struct tables *t) {
    const size_t at_once = rows >= BYTES_ROUND_ROBIN_ROWS ? 1 : rows == 1 ? 4 : 2;
    __m256 sums[SMALL_M_ROWS][VECS];
    __m256i zero[VECS];
    const bytes_factor *factors = burst->factors;
    const uint8_t *codes = burst->codes + column * (LINE_BYTES / LANES);
    uintptr_t ahead = burst->ahead;
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        zero[j] = zeros_load(burst->zeros ? burst->zeros + column + j * LANES : NULL);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            sums[r][j] = burst->starts ? _mm256_setzero_ps() : _mm256_load_ps(a->partials[r] + burst->column + column + j * LANES);
        }
    }
    for (size_t i = 0; i < burst->lines; i++, codes += ROW_BYTES, factors += LINE_K * rows) {
        PANEL_UNROLL for (size_t line = 0; line < vecs * LINE_BYTES; line += 64, ahead += 64) {
            _mm_prefetch((const char *)ahead, _MM_HINT_T0);
        }
        PANEL_UNROLL for (size_t j = 0; j < vecs; j += at_once) {
            if (rows < BYTES_ROUND_ROBIN_ROWS) {
                bytes_small_m_rows(codes + j * LINE_BYTES, rows, at_once, t, zero + j, burst->x, i * LINE_K, sums, j);
            } else {
                bytes_more_rows(codes + j * LINE_BYTES, rows, t, zero[j], factors, sums, j);
            }
            compiler_barrier();
        }
    }
    burst->ahead = ahead;
    bytes_store(a, burst, rows, vecs, column, sums);
}

PANEL_INLINE void bytes_prefetch(uintptr_t at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)(at + i), _MM_HINT_T0);
    }
}

// The factors of `lines` lines, from k on.
PANEL_INLINE void bytes_factors(const struct small_m_args *a, size_t rows, size_t k, size_t lines, bytes_factor *factors) {
    for (size_t i = 0; i < lines * LINE_K; i++) {
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            _mm256_store_ps(factors[i * rows + r], _mm256_broadcast_ss(a->x[r] + k + i));
        }
    }
}

// Multiplies lines [line, line + lines) of scale group s, one burst of each panel. A call of one panel prefetches from a->ahead. A
// call of several panels prefetches the burst that it multiplies next: the next panel's, or after the last panel the first panel's
// next one. The scales of a chunk lie behind its codes but are read before all of its codes have been prefetched, so they are
// prefetched separately.
PANEL_INLINE void bytes_bursts(const struct small_m_args *a, size_t s, size_t line, size_t lines, size_t rows,
                               const struct tables *t) {
    const size_t vecs = rows == 1 ? VECS : rows == 2 ? 4 : 2;
    bool last = s + 1 == a->scales;
    size_t scale_lines = (last ? a->last_k : a->scale_k) / LINE_K, at = s * a->stride + line * ROW_BYTES;
    size_t scale_bytes = a->stride - (a->scale_k + LINE_K - 1) / LINE_K * ROW_BYTES; // of scales and zero points
    bytes_factor factors[BURST_LINES * LINE_K * SMALL_M_ROWS];
    if (rows >= BYTES_ROUND_ROBIN_ROWS) {
        bytes_factors(a, rows, s * a->scale_k + line * LINE_K, lines, factors);
    }
    for (size_t panel = 0; panel < a->panels; panel++) {
        const uint8_t *codes = a->codes[panel] + at;
        struct burst burst = {.factors = (const bytes_factor *)factors,
                              .codes = codes,
                              .zeros = a->zeros ? a->codes[panel] + s * a->stride + (last ? a->last_zeros : a->zeros) : NULL,
                              .scale = a->scale[panel][s],
                              .lines = lines,
                              .column = panel * EXPERTD_KERNEL_PANEL,
                              .starts = a->starts && line == 0,
                              .ends = a->ends && line + lines == scale_lines,
                              .ahead = (uintptr_t)(a->ahead[panel] + at)};
        if (a->panels > 1) {
            size_t after = at + lines * ROW_BYTES + (burst.ends ? scale_bytes : 0);
            burst.ahead = (uintptr_t)(panel + 1 < a->panels ? a->codes[panel + 1] + at : a->codes[0] + after);
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            burst.x[r] = a->x[r] + s * a->scale_k + line * LINE_K;
        }
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += vecs * LANES) {
            bytes_columns(a, &burst, rows, vecs, column, t);
        }
        if (burst.ends) {
            bytes_prefetch((uintptr_t)codes + lines * ROW_BYTES + a->scales * a->stride, scale_bytes);
        }
    }
}

PANEL_INLINE void bytes_multiply(const struct small_m_args *a, size_t rows) {
    const struct tables t = tables_load();
    for (size_t s = 0; s < a->scales; s++) {
        size_t lines = (s + 1 == a->scales ? a->last_k : a->scale_k) / LINE_K,
               most = rows < BYTES_ROUND_ROBIN_ROWS ? lines : BURST_LINES;
        for (size_t line = 0; line < lines; line += most) {
            bytes_bursts(a, s, line, lines - line < most ? lines - line : most, rows, &t);
        }
    }
}

// line_value * BYTES_UNFOLD: exact, and 0 or a normal number. An FMA, because multiplications of subnormals are slow. It turns -0
// into +0, which makes no difference to a sum that starts from +0.
PANEL_INLINE __m256 line_value_unfolded(const struct line *line, const struct tables *t, size_t i) {
    __m256 value = line_value(line, t, i);
    return BYTES_UNFOLD == 1 ? value : _mm256_fmadd_ps(value, _mm256_set1_ps(BYTES_UNFOLD), _mm256_setzero_ps());
}

// Widens `vecs` vectors of columns of each line to [k][vecs * LANES].
PANEL_INLINE void widen_lines(const uint8_t *codes, const uint8_t *zeros, size_t lines, size_t vecs, bool unfolds, float *wide) {
    const struct tables t = tables_load();
    __m256i zero[VECS];
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        zero[j] = zeros_load(zeros ? zeros + j * LANES : NULL);
    }
    for (size_t i = 0; i < lines; i++, codes += ROW_BYTES, wide += LINE_K * vecs * LANES) {
        PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
            struct line line = line_open(codes + j * LINE_BYTES, &t, zero[j]);
            PANEL_UNROLL for (size_t k = 0; k < LINE_K; k++) {
                __m256 value = unfolds ? line_value_unfolded(&line, &t, k) : line_value(&line, &t, k);
                _mm256_store_ps(wide + (k * vecs + j) * LANES, value);
            }
        }
    }
}

static void widen(const uint8_t *codes, const uint8_t *zeros, size_t lines, panel_row *wide) {
    widen_lines(codes, zeros, lines, VECS, false, wide[0]);
}

static void widen_slice(const uint8_t *codes, const uint8_t *zeros, size_t lines, float *wide) {
    widen_lines(codes, zeros, lines, SLICE_VECS, true, wide);
}

#define BYTES_FUNCTION(rows)                                                                                                       \
    static void multiply_##rows(const struct small_m_args *args) {                                                                 \
        bytes_multiply(args, rows);                                                                                                \
    }

BYTES_FUNCTION(1)
BYTES_FUNCTION(2)
BYTES_FUNCTION(3)
BYTES_FUNCTION(4)

const struct ieee_decoder BYTES_DECODER = {.line_k = LINE_K,
                                           .fold = BYTES_FOLD,
                                           .unfold = BYTES_UNFOLD,
                                           .round_robin_rows = BYTES_ROUND_ROBIN_ROWS,
                                           .widen = widen,
                                           .widen_slice = widen_slice,
                                           .multiply = {multiply_1, multiply_2, multiply_3, multiply_4}};
