// Quantised weights against rows of bf16 by VDPBF16PS. Up to PAIRS_ROWS rows are multiplied as codes are widened in registers; for
// more, 128 k of the panel are widened into L1 and multiplied by tiles of 6 x 64, as plain bf16 is.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/quantised_pairs.h"
#include "kernels/cpu/scales_avx512.h"

enum {
    LANES = 16,
    VECS = KERNEL_PANEL / LANES,
    WIDE_K = 128, // 16 KiB of bf16
    WIDE_SCALES = WIDE_K / 16,
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

// The chunk's scales as f32, and the place of the next one's fetched.
static void chunk_scales(const struct chunk *c, panel_row *out) {
    const struct quantised_format *format = c->format;
    const uint8_t *panel = c->args->panel;
    size_t size = dtype_size(format->scale);
    float whole;
    memcpy(&whole, panel, sizeof whole);
    __m512 global = _mm512_set1_ps(whole);
    for (size_t s = 0; s < c->scales; s++) {
        const uint8_t *scales = panel + quantised_scales_at(&c->layout, c->scale + s, c->args->k);
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            const uint8_t *at = scales + (format->scale_of_panel ? 0 : v * LANES * size);
            _mm_prefetch((const char *)((uintptr_t)at + c->scales * c->layout.stride), _MM_HINT_T0);
            __m512 scale = vec_scale(format->scale, at);
            scale = format->global == GLOBAL_MULTIPLY ? _mm512_mul_ps(scale, global)
                    : format->global == GLOBAL_DIVIDE ? _mm512_div_ps(scale, global)
                                                      : scale;
            scale = format->scale_of_panel ? _mm512_broadcastss_ps(_mm512_castps512_ps128(scale)) : scale;
            _mm512_store_ps(&out[s][v * LANES], scale);
        }
    }
}

static void write_sums(const struct panel_args *args, const panel_row *sums) {
    for (size_t r = 0; r < args->rows; r++) {
        memcpy(args->out + r * args->out_stride, sums[r], args->columns * sizeof *args->out);
    }
}

static void few_rows(const struct panel_args *args, const struct quantised_format *format) {
    struct chunk c = {.args = args, .format = format, .layout = quantised_layout(format, args->k)};
    const struct pairs_decoder *decoder = decoder_of(format);
    panel_row scales[PAIRS_SCALES], partials[PAIRS_ROWS], sums[PAIRS_ROWS];
    uint16_t x[PAIRS_ROWS * PAIRS_X] __attribute__((aligned(64)));
    memset(sums, 0, args->rows * sizeof *sums);
    while (chunk_next(&c, args->rows > 4 ? WIDE_K : PAIRS_K)) {
        for (size_t r = 0; r < args->rows; r++) {
            memcpy(x + r * PAIRS_X, (const uint16_t *)args->x[r] + c.k, c.depth * sizeof *x);
            x[r * PAIRS_X + c.depth] = 0;
        }
        if (c.ends) {
            chunk_scales(&c, scales);
        }
        struct pairs_args pairs = {
            .format = format,
            .codes = chunk_codes(&c, 0),
            .zeros = chunk_zeros(&c, 0),
            .last_zeros = chunk_zeros(&c, c.scales - 1),
            .stride = c.layout.stride,
            .scales = c.scales,
            .scale_k = c.layout.scale_k,
            .depth = c.depth,
            .x = x,
            .starts = c.starts,
            .ends = c.ends,
            .scale = (const panel_row *)scales,
            .partials = partials,
            .sums = sums,
        };
        decoder->multiply[args->rows - 1](&pairs);
    }
    write_sums(args, (const panel_row *)sums);
}

// What the rows of a call share while a chunk of the panel lies widened.
struct wide_work {
    pairs_row weights[WIDE_K / 2];
    panel_row scales[WIDE_SCALES];
    panel_row partials[KERNEL_CALL_ROWS]; // of a scale that is longer than a chunk
    panel_row sums[KERNEL_CALL_ROWS];
};

static void wide_chunk_weights(const struct chunk *c, const struct pairs_decoder *decoder, struct wide_work *work) {
    for (size_t s = 0; s < c->scales; s++) {
        size_t depth = chunk_depth(c, s);
        decoder->widen(c->format, chunk_codes(c, s), chunk_zeros(c, s), depth, work->weights + s * c->layout.scale_k / 2);
    }
    if (c->ends) {
        chunk_scales(c, work->scales);
    }
}

