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
    MANY_VECS = FEW_HALF / LANES,
    MANY_TILE = 14,            // rows: sums in 28 of 32 registers
    MANY_K = 128,              // of a chunk: 16 KiB of half a panel, which L1 keeps over all tiles
    MANY_SCALES = MANY_K / 16, // of it at most
    MANY_STEP = 4,             // k of a run of the inner loop
    MANY_NEAR = 2 * MANY_TILE, // rows up to which there is room in L1 for the next chunk's codes
    MANY_AT_ONCE = 2 * FEW_ROW_UNIT,
};

#if defined(__clang__)
#define MANY_UNROLL PANEL_UNROLL
#else
#define MANY_UNROLL _Pragma("GCC unroll 14")
#endif

// A thread's scratch.
struct many_scratch {
    bool all;   // of K is in x; else a chunk at a time
    bool taken; // where all: no element was one that cannot be
    panel_row factors[MANY_SCALES];
    few_half_row wide[MANY_K];
    float x[] __attribute__((aligned(64))); // rows' f32; behind them their partial sums where scales are longer than a chunk
};

// Lines that are fetched as others are multiplied.
struct many_ahead {
    const uint8_t *at, *end;
    size_t lines; // of a unit of k
    bool far;     // into L2 alone
};

// A tile's rows against half a panel's chunk.
struct many_pass {
    const float *x; // [k / FEW_ROW_UNIT][rows][FEW_ROW_UNIT]
    const few_half_row *wide;
    const float *factors; // [scales], EXPERTD_KERNEL_PANEL floats apart
    size_t scales;
    size_t scale_k, last_k; // k of each but the last, and of the last: whole lines
    bool starts, ends;
    float *partials, *sums; // KERNEL_SUMS floats apart
    struct many_ahead ahead;
};

PANEL_INLINE __m512 many_fma(__m512 a, __m512 b, __m512 c) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
}

PANEL_INLINE void many_step(__m512 partials[][MANY_VECS], size_t rows, const float *x, const float *wide) {
    __m512 w[MANY_VECS];
    MANY_UNROLL for (size_t v = 0; v < MANY_VECS; v++) {
        w[v] = _mm512_load_ps(wide + v * LANES);
    }
    MANY_UNROLL for (size_t r = 0; r < rows; r++) {
        const __m512 factor = _mm512_set1_ps(x[r * FEW_ROW_UNIT]);
        MANY_UNROLL for (size_t v = 0; v < MANY_VECS; v++) {
            partials[r][v] = many_fma(factor, w[v], partials[r][v]);
        }
    }
}

// The same number of lines each time, without a branch that could be mispredicted.
PANEL_INLINE void many_fetch(struct many_ahead *ahead) {
    for (size_t n = ahead->lines; n > 0; n--) {
        fetch_into(ahead->at, ahead->far);
        ahead->at = ahead->at < ahead->end ? ahead->at + QUANTISED_LINE : ahead->at;
    }
}

// `depth` k of a scale, of each pair the odd one first.
PANEL_INLINE void many_scale(__m512 partials[][MANY_VECS], size_t rows, const float *x, const few_half_row *wide, size_t depth,
                             struct many_ahead *ahead) {
    for (size_t unit = 0; unit < depth; unit += FEW_ROW_UNIT, x += rows * FEW_ROW_UNIT) {
        const float *at = x, *end = x + (depth - unit < FEW_ROW_UNIT ? depth - unit : FEW_ROW_UNIT);
        many_fetch(ahead);
        for (; at < end; at += MANY_STEP, wide += MANY_STEP) {
            MANY_UNROLL for (size_t i = 0; i < MANY_STEP; i++) {
                many_step(partials, rows, at + (i ^ 1), wide[i ^ 1]);
            }
        }
    }
}

PANEL_INLINE void many_close(__m512 partials[][MANY_VECS], size_t rows, const float *factors, float *sums) {
    MANY_UNROLL for (size_t v = 0; v < MANY_VECS; v++) {
        const __m512 factor = _mm512_load_ps(factors + v * LANES);
        MANY_UNROLL for (size_t r = 0; r < rows; r++) {
            float *sum = sums + r * KERNEL_SUMS + v * LANES;
            _mm512_store_ps(sum, _mm512_fmadd_ps(partials[r][v], factor, _mm512_load_ps(sum)));
        }
    }
}

