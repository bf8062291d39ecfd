// Quantised weights against bf16 rows by VDPBF16PS, multiplied as codes are decoded in registers: by shifts and permutations, most
// of them on ports that VDPBF16PS leaves idle. Small m reads a panel once, from start to end; large m is computed in tiles
// (quantised_large_m_avx512bf16vbmi.c).
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/row_sums.h"

enum {
    LANES = 16,
    VECS = EXPERTD_KERNEL_PANEL / LANES,
    TAIL_K = 64,        // k of a scale group that ends within a line of codes, decoded at a time
    MINUS_SCALES = 512, // scale groups over which rows are summed at a time, where the sums are not kept
};

// Rows by one panel; results are added to `sums`, whose rows are `stride` floats apart.
struct call {
    const struct panel_args *args;
    const struct expertd_quantised_format *format;
    const struct pairs_decoder *decoder;
    enum pairs_pace pace;
    size_t full_lines_k; // k of the scale groups that end with a full line of codes: all of K, or all groups but the last
    float *sums;
    size_t stride;
    const float *minus; // [rows][scale groups of full_lines_k]: see struct pairs_small_m; NULL: not known
};

// One row's partial sums over a part of one scale group. The last k of an odd K is paired with +0 in row and weights.
static void tail_pairs(const struct chunk *c, const pairs_row *weights, const uint16_t *x, __m512 *partials) {
    for (size_t i = 0; i < c->depth; i += 2) {
        const bool pair = i + 1 < c->depth;
        const uint32_t words = x[c->k + i] | (pair ? (uint32_t)x[c->k + i + 1] << 16 : 0);
        const __m512i mask = _mm512_set1_epi32(pair ? -1 : 0xffff);
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            __m512i w = _mm512_and_si512(_mm512_load_si512(&weights[i / 2][2 * v * LANES]), mask);
            partials[v] = _mm512_dpbf16_ps(partials[v], (__m512bh)_mm512_set1_epi32((int)words), (__m512bh)w);
        }
    }
}

// sum = fma(-(the sum of the row over the last scale group), minimum, sum)
static void tail_subtract(const struct call *call, const struct quantised_layout *layout, size_t row, const uint8_t *stored) {
    const size_t depth = call->args->k - call->full_lines_k;
    float minus, widened[EXPERTD_KERNEL_PANEL] __attribute__((aligned(64)));
    row_sums_minus((const uint16_t *)call->args->x[row] + call->full_lines_k, true, depth, depth, &minus);
    group_minima_to(call->format, layout, call->args->panel, layout->scales - 1, stored, widened);
    PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
        float *sum = call->sums + row * call->stride + v * LANES;
        _mm512_store_ps(sum, _mm512_fmadd_ps(_mm512_set1_ps(minus), _mm512_load_ps(widened + v * LANES), _mm512_load_ps(sum)));
    }
}

// The last scale group if it ends within a line of codes. No model has one, so it is simple rather than fast: row by row.
static void tail_row(const struct call *call, size_t row) {
    const struct panel_args *args = call->args;
    const struct expertd_quantised_format *format = call->format;
    struct chunk c = {.args = args, .format = format, .layout = quantised_layout(format, args->k), .k = call->full_lines_k};
    pairs_row weights[TAIL_K / 2];
    __m512 partials[VECS] = {0};
    while (chunk_next(&c, TAIL_K)) {
        call->decoder->widen(format, chunk_codes(&c, 0), chunk_zeros(&c, 0), c.depth, weights);
        tail_pairs(&c, weights, args->x[row], partials);
    }
    const uint8_t *panel = args->panel;
    float factors[EXPERTD_KERNEL_PANEL] __attribute__((aligned(64)));
    const size_t last = c.layout.scales - 1;
    const uint8_t *stored = panel + quantised_scales_at(&c.layout, last, args->k);
    group_scales_to(format, &c.layout, panel, last, stored, panel_global(format, panel), factors);
    PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
        float *sum = call->sums + row * call->stride + v * LANES;
        _mm512_store_ps(sum, _mm512_fmadd_ps(partials[v], _mm512_load_ps(factors + v * LANES), _mm512_load_ps(sum)));
    }
    if (format->minima) {
        tail_subtract(call, &c.layout, row, stored);
    }
}

static void tail_rows(const struct call *call) {
    for (size_t row = 0; call->full_lines_k < call->args->k && row < call->args->rows; row++) {
        tail_row(call, row);
    }
}

