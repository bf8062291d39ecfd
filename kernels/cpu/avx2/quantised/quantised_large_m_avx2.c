// More than MEDIUM_M_ROWS rows of bf16 against panels of quantised weights, in IEEE mode (quantised_ieee.h).
//
// Loop order: blocks of K, panels, slices of SLICE columns, tiles of 6 rows. A block of the rows is widened once for all panels of
// the call. A slice's block is widened into 16 KiB, half of L1, where it stays while all tiles of rows read it. The partial sums of
// a scale group stay in registers over the group's k in the block. Sums are stored slice by slice, so that a tile's sums are
// contiguous: rows of sums 1 KiB apart would repeat their address bits within a page, and loads would wait for stores of other
// rows.
//
// Zen 3 starts no FMA in a cycle that stores a vector. A scale group of 16 k has 12 stores for 192 FMAs, and they cost 24 of 126
// cycles. So the first k of each group is multiplied and added instead of an FMA: products of bf16 and codes have at most 17 bits
// and are exact, and a multiplication can start in a cycle with a store (112 cycles).
#if defined(__x86_64__)
#include <string.h>

#include "kernels/cpu/avx2/quantised/quantised_chunk_avx2.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/macrokernel_prefetch.h"

static inline __m256 vec_broadcast(const float *p) {
    return _mm256_broadcast_ss(p);
}

#include "kernels/cpu/avx2/fma_avx2.h"

enum {
    LARGE_M_K = 256,       // k of a block
    LARGE_M_SHORT_K = 128, // the same for up to LARGE_M_SHORT_ROWS rows: 1.01 to 1.03 times the speed of 256
    LARGE_M_SHORT_ROWS = 24,
    LARGE_M_RUN = 8,                      // k of an iteration of the inner loop
    LARGE_M_X = LARGE_M_K + ROW_UNIT + 4, // floats of a widened row; the 4 shift each row within a line of cache, which avoids
                                          // bank conflicts of two rows' loads in L1 (.93 -> .96 of the peak)
    LARGE_M_ROWS = 120,                   // rows at a time: rows, sums and codes of more would not fit L2
    LARGE_M_SLICE = LARGE_M_K * SLICE,    // floats
    LARGE_M_SCALES = LARGE_M_K / 16,      // scale groups of a block at most
    PANEL_ROWS = 24,                      // rows at a time of a call of one panel, whose scratch is on the stack
    PANEL_ROW = LARGE_M_X + 2 * EXPERTD_KERNEL_PANEL + LARGE_M_SCALES, // floats of such a row in scratch
    LARGE_M_ROW = LARGE_M_X + KERNEL_SUMS + LARGE_M_SCALES,
};
_Static_assert(LARGE_M_SLICE + LARGE_M_ROWS * LARGE_M_ROW <= KERNEL_SCRATCH_BYTES / sizeof(float), "scratch");
_Static_assert(LARGE_M_ROWS / 2 * (LARGE_M_ROW + KERNEL_SUMS) <= LARGE_M_ROWS * LARGE_M_ROW, "scratch, with partial sums");

// Rows against panels.
struct large_m {
    struct panel_args args; // the current rows and the current panel; `columns` counts those of all panels
    const struct expertd_quantised_format *format;
    const struct ieee_decoder *decoder;
    const void *const *panels, *const *next; // as in struct macrokernel_args
    size_t count;
    size_t block;   // k of a block at most
    float *slice;   // [LARGE_M_K][SLICE]
    float *x;       // [rows][LARGE_M_X]
    float *sums;    // [slices of all panels][rows][SLICE]
    float *carried; // the same layout: partial sums of a scale group that is longer than a block
    float *minus;   // [rows][LARGE_M_SCALES]: with minima, -(the sum of a row over each group)
    panel_row scales[LARGE_M_SCALES], minima[LARGE_M_SCALES];
};

// A tile of rows against a slice of a panel, over a block of K.
struct tile {
    const float *x;             // LARGE_M_X apart
    const float *weights;       // [k][SLICE]
    const float *scale;         // the scales of the block's first group; groups are EXPERTD_KERNEL_PANEL apart
    const float *minima;        // the same for minima; NULL: the format has none
    const float *minus;         // of the first row, LARGE_M_SCALES apart
    float *sums, *carried;      // SLICE apart
    size_t scales, depth, last; // number of groups; k of each but the last, and of the last, in full lines
    bool starts, ends;          // as in struct chunk
    struct macrokernel_prefetch ahead;
};

