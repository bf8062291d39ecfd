// The kernels of one way of decoding codes of 8 bits, written once. The including file defines:
//   BYTES_DECODER            the name of the result
//   BYTES_FOLD, BYTES_UNFOLD struct ieee_decoder's
//   BYTES_TURN_ROWS          rows from which on panels take turns: see below
//   struct tables, tables_load()
//   zeros_load(zeros)        the zero points of 8 columns as its lines want them; zeros is NULL where the format has none
//   struct line, line_open(codes, tables, zero)    8 columns' 4 codes
//   line_value(line, tables, i)                    their i-th, as f32
// Sums take k in the order 1, 0, 3, 2: of each pair the odd one first.
//
// One row takes all 64 columns at once, two 32, more 16: 8 sums of 8 columns each, so that the fmas of one need not be waited for.
// These 8, the tables and a line on its way leave no registers for rows' elements. Few rows read them anew for each few
// vectors of columns, a panel after the other. For more rows that would be an instruction for every two fmas and more that move
// sums to and fro: 2.9 instructions for an fma by gcc 12. So each element is laid out 8 times over and multiplied straight from
// memory, 1.7 instructions; 64 k at a time, for all panels of the call, which take turns.
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx2/fma_avx2.h"
#include "kernels/cpu/backends.h"

enum {
    LANES = 8,
    VECS = EXPERTD_KERNEL_PANEL / LANES, // vectors of columns at most
    LINE_K = 4,
    LINE_BYTES = 32, // of 8 columns
    ROW_BYTES = VECS * LINE_BYTES,
    TRANSPOSE_LINES = 16, // of a panel's turn
};

// An element, 8 times over.
typedef float bytes_factor[LANES] __attribute__((aligned(32)));

// What is multiplied of a panel at a time: some lines of a scale.
struct turn {
    const float *x[SMALL_M_ROWS]; // rows' elements, or
    const bytes_factor *factors;  // [k][rows]
    const uint8_t *codes, *zeros;
    const float *scale;
    size_t lines;
    size_t column;     // of the panel's first sum in a row of sums
    bool starts, ends; // a scale's first, a scale's last k are in it
    uintptr_t ahead;   // the next line to be fetched
};

// Keeps the compiler from widening all columns before any is multiplied: the sums need the registers.
PANEL_INLINE void bytes_forget(void) {
    __asm__ __volatile__("" ::: "memory");
}

// sum + value * the factor in memory: gcc would load it first.
PANEL_INLINE __m256 bytes_fma(__m256 sum, __m256 value, const bytes_factor *factor) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(value), "m"(*factor));
    return sum;
}

// A line of `group` vectors of columns, from j on. One alone would be 4 fmas in a row that each wait for the last.
PANEL_INLINE void bytes_small_m_rows(const uint8_t *codes, size_t rows, size_t group, const struct tables *t, const __m256i *zero,
                                     const float *const *x, size_t k, __m256 sums[][VECS], size_t j) {
    struct line lines[VECS];
    PANEL_UNROLL for (size_t v = 0; v < group; v++) {
        lines[v] = line_open(codes + v * LINE_BYTES, t, zero[v]);
    }
    PANEL_UNROLL for (size_t i = 0; i < LINE_K; i++) {
        __m256 values[VECS];
        PANEL_UNROLL for (size_t v = 0; v < group; v++) {
            values[v] = line_value(&lines[v], t, i ^ 1);
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            __m256 factor = _mm256_broadcast_ss(x[r] + k + (i ^ 1));
            PANEL_UNROLL for (size_t v = 0; v < group; v++) {
                sums[r][j + v] = fma_over(factor, values[v], sums[r][j + v]);
            }
        }
    }
}

// A line of 8 columns.
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

PANEL_INLINE void bytes_store(const struct small_m_args *a, const struct turn *turn, size_t rows, size_t vecs, size_t column,
                              __m256 sums[][VECS]) {
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        __m256 scale = _mm256_load_ps(turn->scale + column + j * LANES);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            size_t at = turn->column + column + j * LANES;
            float *partial = a->partials[r] + at, *sum = a->sums[r] + at;
            if (turn->ends) {
                __m256 whole = BYTES_UNFOLD == 1 ? sums[r][j] : _mm256_mul_ps(sums[r][j], _mm256_set1_ps(BYTES_UNFOLD));
                _mm256_store_ps(sum, _mm256_fmadd_ps(whole, scale, _mm256_load_ps(sum)));
            } else {
                _mm256_store_ps(partial, sums[r][j]);
            }
        }
    }
}

