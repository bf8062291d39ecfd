// Rows of bf16 that no flush touches, more than codes are widened in registers for: a chunk of half a panel is widened once, into
// L1, for all rows of a call. As everything is IEEE's arithmetic, a scale's partial sum is closed from the registers that it was
// made in.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_rows_avx512.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    LANES = 16,
    LARGE_M_VECS = SMALL_M_HALF / LANES,
    LARGE_M_TILE = 14,               // rows: sums in 28 of 32 registers
    LARGE_M_K = 128,                 // of a chunk: 16 KiB of half a panel, which L1 keeps over all tiles
    LARGE_M_SCALES = LARGE_M_K / 16, // of it at most
    LARGE_M_STEP = 4,                // k of a run of the inner loop
    LARGE_M_NEAR = 2 * LARGE_M_TILE, // rows up to which there is room in L1 for the next chunk's codes
    LARGE_M_AT_ONCE = 2 * SMALL_M_ROW_UNIT,
};

#if defined(__clang__)
#define LARGE_M_UNROLL PANEL_UNROLL
#else
#define LARGE_M_UNROLL _Pragma("GCC unroll 14")
#endif

// A thread's scratch.
struct large_m_scratch {
    bool all;   // of K is in x; else a chunk at a time
    bool taken; // where all: no element was one that cannot be
    panel_row factors[LARGE_M_SCALES];
    small_m_half_row wide[LARGE_M_K];
    float x[] __attribute__((aligned(64))); // rows' f32; behind them their partial sums where scales are longer than a chunk
};

// Lines that are fetched as others are multiplied.
struct large_m_ahead {
    const uint8_t *at, *end;
    size_t lines; // of a unit of k
    bool far;     // into L2 alone
};

// A tile's rows against half a panel's chunk.
struct large_m_pass {
    const float *x; // [k / SMALL_M_ROW_UNIT][rows][SMALL_M_ROW_UNIT]
    const small_m_half_row *wide;
    const float *factors; // [scales], EXPERTD_KERNEL_PANEL floats apart
    size_t scales;
    size_t scale_k, last_k; // k of each but the last, and of the last: whole lines
    bool starts, ends;
    float *partials, *sums; // KERNEL_SUMS floats apart
    struct large_m_ahead ahead;
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
        const __m512 factor = _mm512_set1_ps(x[r * SMALL_M_ROW_UNIT]);
        LARGE_M_UNROLL for (size_t v = 0; v < LARGE_M_VECS; v++) {
            partials[r][v] = large_m_fma(factor, w[v], partials[r][v]);
        }
    }
}

// The same number of lines each time, without a branch that could be mispredicted.
PANEL_INLINE void large_m_prefetch(struct large_m_ahead *ahead) {
    for (size_t n = ahead->lines; n > 0; n--) {
        prefetch_into(ahead->at, ahead->far);
        ahead->at = ahead->at < ahead->end ? ahead->at + QUANTISED_LINE : ahead->at;
    }
}

