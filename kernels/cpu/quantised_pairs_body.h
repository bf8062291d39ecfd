// The kernels of one way of decoding, written once. The including file defines:
//   PAIRS_LINE_K             k of a line of codes: 8 or 4
//   struct tables, tables_load(format)
//   zeros_load(zeros)        the zero points of 16 columns as its lines want them; zeros is NULL where the format has none
//   struct line, line_open(codes, tables, zero)
//   line_pair(line, tables, pair)   bf16 of the line's pair of k, 16 columns
//   PAIRS_DECODER            the name of the result
#include <string.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/pair_avx512bf16.h"
#include "kernels/cpu/panel_scales_avx512.h"

enum {
    LANES = 16,
    LINES = KERNEL_PANEL / LANES,
    LINES_BYTES = LINES * QUANTISED_LINE,
    // Bytes ahead that codes are fetched. Two Zen 5 threads, of the roof, at 4 and 16 KiB: four rows of MXFP4 .77 and .72; one row
    // the same.
    PAIRS_AHEAD = PAIRS_LINE_K == 8 ? 4096 : 16384,
};

// Where a scale's things lie, and what they are.
struct place {
    const struct quantised_format *format;
    __m512 global;
    const uint8_t *codes, *scales, *zeros;
    panel_row *sums;
};

#define FETCH_AHEAD ((struct fetch_distance){PAIRS_AHEAD, 0, 0})

// `lines` lines of each of the blocks of 16 columns, against all rows.
PANEL_INLINE void pairs_lines(size_t rows, bool zen4, const struct tables *t, const __m512i *zero, const uint8_t *codes,
                              const uint16_t *const *rows_x, size_t from, size_t lines, __m512 sums[][LINES]) {
    const uint16_t *x[PAIRS_FEW];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        x[r] = rows_x[r];
    }
    for (const uint8_t *end = codes + lines * LINES_BYTES; codes != end; codes += LINES_BYTES, from += PAIRS_LINE_K) {
        struct line line[LINES];
        PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
            fetch_line(codes + j * QUANTISED_LINE, zen4 ? FETCH_CODES_ZEN4 : FETCH_AHEAD);
        }
        PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
            line[j] = line_open(codes + j * QUANTISED_LINE, t, zero[j]);
        }
        PANEL_UNROLL for (size_t pair = 0; pair < PAIRS_LINE_K / 2; pair++) {
            __m512i w[LINES];
            PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
                w[j] = line_pair(&line[j], t, pair);
            }
            PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
                __m512bh value = pair_broadcast(x[r] + from + 2 * pair);
                PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
                    sums[r][j] = _mm512_dpbf16_ps(sums[r][j], value, (__m512bh)w[j]);
                }
            }
        }
    }
}

// One scale: partials from +0, then sum = fma(partial, scale, sum).
PANEL_INLINE void few_scale(const struct place *p, size_t rows, const struct tables *t, const uint16_t *const *x, size_t from,
                            size_t lines, bool zen4) {
    __m512 sums[PAIRS_FEW][LINES];
    __m512i zero[LINES];
    float factor[KERNEL_PANEL] __attribute__((aligned(64)));
    panel_scales(p->format, p->scales, p->global, factor); // before the partials need the registers
    PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
        zero[j] = zeros_load(p->zeros + j * LANES);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            sums[r][j] = _mm512_setzero_ps();
        }
    }
    pairs_lines(rows, zen4, t, zero, p->codes, x, from, lines, sums);
    PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            float *sum = &p->sums[r][j * LANES];
            _mm512_store_ps(sum, _mm512_fmadd_ps(sums[r][j], _mm512_load_ps(factor + j * LANES), _mm512_load_ps(sum)));
        }
    }
}

// zen4 is a constant in each copy, as `rows` is, so that no registers hold distances.
PANEL_INLINE void few_rows(const struct pairs_few *few, size_t rows, bool zen4) {
    const struct pairs_scales *a = &few->scales;
    const struct tables t = tables_load(a->format);
    const uint16_t *x[PAIRS_FEW];
    struct place p = {.format = a->format, .codes = a->codes, .global = panel_global(a->format, a->panel), .sums = few->sums};
    size_t scales = a->scales, stride = a->stride, scale_k = a->scale_k, scale_bytes = quantised_scale_bytes(a->format), from = 0;
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        x[r] = few->x[r];
    }
    for (size_t s = 0; s < scales; s++, from += scale_k, p.codes += stride) {
        bool last = s + 1 == scales;
        size_t lines = (last ? a->last_k : scale_k) / PAIRS_LINE_K;
        p.scales = last ? few->last_scales : p.codes + lines * LINES_BYTES;
        p.zeros = p.scales + scale_bytes;
        for (size_t at = 0; at < scale_bytes; at += QUANTISED_LINE) {
            fetch_line(p.scales + at, zen4 ? FETCH_CODES_ZEN4 : FETCH_AHEAD);
        }
        few_scale(&p, rows, &t, x, from, lines, zen4);
    }
}

#define FEW_FUNCTION(rows)                                                                                                         \
    static void few_##rows(const struct pairs_few *few) {                                                                          \
        if (fetch_as_zen4()) {                                                                                                     \
            few_rows(few, rows, true);                                                                                             \
        } else {                                                                                                                   \
            few_rows(few, rows, false);                                                                                            \
        }                                                                                                                          \
    }

FEW_FUNCTION(1)
FEW_FUNCTION(2)
FEW_FUNCTION(3)
FEW_FUNCTION(4)

#include "kernels/cpu/quantised_pairs_tile_body.h"

static void widen(const struct quantised_format *format, const uint8_t *codes, const uint8_t *zeros, size_t depth,
                  pairs_row *wide) {
    struct tables t = tables_load(format);
    __m512i zero[LINES];
    PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
        zero[j] = zeros_load(zeros + j * LANES);
    }
    for (size_t i = 0; i < depth; i += PAIRS_LINE_K, wide += PAIRS_LINE_K / 2) {
        PANEL_UNROLL for (size_t j = 0; j < LINES; j++, codes += QUANTISED_LINE) {
            struct line line = line_open(codes, &t, zero[j]);
            PANEL_UNROLL for (size_t pair = 0; pair < PAIRS_LINE_K / 2; pair++) {
                _mm512_store_si512(&wide[pair][2 * j * LANES], line_pair(&line, &t, pair));
            }
        }
    }
}

const struct pairs_decoder PAIRS_DECODER = {
    .line_k = PAIRS_LINE_K,
    .few = {few_1, few_2, few_3, few_4},
    .tile = PAIRS_TILES,
    .widen = widen,
};