// The turn along `vecs` vectors of columns: partials from +0, then sum = fma(partial, scale, sum).
PANEL_INLINE void bytes_columns(const struct small_m_args *a, struct turn *turn, size_t rows, size_t vecs, size_t column,
                                const struct tables *t) {
    const size_t group = rows >= BYTES_TURN_ROWS ? 1 : rows == 1 ? 4 : 2;
    __m256 sums[SMALL_M_ROWS][VECS];
    __m256i zero[VECS];
    const bytes_factor *factors = turn->factors;
    const uint8_t *codes = turn->codes + column * (LINE_BYTES / LANES);
    uintptr_t ahead = turn->ahead;
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        zero[j] = zeros_load(turn->zeros ? turn->zeros + column + j * LANES : NULL);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            sums[r][j] = turn->starts ? _mm256_setzero_ps() : _mm256_load_ps(a->partials[r] + turn->column + column + j * LANES);
        }
    }
    for (size_t i = 0; i < turn->lines; i++, codes += ROW_BYTES, factors += LINE_K * rows) {
        PANEL_UNROLL for (size_t line = 0; line < vecs * LINE_BYTES; line += 64, ahead += 64) {
            _mm_prefetch((const char *)ahead, _MM_HINT_T0);
        }
        PANEL_UNROLL for (size_t j = 0; j < vecs; j += group) {
            if (rows < BYTES_TURN_ROWS) {
                bytes_small_m_rows(codes + j * LINE_BYTES, rows, group, t, zero + j, turn->x, i * LINE_K, sums, j);
            } else {
                bytes_more_rows(codes + j * LINE_BYTES, rows, t, zero[j], factors, sums, j);
            }
            bytes_forget();
        }
    }
    turn->ahead = ahead;
    bytes_store(a, turn, rows, vecs, column, sums);
}

PANEL_INLINE void bytes_prefetch(uintptr_t at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)(at + i), _MM_HINT_T0);
    }
}

// Rows' elements from k on, for `lines` lines.
PANEL_INLINE void bytes_factors(const struct small_m_args *a, size_t rows, size_t k, size_t lines, bytes_factor *factors) {
    for (size_t i = 0; i < lines * LINE_K; i++) {
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            _mm256_store_ps(factors[i * rows + r], _mm256_broadcast_ss(a->x[r] + k + i));
        }
    }
}

// Lines [line, line + lines) of a scale, the panels in turns. A panel alone fetches its codes ahead; in turns, what is multiplied
// next: the next panel's, or the first one's next lines. Scales are read before all codes that stand before them have been fetched,
// so a panel's next ones are fetched apart.
PANEL_INLINE void bytes_turns(const struct small_m_args *a, size_t s, size_t line, size_t lines, size_t rows,
                              const struct tables *t) {
    const size_t vecs = rows == 1 ? VECS : rows == 2 ? 4 : 2;
    bool last = s + 1 == a->scales;
    size_t scale_lines = (last ? a->last_k : a->scale_k) / LINE_K, at = s * a->stride + line * ROW_BYTES;
    size_t scale_bytes = a->stride - (a->scale_k + LINE_K - 1) / LINE_K * ROW_BYTES; // and zero points'
    bytes_factor factors[TRANSPOSE_LINES * LINE_K * SMALL_M_ROWS];
    if (rows >= BYTES_TURN_ROWS) {
        bytes_factors(a, rows, s * a->scale_k + line * LINE_K, lines, factors);
    }
    for (size_t panel = 0; panel < a->panels; panel++) {
        const uint8_t *codes = a->codes[panel] + at;
        struct turn turn = {.factors = (const bytes_factor *)factors,
                            .codes = codes,
                            .zeros = a->zeros ? a->codes[panel] + s * a->stride + (last ? a->last_zeros : a->zeros) : NULL,
                            .scale = a->scale[panel][s],
                            .lines = lines,
                            .column = panel * EXPERTD_KERNEL_PANEL,
                            .starts = a->starts && line == 0,
                            .ends = a->ends && line + lines == scale_lines,
                            .ahead = (uintptr_t)(a->ahead[panel] + at)};
        if (a->panels > 1) {
            size_t after = at + lines * ROW_BYTES + (turn.ends ? scale_bytes : 0);
            turn.ahead = (uintptr_t)(panel + 1 < a->panels ? a->codes[panel + 1] + at : a->codes[0] + after);
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            turn.x[r] = a->x[r] + s * a->scale_k + line * LINE_K;
        }
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += vecs * LANES) {
            bytes_columns(a, &turn, rows, vecs, column, t);
        }
        if (turn.ends) {
            bytes_prefetch((uintptr_t)codes + lines * ROW_BYTES + a->scales * a->stride, scale_bytes);
        }
    }
}

PANEL_INLINE void bytes_multiply(const struct small_m_args *a, size_t rows) {
    const struct tables t = tables_load();
    for (size_t s = 0; s < a->scales; s++) {
        size_t lines = (s + 1 == a->scales ? a->last_k : a->scale_k) / LINE_K,
               most = rows < BYTES_TURN_ROWS ? lines : TRANSPOSE_LINES;
        for (size_t line = 0; line < lines; line += most) {
            bytes_turns(a, s, line, lines - line < most ? lines - line : most, rows, &t);
        }
    }
}

// line_value times BYTES_UNFOLD: exact, and a normal number. By an fma, for multiplications of subnormals are slow. It makes -0 +0,
// which no sum from +0 on shows.
PANEL_INLINE __m256 line_value_unfolded(const struct line *line, const struct tables *t, size_t i) {
    __m256 value = line_value(line, t, i);
    return BYTES_UNFOLD == 1 ? value : _mm256_fmadd_ps(value, _mm256_set1_ps(BYTES_UNFOLD), _mm256_setzero_ps());
}

// `vecs` vectors of columns of each line, [k][vecs * LANES].
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
                                           .transpose_rows = BYTES_TURN_ROWS,
                                           .widen = widen,
                                           .widen_slice = widen_slice,
                                           .multiply = {multiply_1, multiply_2, multiply_3, multiply_4}};
