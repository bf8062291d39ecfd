// More rows of bf16 than a few against panels of quantised weights, by VDPBF16PS.
//
// K goes in blocks. A block of the rows is turned once for all panels of a call, tile by tile; then each panel's block, 8 or 16 KiB
// of codes, stays in L1 while all tiles pass over it, and its scales are widened once. Meanwhile the next panel's is fetched.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "base/err.h"
#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs.h"
#include "kernels/cpu/avx512/transpose_avx512.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    LANES = 16,
    LARGE_M_K = 256, // of a block
    LARGE_M_PAIRS = LARGE_M_K / 2,
    LARGE_M_FEW_K = 1024, // of so few rows that what is done once a block counts: 5 to 8 rows 1.05 to 1.1 times as fast as by 256
    LARGE_M_SCALES = LARGE_M_FEW_K / 16,
    LARGE_M_ROWS = KERNEL_CODED_ROWS, // more are cut, so that rows, sums and codes stay in L2
    TILE_WORDS = LARGE_M_PAIRS * PAIRS_X,
    FACTORS_BYTES = LARGE_M_SCALES * sizeof(panel_row),
    WIDE_BYTES = LARGE_M_PAIRS * sizeof(pairs_row),
    TILE_ROWS = 8, // where two products start in a cycle
    TILE_BYTES = TILE_WORDS * sizeof(uint32_t) + TILE_ROWS * KERNEL_SUMS * sizeof(float),
};
_Static_assert(FACTORS_BYTES + WIDE_BYTES + LARGE_M_ROWS / TILE_ROWS * TILE_BYTES <= KERNEL_SCRATCH_BYTES, "scratch");
_Static_assert(FACTORS_BYTES + WIDE_BYTES + PAIRS_PART / TILE_ROWS * TILE_BYTES <= PAIRS_PART_SCRATCH, "scratch of a part");
_Static_assert(LARGE_M_FEW_K / 2 * PAIRS_X_SMALL_M <= PAIRS_PART / TILE_ROWS * TILE_WORDS, "a few rows are one tile");

struct large_m {
    const struct macrokernel_args *group;
    const struct expertd_quantised_format *format;
    const struct pairs_decoder *decoder;
    enum pairs_pace pace;
    bool powers;            // pairs_powers
    size_t block;           // k
    struct panel_args args; // of the rows at hand; panel is the one at hand
    float *sums;            // of the first of them
    panel_row *factors;     // [LARGE_M_SCALES]
    pairs_row *wide;        // [LARGE_M_PAIRS]
    uint32_t *x;            // by tiles, TILE_WORDS each, or all of K where there is room
    bool transposed;        // all of K is
    size_t piece, pieces;   // of fetching what comes next: one for each block of a panel
    float *partials;        // [rows][KERNEL_SUMS]: of a scale that is longer than a block
};

// Rows of the next tile, of those that are left: all, or so many that at least PAIRS_SMALL_M + 1 stay.
static size_t next_tile(const struct large_m *m, size_t left) {
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
    for (size_t left = m->args.rows; left > 0; left -= next_tile(m, left)) {
        count++;
    }
    return count;
}

// The words of `quarters` four rows, of pairs of k from k on; of rows and pairs that are not there 0.
PANEL_INLINE void load_words(const void *const *x, size_t rows, size_t k, size_t depth, size_t quarters, __m512i words[][4]) {
    const __mmask16 there = depth < 2 * TRANSPOSE_WORDS ? (__mmask16)((1u << depth / 2) - 1) : (__mmask16)0xffff;
    PANEL_UNROLL for (size_t i = 0; i < quarters; i++) {
        __m512i lines[4];
        PANEL_UNROLL for (size_t l = 0; l < 4; l++) {
            const size_t row = 4 * i + l;
            const uint16_t *from = (const uint16_t *)x[row < rows ? row : 0] + k;
            lines[l] = _mm512_maskz_loadu_epi32(row < rows ? there : 0, from);
        }
        transpose_quarters(lines, words[i]);
    }
}

