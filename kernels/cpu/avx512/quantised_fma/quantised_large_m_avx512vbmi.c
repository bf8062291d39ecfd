// Large m: more than KERNEL_QUANTISED_ROWS bf16 rows that the flush cannot change. A chunk of half
// a panel is widened into L1 once for all rows of a call. Everything runs in IEEE mode, so partial sums are closed from registers.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_rows_avx512.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/cpu/common/row_sums.h"

enum {
    LANES = 16,
    LARGE_M_VECS = HALF_PANEL_COLUMNS / LANES,
    LARGE_M_TILE = 14,                  // rows of a tile at most: their sums take 28 of 32 registers
    LARGE_M_K = 128,                    // k of a chunk: 16 KiB of half a panel, which stay in L1 over all tiles
    LARGE_M_SCALES = LARGE_M_K / 16,    // scale groups of a chunk at most
    LARGE_M_STEP = 4,                   // k of one iteration of the inner loop
    LARGE_M_L1_ROWS = 2 * LARGE_M_TILE, // rows up to which L1 has space for the next chunk's codes
    LARGE_M_ROW_UNIT = 2 * FMA_ROW_UNIT,
};

#if defined(__clang__)
#define LARGE_M_UNROLL PANEL_UNROLL
#else
#define LARGE_M_UNROLL _Pragma("GCC unroll 14")
#endif

// The layout of a thread's scratch.
struct large_m_scratch {
    bool all_k;    // x holds all of K; else one chunk
    bool accepted; // if all_k: every element is in range
    panel_row factors[LARGE_M_SCALES], minima[LARGE_M_SCALES];
    half_panel_row wide[LARGE_M_K];
    float x[] __attribute__((aligned(64))); // the rows as f32, then their partial sums if scale groups are longer than a chunk,
                                            // then with minima their sums over scale groups, of all K or a chunk
};

// Lines that are prefetched while others are multiplied.
struct large_m_prefetch {
    const uint8_t *at, *end;
    size_t lines; // per FMA_ROW_UNIT k
    bool far;     // into L2 only
};

// A tile's rows by half a panel, over one chunk.
struct large_m_pass {
    const float *x; // [k / FMA_ROW_UNIT][rows][FMA_ROW_UNIT]
    const half_panel_row *wide;
    const float *factors; // [scales], EXPERTD_KERNEL_PANEL floats apart
    size_t scales;
    size_t scale_k, last_k; // k of each scale group but the last, and of the last: full lines
    bool starts, ends;
    const float *minima, *minus; // with minima: [scales] as factors; -(the sum of each row over each scale group); NULL: none
    size_t minus_stride;         // floats from row to row of `minus`
    float *partials, *sums;      // rows are KERNEL_SUMS floats apart
    struct large_m_prefetch ahead;
};

PANEL_INLINE __m512 large_m_fma(__m512 a, __m512 b, __m512 c) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
}

PANEL_INLINE void large_m_step(__m512 partials[][LARGE_M_VECS], size_t rows, const float *x, const float *wide) {
    __m512 w[LARGE_M_VECS];
    LARGE_M_UNROLL for (size_t v = 0; v < LARGE_M_VECS; v++) {
        w[v] = _mm512_load_ps(wide + v * LANES);
    }
    LARGE_M_UNROLL for (size_t r = 0; r < rows; r++) {
        const __m512 factor = _mm512_set1_ps(x[r * FMA_ROW_UNIT]);
        LARGE_M_UNROLL for (size_t v = 0; v < LARGE_M_VECS; v++) {
            partials[r][v] = large_m_fma(factor, w[v], partials[r][v]);
        }
    }
}

// The same number of lines each time: no branch that could be mispredicted.
PANEL_INLINE void large_m_prefetch_lines(struct large_m_prefetch *ahead) {
    for (size_t n = ahead->lines; n > 0; n--) {
        prefetch_into(ahead->at, ahead->far);
        ahead->at = ahead->at < ahead->end ? ahead->at + QUANTISED_LINE : ahead->at;
    }
}

// `depth` k of a scale group, the odd k of each pair first.
PANEL_INLINE void large_m_scale(__m512 partials[][LARGE_M_VECS], size_t rows, const float *x, const half_panel_row *wide,
                                size_t depth, struct large_m_prefetch *ahead) {
    for (size_t unit = 0; unit < depth; unit += FMA_ROW_UNIT, x += rows * FMA_ROW_UNIT) {
        const float *at = x, *end = x + (depth - unit < FMA_ROW_UNIT ? depth - unit : FMA_ROW_UNIT);
        large_m_prefetch_lines(ahead);
        for (; at < end; at += LARGE_M_STEP, wide += LARGE_M_STEP) {
            LARGE_M_UNROLL for (size_t i = 0; i < LARGE_M_STEP; i++) {
                large_m_step(partials, rows, at + (i ^ 1), wide[i ^ 1]);
            }
        }
    }
}