typedef __m256 tile_sums[PANEL_TILE][SLICE_VECS];

PANEL_INLINE void tile_begin(tile_sums sums, size_t rows, bool starts, const float *carried) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < SLICE_VECS; v++) {
            sums[r][v] = _mm256_setzero_ps();
        }
    }
    if (starts) {
        return;
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < SLICE_VECS; v++) {
            sums[r][v] = _mm256_load_ps(carried + r * SLICE + v * LANES);
        }
    }
}

PANEL_INLINE void tile_step(tile_sums sums, size_t rows, const float *x, const float *weights, bool by_products) {
    __m256 low = load_in_order(weights), high = load_in_order(weights + LANES);
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        if (by_products) {
            products_in_order(x + r * LARGE_M_X, low, high, &sums[r][0], &sums[r][1]);
            continue;
        }
        __m256 factor = broadcast_in_order(x + r * LARGE_M_X);
        sums[r][0] = fma_in_order(factor, low, sums[r][0]);
        sums[r][1] = fma_in_order(factor, high, sums[r][1]);
    }
}

PANEL_INLINE void tile_prefetch(struct macrokernel_prefetch *ahead) {
    _mm_prefetch((const char *)ahead->at, _MM_HINT_T0);
    ahead->at += ahead->step;
}

// LARGE_M_RUN k, the odd k of each pair first. by_products: the first k is multiplied and added instead of an FMA.
PANEL_INLINE void tile_run(tile_sums sums, size_t rows, const float *x, const float *weights, bool by_products,
                           struct macrokernel_prefetch *ahead) {
    PANEL_UNROLL for (size_t i = 0; i < LARGE_M_RUN; i += 2) {
        if (i % 4 == 0) {
            tile_prefetch(ahead);
        }
        tile_step(sums, rows, x + i + 1, weights + (i + 1) * SLICE, by_products && i == 0);
        tile_step(sums, rows, x + i, weights + i * SLICE, false);
    }
}

PANEL_INLINE void tile_end(tile_sums sums, size_t rows, bool ends, const float *scale, float *to, float *carried) {
    if (!ends) {
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            PANEL_UNROLL for (size_t v = 0; v < SLICE_VECS; v++) {
                _mm256_store_ps(carried + r * SLICE + v * LANES, sums[r][v]);
            }
        }
        return;
    }
    PANEL_UNROLL for (size_t v = 0; v < SLICE_VECS; v++) {
        __m256 factor = _mm256_load_ps(scale + v * LANES);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            float *sum = to + r * SLICE + v * LANES;
            _mm256_store_ps(sum, _mm256_fmadd_ps(sums[r][v], factor, _mm256_load_ps(sum)));
        }
    }
}

// With minima, the end of the block's scale group s: sum = fma(minus, minimum, sum).
PANEL_INLINE void tile_subtract(const struct tile *t, size_t rows, size_t s) {
    PANEL_UNROLL for (size_t v = 0; v < SLICE_VECS; v++) {
        const __m256 minimum = _mm256_load_ps(t->minima + s * EXPERTD_KERNEL_PANEL + v * LANES);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            float *sum = t->sums + r * SLICE + v * LANES;
            const __m256 minus = _mm256_broadcast_ss(t->minus + r * LARGE_M_SCALES + s);
            _mm256_store_ps(sum, _mm256_fmadd_ps(minus, minimum, _mm256_load_ps(sum)));
        }
    }
}

// `rows` is a compile-time constant in each copy, so that the sums stay in registers.
PANEL_INLINE void tile_rows(struct tile *t, size_t rows) {
    struct macrokernel_prefetch ahead = t->ahead;
    const float *x = t->x, *weights = t->weights, *scale = t->scale;
    float *const to = t->sums, *const carried = t->carried;
    const bool starts = t->starts, ends = t->ends;
    for (size_t left = t->scales; left > 0; left--, scale += EXPERTD_KERNEL_PANEL) {
        tile_sums sums;
        size_t depth = left == 1 ? t->last : t->depth;
        const float *end = x + depth, *runs_end = x + depth / LARGE_M_RUN * LARGE_M_RUN;
        tile_begin(sums, rows, starts, carried);
        if (x < runs_end) {
            tile_run(sums, rows, x, weights, true, &ahead);
            x += LARGE_M_RUN, weights += LARGE_M_RUN * SLICE;
        }
        for (; x < runs_end; x += LARGE_M_RUN, weights += LARGE_M_RUN * SLICE) {
            tile_run(sums, rows, x, weights, false, &ahead);
        }
        for (; x < end; x += 2, weights += 2 * SLICE) {
            tile_step(sums, rows, x + 1, weights + SLICE, false);
            tile_step(sums, rows, x, weights, false);
        }
        tile_end(sums, rows, ends, scale, to, carried);
        if (t->minima && ends) {
            tile_subtract(t, rows, t->scales - left);
        }
    }
    t->ahead = ahead;
}

