// The kernels of one decoder, written once. The including file defines:
//   IEEE_DECODER             the name of the resulting struct ieee_decoder
//   IEEE_LINE_K              k of a line of codes: 8 or 4
//   IEEE_FOLD                its `fold`
//   struct tables, tables_load()
//   zeros_load(zeros)        the zero points of 8 columns in the form that line_open takes; zeros is NULL where the format has none
//   struct line, line_open(codes, tables, zero)    the IEEE_LINE_K codes of 8 columns
//   line_pair(line, tables, pair)                  a pair of k
//   pair_odd(pair, tables, zero), pair_even(...)   its two elements, as f32
//   INTEGER_CODES            only for 4-bit codes, which can be multiplied as integers: see quantised_integer_body.h
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/backend/backends.h"

enum {
    LANES = 8,
    VECS = EXPERTD_KERNEL_PANEL / LANES, // vectors of columns at most
    LINE_BYTES = 32,                     // of 8 columns
    ROW_BYTES = EXPERTD_KERNEL_PANEL / LANES * LINE_BYTES,
};

// One scale group of the call's panel; these decoders take one panel a call (ieee_decoder.round_robin_rows).
struct scale_group {
    const uint8_t *codes, *zeros;
    const float *scale;
    size_t index, k; // the group, and its first k, within the call's chunk
    size_t lines;
    bool starts, ends;    // as in struct small_m_args
    const uint8_t *ahead; // the codes to prefetch meanwhile
};

PANEL_INLINE void small_m_prefetch(const uint8_t *ahead, size_t bytes) {
    PANEL_UNROLL for (size_t byte = 0; byte < bytes; byte += 64) {
        _mm_prefetch((const char *)ahead + byte, _MM_HINT_T0);
    }
}

// Keeps the compiler from holding the rows' elements in registers: these are needed for the sums and the widened codes.
PANEL_INLINE void compiler_barrier(void) {
    __asm__ __volatile__("" ::: "memory");
}

// One line of two vectors of columns, from vector j on. The 8 FMAs of one vector alone would wait for each other.
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

// One scale group against `vecs` vectors of columns, rows [row, row + rows): partial sums, and at the group's end sum =
// fma(partial, scale, sum).
PANEL_INLINE void small_m_columns(const struct small_m_args *a, const struct scale_group *group, size_t row, size_t rows,
                                  size_t vecs, size_t column, const struct tables *t) {
    __m256 sums[SMALL_M_ROWS][VECS];
    __m256i zero[VECS];
    const float *x[SMALL_M_ROWS];
    const uint8_t *codes = group->codes + column * (LINE_BYTES / LANES),
                  *ahead = group->ahead + column * (LINE_BYTES / LANES) * group->lines;
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        x[r] = a->x[row + r] + group->k;
    }
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        zero[j] = zeros_load(group->zeros ? group->zeros + column + j * LANES : NULL);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            sums[r][j] = group->starts ? _mm256_setzero_ps() : _mm256_load_ps(a->partials[row + r] + column + j * LANES);
        }
    }
    for (size_t i = 0; i < group->lines; i++, codes += ROW_BYTES, ahead += vecs * LINE_BYTES) {
        small_m_prefetch(ahead, vecs * LINE_BYTES);
        PANEL_UNROLL for (size_t j = 0; j < vecs; j += 2) {
            small_m_two_lines(codes + j * LINE_BYTES, rows, t, zero + j, x, i * IEEE_LINE_K, sums, j);
            compiler_barrier();
        }
    }
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        __m256 scale = _mm256_load_ps(group->scale + column + j * LANES);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            size_t at = column + j * LANES;
            float *partial = a->partials[row + r] + at, *sum = a->sums[row + r] + at;
            if (group->ends) {
                _mm256_store_ps(sum, _mm256_fmadd_ps(sums[r][j], scale, _mm256_load_ps(sum)));
            } else {
                _mm256_store_ps(partial, sums[r][j]);
            }
        }
    }
}

// One scale group against all columns. The number of vectors of a pass gives enough independent FMAs to hide their latency, and
// fits the registers.
PANEL_INLINE void small_m_panel(const struct small_m_args *a, const struct scale_group *group, size_t row, size_t rows,
                                const struct tables *t) {
    const size_t vecs = rows <= 2 ? 4 : 2;
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += vecs * LANES) {
        small_m_columns(a, group, row, rows, vecs, column, t);
    }
}