PANEL_INLINE void large_m_close(__m512 partials[][LARGE_M_VECS], size_t rows, const float *factors, float *sums) {
    LARGE_M_UNROLL for (size_t v = 0; v < LARGE_M_VECS; v++) {
        const __m512 factor = _mm512_load_ps(factors + v * LANES);
        LARGE_M_UNROLL for (size_t r = 0; r < rows; r++) {
            float *sum = sums + r * KERNEL_SUMS + v * LANES;
            _mm512_store_ps(sum, _mm512_fmadd_ps(partials[r][v], factor, _mm512_load_ps(sum)));
        }
    }
}

// With minima, after large_m_close of scale group s: sum = fma(minus, minimum, sum).
PANEL_INLINE void large_m_subtract(const struct large_m_pass *pass, size_t rows, size_t s) {
    LARGE_M_UNROLL for (size_t v = 0; v < LARGE_M_VECS; v++) {
        const __m512 minimum = _mm512_load_ps(pass->minima + s * EXPERTD_KERNEL_PANEL + v * LANES);
        LARGE_M_UNROLL for (size_t r = 0; r < rows; r++) {
            float *sum = pass->sums + r * KERNEL_SUMS + v * LANES;
            const __m512 minus = _mm512_set1_ps(pass->minus[r * pass->minus_stride + s]);
            _mm512_store_ps(sum, _mm512_fmadd_ps(minus, minimum, _mm512_load_ps(sum)));
        }
    }
}

// `rows` is a constant in each copy, so that the partial sums stay in registers.
PANEL_INLINE void large_m_rows(struct large_m_pass *pass, size_t rows) {
    struct large_m_prefetch ahead = pass->ahead;
    const float *x = pass->x;
    const half_panel_row *wide = pass->wide;
    for (size_t s = 0; s < pass->scales; s++) {
        const size_t depth = s + 1 < pass->scales ? pass->scale_k : pass->last_k;
        __m512 partials[LARGE_M_TILE][LARGE_M_VECS];
        LARGE_M_UNROLL for (size_t r = 0; r < rows; r++) {
            LARGE_M_UNROLL for (size_t v = 0; v < LARGE_M_VECS; v++) {
                const float *from = pass->partials + r * KERNEL_SUMS + v * LANES;
                partials[r][v] = pass->starts ? _mm512_setzero_ps() : _mm512_load_ps(from);
            }
        }
        large_m_scale(partials, rows, x, wide, depth, &ahead);
        x += depth * rows;
        wide += depth;
        if (pass->ends) {
            large_m_close(partials, rows, pass->factors + s * EXPERTD_KERNEL_PANEL, pass->sums);
            if (pass->minima) {
                large_m_subtract(pass, rows, s);
            }
            continue;
        }
        LARGE_M_UNROLL for (size_t r = 0; r < rows; r++) {
            LARGE_M_UNROLL for (size_t v = 0; v < LARGE_M_VECS; v++) {
                _mm512_store_ps(pass->partials + r * KERNEL_SUMS + v * LANES, partials[r][v]);
            }
        }
    }
    pass->ahead = ahead;
}

static void large_m_tile(struct large_m_pass *pass, size_t rows) {
#define LARGE_M_CASE(n)                                                                                                            \
    case n:                                                                                                                        \
        large_m_rows(pass, n);                                                                                                     \
        return;
    switch (rows) {
        LARGE_M_CASE(1)
        LARGE_M_CASE(2)
        LARGE_M_CASE(3)
        LARGE_M_CASE(4)
        LARGE_M_CASE(5)
        LARGE_M_CASE(6)
        LARGE_M_CASE(7)
        LARGE_M_CASE(8)
        LARGE_M_CASE(9)
        LARGE_M_CASE(10)
        LARGE_M_CASE(11)
        LARGE_M_CASE(12)
        LARGE_M_CASE(13)
    default:
        large_m_rows(pass, LARGE_M_TILE);
    }
}

struct large_m_work {
    const struct macrokernel_args *macro;
    const struct expertd_quantised_format *format;
    const struct fma_decoder *decoder;
    struct large_m_scratch *scratch;
    size_t x_k; // floats of a row in scratch->x
    float *partials;
    float *minus; // as in struct large_m_pass, of all of K or of a chunk
    size_t minus_stride;
};

// Rows of the tile that begins at `row`. Tiles are as even as possible.
static size_t tile_rows(const struct macrokernel_args *macro, size_t row) {
    const size_t left = macro->rows - row;
    return div_up(left, div_up(left, LARGE_M_TILE));
}

