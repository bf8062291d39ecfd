// Small m: up to KERNEL_QUANTISED_ROWS bf16 rows that the flush cannot change, by one panel after another.
//
// Rows are widened once for all panels of a call, and stay cached for the following calls with the same rows. Where the scratch
// cannot hold all of K, they are widened again chunk by chunk for each call.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_rows_avx512.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/row_sums.h"

enum {
    CAPACITY_UNIT = 64,
    SCALE_K_LEAST = 16,
    PANEL_K = 512, // k of rows that are widened on the stack, for a single panel
};

// The rows as f32, in the layout of small_m_args.x, and the result of their range check.
struct widened {
    bool all_k;    // x holds all of K; else one chunk
    bool accepted; // if all_k: every element is in range
    size_t limit;  // k of a chunk at most
    float *minus;  // with minima: the sums of scale groups of `x`, as in small_m_args
    size_t minus_stride;
    float x[] __attribute__((aligned(64)));
};

// Rows by panels.
struct small_m_work {
    struct panel_args args; // with the first panel
    const void *const *panels;
    size_t count;
    const struct expertd_quantised_format *format;
    const struct fma_decoder *decoder;
    bool amx_order; // in the order of ARITHMETIC_CPU_AMX
    struct widened *widened;
    float *sums, *partials; // rows are KERNEL_SUMS floats apart
};

const struct fma_decoder *fma_decoder_of(const struct expertd_quantised_format *format) {
    switch (format->code) {
    case EXPERTD_CODE_E4M3:
        return &fma_decoder_e4m3;
    case EXPERTD_CODE_E5M2:
        return &fma_decoder_e5m2;
    case EXPERTD_CODE_INT8:
        return format->zero_points ? &fma_decoder_int8_zero_point : &fma_decoder_int8;
    default:
        return format->zero_points ? &fma_decoder_nibble_zero_point : &fma_decoder_nibble;
    }
}

// Widens the rows of a chunk. False if an element is out of range.
static bool widen_chunk_rows(const struct small_m_work *work, const struct chunk *c) {
    const size_t first = c->scale * c->layout.scale_k;
    for (size_t r = 0; c->format->minima && c->ends && r < work->args.rows; r++) {
        row_sums_minus((const uint16_t *)work->args.x[r] + first, true, c->k + c->depth - first, c->layout.scale_k,
                       work->widened->minus + r * work->widened->minus_stride);
    }
    return fma_rows_widen(work->args.x, work->args.rows, c->k, c->depth, work->decoder, work->widened->x);
}

static void multiply_chunk(const struct small_m_work *work, const struct chunk *c, size_t panel) {
    const struct fma_decoder *decoder = work->decoder;
    const uint8_t *at = work->panels[panel];
    const size_t last = chunk_depth(c, c->scales - 1);
    const struct small_m_args small_m = {
        .format = c->format,
        .panel = at,
        .line = c->k / decoder->line_k,
        .plain_shift = quantised_plain_shift(work->args.k),
        .codes = at + (chunk_codes(c, 0) - (const uint8_t *)work->args.panel),
        .last = at + quantised_scales_at(&c->layout, c->scale + c->scales - 1, work->args.k),
        .scales = c->scales,
        .stride = c->layout.stride,
        .scale_bytes = c->layout.scale_size,
        .scale_k = c->layout.scale_k,
        .last_k = (last + decoder->line_k - 1) / decoder->line_k * decoder->line_k,
        .step_lines = quantised_tile_k(c->format) / decoder->line_k,
        .starts = c->starts,
        .ends = c->ends,
        .x = work->widened->x,
        .layout = &c->layout,
        .first = c->scale,
        .minus = c->format->minima ? work->widened->minus : NULL,
        .minus_stride = work->widened->minus_stride,
        .partials = work->partials + panel * EXPERTD_KERNEL_PANEL,
        .sums = work->sums + panel * EXPERTD_KERNEL_PANEL,
    };
    (work->amx_order ? decoder->multiply_amx_order : decoder->multiply)[work->args.rows - 1](&small_m);
}

static struct chunk chunk_of(const struct small_m_work *work) {
    return (struct chunk){.args = &work->args, .format = work->format, .layout = quantised_layout(work->format, work->args.k)};
}

