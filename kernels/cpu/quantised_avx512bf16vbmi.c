// Quantised weights against rows of bf16 by VDPBF16PS, multiplied as codes are widened in registers, in tiles of up to PAIRS_ROWS
// rows. Widening is shifts and permutations, most of them on ports that VDPBF16PS leaves idle; so many rows too are faster this way
// than from weights widened into L1 once, with one exception (register_rows).
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/quantised_pairs.h"
#include "kernels/cpu/quantised_widened.h"
#include "kernels/cpu/scales_avx512.h"

enum {
    LANES = 16,
    VECS = KERNEL_PANEL / LANES,
    REGISTER_K = 256, // of many rows: codes and what is made of them stay in L1 over the tiles
    INT8_REGISTER_ROWS = PAIRS_ROWS,
};

static const struct pairs_decoder *decoder_of(const struct quantised_format *format) {
    switch (format->code) {
    case CODE_E4M3:
    case CODE_E5M2:
        return &pairs_float8;
    case CODE_INT8:
        return format->zero_points ? &pairs_int8_less_zero : &pairs_int8;
    default:
        return format->zero_points ? &pairs_nibble_less_zero : &pairs_nibble;
    }
}

// Rows up to which codes are widened in registers, for each tile of rows again. INT8 takes so many instructions that it is better
// done once: 12 rows 1.08, 64 rows 1.23 times as fast (Zen 4). Other codes: 4 bits .8 to 1.0, E4M3 1.0 to 1.03.
static size_t register_rows(const struct quantised_format *format) {
    return format->code == CODE_INT8 ? INT8_REGISTER_ROWS : KERNEL_CALL_ROWS;
}

static void chunk_scales(const struct chunk *c, panel_row *out) {
    const struct quantised_format *format = c->format;
    const uint8_t *panel = c->args->panel;
    float global;
    memcpy(&global, panel, sizeof global);
    for (size_t s = 0; s < c->scales; s++) {
        const uint8_t *scales = panel + quantised_scales_at(&c->layout, c->scale + s, c->args->k);
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            const uint8_t *at = scales + (format->scale_of_panel ? 0 : v * LANES * dtype_size(format->scale));
            _mm512_store_ps(&out[s][v * LANES], format_scale(format, at, _mm512_set1_ps(global)));
        }
    }
}

static void write_sums(const struct panel_args *args, const panel_row *sums) {
    for (size_t r = 0; r < args->rows; r++) {
        memcpy(args->out + r * args->out_stride, sums[r], args->columns * sizeof *args->out);
    }
}

// What the rows of a call share.
struct work {
    pairs_row weights[WIDENED_K / 2];
    panel_row scales[WIDENED_SCALES];
    panel_row partials[KERNEL_CALL_ROWS]; // of a scale that is longer than a chunk
    panel_row sums[KERNEL_CALL_ROWS];
};

// One row against a widened part of one scale; an odd last k is a pair with +0 on both sides.
static void tail_row(const struct chunk *c, struct work *work, size_t row) {
    const uint16_t *x = (const uint16_t *)c->args->x[row] + c->k;
    PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
        float *partial = &work->partials[row][v * LANES], *sum = &work->sums[row][v * LANES];
        __m512 p = c->starts ? _mm512_setzero_ps() : _mm512_load_ps(partial);
        for (size_t i = 0; i < c->depth; i += 2) {
            bool whole = i + 1 < c->depth;
            __m512i w =
                _mm512_and_si512(_mm512_load_si512(&work->weights[i / 2][2 * v * LANES]), _mm512_set1_epi32(whole ? -1 : 0xffff));
            uint32_t pair = x[i] | (whole ? (uint32_t)x[i + 1] << 16 : 0);
            p = _mm512_dpbf16_ps(p, (__m512bh)_mm512_set1_epi32((int)pair), (__m512bh)w);
        }
        _mm512_store_ps(partial, p);
        if (c->ends) {
            _mm512_store_ps(sum, _mm512_fmadd_ps(p, _mm512_load_ps(&work->scales[0][v * LANES]), _mm512_load_ps(sum)));
        }
    }
}

// The last scale, where it ends within a line of codes, which no model's does: without haste.
static void tail_scale(const struct panel_args *args, const struct quantised_format *format, struct work *work, size_t k) {
    struct chunk c = {.args = args, .format = format, .layout = quantised_layout(format, args->k), .k = k};
    while (chunk_next(&c, WIDENED_K)) {
        decoder_of(format)->widen(format, chunk_codes(&c, 0), chunk_zeros(&c, 0), c.depth, work->weights);
        if (c.ends) {
            chunk_scales(&c, work->scales);
        }
        for (size_t row = 0; row < args->rows; row++) {
            tail_row(&c, work, row);
        }
    }
}