// Calls of more than MEDIUM_M_ROWS rows have tiles of 4 rows at least, or of 3 where the rows are split into parts.
static __attribute__((noinline)) void tile_multiply(struct tile *t, size_t rows) {
    switch (rows) {
    case 3:
        tile_rows(t, 3);
        return;
    case 4:
        tile_rows(t, 4);
        return;
    case 5:
        tile_rows(t, 5);
        return;
    default:
        tile_rows(t, PANEL_TILE);
        return;
    }
}

// Widens the slice that begins at `column` of the current panel, over the block.
static void widen_columns(const struct large_m *m, const struct chunk *c, size_t column) {
    const size_t line_k = m->decoder->line_k, at = column / QUANTISED_COLUMNS * QUANTISED_LINE;
    float *to = m->slice;
    for (size_t s = 0; s < c->scales; s++) {
        size_t depth = s + 1 == c->scales ? last_depth(c, line_k) : c->layout.scale_k;
        const uint8_t *zeros = chunk_zeros(c, s);
        m->decoder->widen_slice(chunk_codes(c, s) + at, zeros ? zeros + column : NULL, depth / line_k, to);
        to += depth * SLICE;
    }
}

// Prefetches this slice's share of the rows' next block of K. The rows are scattered in memory, so widening them would stall.
static void prefetch_rows(const struct large_m *m, const struct chunk *c, size_t slice) {
    size_t begin = c->k + c->depth, left = m->args.k - begin, depth = left < m->block ? left : m->block;
    for (size_t r = slice; r < m->args.rows; r += m->count * (EXPERTD_KERNEL_PANEL / SLICE)) {
        const char *x = (const char *)((const uint16_t *)m->args.x[r] + begin);
        for (size_t byte = 0; byte < depth * sizeof(uint16_t); byte += 64) {
            _mm_prefetch(x + byte, _MM_HINT_T0);
        }
    }
}

// All rows against a slice; `slice` counts over all panels.
static void large_m_slice(struct large_m *m, const struct chunk *c, size_t slice, struct tile *t) {
    const size_t rows = m->args.rows, column = slice % (EXPERTD_KERNEL_PANEL / SLICE) * SLICE;
    prefetch_rows(m, c, slice);
    widen_columns(m, c, column);
    t->scale = m->scales[0] + column;
    t->minima = m->format->minima ? m->minima[0] + column : NULL;
    for (size_t row = 0, count; row < rows; row += count) {
        count = panel_tile_rows(rows, row);
        t->x = m->x + row * LARGE_M_X;
        t->minus = m->minus + row * LARGE_M_SCALES;
        t->sums = m->sums + (slice * rows + row) * SLICE;
        t->carried = m->carried + (slice * rows + row) * SLICE;
        tile_multiply(t, count);
    }
}

static void large_m_panel(struct large_m *m, const struct chunk *c, size_t panel) {
    const size_t slices = EXPERTD_KERNEL_PANEL / SLICE, tiles = div_up(m->args.rows, PANEL_TILE);
    if (c->ends) {
        struct scale_offsets at = scale_offsets(c);
        chunk_scales(c, &at, m->args.panel, m->scales);
        if (m->format->minima) {
            widen_minima(c, &at, m->args.panel, m->minima);
        }
    }
    struct tile t = {
        .weights = m->slice,
        .scales = c->scales,
        .depth = c->layout.scale_k,
        .last = last_depth(c, m->decoder->line_k),
        .starts = c->starts,
        .ends = c->ends,
        .ahead = macrokernel_prefetch_over(chunk_next_codes(c, m->panels, m->count, panel, m->next), chunk_bytes(c),
                                           tiles * slices * (c->depth / 4)),
    };
    for (size_t i = 0; i < slices; i++) {
        large_m_slice(m, c, panel * slices + i, &t);
    }
}