// `rows` is a constant in each copy, so that the partial sums are registers.
PANEL_INLINE void many_rows(struct many_pass *pass, size_t rows) {
    struct many_ahead ahead = pass->ahead;
    const float *x = pass->x;
    const few_half_row *wide = pass->wide;
    for (size_t s = 0; s < pass->scales; s++) {
        const size_t depth = s + 1 < pass->scales ? pass->scale_k : pass->last_k;
        __m512 partials[MANY_TILE][MANY_VECS];
        MANY_UNROLL for (size_t r = 0; r < rows; r++) {
            MANY_UNROLL for (size_t v = 0; v < MANY_VECS; v++) {
                const float *from = pass->partials + r * KERNEL_SUMS + v * LANES;
                partials[r][v] = pass->starts ? _mm512_setzero_ps() : _mm512_load_ps(from);
            }
        }
        many_scale(partials, rows, x, wide, depth, &ahead);
        x += depth * rows;
        wide += depth;
        if (pass->ends) {
            many_close(partials, rows, pass->factors + s * EXPERTD_KERNEL_PANEL, pass->sums);
            continue;
        }
        MANY_UNROLL for (size_t r = 0; r < rows; r++) {
            MANY_UNROLL for (size_t v = 0; v < MANY_VECS; v++) {
                _mm512_store_ps(pass->partials + r * KERNEL_SUMS + v * LANES, partials[r][v]);
            }
        }
    }
    pass->ahead = ahead;
}

static void many_tile(struct many_pass *pass, size_t rows) {
#define MANY_CASE(n)                                                                                                               \
    case n:                                                                                                                        \
        many_rows(pass, n);                                                                                                        \
        return;
    switch (rows) {
        MANY_CASE(1)
        MANY_CASE(2)
        MANY_CASE(3)
        MANY_CASE(4)
        MANY_CASE(5)
        MANY_CASE(6)
        MANY_CASE(7)
        MANY_CASE(8)
        MANY_CASE(9)
        MANY_CASE(10)
        MANY_CASE(11)
        MANY_CASE(12)
        MANY_CASE(13)
    default:
        many_rows(pass, MANY_TILE);
    }
}

struct many_work {
    const struct panel_group_args *group;
    const struct expertd_quantised_format *format;
    const struct few_decoder *decoder;
    struct many_scratch *scratch;
    size_t x_k; // floats of a row there
    float *partials;
};

// Of the tile that begins at `row`: tiles are as even as can be.
static size_t tile_rows(const struct panel_group_args *group, size_t row) {
    const size_t left = group->rows - row;
    return div_up(left, div_up(left, MANY_TILE));
}

// Half a panel's chunk to f32.
static void widen_chunk(const struct many_work *work, const struct chunk *c, size_t column) {
    const struct few_decoder *decoder = work->decoder;
    const uint8_t *panel = c->args->panel;
    const size_t last = c->scales - 1;
    const struct few_codes few = {
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
    decoder->widen(&few, work->scratch->wide);
}

static void widen_scales(const struct many_work *work, const struct chunk *c) {
    const uint8_t *panel = c->args->panel;
    const __m512 global = panel_global(work->format, panel);
    for (size_t s = 0; c->ends && s < c->scales; s++) {
        const uint8_t *scales = panel + quantised_scales_at(&c->layout, c->scale + s, c->args->k);
        panel_scales_to(work->format, scales, global, work->scratch->factors[s]);
    }
}

// While `units` units of k are multiplied.
static struct many_ahead ahead_of(const struct many_work *work, const struct chunk *c, size_t panel, size_t units) {
    const struct panel_group_args *group = work->group;
    const uint8_t *from = chunk_next_codes(c, group->panels, group->count, panel, group->next);
    const size_t lines = chunk_bytes(c) / QUANTISED_LINE;
    if (!from) {
        return (struct many_ahead){NULL, NULL, 0, true};
    }
    return (struct many_ahead){from, from + (lines - 1) * QUANTISED_LINE, div_up(lines, units), group->rows > MANY_NEAR};
}

static void multiply_chunk(const struct many_work *work, const struct chunk *c, size_t panel) {
    const struct panel_group_args *group = work->group;
    const size_t tiles = div_up(group->rows, MANY_TILE), line_k = work->decoder->line_k;
    struct many_pass pass = {
        .wide = (const few_half_row *)work->scratch->wide,
        .scales = c->scales,
        .scale_k = c->layout.scale_k,
        .last_k = div_up(chunk_depth(c, c->scales - 1), line_k) * line_k,
        .starts = c->starts,
        .ends = c->ends,
        .ahead = ahead_of(work, c, panel, tiles * (EXPERTD_KERNEL_PANEL / FEW_HALF) * div_up(c->depth, FEW_ROW_UNIT)),
    };
    widen_scales(work, c);
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += FEW_HALF) {
        widen_chunk(work, c, column);
        pass.factors = work->scratch->factors[0] + column;
        for (size_t row = 0, rows; row < group->rows; row += rows) {
            const size_t at = row * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL + column;
            rows = tile_rows(group, row);
            pass.x = work->scratch->x + row * work->x_k + (work->scratch->all ? c->k * rows : 0);
            pass.sums = group->sums + at;
            pass.partials = work->partials + at;
            many_tile(&pass, rows);
        }
    }
}

