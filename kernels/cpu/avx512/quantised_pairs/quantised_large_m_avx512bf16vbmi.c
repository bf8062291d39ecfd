// Large m: more than PAIRS_SMALL_M bf16 rows by panels of quantised weights, by VDPBF16PS in tiles.
//
// K is cut into blocks. A block of the rows is transposed once for all panels of a call, tile by tile. Then each panel's block, 8
// or 16 KiB of codes, stays in L1 while all tiles pass over it, and its scales are widened once. Meanwhile the next panel's block
// is prefetched.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "base/err.h"
#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs.h"
#include "kernels/cpu/avx512/transpose_avx512.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/cpu/common/row_sums.h"

enum {
    LANES = 16,
    LARGE_M_K = 256, // k of a block
    LARGE_M_PAIRS = LARGE_M_K / 2,
    LARGE_M_ONE_TILE_K = 1024, // the same if the rows are one tile, where the work per block counts: 5 to 8 rows are 1.05 to 1.1
                               // times as fast as with 256
    LARGE_M_SCALES = LARGE_M_ONE_TILE_K / 16,
    LARGE_M_ROWS = KERNEL_CODED_ROWS, // more rows are split, so that rows, sums and codes stay in L2
    TILE_WORDS = LARGE_M_PAIRS * PAIRS_X,
    FACTORS_BYTES = LARGE_M_SCALES * sizeof(panel_row),
    WIDE_BYTES = LARGE_M_PAIRS * sizeof(pairs_row),
    TILE_ROWS = 8, // rows of a tile on a CPU that starts two products a cycle
    TILE_BYTES = TILE_WORDS * sizeof(uint32_t) + TILE_ROWS * KERNEL_SUMS * sizeof(float),
};
_Static_assert(FACTORS_BYTES + LARGE_M_ROWS * (LARGE_M_K / 16) * sizeof(float) <= WIDE_BYTES &&
                   FACTORS_BYTES + PAIRS_X_SMALL_M * LARGE_M_SCALES * sizeof(float) <= WIDE_BYTES,
               "minima and the rows' sums over a block take the place of widened codes");
_Static_assert(FACTORS_BYTES + WIDE_BYTES + LARGE_M_ROWS / TILE_ROWS * TILE_BYTES <= KERNEL_SCRATCH_BYTES,
               "scratch holds any call");
_Static_assert(FACTORS_BYTES + WIDE_BYTES + PAIRS_PART / TILE_ROWS * TILE_BYTES <= PAIRS_PART_SCRATCH,
               "the smaller scratch holds a part");
_Static_assert(LARGE_M_ONE_TILE_K / 2 * PAIRS_X_SMALL_M <= PAIRS_PART / TILE_ROWS * TILE_WORDS, "a single tile fits");

struct large_m {
    const struct macrokernel_args *macro;
    size_t panel_k; // see pairs_large_m
    const struct expertd_quantised_format *format;
    const struct pairs_decoder *decoder;
    enum pairs_pace pace;
    bool powers;            // see pairs_powers
    size_t block;           // k of a block
    struct panel_args args; // the rows of this part of the call, and the current panel
    float *sums;            // of the first of these rows
    panel_row *factors;     // [LARGE_M_SCALES]
    pairs_row *wide;        // [LARGE_M_PAIRS]; unused with minima
    panel_row *minima;      // [LARGE_M_SCALES], in the memory of `wide`
    float *minus;           // with minima: [rows][minus_stride], as in struct pairs_tile, of the block, or of all of K
    size_t minus_stride;
    uint32_t *x;          // transposed rows by tiles: a block, TILE_WORDS words a tile, or all of K if it fits
    bool all_k;           // x holds all of K
    size_t share, shares; // of prefetching the next rows: one share for each block of a panel
    float *partials;      // [rows][KERNEL_SUMS]: partial sums of scale groups longer than a block
};

// Rows of the next tile, of the `left` rows that remain. Leaves none, or at least PAIRS_SMALL_M + 1.
static size_t next_tile_rows(const struct large_m *m, size_t left) {
    if (left <= PAIRS_TILE) {
        return left;
    }
    if (m->pace == PAIRS_TWO_A_CYCLE) {
        return left < 2 * TILE_ROWS ? div_up(left, 2) : TILE_ROWS;
    }
    return left <= PAIRS_TILE + PAIRS_SMALL_M ? PAIRS_TILE - PAIRS_SMALL_M : PAIRS_TILE;
}