// A chunk as its codes are widened in registers, tile by tile.
static void register_chunk(const struct chunk *c, const struct pairs_decoder *decoder, struct work *work) {
    const struct panel_args *args = c->args;
    const uint16_t *x[PAIRS_ROWS];
    struct pairs_args pairs = {
        .format = c->format,
        .panel = args->panel,
        .codes = chunk_codes(c, 0),
        .scales = c->scales,
        .stride = c->layout.stride,
        .scale_k = c->layout.scale_k,
        .last_k = chunk_depth(c, c->scales - 1),
        .last_scales = (const uint8_t *)args->panel + quantised_scales_at(&c->layout, c->scale + c->scales - 1, args->k),
        .starts = c->starts,
        .ends = c->ends,
        .x = x,
    };
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        size_t tiles = (args->rows - row + PAIRS_ROWS - 1) / PAIRS_ROWS;
        rows = (args->rows - row + tiles - 1) / tiles;
        for (size_t r = 0; r < rows; r++) {
            x[r] = (const uint16_t *)args->x[row + r] + c->k;
        }
        pairs.partials = work->partials + row;
        pairs.sums = work->sums + row;
        decoder->multiply[rows - 1](&pairs);
    }
}

// One tile of rows reads a panel once, from its start to its end; for more it is cut, so that it stays in L1 over the tiles.
static void register_scales(struct chunk *c, const struct pairs_decoder *decoder, struct work *work) {
    size_t limit = c->args->rows <= PAIRS_ROWS ? c->layout.scales * c->layout.scale_k : REGISTER_K;
    while (chunk_next(c, limit)) {
        register_chunk(c, decoder, work);
    }
}

// A piece that is widened into L1 for all rows, which fetch the next one's codes meanwhile.
static void widened_chunk(const struct chunk *c, const struct pairs_decoder *decoder, struct work *work) {
    const struct panel_args *args = c->args;
    const uint16_t *x[KERNEL_CALL_ROWS];
    struct widened widened = {
        .pairs = work->weights,
        .factors = (const panel_row *)work->scales,
        .scales = c->scales,
        .scale_k = c->layout.scale_k,
        .last_k = chunk_depth(c, c->scales - 1),
        .starts = c->starts,
        .ends = c->ends,
        .x = x,
        .rows = args->rows,
        .partials = work->partials,
        .sums = work->sums,
    };
    size_t bytes = c->scales > 1 ? c->scales * c->layout.stride : quantised_code_bytes(&c->layout, c->depth);
    widened.ahead = group_ahead_over(chunk_codes(c, 0) + bytes, bytes, widened_runs(args->rows));
    widened.ahead.far = fetch_as_zen4();
    for (size_t s = 0; s < c->scales; s++) {
        decoder->widen(c->format, chunk_codes(c, s), chunk_zeros(c, s), chunk_depth(c, s),
                       work->weights + s * c->layout.scale_k / 2);
    }
    if (c->ends) {
        chunk_scales(c, work->scales);
    }
    for (size_t r = 0; r < args->rows; r++) {
        x[r] = (const uint16_t *)args->x[r] + c->k;
    }
    widened_multiply(&widened);
}

static void widened_scales(struct chunk *c, const struct pairs_decoder *decoder, struct work *work) {
    while (chunk_next(c, WIDENED_K)) {
        widened_chunk(c, decoder, work);
    }
}

void avx512bf16vbmi_quantised_bf16(const struct panel_args *args, const struct quantised_format *format) {
    const struct pairs_decoder *decoder = decoder_of(format);
    struct quantised_layout layout = quantised_layout(format, args->k);
    bool tail = args->k % decoder->line_k != 0;
    struct panel_args whole = *args;
    whole.k = tail ? (layout.scales - 1) * layout.scale_k : args->k;
    struct chunk c = {.args = &whole, .format = format, .layout = layout};
    struct work work;
    float_mode before = float_mode_set_ieee();
    memset(work.sums, 0, args->rows * sizeof *work.sums);
    (args->rows > register_rows(format) ? widened_scales : register_scales)(&c, decoder, &work);
    if (tail) {
        tail_scale(args, format, &work, whole.k);
    }
    write_sums(args, (const panel_row *)work.sums);
    float_mode_restore(before);
}
#endif