static struct chunk chunk_of(const struct many_work *work, struct panel_args *args) {
    const struct panel_group_args *group = work->group;
    *args = (struct panel_args){.x = group->x, .rows = group->rows, .panel = group->panels[0], .k = group->k};
    return (struct chunk){.args = args, .format = work->format, .layout = quantised_layout(work->format, group->k)};
}

static bool widen_rows(const struct many_work *work, const struct chunk *c) {
    const struct panel_group_args *group = work->group;
    bool taken = true;
    for (size_t row = 0, rows; row < group->rows; row += rows) {
        rows = tile_rows(group, row);
        taken &= few_rows_widen(group->x + row, rows, c->k, c->depth, work->decoder, work->scratch->x + row * work->x_k);
    }
    return taken;
}

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
static __attribute__((noinline)) bool multiply_panels(const struct many_work *work) {
    const struct panel_group_args *group = work->group;
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
    while (chunk_next(&c, MANY_K)) {
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
    return quantised_layout(format, k).scale_k > MANY_K ? KERNEL_SUMS * sizeof(float) : 0;
}

// Rows that there is room for.
static size_t rows_most(const struct expertd_quantised_format *format, size_t k) {
    return (KERNEL_SCRATCH_BYTES - sizeof(struct many_scratch)) / (MANY_K * sizeof(float) + partials_bytes(format, k));
}

static size_t laid_k(size_t k) {
    return div_up(k, MANY_AT_ONCE) * MANY_AT_ONCE;
}

size_t avx512vbmi_many_rows(size_t k) {
    return k && __builtin_cpu_supports("avx512vbmi") ? AVX512_ROWS_KEPT / (laid_k(k) * sizeof(float)) : 0;
}

static bool multiply_part(const struct panel_group_args *group, const struct expertd_quantised_format *format) {
    struct many_scratch *scratch = group->scratch;
    const size_t k = laid_k(group->k);
    const size_t room =
        KERNEL_SCRATCH_BYTES + group->scratch_more - sizeof *scratch - group->rows * partials_bytes(format, group->k);
    struct many_work work = {.group = group, .format = format, .decoder = few_decoder_of(format), .scratch = scratch};
    float_mode before = float_mode_set_ieee();
    if (!group->rows_kept) {
        struct panel_args args;
        struct chunk c = chunk_of(&work, &args);
        const size_t bytes = group->rows * k * sizeof(float);
        scratch->all = bytes <= room && bytes <= AVX512_ROWS_KEPT;
        work.x_k = k;
        scratch->taken = !scratch->all || !chunk_next(&c, SIZE_MAX) || widen_rows(&work, &c);
    }
    work.x_k = scratch->all ? k : MANY_K;
    work.partials = scratch->x + group->rows * work.x_k;
    bool done = scratch->taken && multiply_panels(&work);
    float_mode_restore(before);
    return done;
}

bool avx512vbmi_quantised_many(const struct panel_group_args *group, const struct expertd_quantised_format *format) {
    size_t parts = div_up(group->rows, rows_most(format, group->k));
    for (size_t row = 0, rows; row < group->rows; row += rows, parts--) {
        struct panel_group_args part = *group;
        rows = div_up(group->rows - row, parts);
        part.x += row;
        part.rows = rows;
        part.sums += row * KERNEL_SUMS;
        part.rows_kept = group->rows_kept && rows == group->rows;
        if (!multiply_part(&part, format)) {
            return false;
        }
    }
    return true;
}
#endif
