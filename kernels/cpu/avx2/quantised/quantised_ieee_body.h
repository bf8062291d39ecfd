// The kernels of one way of decoding, written once. The including file defines:
//   IEEE_LINE_K               k of a line of codes: 8 or 4
//   IEEE_FOLD                 struct ieee_decoder's
//   struct tables, tables_load()
//   zeros_load(zeros)        the zero points of 8 columns as its lines want them; zeros is NULL where the format has none
//   struct line, line_open(codes, tables, zero)    8 columns' IEEE_LINE_K codes
//   line_pair(line, tables, pair), pair_odd(pair, tables, zero), pair_even(...)   a pair of k, and its elements as f32
//   IEEE_DECODER              the name of the result
//   INTEGER_CODES                    where codes are whole numbers of a few bits: see quantised_integer_body.h
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/backends.h"

enum {
    LANES = 8,
    VECS = EXPERTD_KERNEL_PANEL / LANES, // vectors of columns at most
    LINE_BYTES = 32,                     // of 8 columns
    ROW_BYTES = EXPERTD_KERNEL_PANEL / LANES * LINE_BYTES,
};

// Where things of a scale of the panel lie: of a call's one panel (ieee_decoder.transpose_rows).
struct place {
    const uint8_t *codes, *zeros;
    const float *scale;
    size_t index, k;      // of the scale, and of its first k, in the call's chunk
    size_t lines;         //
    bool starts, ends;    // struct small_m_args'
    const uint8_t *ahead; // the codes that are fetched meanwhile
};

PANEL_INLINE void small_m_prefetch(const uint8_t *ahead, size_t bytes) {
    PANEL_UNROLL for (size_t byte = 0; byte < bytes; byte += 64) {
        _mm_prefetch((const char *)ahead + byte, _MM_HINT_T0);
    }
}

// Keeps rows' elements from being held in registers over the lines: the sums and what is widened need them.
PANEL_INLINE void small_m_forget(void) {
    __asm__ __volatile__("" ::: "memory");
}

// Two vectors of columns, from j on: a row's elements are read for each two anew. One alone would be 8 fmas in a row that each wait
// for the last.
PANEL_INLINE void small_m_two_lines(const uint8_t *codes, size_t rows, const struct tables *t, const __m256i *zero,
                                    const float *const *x, size_t k, __m256 sums[][VECS], size_t j) {
    struct line a = line_open(codes, t, zero[0]), b = line_open(codes + LINE_BYTES, t, zero[1]);
    PANEL_UNROLL for (size_t pair = 0; pair < IEEE_LINE_K / 2; pair++) {
        __m256i pair_a = line_pair(&a, t, pair), pair_b = line_pair(&b, t, pair);
        __m256 odd_a = pair_odd(pair_a, t, zero[0]), odd_b = pair_odd(pair_b, t, zero[1]);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            __m256 factor = _mm256_broadcast_ss(x[r] + k + 2 * pair + 1);
            sums[r][j] = _mm256_fmadd_ps(factor, odd_a, sums[r][j]);
            sums[r][j + 1] = _mm256_fmadd_ps(factor, odd_b, sums[r][j + 1]);
        }
        __m256 even_a = pair_even(pair_a, t, zero[0]), even_b = pair_even(pair_b, t, zero[1]);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            __m256 factor = _mm256_broadcast_ss(x[r] + k + 2 * pair);
            sums[r][j] = _mm256_fmadd_ps(factor, even_a, sums[r][j]);
            sums[r][j + 1] = _mm256_fmadd_ps(factor, even_b, sums[r][j + 1]);
        }
    }
}

// One scale along `vecs` vectors of columns, rows from `row` on: partials from +0, then sum = fma(partial, scale, sum).
PANEL_INLINE void small_m_columns(const struct small_m_args *a, const struct place *p, size_t row, size_t rows, size_t vecs,
                                  size_t column, const struct tables *t) {
    __m256 sums[SMALL_M_ROWS][VECS];
    __m256i zero[VECS];
    const float *x[SMALL_M_ROWS];
    const uint8_t *codes = p->codes + column * (LINE_BYTES / LANES), *ahead = p->ahead + column * (LINE_BYTES / LANES) * p->lines;
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        x[r] = a->x[row + r] + p->k;
    }
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        zero[j] = zeros_load(p->zeros ? p->zeros + column + j * LANES : NULL);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            sums[r][j] = p->starts ? _mm256_setzero_ps() : _mm256_load_ps(a->partials[row + r] + column + j * LANES);
        }
    }
    for (size_t i = 0; i < p->lines; i++, codes += ROW_BYTES, ahead += vecs * LINE_BYTES) {
        small_m_prefetch(ahead, vecs * LINE_BYTES);
        PANEL_UNROLL for (size_t j = 0; j < vecs; j += 2) {
            small_m_two_lines(codes + j * LINE_BYTES, rows, t, zero + j, x, i * IEEE_LINE_K, sums, j);
            small_m_forget();
        }
    }
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        __m256 scale = _mm256_load_ps(p->scale + column + j * LANES);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            size_t at = column + j * LANES;
            float *partial = a->partials[row + r] + at, *sum = a->sums[row + r] + at;
            if (p->ends) {
                _mm256_store_ps(sum, _mm256_fmadd_ps(sums[r][j], scale, _mm256_load_ps(sum)));
            } else {
                _mm256_store_ps(partial, sums[r][j]);
            }
        }
    }
}