static size_t full_lines_k(const struct expertd_quantised_format *format, size_t k) {
    const struct quantised_layout layout = quantised_layout(format, k);
    return k % layout.line_k == 0 ? k : (layout.scales - 1) * layout.scale_k;
}

// Scale groups [first, first + count) of the full lines, `scales` in all.
static void small_m_scales(const struct call *call, const struct quantised_layout *layout, size_t first, size_t count,
                           size_t scales, const float *minus, size_t minus_stride, panel_row *sums) {
    const struct panel_args *args = call->args;
    const uint16_t *x[PAIRS_SMALL_M];
    for (size_t r = 0; r < args->rows; r++) {
        x[r] = (const uint16_t *)args->x[r] + first * layout->scale_k;
    }
    struct pairs_small_m small_m = {
        .scales = {.format = call->format,
                   .panel = args->panel,
                   .codes = (const uint8_t *)args->panel + quantised_codes_at(layout, first),
                   .scales = count,
                   .stride = layout->stride,
                   .scale_k = layout->scale_k,
                   .last_k = first + count < scales ? layout->scale_k : call->full_lines_k - (scales - 1) * layout->scale_k,
                   .supers = layout->super_size ? (const uint8_t *)args->panel + quantised_supers_at(layout, first) : NULL,
                   .super_size = layout->super_size},
        .x = x,
        .sums = sums,
        .minus = minus,
        .minus_stride = minus_stride,
    };
    call->decoder->small_m[call->pace][args->rows - 1](&small_m);
}

static size_t full_lines_scales(const struct quantised_layout *layout, size_t k) {
    return layout->scale_k ? (k + layout->scale_k - 1) / layout->scale_k : 0;
}

// The same with minima, where the rows' sums are not known: sums them for some scale groups at a time.
static void small_m_scales_summed(const struct call *call, const struct quantised_layout *layout, size_t scales, panel_row *sums) {
    float minus[PAIRS_SMALL_M][MINUS_SCALES];
    for (size_t first = 0, count; first < scales; first += count) {
        count = scales - first < MINUS_SCALES ? scales - first : MINUS_SCALES;
        const size_t k = first * layout->scale_k, left = call->full_lines_k - k, most = count * layout->scale_k;
        for (size_t r = 0; r < call->args->rows; r++) {
            row_sums_minus((const uint16_t *)call->args->x[r] + k, true, left < most ? left : most, layout->scale_k, minus[r]);
        }
        small_m_scales(call, layout, first, count, scales, minus[0], MINUS_SCALES, sums);
    }
}

// Small m: all full lines of the panel.
static void small_m_rows(const struct call *call, panel_row *sums) {
    const struct quantised_layout layout = quantised_layout(call->format, call->args->k);
    const size_t scales = full_lines_scales(&layout, call->full_lines_k);
    if (call->format->minima && !call->minus) {
        small_m_scales_summed(call, &layout, scales, sums);
    } else if (scales > 0) {
        small_m_scales(call, &layout, 0, scales, scales, call->minus, scales, sums);
    }
}

static void write_sums(const struct panel_args *args, size_t row, size_t rows, const float *sums, size_t stride) {
    for (size_t r = 0; r < rows; r++) {
        memcpy(args->out + (row + r) * args->out_stride, sums + r * stride, args->columns * sizeof *args->out);
    }
}

static void multiply_small_m(const struct panel_args *args, const struct expertd_quantised_format *format, enum pairs_pace pace,
                             const float *minus) {
    panel_row sums[PAIRS_SMALL_M];
    struct call call = {.args = args,
                        .format = format,
                        .decoder = pairs_decoder_of(format),
                        .pace = pace,
                        .full_lines_k = full_lines_k(format, args->k),
                        .sums = sums[0],
                        .stride = EXPERTD_KERNEL_PANEL,
                        .minus = minus};
    memset(sums, 0, args->rows * sizeof *sums);
    small_m_rows(&call, sums);
    tail_rows(&call);
    write_sums(args, 0, args->rows, sums[0], EXPERTD_KERNEL_PANEL);
}

static void clear_sums(const struct macrokernel_args *macro) {
    for (size_t r = 0; r < macro->rows; r++) {
        memset(macro->sums + r * KERNEL_SUMS, 0, macro->count * EXPERTD_KERNEL_PANEL * sizeof *macro->sums);
    }
}