// `depth` k, an even number, of a tile's rows from k on.
static void transpose_tile(const void *const *x, size_t rows, size_t k, size_t depth, uint32_t *to) {
    __m512i words[4][4];
    for (size_t at = 0; at < depth; at += 2 * TRANSPOSE_WORDS) {
        if (rows <= PAIRS_X_SMALL_M) {
            load_words(x, rows, k + at, depth - at, 2, words);
            transpose_half_rows_to(words, to + at / 2 * PAIRS_X_SMALL_M, PAIRS_X_SMALL_M);
        } else {
            load_words(x, rows, k + at, depth - at, 4, words);
            transpose_rows_to(words, to + at / 2 * PAIRS_X, PAIRS_X);
        }
    }
}

// Words from a pair of k of a tile's rows to the next pair.
static size_t x_stride(size_t rows) {
    return rows <= PAIRS_X_SMALL_M ? PAIRS_X_SMALL_M : PAIRS_X;
}

static size_t transposed_words(size_t rows, size_t k) {
    return div_up(k, 2 * TRANSPOSE_WORDS) * TRANSPOSE_WORDS * x_stride(rows);
}

static void turn_whole(const struct large_m *m) {
    uint32_t *to = m->x;
    for (size_t row = 0, rows; row < m->args.rows; row += rows, to += transposed_words(rows, m->args.k)) {
        rows = next_tile(m, m->args.rows - row);
        transpose_tile(m->args.x + row, rows, 0, m->args.k, to);
    }
}

static void transpose_block(const struct large_m *m, const struct chunk *c) {
    uint32_t *to = m->x;
    if (m->transposed) {
        return;
    }
    for (size_t row = 0, rows; row < m->args.rows; row += rows, to += TILE_WORDS) {
        rows = next_tile(m, m->args.rows - row);
        transpose_tile(m->args.x + row, rows, c->k, c->depth, to);
    }
}

static const uint8_t *stored_scales(const struct large_m *m, const struct chunk *c, size_t scale) {
    return (const uint8_t *)m->args.panel + quantised_scales_at(&c->layout, c->scale + scale, m->args.k);
}

static void widen_scale(const struct large_m *m, const uint8_t *stored, __m512 global, float *to) {
    if (m->powers) {
        panel_exponents_to(stored, to);
    } else {
        panel_scales_to(m->format, stored, global, to);
    }
}

static void widen_scales(const struct large_m *m, const struct chunk *c) {
    const __m512 global = panel_global(m->format, m->args.panel);
    const uint8_t *stored = stored_scales(m, c, 0); // of a whole scale, where there are several
    for (size_t s = 0; s + 1 < c->scales; s++, stored += c->layout.stride) {
        widen_scale(m, stored, global, m->factors[s]);
    }
    widen_scale(m, stored_scales(m, c, c->scales - 1), global, m->factors[c->scales - 1]);
}