PANEL_INLINE struct scale_group small_m_scale_group(const struct small_m_args *a, size_t s) {
    const bool last = s + 1 == a->scales;
    const uint8_t *codes = a->codes[0] + s * a->stride;
    return (struct scale_group){.codes = codes,
                                .zeros = a->zeros ? codes + (last ? a->last_zeros : a->zeros) : NULL,
                                .scale = a->scale[0][s],
                                .index = s,
                                .k = s * a->scale_k,
                                .lines = (last ? a->last_k : a->scale_k) / IEEE_LINE_K,
                                .starts = a->starts,
                                .ends = a->ends,
                                .ahead = a->ahead[0] + s * a->stride};
}

// Prefetches the last line of a group's scales and zero points, which follow its codes; codes are prefetched line by line.
PANEL_INLINE void small_m_prefetch_scales(const struct small_m_args *a, const struct scale_group *group) {
    small_m_prefetch(group->ahead + a->stride - 64, 64);
}

PANEL_INLINE size_t small_m_code_bytes(const struct small_m_args *a) {
    return a->scale_k / IEEE_LINE_K * ROW_BYTES;
}

// The end of a closed group of a format with minima: sum = fma(minus, minimum, sum).
PANEL_INLINE void small_m_subtract(const struct small_m_args *a, size_t s, size_t rows) {
    PANEL_UNROLL for (size_t v = 0; v < EXPERTD_KERNEL_PANEL; v += LANES) {
        const __m256 minimum = _mm256_load_ps(&a->minima[s][v]);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            float *sum = a->sums[r] + v;
            _mm256_store_ps(sum, _mm256_fmadd_ps(_mm256_broadcast_ss(a->minus[r] + s), minimum, _mm256_load_ps(sum)));
        }
    }
}

// Has small_m_finish anything to do?
PANEL_INLINE bool small_m_has_extras(const struct small_m_args *a) {
    return a->minima || a->stride - small_m_code_bytes(a) > 2 * 64;
}

// After the codes of group s, whose successor is at `ahead`: prefetches scales and minima that take more than two lines, in the
// order of memory (before the codes they would halve the speed from DRAM), and subtracts minima. Not inlined: formats without
// either would be .97 as fast.
static __attribute__((noinline)) void small_m_finish(const struct small_m_args *a, const uint8_t *ahead, size_t s, size_t rows) {
    for (size_t at = small_m_code_bytes(a); at < a->stride - 64; at += 64) {
        small_m_prefetch(ahead + at, 64);
    }
    if (a->minima) {
        small_m_subtract(a, s, rows);
    }
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

PANEL_INLINE bool integer_multiply_group(const struct small_m_args *a, const struct scale_group *group,
                                         const struct integer_plan *plan, size_t rows, const struct tables *t) {
    (void)a, (void)group, (void)plan, (void)rows, (void)t;
    return false;
}
#endif

// Every scale group of the call, by integers where planned, else by FMAs.
PANEL_INLINE void small_m_multiply(const struct small_m_args *a, size_t rows) {
    const struct tables t = tables_load();
    struct integer_plan plan = {.count = 0};
    const bool extras = small_m_has_extras(a);
    for (size_t s = 0; s < a->scales; s++) {
        const struct scale_group group = small_m_scale_group(a, s);
        integer_plan_make(a, s, group.k, group.lines, rows, &plan);
        small_m_prefetch_scales(a, &group);
        if (!integer_multiply_group(a, &group, &plan, rows, &t)) {
            small_m_panel(a, &group, 0, rows, &t);
        }
        if (extras) {
            small_m_finish(a, group.ahead, s, rows);
        }
    }
}

// Widens `vecs` vectors of columns of each line to [k][vecs * LANES].
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
                                          .round_robin_rows = SMALL_M_ROWS + 1,
                                          .integers = INTEGER_CODES,
                                          .widen = widen,
                                          .widen_slice = widen_slice,
                                          .multiply = {multiply_1, multiply_2, multiply_3, multiply_4}};
