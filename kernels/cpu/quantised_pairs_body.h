// The kernels of one way of decoding, written once. The including file defines:
//   PAIRS_LINE_K             k of a line of codes: 8 or 4
//   struct tables, tables_load(format)
//   zeros_load(zeros)        the zero points of 16 columns as its lines want them; zeros is NULL where the format has none
//   struct line, line_open(codes, tables, zero)
//   line_pair(line, tables, pair)   bf16 of the line's pair of k, 16 columns
//   PAIRS_DECODER            the name of the result
#include <string.h>

#include "kernels/cpu/backends.h"

enum { LANES = 16, LINES = KERNEL_PANEL / LANES };

PANEL_INLINE __m512i pairs_broadcast(const uint16_t *x) {
    int pair;
    memcpy(&pair, x, sizeof pair);
    return _mm512_set1_epi32(pair);
}

// A line's pair against all rows.
PANEL_INLINE void pairs_step(size_t rows, size_t vecs, const __m512i *w, const uint16_t *x, __m512 sums[][LINES]) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        __m512i value = pairs_broadcast(x + r * PAIRS_X);
        PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
            sums[r][j] = _mm512_dpbf16_ps(sums[r][j], (__m512bh)value, (__m512bh)w[j]);
        }
    }
}

// The last k of a scale, fewer than a line's; an odd one's partner is +0 on both sides.
PANEL_INLINE void pairs_tail(size_t rows, size_t vecs, const struct line *lines, const struct tables *t, size_t left,
                             const uint16_t *x, __m512 sums[][LINES]) {
    PANEL_UNROLL for (size_t pair = 0; pair < PAIRS_LINE_K / 2; pair++) {
        if (2 * pair < left) {
            __m512i w[LINES], keep = _mm512_set1_epi32(2 * pair + 1 < left ? -1 : 0xffff);
            PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
                w[j] = _mm512_and_si512(line_pair(&lines[j], t, pair), keep);
            }
            pairs_step(rows, vecs, w, x + 2 * pair, sums);
        }
    }
}

// All k of one scale that lie in the chunk, for `vecs` lines of columns.
PANEL_INLINE void pairs_scale(size_t rows, size_t vecs, const struct tables *t, const __m512i *zero, const uint8_t *codes,
                              const uint16_t *x, size_t depth, __m512 sums[][LINES]) {
    struct line lines[LINES];
    for (; depth >= PAIRS_LINE_K; depth -= PAIRS_LINE_K, x += PAIRS_LINE_K, codes += LINES * QUANTISED_LINE) {
        PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
            _mm_prefetch((const char *)((uintptr_t)(codes + j * QUANTISED_LINE) + PANEL_AHEAD_BYTES), _MM_HINT_T0);
            lines[j] = line_open(codes + j * QUANTISED_LINE, t, zero[j]);
        }
        PANEL_UNROLL for (size_t pair = 0; pair < PAIRS_LINE_K / 2; pair++) {
            __m512i w[LINES];
            PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
                w[j] = line_pair(&lines[j], t, pair);
            }
            pairs_step(rows, vecs, w, x + 2 * pair, sums);
        }
    }
    if (depth) {
        PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
            lines[j] = line_open(codes + j * QUANTISED_LINE, t, zero[j]);
        }
        pairs_tail(rows, vecs, lines, t, depth, x, sums);
    }
}

// The partials of one scale, from where they are to where they go.
PANEL_INLINE void pairs_columns(const struct pairs_args *a, size_t rows, size_t vecs, const struct tables *t, size_t scale,
                                size_t column) {
    __m512 sums[PAIRS_ROWS][LINES];
    __m512i zero[LINES];
    const uint8_t *zeros = scale + 1 == a->scales || !a->zeros ? a->last_zeros : a->zeros + scale * a->stride;
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        zero[j] = zeros_load(zeros ? zeros + column + j * LANES : NULL);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            sums[r][j] = a->starts ? _mm512_setzero_ps() : _mm512_load_ps(&a->partials[r][column + j * LANES]);
        }
    }
    size_t before = scale * a->scale_k, depth = a->depth - before < a->scale_k ? a->depth - before : a->scale_k;
    pairs_scale(rows, vecs, t, zero, a->codes + scale * a->stride + column * (QUANTISED_LINE / LANES), a->x + before, depth, sums);
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        size_t at = column + j * LANES;
        if (!a->ends) {
            PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
                _mm512_store_ps(&a->partials[r][at], sums[r][j]);
            }
            continue;
        }
        __m512 factor = _mm512_load_ps(&a->scale[scale][at]);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            float *sum = &a->sums[r][at];
            _mm512_store_ps(sum, _mm512_fmadd_ps(sums[r][j], factor, _mm512_load_ps(sum)));
        }
    }
}

// All 64 columns at once, or half of them where the partials of so many rows would not fit the registers.
#define PAIRS_FUNCTION(rows)                                                                                                       \
    static void multiply_##rows(const struct pairs_args *args) {                                                                   \
        const size_t vecs = rows <= 4 ? LINES : LINES / 2;                                                                         \
        struct tables t = tables_load(args->format);                                                                               \
        for (size_t scale = 0; scale < args->scales; scale++) {                                                                    \
            for (size_t column = 0; column < KERNEL_PANEL; column += vecs * LANES) {                                               \
                pairs_columns(args, rows, vecs, &t, scale, column);                                                                \
            }                                                                                                                      \
        }                                                                                                                          \
    }

PAIRS_FUNCTION(1)
PAIRS_FUNCTION(2)
PAIRS_FUNCTION(3)
PAIRS_FUNCTION(4)
PAIRS_FUNCTION(5)
PAIRS_FUNCTION(6)
PAIRS_FUNCTION(7)
PAIRS_FUNCTION(8)

static void widen(const struct quantised_format *format, const uint8_t *codes, const uint8_t *zeros, size_t depth,
                  pairs_row *wide) {
    struct tables t = tables_load(format);
    __m512i zero[LINES];
    PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
        zero[j] = zeros_load(zeros ? zeros + j * LANES : NULL);
    }
    for (size_t i = 0; i < depth; i += PAIRS_LINE_K, wide += PAIRS_LINE_K / 2) {
        PANEL_UNROLL for (size_t j = 0; j < LINES; j++, codes += QUANTISED_LINE) {
            _mm_prefetch((const char *)((uintptr_t)codes + PANEL_AHEAD_BYTES), _MM_HINT_T0);
            struct line line = line_open(codes, &t, zero[j]);
            PANEL_UNROLL for (size_t pair = 0; pair < PAIRS_LINE_K / 2; pair++) {
                _mm512_store_si512(&wide[pair][2 * j * LANES], line_pair(&line, &t, pair));
            }
        }
    }
}

const struct pairs_decoder PAIRS_DECODER = {
    .multiply = {multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6, multiply_7, multiply_8},
    .widen = widen,
};