static bool widen_rows(const struct large_m *m, const struct chunk *c) {
    for (size_t r = 0; r < m->args.rows; r++) {
        if (!widen_row((const uint16_t *)m->args.x[r] + c->k, c->depth, m->decoder->fold, m->x + r * LARGE_M_X)) {
            return false;
        }
        if (m->format->minima && c->ends) {
            chunk_row_sums(c, r, m->minus + r * LARGE_M_SCALES);
        }
    }
    return true;
}

static void write_sums(const struct large_m *m) {
    for (size_t column = 0; column < m->args.columns; column += SLICE) {
        size_t columns = m->args.columns - column < SLICE ? m->args.columns - column : SLICE;
        for (size_t r = 0; r < m->args.rows; r++) {
            const float *from = m->sums + column * m->args.rows + r * SLICE;
            memcpy(m->args.out + r * m->args.out_stride + column, from, columns * sizeof *from);
        }
    }
}

// Not inlined: the compiler must not move an FMA across the caller's changes of the floating-point mode.
static __attribute__((noinline)) bool large_m_rows(struct large_m *m) {
    struct chunk c = {.args = &m->args, .format = m->format, .layout = quantised_layout(m->format, m->args.k)};
    memset(m->sums, 0, m->args.rows * m->count * EXPERTD_KERNEL_PANEL * sizeof *m->sums);
    while (chunk_next(&c, m->block)) {
        if (!widen_rows(m, &c)) {
            return false;
        }
        for (size_t p = 0; p < m->count; p++) {
            m->args.panel = m->panels[p];
            large_m_panel(m, &c, p);
        }
    }
    write_sums(m);
    return true;
}

// Whether partial sums are carried from block to block: a scale group may be longer than a block.
static bool carries_partials(const struct expertd_quantised_format *format, size_t k) {
    return quantised_layout(format, k).scale_k > LARGE_M_SHORT_K;
}

// Multiplies the rows of `all`, at most `most` at a time. The caller has set format, decoder, panels, next and count of m.
static bool large_m_parts(struct large_m *m, const struct panel_args *all, size_t most, float *scratch) {
    float_mode before = float_mode_set_ieee();
    size_t parts = div_up(all->rows, most);
    bool done = true;
    m->slice = scratch;
    m->sums = scratch + LARGE_M_SLICE;
    for (size_t p = 0; p < m->count; p++) {
        done = done && !quantised_has_special(m->panels[p]);
    }
    for (size_t row = 0; done && row < all->rows; row += m->args.rows, parts--) {
        m->args = *all;
        m->args.rows = div_up(all->rows - row, parts);
        m->args.x = all->x + row;
        m->args.panel = m->panels[0];
        m->args.out = all->out + row * all->out_stride;
        m->carried = m->sums + m->args.rows * m->count * EXPERTD_KERNEL_PANEL;
        m->x = carries_partials(m->format, all->k) ? m->carried + (m->carried - m->sums) : m->carried;
        m->minus = m->x + m->args.rows * LARGE_M_X;
        m->block = m->args.rows <= LARGE_M_SHORT_ROWS ? LARGE_M_SHORT_K : LARGE_M_K;
        done = large_m_rows(m);
    }
    float_mode_restore(before);
    return done;
}

bool avx2_quantised_large_m_macrokernel(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    struct panel_args args = {.x = macro->x,
                              .rows = macro->rows,
                              .k = macro->k,
                              .out = macro->sums,
                              .out_stride = KERNEL_SUMS,
                              .columns = macro->count * EXPERTD_KERNEL_PANEL};
    struct large_m m = {
        .format = format, .decoder = ieee_decoder_of(format), .panels = macro->panels, .next = macro->next, .count = macro->count};
    return large_m_parts(&m, &args, carries_partials(format, macro->k) ? LARGE_M_ROWS / 2 : LARGE_M_ROWS, macro->scratch);
}

bool avx2_quantised_large_m(const struct panel_args *args, const struct expertd_quantised_format *format) {
    float scratch[LARGE_M_SLICE + PANEL_ROWS * PANEL_ROW] __attribute__((aligned(64)));
    struct large_m m = {.format = format, .decoder = ieee_decoder_of(format), .panels = &args->panel, .count = 1};
    return large_m_parts(&m, args, PANEL_ROWS, scratch);
}
#endif