// Widens all of K if `bytes` bytes hold it together with struct widened.
static void widen_all_rows(const struct small_m_work *work, size_t bytes) {
    struct widened *f = work->widened;
    struct chunk c = chunk_of(work);
    const size_t floats = (bytes - sizeof *f) / sizeof *f->x / work->args.rows;
    const size_t capacity = (work->format->minima ? floats - floats / SCALE_K_LEAST : floats) / CAPACITY_UNIT * CAPACITY_UNIT;
    f->minus = f->x + work->args.rows * capacity;
    f->minus_stride = capacity / SCALE_K_LEAST;
    f->all_k = work->args.k <= capacity;
    f->limit = f->all_k ? SIZE_MAX : capacity;
    f->accepted = !f->all_k || !chunk_next(&c, f->limit) || widen_chunk_rows(work, &c);
}

// noinline: no FMA may move across the caller's change of the floating-point mode.
static __attribute__((noinline)) bool multiply_panels(const struct small_m_work *work) {
    struct chunk c = chunk_of(work);
    for (size_t p = 0; p < work->count; p++) {
        if (quantised_has_special(work->panels[p])) {
            return false;
        }
    }
    for (size_t r = 0; r < work->args.rows; r++) {
        memset(work->sums + r * KERNEL_SUMS, 0, work->count * EXPERTD_KERNEL_PANEL * sizeof *work->sums);
    }
    while (chunk_next(&c, work->widened->limit)) {
        if (!work->widened->all_k && !widen_chunk_rows(work, &c)) {
            return false;
        }
        for (size_t p = 0; p < work->count; p++) {
            multiply_chunk(work, &c, p);
        }
    }
    return true;
}

// rows_cached: `widened` was written by a call for the same rows. False if an element is out of range or a panel has NaN or Inf
// codes.
static bool multiply(const struct small_m_work *work, size_t widened_bytes, bool rows_cached) {
    float_mode before = float_mode_set_ieee();
    if (!rows_cached) {
        widen_all_rows(work, widened_bytes);
    }
    bool done = work->widened->accepted && multiply_panels(work);
    float_mode_restore(before);
    return done;
}

bool avx512vbmi_quantised_small_m(const struct panel_args *args, const struct expertd_quantised_format *format) {
    enum { ROWS = KERNEL_QUANTISED_ROWS };
    float sums[ROWS * KERNEL_SUMS] __attribute__((aligned(64))), partials[ROWS * KERNEL_SUMS] __attribute__((aligned(64)));
    char widened[sizeof(struct widened) + ROWS * PANEL_K * sizeof(float)] __attribute__((aligned(64)));
    struct small_m_work work = {.args = *args,
                                .panels = &args->panel,
                                .count = 1,
                                .format = format,
                                .decoder = fma_decoder_of(format),
                                .widened = (struct widened *)widened,
                                .sums = sums,
                                .partials = partials};
    bool done = multiply(&work, sizeof widened, false);
    for (size_t r = 0; done && r < args->rows; r++) {
        memcpy(args->out + r * args->out_stride, sums + r * KERNEL_SUMS, args->columns * sizeof *args->out);
    }
    return done;
}

static bool multiply_macrokernel(const struct macrokernel_args *macro, const struct expertd_quantised_format *format,
                                 bool amx_order) {
    float partials[KERNEL_QUANTISED_ROWS * KERNEL_SUMS] __attribute__((aligned(64)));
    const struct small_m_work work = {.args = {.x = macro->x, .rows = macro->rows, .panel = macro->panels[0], .k = macro->k},
                                      .panels = macro->panels,
                                      .count = macro->count,
                                      .format = format,
                                      .decoder = fma_decoder_of(format),
                                      .amx_order = amx_order,
                                      .widened = macro->scratch,
                                      .sums = macro->sums,
                                      .partials = partials};
    return multiply(&work, KERNEL_SCRATCH_BYTES + macro->scratch_more, macro->rows_cached);
}

static bool multiply_small_m(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    return multiply_macrokernel(macro, format, false);
}

bool avx512vbmi_quantised_small_m_amx_order(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    return multiply_macrokernel(macro, format, true);
}

void avx512vbmi_quantised_macrokernel_bf16(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    const bool small_m = macro->rows <= KERNEL_QUANTISED_ROWS;
    if (!(small_m ? multiply_small_m : avx512vbmi_quantised_large_m)(macro, format)) {
        macrokernel_panel_by_panel(macro, format, avx512vbmi_quantised_bf16);
    }
}
#endif
