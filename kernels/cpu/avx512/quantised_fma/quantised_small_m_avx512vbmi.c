// Up to KERNEL_QUANTISED_ROWS rows of bf16 that no flush touches against panels of quantised weights, one after another.
//
// The rows' f32 serve all panels of a call, and the calls after it that are for the same rows. Where there is no room for the whole
// of K they are made anew for each part of it.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_rows_avx512.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/float_mode.h"

enum {
    ROOM_UNIT = 64,
    PANEL_K = 512, // of rows that are widened on the stack, for one panel
};

// The rows' f32, as small_m_args.x, and the memory it lies in.
struct found {
    bool all;     // of K; else a part at a time
    bool taken;   // where all: no element was one that cannot be
    size_t limit; // k of a part
    float x[] __attribute__((aligned(64)));
};

// Rows against panels.
struct small_m_work {
    struct panel_args args; // of the first panel
    const void *const *panels;
    size_t count;
    const struct expertd_quantised_format *format;
    const struct small_m_decoder *decoder;
    bool apart; // by ARITHMETIC_CPU_AMX
    struct found *found;
    float *sums, *partials; // rows of KERNEL_SUMS floats
};

const struct small_m_decoder *small_m_decoder_of(const struct expertd_quantised_format *format) {
    switch (format->code) {
    case EXPERTD_CODE_E4M3:
        return &small_m_e4m3;
    case EXPERTD_CODE_E5M2:
        return &small_m_e5m2;
    case EXPERTD_CODE_INT8:
        return format->zero_points ? &small_m_int8_zero_point : &small_m_int8;
    default:
        return format->zero_points ? &small_m_nibble_zero_point : &small_m_nibble;
    }
}

// The rows' part of a chunk. False where an element cannot be taken.
static bool find(const struct small_m_work *work, const struct chunk *c) {
    return small_m_rows_widen(work->args.x, work->args.rows, c->k, c->depth, work->decoder, work->found->x);
}

static void multiply_chunk(const struct small_m_work *work, const struct chunk *c, size_t panel) {
    const struct small_m_decoder *decoder = work->decoder;
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
        .x = work->found->x,
        .partials = work->partials + panel * EXPERTD_KERNEL_PANEL,
        .sums = work->sums + panel * EXPERTD_KERNEL_PANEL,
    };
    (work->apart ? decoder->multiply_apart : decoder->multiply)[work->args.rows - 1](&small_m);
}

static struct chunk chunk_of(const struct small_m_work *work) {
    return (struct chunk){.args = &work->args, .format = work->format, .layout = quantised_layout(work->format, work->args.k)};
}

// In `bytes` bytes, the structure's among them.
static void find_all(const struct small_m_work *work, size_t bytes) {
    struct found *f = work->found;
    struct chunk c = chunk_of(work);
    const size_t room = (bytes - sizeof *f) / sizeof *f->x / work->args.rows / ROOM_UNIT * ROOM_UNIT;
    f->all = work->args.k <= room;
    f->limit = f->all ? SIZE_MAX : room;
    f->taken = !f->all || !chunk_next(&c, f->limit) || find(work, &c);
}

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
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
    while (chunk_next(&c, work->found->limit)) {
        if (!work->found->all && !find(work, &c)) {
            return false;
        }
        for (size_t p = 0; p < work->count; p++) {
            multiply_chunk(work, &c, p);
        }
    }
    return true;
}

// rows_cached: found is as a call for the same rows left it. False where an element or a panel cannot be taken.
static bool multiply(const struct small_m_work *work, size_t found_bytes, bool rows_cached) {
    float_mode before = float_mode_set_ieee();
    if (!rows_cached) {
        find_all(work, found_bytes);
    }
    bool done = work->found->taken && multiply_panels(work);
    float_mode_restore(before);
    return done;
}

bool avx512vbmi_quantised_small_m(const struct panel_args *args, const struct expertd_quantised_format *format) {
    enum { ROWS = KERNEL_QUANTISED_ROWS };
    float sums[ROWS * KERNEL_SUMS] __attribute__((aligned(64))), partials[ROWS * KERNEL_SUMS] __attribute__((aligned(64)));
    char found[sizeof(struct found) + ROWS * PANEL_K * sizeof(float)] __attribute__((aligned(64)));
    struct small_m_work work = {.args = *args,
                                .panels = &args->panel,
                                .count = 1,
                                .format = format,
                                .decoder = small_m_decoder_of(format),
                                .found = (struct found *)found,
                                .sums = sums,
                                .partials = partials};
    bool done = multiply(&work, sizeof found, false);
    for (size_t r = 0; done && r < args->rows; r++) {
        memcpy(args->out + r * args->out_stride, sums + r * KERNEL_SUMS, args->columns * sizeof *args->out);
    }
    return done;
}

static bool multiply_group(const struct macrokernel_args *group, const struct expertd_quantised_format *format, bool apart) {
    float partials[KERNEL_QUANTISED_ROWS * KERNEL_SUMS] __attribute__((aligned(64)));
    const struct small_m_work work = {.args = {.x = group->x, .rows = group->rows, .panel = group->panels[0], .k = group->k},
                                      .panels = group->panels,
                                      .count = group->count,
                                      .format = format,
                                      .decoder = small_m_decoder_of(format),
                                      .apart = apart,
                                      .found = group->scratch,
                                      .sums = group->sums,
                                      .partials = partials};
    return multiply(&work, KERNEL_SCRATCH_BYTES + group->scratch_more, group->rows_cached);
}

static bool multiply_small_m(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    return multiply_group(group, format, false);
}

bool avx512vbmi_quantised_small_m_apart(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    return multiply_group(group, format, true);
}

void avx512vbmi_quantised_macrokernel_bf16(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    const bool small_m = group->rows <= KERNEL_QUANTISED_ROWS;
    if (!(small_m ? multiply_small_m : avx512vbmi_quantised_large_m)(group, format)) {
        macrokernel_panel_by_panel(group, format, avx512vbmi_quantised_bf16);
    }
}
#endif