static void multiply_large_m(const struct macrokernel_args *macro, const struct expertd_quantised_format *format,
                             size_t scratch_bytes, enum pairs_pace pace) {
    struct macrokernel_args full_lines = *macro;
    const bool powers = pairs_powers(format, pace);
    full_lines.k = full_lines_k(format, macro->k);
    clear_sums(macro);
    float_range_watch();
    pairs_large_m(&full_lines, macro->k, format, scratch_bytes, pace, powers);
    if (powers && float_range_left()) {
        clear_sums(macro);
        pairs_large_m(&full_lines, macro->k, format, scratch_bytes, pace, false);
    }
    for (size_t p = 0; p < macro->count; p++) {
        struct panel_args args = {.x = macro->x, .rows = macro->rows, .panel = macro->panels[p], .k = macro->k};
        tail_rows(&(struct call){.args = &args,
                                 .format = format,
                                 .decoder = pairs_decoder_of(format),
                                 .pace = pace,
                                 .full_lines_k = full_lines.k,
                                 .sums = macro->sums + p * EXPERTD_KERNEL_PANEL,
                                 .stride = KERNEL_SUMS});
    }
}

// Large m by one panel, PAIRS_PART rows at a time.
static void multiply_parts(const struct panel_args *args, const struct expertd_quantised_format *format, enum pairs_pace pace) {
    float sums[PAIRS_PART][KERNEL_SUMS] __attribute__((aligned(64)));
    char scratch[PAIRS_PART_SCRATCH] __attribute__((aligned(64)));
    size_t parts = (args->rows + PAIRS_PART - 1) / PAIRS_PART;
    for (size_t row = 0, rows; row < args->rows; row += rows, parts--) {
        rows = (args->rows - row + parts - 1) / parts;
        multiply_large_m(&(struct macrokernel_args){.x = args->x + row,
                                                    .rows = rows,
                                                    .panels = &args->panel,
                                                    .count = 1,
                                                    .k = args->k,
                                                    .sums = sums[0],
                                                    .scratch = scratch},
                         format, sizeof scratch, pace);
        write_sums(args, row, rows, sums[0], KERNEL_SUMS);
    }
}

void avx512bf16vbmi_quantised_bf16(const struct panel_args *args, const struct expertd_quantised_format *format) {
    float_mode before = float_mode_set_ieee();
    if (args->rows <= PAIRS_SMALL_M) {
        multiply_small_m(args, format, pairs_pace(), NULL);
    } else {
        multiply_parts(args, format, pairs_pace());
    }
    float_mode_restore(before);
}

// Small m with minima: the rows' sums in scratch, kept for the next call with the same rows. NULL: no minima, or no space.
static const float *small_m_minus(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    const struct quantised_layout layout = quantised_layout(format, macro->k);
    const size_t k = full_lines_k(format, macro->k), scales = full_lines_scales(&layout, k);
    float *minus = macro->scratch;
    if (!format->minima || macro->rows * scales > KERNEL_SCRATCH_BYTES / sizeof *minus) {
        return NULL;
    }
    for (size_t r = 0; !macro->rows_cached && scales > 0 && r < macro->rows; r++) {
        row_sums_minus(macro->x[r], true, k, layout.scale_k, minus + r * scales);
    }
    return minus;
}

void pairs_macrokernel(const struct macrokernel_args *macro, const struct expertd_quantised_format *format, enum pairs_pace pace) {
    float_mode before = float_mode_set_ieee();
    if (macro->rows > PAIRS_SMALL_M) {
        multiply_large_m(macro, format, KERNEL_SCRATCH_BYTES + macro->scratch_more, pace);
    }
    const float *minus = macro->rows <= PAIRS_SMALL_M ? small_m_minus(macro, format) : NULL;
    for (size_t p = 0; macro->rows <= PAIRS_SMALL_M && p < macro->count; p++) {
        prefetch_rows_share(&(struct prefetch_rows_ahead){macro->next_x, macro->next_rows, 0, macro->k * sizeof(uint16_t)}, p,
                            macro->count);
        multiply_small_m(&(struct panel_args){.x = macro->x,
                                              .rows = macro->rows,
                                              .panel = macro->panels[p],
                                              .k = macro->k,
                                              .out = macro->sums + p * EXPERTD_KERNEL_PANEL,
                                              .out_stride = KERNEL_SUMS,
                                              .columns = EXPERTD_KERNEL_PANEL},
                         format, pace, minus);
    }
    float_mode_restore(before);
}

void avx512bf16vbmi_quantised_macrokernel_bf16(const struct macrokernel_args *macro,
                                               const struct expertd_quantised_format *format) {
    pairs_macrokernel(macro, format, pairs_pace());
}
#endif