// So many fmas' chains as hide their latency, and fit the registers.
PANEL_INLINE void small_m_panel(const struct small_m_args *a, const struct place *p, size_t row, size_t rows,
                                const struct tables *t) {
    const size_t vecs = rows <= 2 ? 4 : 2;
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += vecs * LANES) {
        small_m_columns(a, p, row, rows, vecs, column, t);
    }
}

PANEL_INLINE struct place small_m_place(const struct small_m_args *a, size_t s) {
    const bool last = s + 1 == a->scales;
    const uint8_t *codes = a->codes[0] + s * a->stride;
    return (struct place){.codes = codes,
                          .zeros = a->zeros ? codes + (last ? a->last_zeros : a->zeros) : NULL,
                          .scale = a->scale[0][s],
                          .index = s,
                          .k = s * a->scale_k,
                          .lines = (last ? a->last_k : a->scale_k) / IEEE_LINE_K,
                          .starts = a->starts,
                          .ends = a->ends,
                          .ahead = a->ahead[0] + s * a->stride};
}

// The last line of a scale's scales and zero points, behind the codes that are fetched line by line.
PANEL_INLINE void small_m_prefetch_scales(const struct small_m_args *a, const struct place *p) {
    small_m_prefetch(p->ahead + a->stride - 64, 64);
}

#ifdef INTEGER_CODES
#define INTEGER_IN_BLOCKS
#include "kernels/cpu/avx2/quantised/quantised_integer_body.h"
#else
#define INTEGER_CODES                                                                                                              \
    { 0 }
struct integer_plan {
    size_t count;
};
PANEL_INLINE void integer_plan_make(const struct small_m_args *a, size_t s, size_t k, size_t lines, size_t rows,
                                    struct integer_plan *plan) {
    (void)a, (void)s, (void)k, (void)lines, (void)rows, (void)plan;
}

PANEL_INLINE bool integer_taken(const struct small_m_args *a, const struct place *p, const struct integer_plan *plan, size_t rows,
                                const struct tables *t) {
    (void)a, (void)p, (void)plan, (void)rows, (void)t;
    return false;
}
#endif

// Scale by scale.
PANEL_INLINE void small_m_multiply(const struct small_m_args *a, size_t rows) {
    const struct tables t = tables_load();
    struct integer_plan plan = {.count = 0};
    for (size_t s = 0; s < a->scales; s++) {
        const struct place p = small_m_place(a, s);
        integer_plan_make(a, s, p.k, p.lines, rows, &plan);
        small_m_prefetch_scales(a, &p);
        if (!integer_taken(a, &p, &plan, rows, &t)) {
            small_m_panel(a, &p, 0, rows, &t);
        }
    }
}

// `vecs` vectors of columns of each line, [k][vecs * LANES].
PANEL_INLINE void widen_lines(const uint8_t *codes, const uint8_t *zeros, size_t lines, size_t vecs, float *wide) {
    const struct tables t = tables_load();
    __m256i zero[VECS];
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        zero[j] = zeros_load(zeros ? zeros + j * LANES : NULL);
    }
    for (size_t i = 0; i < lines; i++, codes += ROW_BYTES, wide += IEEE_LINE_K * vecs * LANES) {
        PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
            struct line line = line_open(codes + j * LINE_BYTES, &t, zero[j]);
            float *to = wide + j * LANES;
            PANEL_UNROLL for (size_t pair = 0; pair < IEEE_LINE_K / 2; pair++, to += 2 * vecs * LANES) {
                __m256i both = line_pair(&line, &t, pair);
                _mm256_store_ps(to, pair_even(both, &t, zero[j]));
                _mm256_store_ps(to + vecs * LANES, pair_odd(both, &t, zero[j]));
            }
        }
    }
}

static void widen(const uint8_t *codes, const uint8_t *zeros, size_t lines, panel_row *wide) {
    widen_lines(codes, zeros, lines, VECS, wide[0]);
}

static void widen_slice(const uint8_t *codes, const uint8_t *zeros, size_t lines, float *wide) {
    widen_lines(codes, zeros, lines, SLICE_VECS, wide);
}

#ifdef INTEGER_IN_BLOCKS
#include "kernels/cpu/avx2/quantised/quantised_integer_blocks_body.h"
#else
PANEL_INLINE void multiply_row(const struct small_m_args *args) {
    small_m_multiply(args, 1);
}
#endif

static void multiply_1(const struct small_m_args *args) {
    multiply_row(args);
}

#define SMALL_M_FUNCTION(rows)                                                                                                     \
    static void multiply_##rows(const struct small_m_args *args) {                                                                 \
        small_m_multiply(args, rows);                                                                                              \
    }

SMALL_M_FUNCTION(2)
SMALL_M_FUNCTION(3)
SMALL_M_FUNCTION(4)

const struct ieee_decoder IEEE_DECODER = {.line_k = IEEE_LINE_K,
                                          .fold = IEEE_FOLD,
                                          .unfold = 1.0f,
                                          .transpose_rows = SMALL_M_ROWS + 1,
                                          .whole = INTEGER_CODES,
                                          .widen = widen,
                                          .widen_slice = widen_slice,
                                          .multiply = {multiply_1, multiply_2, multiply_3, multiply_4}};