PANEL_INLINE void wide_step(__m512 sums[][VECS], size_t rows, const uint16_t *const *x, size_t i, const uint16_t *pairs) {
    __m512i w[VECS];
    PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
        w[v] = _mm512_load_si512(pairs + 2 * v * LANES);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        int pair;
        memcpy(&pair, x[r] + i, sizeof pair);
        __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            sums[r][v] = _mm512_dpbf16_ps(sums[r][v], value, (__m512bh)w[v]);
        }
    }
}

// The odd last k is a pair with +0 on both sides.
PANEL_INLINE void wide_tail(__m512 sums[][VECS], size_t rows, const uint16_t *const *x, size_t i, const uint16_t *pairs) {
    PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
        __m512i w = _mm512_and_si512(_mm512_load_si512(pairs + 2 * v * LANES), _mm512_set1_epi32(0xffff));
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)_mm512_set1_epi32(x[r][i]), (__m512bh)w);
        }
    }
}

// One scale's k of a chunk against a tile of rows; `rows` is a constant in each copy, so that the partials are registers.
struct wide_pass {
    const uint16_t *x[PANEL_TILE]; // to the scale's first k
    const pairs_row *weights;
    size_t depth;
    bool starts, ends;
    const float *scale;
    panel_row *partials, *sums; // [rows]
};

PANEL_INLINE void wide_rows(const struct wide_pass *pass, size_t rows) {
    __m512 sums[PANEL_TILE][VECS];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            sums[r][v] = pass->starts ? _mm512_setzero_ps() : _mm512_load_ps(&pass->partials[r][v * LANES]);
        }
    }
    size_t even = pass->depth / 2 * 2;
    for (size_t i = 0; i < even; i += 2) {
        wide_step(sums, rows, pass->x, i, pass->weights[i / 2]);
    }
    if (pass->depth % 2) {
        wide_tail(sums, rows, pass->x, even, pass->weights[even / 2]);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            if (pass->ends) {
                float *sum = &pass->sums[r][v * LANES];
                _mm512_store_ps(sum, _mm512_fmadd_ps(sums[r][v], _mm512_load_ps(pass->scale + v * LANES), _mm512_load_ps(sum)));
            } else {
                _mm512_store_ps(&pass->partials[r][v * LANES], sums[r][v]);
            }
        }
    }
}

static void wide_tile(const struct wide_pass *pass, size_t rows) {
    switch (rows) {
    case 1:
        wide_rows(pass, 1);
        return;
    case 2:
        wide_rows(pass, 2);
        return;
    case 3:
        wide_rows(pass, 3);
        return;
    case 4:
        wide_rows(pass, 4);
        return;
    case 5:
        wide_rows(pass, 5);
        return;
    default:
        wide_rows(pass, PANEL_TILE);
        return;
    }
}

static void wide_chunk(const struct chunk *c, struct wide_work *work) {
    const struct panel_args *args = c->args;
    struct wide_pass pass = {.starts = c->starts, .ends = c->ends};
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = panel_tile_rows(args->rows, row);
        pass.partials = work->partials + row;
        pass.sums = work->sums + row;
        for (size_t s = 0; s < c->scales; s++) {
            size_t before = s * c->layout.scale_k;
            for (size_t r = 0; r < rows; r++) {
                pass.x[r] = (const uint16_t *)args->x[row + r] + c->k + before;
            }
            pass.weights = (const pairs_row *)(work->weights + before / 2);
            pass.depth = chunk_depth(c, s);
            pass.scale = work->scales[s];
            wide_tile(&pass, rows);
        }
    }
}

static void many_rows(const struct panel_args *args, const struct quantised_format *format) {
    struct chunk c = {.args = args, .format = format, .layout = quantised_layout(format, args->k)};
    const struct pairs_decoder *decoder = decoder_of(format);
    struct wide_work work;
    memset(work.sums, 0, args->rows * sizeof *work.sums);
    while (chunk_next(&c, WIDE_K)) {
        wide_chunk_weights(&c, decoder, &work);
        wide_chunk(&c, &work);
    }
    write_sums(args, (const panel_row *)work.sums);
}

void avx512bf16vbmi_quantised_bf16(const struct panel_args *args, const struct quantised_format *format) {
    float_mode before = float_mode_set_ieee();
    if (args->rows <= PAIRS_ROWS) {
        few_rows(args, format);
    } else {
        many_rows(args, format);
    }
    float_mode_restore(before);
}
#endif