// `depth` k of a scale, of each pair the odd one first.
PANEL_INLINE void large_m_scale(__m512 partials[][LARGE_M_VECS], size_t rows, const float *x, const small_m_half_row *wide,
                                size_t depth, struct large_m_ahead *ahead) {
    for (size_t unit = 0; unit < depth; unit += SMALL_M_ROW_UNIT, x += rows * SMALL_M_ROW_UNIT) {
        const float *at = x, *end = x + (depth - unit < SMALL_M_ROW_UNIT ? depth - unit : SMALL_M_ROW_UNIT);
        large_m_prefetch(ahead);
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

// `rows` is a constant in each copy, so that the partial sums are registers.
PANEL_INLINE void large_m_rows(struct large_m_pass *pass, size_t rows) {
    struct large_m_ahead ahead = pass->ahead;
    const float *x = pass->x;
    const small_m_half_row *wide = pass->wide;
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
    const struct macrokernel_args *group;
    const struct expertd_quantised_format *format;
    const struct small_m_decoder *decoder;
    struct large_m_scratch *scratch;
    size_t x_k; // floats of a row there
    float *partials;
};

// Of the tile that begins at `row`: tiles are as even as can be.
static size_t tile_rows(const struct macrokernel_args *group, size_t row) {
    const size_t left = group->rows - row;
    return div_up(left, div_up(left, LARGE_M_TILE));
}

// Half a panel's chunk to f32.
static void widen_chunk(const struct large_m_work *work, const struct chunk *c, size_t column) {
    const struct small_m_decoder *decoder = work->decoder;
    const uint8_t *panel = c->args->panel;
    const size_t last = c->scales - 1;
    const struct small_m_codes small_m = {
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
        panel_scales_to(work->format, scales, global, work->scratch->factors[s]);
    }
}

// While `units` units of k are multiplied.
static struct large_m_ahead ahead_of(const struct large_m_work *work, const struct chunk *c, size_t panel, size_t units) {
    const struct macrokernel_args *group = work->group;
    const uint8_t *from = chunk_next_codes(c, group->panels, group->count, panel, group->next);
    const size_t lines = chunk_bytes(c) / QUANTISED_LINE;
    if (!from) {
        return (struct large_m_ahead){NULL, NULL, 0, true};
    }
    return (struct large_m_ahead){from, from + (lines - 1) * QUANTISED_LINE, div_up(lines, units), group->rows > LARGE_M_NEAR};
}

static void multiply_chunk(const struct large_m_work *work, const struct chunk *c, size_t panel) {
    const struct macrokernel_args *group = work->group;
    const size_t tiles = div_up(group->rows, LARGE_M_TILE), line_k = work->decoder->line_k;
    struct large_m_pass pass = {
        .wide = (const small_m_half_row *)work->scratch->wide,
        .scales = c->scales,
        .scale_k = c->layout.scale_k,
        .last_k = div_up(chunk_depth(c, c->scales - 1), line_k) * line_k,
        .starts = c->starts,
        .ends = c->ends,
        .ahead = ahead_of(work, c, panel, tiles * (EXPERTD_KERNEL_PANEL / SMALL_M_HALF) * div_up(c->depth, SMALL_M_ROW_UNIT)),
    };
    widen_scales(work, c);
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += SMALL_M_HALF) {
        widen_chunk(work, c, column);
        pass.factors = work->scratch->factors[0] + column;
        for (size_t row = 0, rows; row < group->rows; row += rows) {
            const size_t at = row * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL + column;
            rows = tile_rows(group, row);
            pass.x = work->scratch->x + row * work->x_k + (work->scratch->all ? c->k * rows : 0);
            pass.sums = group->sums + at;
            pass.partials = work->partials + at;
            large_m_tile(&pass, rows);
        }
    }
}

static struct chunk chunk_of(const struct large_m_work *work, struct panel_args *args) {
    const struct macrokernel_args *group = work->group;
    *args = (struct panel_args){.x = group->x, .rows = group->rows, .panel = group->panels[0], .k = group->k};
    return (struct chunk){.args = args, .format = work->format, .layout = quantised_layout(work->format, group->k)};
}

static bool widen_rows(const struct large_m_work *work, const struct chunk *c) {
    const struct macrokernel_args *group = work->group;
    bool taken = true;
    for (size_t row = 0, rows; row < group->rows; row += rows) {
        rows = tile_rows(group, row);
        taken &= small_m_rows_widen(group->x + row, rows, c->k, c->depth, work->decoder, work->scratch->x + row * work->x_k);
    }
    return taken;
}

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
static __attribute__((noinline)) bool multiply_panels(const struct large_m_work *work) {
    const struct macrokernel_args *group = work->group;
    struct panel_args args;
    struct chunk c = chunk_of(work, &args);
    for (size_t p = 0; p < group->count; p++) {
        if (quantised_has_special(group->panels[p])) {
            return false;
        }
    }
    for (size_t r = 0; r < group->rows; r++) {
        memset(group->sums + r * KERNEL_SUMS, 0, group->count * EXPERTD_KERNEL_PANEL * sizeof *group->sums);
    }
    while (chunk_next(&c, LARGE_M_K)) {
        if (!work->scratch->all && !widen_rows(work, &c)) {
            return false;
        }
        for (size_t p = 0; p < group->count; p++) {
            args.panel = group->panels[p];
            multiply_chunk(work, &c, p);
        }
    }
    return true;
}

// Bytes of a row's partial sums, where scales are longer than a chunk.
static size_t partials_bytes(const struct expertd_quantised_format *format, size_t k) {
    return quantised_layout(format, k).scale_k > LARGE_M_K ? KERNEL_SUMS * sizeof(float) : 0;
}

// Rows that there is room for.
static size_t rows_most(const struct expertd_quantised_format *format, size_t k) {
    return (KERNEL_SCRATCH_BYTES - sizeof(struct large_m_scratch)) / (LARGE_M_K * sizeof(float) + partials_bytes(format, k));
}

static size_t packed_rows_k(size_t k) {
    return div_up(k, LARGE_M_AT_ONCE) * LARGE_M_AT_ONCE;
}

size_t avx512vbmi_large_m_rows(size_t k) {
    return k && __builtin_cpu_supports("avx512vbmi") ? AVX512_ROWS_CACHED / (packed_rows_k(k) * sizeof(float)) : 0;
}

static bool multiply_part(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    struct large_m_scratch *scratch = group->scratch;
    const size_t k = packed_rows_k(group->k);
    const size_t room =
        KERNEL_SCRATCH_BYTES + group->scratch_more - sizeof *scratch - group->rows * partials_bytes(format, group->k);
    struct large_m_work work = {.group = group, .format = format, .decoder = small_m_decoder_of(format), .scratch = scratch};
    float_mode before = float_mode_set_ieee();
    if (!group->rows_cached) {
        struct panel_args args;
        struct chunk c = chunk_of(&work, &args);
        const size_t bytes = group->rows * k * sizeof(float);
        scratch->all = bytes <= room && bytes <= AVX512_ROWS_CACHED;
        work.x_k = k;
        scratch->taken = !scratch->all || !chunk_next(&c, SIZE_MAX) || widen_rows(&work, &c);
    }
    work.x_k = scratch->all ? k : LARGE_M_K;
    work.partials = scratch->x + group->rows * work.x_k;
    bool done = scratch->taken && multiply_panels(&work);
    float_mode_restore(before);
    return done;
}

bool avx512vbmi_quantised_large_m(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    size_t parts = div_up(group->rows, rows_most(format, group->k));
    for (size_t row = 0, rows; row < group->rows; row += rows, parts--) {
        struct macrokernel_args part = *group;
        rows = div_up(group->rows - row, parts);
        part.x += row;
        part.rows = rows;
        part.sums += row * KERNEL_SUMS;
        part.rows_cached = group->rows_cached && rows == group->rows;
        if (!multiply_part(&part, format)) {
            return false;
        }
    }
    return true;
}
#endif