static size_t tiles(const struct large_m *m) {
    size_t count = 0;
    for (size_t left = m->args.rows; left > 0; left -= next_tile_rows(m, left)) {
        count++;
    }
    return count;
}

// Loads and transposes 4 x `quarters` rows, the pairs of k from k on; missing rows and pairs are 0.
PANEL_INLINE void load_words(const void *const *x, size_t rows, size_t k, size_t depth, size_t quarters, __m512i words[][4]) {
    const __mmask16 mask = depth < 2 * TRANSPOSE_WORDS ? (__mmask16)((1u << depth / 2) - 1) : (__mmask16)0xffff;
    PANEL_UNROLL for (size_t i = 0; i < quarters; i++) {
        __m512i lines[4];
        PANEL_UNROLL for (size_t l = 0; l < 4; l++) {
            const size_t row = 4 * i + l;
            const uint16_t *from = (const uint16_t *)x[row < rows ? row : 0] + k;
            lines[l] = _mm512_maskz_loadu_epi32(row < rows ? mask : 0, from);
        }
        transpose_4x4(lines, words[i]);
    }
}

// Transposes k [k, k + depth) of a tile's rows; depth is even.
static void transpose_tile(const void *const *x, size_t rows, size_t k, size_t depth, uint32_t *to) {
    __m512i words[4][4];
    for (size_t at = 0; at < depth; at += 2 * TRANSPOSE_WORDS) {
        if (rows <= PAIRS_X_SMALL_M) {
            load_words(x, rows, k + at, depth - at, 2, words);
            transpose_store_half(words, to + at / 2 * PAIRS_X_SMALL_M, PAIRS_X_SMALL_M);
        } else {
            load_words(x, rows, k + at, depth - at, 4, words);
            transpose_store(words, to + at / 2 * PAIRS_X, PAIRS_X);
        }
    }
}

// Words between two consecutive pairs of k in a tile's transposed rows.
static size_t x_stride(size_t rows) {
    return rows <= PAIRS_X_SMALL_M ? PAIRS_X_SMALL_M : PAIRS_X;
}

static size_t transposed_words(size_t rows, size_t k) {
    return div_up(k, 2 * TRANSPOSE_WORDS) * TRANSPOSE_WORDS * x_stride(rows);
}

// The rows' sums over the scale groups from k `first` to `end`.
static void sum_rows(const struct large_m *m, size_t first, size_t end) {
    const size_t scale_k = quantised_layout(m->format, m->args.k).scale_k;
    for (size_t r = 0; m->format->minima && r < m->args.rows; r++) {
        row_sums_minus((const uint16_t *)m->args.x[r] + first, true, end - first, scale_k, m->minus + r * m->minus_stride);
    }
}

static void transpose_all_k(const struct large_m *m) {
    uint32_t *to = m->x;
    for (size_t row = 0, rows; row < m->args.rows; row += rows, to += transposed_words(rows, m->args.k)) {
        rows = next_tile_rows(m, m->args.rows - row);
        transpose_tile(m->args.x + row, rows, 0, m->args.k, to);
    }
    sum_rows(m, 0, m->args.k);
}

static void transpose_block(const struct large_m *m, const struct chunk *c) {
    uint32_t *to = m->x;
    if (m->all_k) {
        return;
    }
    for (size_t row = 0, rows; row < m->args.rows; row += rows, to += TILE_WORDS) {
        rows = next_tile_rows(m, m->args.rows - row);
        transpose_tile(m->args.x + row, rows, c->k, c->depth, to);
    }
    if (c->ends) {
        sum_rows(m, c->scale * c->layout.scale_k, c->k + c->depth);
    }
}

static const uint8_t *stored_scales(const struct large_m *m, const struct chunk *c, size_t scale) {
    return (const uint8_t *)m->args.panel + quantised_scales_at(&c->layout, c->scale + scale, m->args.k);
}

static void widen_scale(const struct large_m *m, const struct chunk *c, size_t s, const uint8_t *stored, __m512 global) {
    float *to = m->factors[s];
    if (m->powers) {
        panel_exponents_to(stored, to);
    } else {
        group_scales_to(m->format, &c->layout, m->args.panel, c->scale + s, stored, global, to);
    }
}

