// The VDPBF16PS kernels over one decoder. The including file defines:
//   PAIRS_LINE_K             k of a line of codes: 8 or 4
//   PAIRS_WORKING            the vector registers, of 32, that decoding and multiplying use in addition to sums
//   struct tables, tables_load(format)
//   zeros_load(zeros)        the zero points of 16 columns as line_open needs them; `zeros` is NULL if the format has none
//   struct line, line_open(codes, tables, zero)
//   line_pair(line, tables, pair)   one pair of k of the line as bf16, 16 columns
//   PAIRS_DECODER            the name of the resulting struct pairs_decoder
//   PAIRS_EXTRAS             true if formats of these codes can have super scales or minima; else may be left out
#include <string.h>

#include "kernels/cpu/avx512/bf16_pair_avx512bf16.h"
#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"

#ifndef PAIRS_EXTRAS
#define PAIRS_EXTRAS false
#endif

enum {
    LANES = 16,
    LINES = EXPERTD_KERNEL_PANEL / LANES,
    LINES_BYTES = LINES * QUANTISED_LINE,
    PAIRS_VECTORS = 32,
};

// Distance: two threads of Zen 5, four rows of MXFP4, 2, 4, 8, 16 KiB ahead: .82, .89, .91, .87 of the roof; one row the same.
#define PREFETCH_CODES_ZEN5 ((struct prefetch_distance){8192, 0, 0})

// Constants in each copy, so that none takes a register.
struct small_m_shape {
    size_t rows;
    size_t blocks;  // blocks of 16 columns side by side
    size_t working; // registers that decoding and multiplying use in addition to sums
    struct prefetch_distance ahead;
};

// A pair of k of `blocks` blocks of 16 columns from block `first` on. The row's pair is broadcast once for all LINES blocks, or
// else is a broadcast memory operand of each product.
PANEL_INLINE void pairs_rows(size_t rows, size_t first, size_t blocks, const __m512i *w, const uint16_t *const *x, size_t k,
                             __m512 partials[][LINES]) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t j = first; j < first + blocks; j++) {
            if (blocks == LINES) {
                partials[r][j] = _mm512_dpbf16_ps(partials[r][j], pair_broadcast(x[r] + k), (__m512bh)w[j]);
            } else {
                pair_multiply(&partials[r][j], w[j], x[r] + k);
            }
        }
    }
}

// `lines` lines of codes of each block of 16 columns by all rows.
PANEL_INLINE void pairs_lines(struct small_m_shape shape, const struct tables *t, const uint8_t *zeros, const uint8_t *codes,
                              size_t lines, const uint16_t *const *rows_x, __m512 partials[][LINES]) {
    const size_t rows = shape.rows, blocks = shape.blocks;
    const uint16_t *x[PAIRS_SMALL_M];
    __m512i zero[LINES];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        x[r] = rows_x[r];
    }
    PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
        zero[j] = zeros_load(zeros + j * LANES);
    }
    size_t k = 0;
    for (const uint8_t *end = codes + lines * LINES_BYTES; codes != end; codes += LINES_BYTES, k += PAIRS_LINE_K) {
        PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
            prefetch_line(codes + j * QUANTISED_LINE, shape.ahead);
        }
        PANEL_UNROLL for (size_t first = 0; first < LINES; first += blocks) {
            struct line line[LINES];
            PANEL_UNROLL for (size_t j = first; j < first + blocks; j++) {
                line[j] = line_open(codes + j * QUANTISED_LINE, t, zero[j]);
            }
            PANEL_UNROLL for (size_t pair = 0; pair < PAIRS_LINE_K / 2; pair++) {
                __m512i w[LINES];
                PANEL_UNROLL for (size_t j = first; j < first + blocks; j++) {
                    w[j] = line_pair(&line[j], t, pair);
                }
                pairs_rows(rows, first, blocks, w, x, k + 2 * pair, partials);
            }
        }
    }
}

// Does this sum stay in a register over all scale groups? Those of the first columns do. The others go through memory; a store
// costs Zen 4 as much as 1.5 products, Zen 5 as much as two.
PANEL_INLINE bool small_m_in_register(struct small_m_shape small_m, size_t row, size_t j) {
    return j * small_m.rows + row < PAIRS_VECTORS - small_m.working - small_m.rows * LINES;
}

PANEL_INLINE void small_m_load(struct small_m_shape shape, const panel_row *from, __m512 sums[][LINES]) {
    PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
        PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
            if (small_m_in_register(shape, r, j)) {
                sums[r][j] = _mm512_load_ps(&from[r][j * LANES]);
            }
        }
    }
}

PANEL_INLINE void small_m_store(struct small_m_shape shape, __m512 sums[][LINES], panel_row *to) {
    PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
        PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
            if (small_m_in_register(shape, r, j)) {
                _mm512_store_ps(&to[r][j * LANES], sums[r][j]);
            }
        }
    }
}

// sum = fma(partial, scale, sum)
PANEL_INLINE void small_m_close(struct small_m_shape shape, __m512 partials[][LINES], const __m512 *factors, __m512 sums[][LINES],
                                panel_row *to) {
    PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
        PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
            float *sum = &to[r][j * LANES];
            if (small_m_in_register(shape, r, j)) {
                sums[r][j] = _mm512_fmadd_ps(partials[r][j], factors[j], sums[r][j]);
            } else {
                _mm512_store_ps(sum, _mm512_fmadd_ps(partials[r][j], factors[j], _mm512_load_ps(sum)));
            }
        }
    }
}