// One tile widens scales where they end: to store them costs more. E4M3's are looked up 64 at a time.
static void set_scales(const struct large_m *m, const struct chunk *c, struct pairs_tile *tile) {
    tile->powers = m->powers;
    if (m->args.rows > PAIRS_X_SMALL_M || m->format->scale == EXPERTD_DTYPE_F8_E4M3) {
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

// A panel's share of what is turned next: these rows' next block, or the rows that the thread takes after them.
static void prefetch_next(struct large_m *m, const struct chunk *c, size_t panel) {
    const size_t end = c->k + c->depth, left = m->args.k - end, depth = left < m->block ? left : m->block;
    if (m->transposed && m->piece < m->pieces) { // scales that do not divide a block make more of them
        const struct rows_ahead others = {m->group->next_x, m->group->next_rows, 0, m->args.k * sizeof(uint16_t)};
        prefetch_rows_share(&others, m->piece++, m->pieces);
    } else if (!m->transposed) {
        const struct rows_ahead block = {m->args.x, m->args.rows, end * sizeof(uint16_t), depth * sizeof(uint16_t)};
        prefetch_rows_share(&block, panel, m->group->count);
    }
}

// By whom the panel's codes are widened in registers.
static const struct pairs_decoder *decoder_of(const struct large_m *m) {
    bool numbers = m->format->code == EXPERTD_CODE_E4M3 && !quantised_has_special(m->args.panel);
    return numbers && m->pace == PAIRS_ONE_A_CYCLE ? &pairs_e4m3 : m->decoder;
}

// All rows against the panel's block. INT8 with zero points takes so many instructions to widen that for several tiles it is done
// once.
static void multiply_block(struct large_m *m, const struct chunk *c, size_t panel) {
    bool widened = m->format->code == EXPERTD_CODE_INT8 && m->format->zero_points && m->args.rows > PAIRS_TILE;
    const struct pairs_decoder *decoder = widened ? &pairs_widened : decoder_of(m);
    struct pairs_tile tile = widened ? widened_tile(m, c) : codes_tile(m, c);
    size_t runs = tiles(m) * (EXPERTD_KERNEL_PANEL / LANES) * c->depth / decoder->line_k;
    const void *next = chunk_next_codes(c, m->group->panels, m->group->count, panel, m->group->next);
    INVARIANT(runs > 0);
    tile.ahead = (uintptr_t)(next ? next : tile.scales.codes);
    tile.ahead_step = next ? div_up(chunk_bytes(c), runs) : 0;
    if (c->ends) {
        set_scales(m, c, &tile);
    }
    const uint32_t *x = m->x;
    prefetch_next(m, c, panel);
    for (size_t row = 0, rows; row < m->args.rows; row += rows) {
        rows = next_tile(m, m->args.rows - row);
        tile.x = x + (m->transposed ? c->k / 2 * x_stride(rows) : 0);
        x += m->transposed ? transposed_words(rows, m->args.k) : TILE_WORDS;
        tile.sums = m->sums + row * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL;
        tile.partials = m->partials + row * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL;
        decoder->tile[m->pace][rows - 1](&tile);
    }
}

static void large_m_rows(struct large_m *m) {
    struct chunk c = {.args = &m->args, .format = m->format, .layout = quantised_layout(m->format, m->group->k)};
    while (chunk_next(&c, m->block)) {
        transpose_block(m, &c);
        for (size_t p = 0; p < m->group->count; p++) {
            m->args.panel = m->group->panels[p];
            multiply_block(m, &c, p);
        }
    }
}

// Is there room for all of K of the rows, which are those of the call? They stay turned then until the thread comes to others.
static bool caches_rows(const struct large_m *m, const char *end) {
    size_t words = 0;
    for (size_t row = 0, rows; row < m->args.rows; row += rows) {
        rows = next_tile(m, m->args.rows - row);
        words += transposed_words(rows, m->args.k);
    }
    return m->args.rows == m->group->rows && words * sizeof *m->x <= (size_t)(end - (const char *)m->x);
}

void pairs_large_m(const struct macrokernel_args *group, const struct expertd_quantised_format *format, size_t scratch_bytes,
                   enum pairs_pace pace, bool powers) {
    char *scratch = group->scratch;
    struct large_m m = {
        .group = group,
        .format = format,
        .decoder = pairs_decoder_of(format),
        .pace = pace,
        .powers = powers,
        .factors = (panel_row *)scratch,
        .wide = (pairs_row *)(scratch + FACTORS_BYTES),
        .partials = (float *)(scratch + FACTORS_BYTES + WIDE_BYTES),
    };
    size_t parts = div_up(group->rows, LARGE_M_ROWS);
    for (size_t row = 0, rows; row < group->rows; row += rows, parts--) {
        rows = div_up(group->rows - row, parts);
        m.args = (struct panel_args){.x = group->x + row, .rows = rows, .k = group->k};
        m.block = rows <= PAIRS_X_SMALL_M ? LARGE_M_FEW_K : LARGE_M_K;
        m.sums = group->sums + row * KERNEL_SUMS;
        m.x = (uint32_t *)(m.partials + rows * KERNEL_SUMS);
        m.transposed = caches_rows(&m, scratch + scratch_bytes);
        m.piece = 0, m.pieces = div_up(group->k, m.block) * group->count;
        if (m.transposed && !group->rows_cached) {
            turn_whole(&m);
        }
        large_m_rows(&m);
    }
}
#endif