static void widen_scales(const struct large_m *m, const struct chunk *c) {
    const __m512 global = panel_global(m->format, m->args.panel);
    const uint8_t *stored = stored_scales(m, c, 0); // all scale groups but the last have the same stride
    for (size_t s = 0; s + 1 < c->scales; s++, stored += c->layout.stride) {
        widen_scale(m, c, s, stored, global);
    }
    widen_scale(m, c, c->scales - 1, stored_scales(m, c, c->scales - 1), global);
}

static void widen_minima(const struct large_m *m, const struct chunk *c) {
    for (size_t s = 0; s < c->scales; s++) {
        group_minima_to(m->format, &c->layout, m->args.panel, c->scale + s, stored_scales(m, c, s), m->minima[s]);
    }
}

// A single tile widens scales where it closes partial sums, since storing them first costs more; but E4M3 scales are looked up 64
// at a time, and tiles know no super scales.
static void set_scales(const struct large_m *m, const struct chunk *c, struct pairs_tile *tile) {
    tile->powers = m->powers;
    if (m->format->minima) {
        tile->minima = (const panel_row *)m->minima;
        widen_minima(m, c);
    }
    if (m->args.rows > PAIRS_X_SMALL_M || m->format->scale == EXPERTD_DTYPE_F8_E4M3 || c->layout.super_size) {
        tile->factors = (const panel_row *)m->factors;
        widen_scales(m, c);
        return;
    }
    tile->stored_bytes = m->format->scale_of_panel ? 0 : expertd_dtype_size(m->format->scale);
}

static struct pairs_tile codes_tile(const struct large_m *m, const struct chunk *c) {
    size_t last = c->scales - 1;
    return (struct pairs_tile){
        .scales = {.format = m->format,
                   .panel = m->args.panel,
                   .codes = chunk_codes(c, 0),
                   .scales = c->scales,
                   .stride = c->layout.stride,
                   .scale_k = c->layout.scale_k,
                   .last_k = chunk_depth(c, last)},
        .starts = c->starts,
        .ends = c->ends,
        .zeros = chunk_zeros(c, 0),
        .last_zeros = chunk_zeros(c, last),
    };
}

static struct pairs_tile widened_tile(const struct large_m *m, const struct chunk *c) {
    struct pairs_tile tile = codes_tile(m, c);
    pairs_row *to = m->wide;
    for (size_t s = 0; s < c->scales; s++, to += c->layout.scale_k / 2) {
        m->decoder->widen(m->format, chunk_codes(c, s), chunk_zeros(c, s), chunk_depth(c, s), to);
    }
    tile.scales.codes = (const uint8_t *)m->wide;
    tile.scales.stride = c->layout.scale_k / 2 * sizeof *m->wide;
    tile.zeros = tile.last_zeros = NULL;
    return tile;
}

// Prefetches one share of the rows that are transposed next: these rows' next block, or the thread's next rows.
static void prefetch_next(struct large_m *m, const struct chunk *c, size_t panel) {
    const size_t end = c->k + c->depth, left = m->args.k - end, depth = left < m->block ? left : m->block;
    if (m->all_k && m->share < m->shares) { // scale groups that do not divide a block make more blocks than shares
        const struct prefetch_rows_ahead others = {m->macro->next_x, m->macro->next_rows, 0, m->args.k * sizeof(uint16_t)};
        prefetch_rows_share(&others, m->share++, m->shares);
    } else if (!m->all_k) {
        const struct prefetch_rows_ahead block = {m->args.x, m->args.rows, end * sizeof(uint16_t), depth * sizeof(uint16_t)};
        prefetch_rows_share(&block, panel, m->macro->count);
    }
}

// The decoder for the current panel's codes.
static const struct pairs_decoder *decoder_of(const struct large_m *m) {
    bool no_nan = m->format->code == EXPERTD_CODE_E4M3 && !quantised_has_special(m->args.panel);
    return no_nan && m->pace == PAIRS_ONE_A_CYCLE ? &pairs_e4m3 : m->decoder;
}