// Widens half a panel's chunk.
static void widen_chunk(const struct large_m_work *work, const struct chunk *c, size_t column) {
    const struct fma_decoder *decoder = work->decoder;
    const uint8_t *panel = c->args->panel;
    const size_t last = c->scales - 1;
    const struct fma_codes small_m = {
        .format = work->format,
        .panel = panel,
        .plain_shift = quantised_plain_shift(c->args->k),
        .codes = chunk_codes(c, 0) + column / QUANTISED_COLUMNS * QUANTISED_LINE,
        .zeros = panel + quantised_zeros_at(&c->layout, c->scale, c->args->k) + column,
        .last_zeros = panel + quantised_zeros_at(&c->layout, c->scale + last, c->args->k) + column,
        .scales = c->scales,
        .stride = c->layout.stride,
        .line = c->k / decoder->line_k,
        .lines = c->layout.scale_k / decoder->line_k,
        .last_lines = div_up(chunk_depth(c, last), decoder->line_k),
    };
    decoder->widen(&small_m, work->scratch->wide);
}

static void widen_scales(const struct large_m_work *work, const struct chunk *c) {
    const uint8_t *panel = c->args->panel;
    const __m512 global = panel_global(work->format, panel);
    for (size_t s = 0; c->ends && s < c->scales; s++) {
        const uint8_t *scales = panel + quantised_scales_at(&c->layout, c->scale + s, c->args->k);
        group_scales_to(work->format, &c->layout, panel, c->scale + s, scales, global, work->scratch->factors[s]);
        if (work->format->minima) {
            group_minima_to(work->format, &c->layout, panel, c->scale + s, scales, work->scratch->minima[s]);
        }
    }
}

// What to prefetch while `units` units of FMA_ROW_UNIT k are multiplied.
static struct large_m_prefetch next_prefetch(const struct large_m_work *work, const struct chunk *c, size_t panel, size_t units) {
    const struct macrokernel_args *macro = work->macro;
    const uint8_t *from = chunk_next_codes(c, macro->panels, macro->count, panel, macro->next);
    const size_t lines = chunk_bytes(c) / QUANTISED_LINE;
    if (!from) {
        return (struct large_m_prefetch){NULL, NULL, 0, true};
    }
    return (struct large_m_prefetch){from, from + (lines - 1) * QUANTISED_LINE, div_up(lines, units),
                                     macro->rows > LARGE_M_L1_ROWS};
}

static void multiply_chunk(const struct large_m_work *work, const struct chunk *c, size_t panel) {
    const struct macrokernel_args *macro = work->macro;
    const size_t tiles = div_up(macro->rows, LARGE_M_TILE), line_k = work->decoder->line_k;
    struct large_m_pass pass = {
        .wide = (const half_panel_row *)work->scratch->wide,
        .scales = c->scales,
        .scale_k = c->layout.scale_k,
        .last_k = div_up(chunk_depth(c, c->scales - 1), line_k) * line_k,
        .starts = c->starts,
        .ends = c->ends,
        .ahead =
            next_prefetch(work, c, panel, tiles * (EXPERTD_KERNEL_PANEL / HALF_PANEL_COLUMNS) * div_up(c->depth, FMA_ROW_UNIT)),
    };
    widen_scales(work, c);
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += HALF_PANEL_COLUMNS) {
        widen_chunk(work, c, column);
        pass.factors = work->scratch->factors[0] + column;
        pass.minima = work->format->minima ? work->scratch->minima[0] + column : NULL;
        for (size_t row = 0, rows; row < macro->rows; row += rows) {
            const size_t at = row * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL + column;
            rows = tile_rows(macro, row);
            pass.x = work->scratch->x + row * work->x_k + (work->scratch->all_k ? c->k * rows : 0);
            pass.minus = work->minus + row * work->minus_stride + (work->scratch->all_k ? c->scale : 0);
            pass.minus_stride = work->minus_stride;
            pass.sums = macro->sums + at;
            pass.partials = work->partials + at;
            large_m_tile(&pass, rows);
        }
    }
}

static struct chunk chunk_of(const struct large_m_work *work, struct panel_args *args) {
    const struct macrokernel_args *macro = work->macro;
    *args = (struct panel_args){.x = macro->x, .rows = macro->rows, .panel = macro->panels[0], .k = macro->k};
    return (struct chunk){.args = args, .format = work->format, .layout = quantised_layout(work->format, macro->k)};
}

static bool widen_rows(const struct large_m_work *work, const struct chunk *c) {
    const struct macrokernel_args *macro = work->macro;
    bool accepted = true;
    const size_t first = c->scale * c->layout.scale_k;
    for (size_t r = 0; work->format->minima && c->ends && r < macro->rows; r++) {
        row_sums_minus((const uint16_t *)macro->x[r] + first, true, c->k + c->depth - first, c->layout.scale_k,
                       work->minus + r * work->minus_stride);
    }
    for (size_t row = 0, rows; row < macro->rows; row += rows) {
        rows = tile_rows(macro, row);
        accepted &= fma_rows_widen(macro->x + row, rows, c->k, c->depth, work->decoder, work->scratch->x + row * work->x_k);
    }
    return accepted;
}