// With minima, after small_m_close: sum = fma(minus, minimum, sum).
PANEL_INLINE void small_m_subtract(struct small_m_shape shape, const struct pairs_small_m *small_m, const uint8_t *stored,
                                   const uint8_t *supers, size_t s, __m512 sums[][LINES], panel_row *to) {
    __m512 minima[LINES];
    if (supers) {
        panel_scales_super(stored, supers + QUANTISED_SUPER, minima);
    } else {
        panel_scales(small_m->scales.format, stored, _mm512_set1_ps(1.0f), minima);
    }
    PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
        const __m512 minus = _mm512_set1_ps(small_m->minus[r * small_m->minus_stride + s]);
        PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
            float *sum = &to[r][j * LANES];
            if (small_m_in_register(shape, r, j)) {
                sums[r][j] = _mm512_fmadd_ps(minus, minima[j], sums[r][j]);
            } else {
                _mm512_store_ps(sum, _mm512_fmadd_ps(minus, minima[j], _mm512_load_ps(sum)));
            }
        }
    }
}

// extras: with super scales or minima. A constant, because testing for them in each scale group takes .03 of the speed of one row.
PANEL_INLINE void small_m_rows(const struct pairs_small_m *small_m, struct small_m_shape shape, bool extras) {
    const struct pairs_scales *a = &small_m->scales;
    const struct tables t = tables_load(a->format);
    const __m512 global = panel_global(a->format, a->panel);
    const size_t scales = a->scales, stride = a->stride, scale_k = a->scale_k, scale_bytes = quantised_scale_bytes(a->format),
                 prefetched = extras && a->format->minima ? 2 * scale_bytes : scale_bytes;
    const size_t rows = shape.rows;
    const uint8_t *codes = a->codes;
    const uint16_t *x[PAIRS_SMALL_M];
    __m512 sums[PAIRS_SMALL_M][LINES];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        x[r] = small_m->x[r];
    }
    small_m_load(shape, (const panel_row *)small_m->sums, sums);
    for (size_t s = 0; s < scales; s++, codes += stride) {
        const size_t lines = (s + 1 == scales ? a->last_k : scale_k) / PAIRS_LINE_K;
        const uint8_t *stored = codes + lines * LINES_BYTES; // followed by the zero points or minima
        __m512 partials[PAIRS_SMALL_M][LINES], factors[LINES];
        for (size_t at = 0; at < prefetched; at += QUANTISED_LINE) {
            prefetch_line(stored + at, shape.ahead);
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
                partials[r][j] = _mm512_setzero_ps();
            }
        }
        pairs_lines(shape, &t, stored + scale_bytes, codes, lines, x, partials);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            x[r] += lines * PAIRS_LINE_K;
        }
        const uint8_t *supers = extras && a->supers ? a->supers + s * scale_k / EXPERTD_SUPER_K * a->super_size : NULL;
        if (supers) {
            panel_scales_super(stored, supers, factors);
        } else {
            panel_scales(a->format, stored, global, factors);
        }
        small_m_close(shape, partials, factors, sums, small_m->sums);
        if (extras && small_m->minus) {
            small_m_subtract(shape, small_m, stored + scale_bytes, supers, s, sums, small_m->sums);
        }
    }
    small_m_store(shape, sums, small_m->sums);
}

PANEL_INLINE void small_m_any(const struct pairs_small_m *small_m, struct small_m_shape shape) {
    if (PAIRS_EXTRAS && (small_m->minus || small_m->scales.supers)) {
        small_m_rows(small_m, shape, true);
    } else {
        small_m_rows(small_m, shape, false);
    }
}

// More than two rows of 4-bit codes take two blocks of columns at a time, which leaves registers for sums. A CPU that starts two
// products a cycle would have too few independent partial sums then.
#define SMALL_M_ONE(rows)                                                                                                          \
    ((struct small_m_shape){rows, (rows) > 2 && PAIRS_LINE_K == 8 ? LINES / 2 : LINES, PAIRS_LINE_K == 8 ? 6 : 12,                 \
                            PREFETCH_CODES_ZEN4})
#define SMALL_M_TWO(rows, ahead) ((struct small_m_shape){rows, LINES, PAIRS_LINE_K == 8 ? 6 : (rows) == 4 ? 11 : 12, ahead})

#define SMALL_M_FUNCTIONS(rows)                                                                                                    \
    static void small_m_one_##rows(const struct pairs_small_m *small_m) {                                                          \
        small_m_any(small_m, SMALL_M_ONE(rows));                                                                                   \
    }                                                                                                                              \
    static void small_m_two_##rows(const struct pairs_small_m *small_m) {                                                          \
        if ((rows) == 1 && prefetch_as_intel()) {                                                                                  \
            small_m_any(small_m, SMALL_M_TWO(rows, PREFETCH_CODES_INTEL));                                                         \
        } else {                                                                                                                   \
            small_m_any(small_m, SMALL_M_TWO(rows, PREFETCH_CODES_ZEN5));                                                          \
        }                                                                                                                          \
    }

SMALL_M_FUNCTIONS(1)
SMALL_M_FUNCTIONS(2)
SMALL_M_FUNCTIONS(3)
SMALL_M_FUNCTIONS(4)

enum { PAIRS_POWERS = PAIRS_LINE_K == 8 };
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs_tile_body.h"

static void widen(const struct expertd_quantised_format *format, const uint8_t *codes, const uint8_t *zeros, size_t depth,
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
    .small_m = {[PAIRS_ONE_A_CYCLE] = {small_m_one_1, small_m_one_2, small_m_one_3, small_m_one_4},
                [PAIRS_TWO_A_CYCLE] = {small_m_two_1, small_m_two_2, small_m_two_3, small_m_two_4}},
    .tile = PAIRS_TILES,
    .widen = widen,
};