// All rows by the panel's block. INT8 with zero points takes so many instructions to decode that several tiles share one decoding
// to memory.
static void multiply_block(struct large_m *m, const struct chunk *c, size_t panel) {
    bool widened = m->format->code == EXPERTD_CODE_INT8 && m->format->zero_points && m->args.rows > PAIRS_TILE;
    const struct pairs_decoder *decoder = widened ? &pairs_widened : decoder_of(m);
    struct pairs_tile tile = widened ? widened_tile(m, c) : codes_tile(m, c);
    size_t runs = tiles(m) * (EXPERTD_KERNEL_PANEL / LANES) * c->depth / decoder->line_k;
    const void *next = chunk_next_codes(c, m->macro->panels, m->macro->count, panel, m->macro->next);
    INVARIANT(runs > 0);
    tile.ahead = (uintptr_t)(next ? next : tile.scales.codes);
    tile.ahead_step = next ? div_up(chunk_bytes(c), runs) : 0;
    if (c->ends) {
        set_scales(m, c, &tile);
    }
    const uint32_t *x = m->x;
    prefetch_next(m, c, panel);
    for (size_t row = 0, rows; row < m->args.rows; row += rows) {
        rows = next_tile_rows(m, m->args.rows - row);
        tile.x = x + (m->all_k ? c->k / 2 * x_stride(rows) : 0);
        x += m->all_k ? transposed_words(rows, m->args.k) : TILE_WORDS;
        tile.minus = m->minus + row * m->minus_stride + (m->all_k ? c->scale : 0);
        tile.minus_stride = m->minus_stride;
        tile.sums = m->sums + row * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL;
        tile.partials = m->partials + row * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL;
        decoder->tile[m->pace][rows - 1](&tile);
    }
}

static void large_m_rows(struct large_m *m) {
    struct chunk c = {.args = &m->args, .format = m->format, .layout = quantised_layout(m->format, m->macro->k)};
    c.layout.supers = quantised_layout(m->format, m->panel_k).supers; // decides where the codes begin
    while (chunk_next(&c, m->block)) {
        transpose_block(m, &c);
        for (size_t p = 0; p < m->macro->count; p++) {
            m->args.panel = m->macro->panels[p];
            multiply_block(m, &c, p);
        }
    }
}

// Words of all of K of the rows, transposed.
static size_t all_k_words(const struct large_m *m) {
    size_t words = 0;
    for (size_t row = 0, rows; row < m->args.rows; row += rows) {
        rows = next_tile_rows(m, m->args.rows - row);
        words += transposed_words(rows, m->args.k);
    }
    return words;
}

// Does all of K of the rows fit into the scratch, with their sums, and are they all rows of the call? Then they stay cached,
// transposed, for the following calls with the same rows.
static bool rows_fit(const struct large_m *m, const char *end) {
    const size_t sums = m->format->minima ? m->args.rows * quantised_layout(m->format, m->args.k).scales : 0;
    return m->args.rows == m->macro->rows && (all_k_words(m) + sums) * sizeof *m->x <= (size_t)(end - (const char *)m->x);
}

// The memory of minima and of the rows' sums.
static void place_minima(struct large_m *m) {
    m->minima = (panel_row *)m->wide;
    m->minus = m->all_k ? (float *)(m->x + all_k_words(m)) : (float *)(m->minima + LARGE_M_SCALES);
    m->minus_stride = m->all_k ? quantised_layout(m->format, m->args.k).scales : m->block / 16;
}

void pairs_large_m(const struct macrokernel_args *macro, size_t panel_k, const struct expertd_quantised_format *format,
                   size_t scratch_bytes, enum pairs_pace pace, bool powers) {
    char *scratch = macro->scratch;
    struct large_m m = {
        .macro = macro,
        .panel_k = panel_k,
        .format = format,
        .decoder = pairs_decoder_of(format),
        .pace = pace,
        .powers = powers,
        .factors = (panel_row *)scratch,
        .wide = (pairs_row *)(scratch + FACTORS_BYTES),
        .partials = (float *)(scratch + FACTORS_BYTES + WIDE_BYTES),
    };
    size_t parts = div_up(macro->rows, LARGE_M_ROWS);
    for (size_t row = 0, rows; row < macro->rows; row += rows, parts--) {
        rows = div_up(macro->rows - row, parts);
        m.args = (struct panel_args){.x = macro->x + row, .rows = rows, .k = macro->k};
        m.block = rows <= PAIRS_X_SMALL_M ? LARGE_M_ONE_TILE_K : LARGE_M_K;
        m.sums = macro->sums + row * KERNEL_SUMS;
        m.x = (uint32_t *)(m.partials + rows * KERNEL_SUMS);
        m.all_k = rows_fit(&m, scratch + scratch_bytes);
        m.share = 0, m.shares = div_up(macro->k, m.block) * macro->count;
        if (format->minima) {
            place_minima(&m);
        }
        if (m.all_k && !macro->rows_cached) {
            transpose_all_k(&m);
        }
        large_m_rows(&m);
    }
}
#endif