// noinline: no FMA may move across the caller's change of the floating-point mode.
static __attribute__((noinline)) bool multiply_panels(const struct large_m_work *work) {
    const struct macrokernel_args *macro = work->macro;
    struct panel_args args;
    struct chunk c = chunk_of(work, &args);
    for (size_t p = 0; p < macro->count; p++) {
        if (quantised_has_special(macro->panels[p])) {
            return false;
        }
    }
    for (size_t r = 0; r < macro->rows; r++) {
        memset(macro->sums + r * KERNEL_SUMS, 0, macro->count * EXPERTD_KERNEL_PANEL * sizeof *macro->sums);
    }
    while (chunk_next(&c, LARGE_M_K)) {
        if (!work->scratch->all_k && !widen_rows(work, &c)) {
            return false;
        }
        for (size_t p = 0; p < macro->count; p++) {
            args.panel = macro->panels[p];
            multiply_chunk(work, &c, p);
        }
    }
    return true;
}

// Bytes of a row's partial sums, which are stored if scale groups are longer than a chunk.
static size_t partials_bytes(const struct expertd_quantised_format *format, size_t k) {
    return quantised_layout(format, k).scale_k > LARGE_M_K ? KERNEL_SUMS * sizeof(float) : 0;
}

// Bytes of a row's sums over `scales` scale groups, with minima.
static size_t minus_bytes(const struct expertd_quantised_format *format, size_t scales) {
    return format->minima ? scales * sizeof(float) : 0;
}

// Rows that the smallest scratch holds.
static size_t rows_capacity(const struct expertd_quantised_format *format, size_t k) {
    return (KERNEL_SCRATCH_BYTES - sizeof(struct large_m_scratch)) /
           (LARGE_M_K * sizeof(float) + partials_bytes(format, k) + minus_bytes(format, LARGE_M_SCALES));
}

static size_t packed_row_k(size_t k) {
    return div_up(k, LARGE_M_ROW_UNIT) * LARGE_M_ROW_UNIT;
}

size_t avx512vbmi_large_m_rows(size_t k) {
    return k && __builtin_cpu_supports("avx512vbmi") ? AVX512_ROWS_CACHED / (packed_row_k(k) * sizeof(float)) : 0;
}

// Divides the scratch after the decision to keep all of K.
static void place_rows(struct large_m_work *work) {
    const struct macrokernel_args *macro = work->macro;
    const size_t partials = partials_bytes(work->format, macro->k) / sizeof(float);
    work->x_k = work->scratch->all_k ? packed_row_k(macro->k) : LARGE_M_K;
    work->partials = work->scratch->x + macro->rows * work->x_k;
    work->minus = work->partials + macro->rows * partials;
    work->minus_stride = work->scratch->all_k ? quantised_layout(work->format, macro->k).scales : LARGE_M_SCALES;
}

static bool multiply_part(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    struct large_m_scratch *scratch = macro->scratch;
    const size_t k = packed_row_k(macro->k);
    const size_t capacity =
        KERNEL_SCRATCH_BYTES + macro->scratch_more - sizeof *scratch - macro->rows * partials_bytes(format, macro->k);
    struct large_m_work work = {.macro = macro, .format = format, .decoder = fma_decoder_of(format), .scratch = scratch};
    float_mode before = float_mode_set_ieee();
    if (!macro->rows_cached) {
        const size_t bytes = macro->rows * k * sizeof(float), scales = quantised_layout(format, macro->k).scales;
        scratch->all_k = bytes + macro->rows * minus_bytes(format, scales) <= capacity && bytes <= AVX512_ROWS_CACHED;
    }
    place_rows(&work);
    if (!macro->rows_cached) {
        struct panel_args args;
        struct chunk c = chunk_of(&work, &args);
        scratch->accepted = !scratch->all_k || !chunk_next(&c, SIZE_MAX) || widen_rows(&work, &c);
    }
    bool done = scratch->accepted && multiply_panels(&work);
    float_mode_restore(before);
    return done;
}

bool avx512vbmi_quantised_large_m(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    size_t parts = div_up(macro->rows, rows_capacity(format, macro->k));
    for (size_t row = 0, rows; row < macro->rows; row += rows, parts--) {
        struct macrokernel_args part = *macro;
        rows = div_up(macro->rows - row, parts);
        part.x += row;
        part.rows = rows;
        part.sums += row * KERNEL_SUMS;
        part.rows_cached = macro->rows_cached && rows == macro->rows;
        if (!multiply_part(&part, format)) {
            return false;
        }
    }
    return true;
}
#endif
