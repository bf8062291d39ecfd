// Up to SMALL_M_ROWS rows of bf16 that no flush touches against one panel of quantised weights, or against a few in turns.
//
// What is made of the rows, f32 and whole numbers, serves all panels of a call, and the calls after it that are for the same rows.
// Where there is no room for the whole of K it is made anew for each chunk.
#if defined(__x86_64__)
#include <string.h>

#include "kernels/cpu/avx2/quantised/quantised_chunk_avx2.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/float_mode.h"

enum {
    SMALL_M_K = 256, // of a chunk of one panel: the rows and the scales stay in L1 beside the codes
    TURN_K = 64,     // of several panels in turns: what four have on their way stays in L1 beside the rows
    FOUND_UNIT = 64,
    SCALE_K_LEAST = 16,
    // Of a row and k: f32, digits, a share of a scale's description.
    FOUND_BYTES = sizeof(float) + sizeof(struct integer_line) / INTEGER_LINE_K + sizeof(struct integer_block) / SCALE_K_LEAST,
    PANEL_FOUND_BYTES = 1024 + SMALL_M_ROWS * FOUND_BYTES * (SMALL_M_K + FOUND_UNIT),
};

_Static_assert(sizeof(struct integer_block) % SCALE_K_LEAST == 0 && sizeof(struct integer_line) % INTEGER_LINE_K == 0,
               "shares of a k");

// What is made of the rows, and the memory it lies in.
struct found {
    bool all;   // of K; else a chunk at a time
    bool taken; // where all: no element was one that cannot be
    float *x[SMALL_M_ROWS];
    struct integer_line *lines[SMALL_M_ROWS];
    struct integer_block *blocks[SMALL_M_ROWS];
    char memory[] __attribute__((aligned(64)));
};

// Rows against panels; sums and partials are rows of KERNEL_SUMS floats.
struct small_m_work {
    struct panel_args args; // of the first panel
    const void *const *panels;
    const void *const *next; // of the call after this one; NULL: not known
    size_t count;
    const struct expertd_quantised_format *format;
    const struct ieee_decoder *decoder;
    struct found *found;
    float *sums;
    panel_row scales[KERNEL_PANELS_MAX][SMALL_M_K / SCALE_K_LEAST];
    float partials[SMALL_M_ROWS][KERNEL_SUMS] __attribute__((aligned(64)));
};

// In `bytes` bytes, the structure's among them.
static void found_init(struct found *f, size_t rows, size_t k, size_t bytes) {
    char *at = f->memory;
    size_t room = (bytes - sizeof *f) / (rows * FOUND_BYTES) / FOUND_UNIT * FOUND_UNIT;
    f->all = k <= room;
    for (size_t r = 0; r < rows; r++) {
        f->x[r] = (float *)at;
        f->lines[r] = (struct integer_line *)(f->x[r] + room);
        f->blocks[r] = (struct integer_block *)(f->lines[r] + room / INTEGER_LINE_K);
        at += room * FOUND_BYTES;
    }
}

static bool takes_integer(const struct small_m_work *work, const struct quantised_layout *layout) {
    size_t longest = work->args.rows == 1 ? INTEGER_SCALE_K : INTEGER_BLOCK_K;
    return work->decoder->whole.max && work->args.rows <= INTEGER_ROWS && layout->scale_k <= longest;
}

static struct integer_codes integer_codes_of(const struct small_m_work *work) {
    struct integer_codes codes = work->decoder->whole;
    codes.max = work->format->code == EXPERTD_CODE_INT4 && !work->format->zero_points ? EXPERTD_INT4_ZERO_MAX / 2 : codes.max;
    codes.unit /= work->decoder->fold;
    return codes;
}

// One row's part of a chunk; `k` and `scale` are its places in what is found. False where an element cannot be taken.
static bool find(const struct small_m_work *work, const struct chunk *c, size_t row, size_t k, size_t scale) {
    const struct found *f = work->found;
    float *x = f->x[row] + k;
    if (!widen_row((const uint16_t *)c->args->x[row] + c->k, c->depth, work->decoder->fold, x)) {
        return false;
    }
    struct integer_codes codes = integer_codes_of(work);
    size_t lines = c->layout.scale_k / INTEGER_LINE_K, blocks = integer_blocks(c->layout.scale_k);
    for (size_t s = 0; takes_integer(work, &c->layout) && s < c->scales; s++) {
        size_t here = s + 1 == c->scales ? last_depth(c, INTEGER_LINE_K) / INTEGER_LINE_K : lines;
        size_t before = s * lines;
        integer_find(x + before * INTEGER_LINE_K, here, codes, f->blocks[row] + (scale + s) * blocks,
                     f->lines[row] + k / INTEGER_LINE_K + before);
    }
    return true;
}

static bool find_rows(const struct small_m_work *work, const struct chunk *c, size_t k, size_t scale) {
    for (size_t r = 0; r < work->args.rows; r++) {
        if (!find(work, c, r, k, scale)) {
            return false;
        }
    }
    return true;
}

static struct chunk chunk_of(const struct small_m_work *work) {
    return (struct chunk){.args = &work->args, .format = work->format, .layout = quantised_layout(work->format, work->args.k)};
}

static void find_all(const struct small_m_work *work) {
    struct chunk c = chunk_of(work);
    work->found->taken = true;
    while (work->found->taken && chunk_next(&c, SMALL_M_K)) {
        work->found->taken = find_rows(work, &c, c.k, c.scale);
    }
}

// What is fetched while a panel's chunk at `codes` is multiplied: the next chunk, line for line; with the last one the first of the
// panel that takes its place, `count` panels on or in the call after this one, which nobody would have fetched.
static const uint8_t *ahead_of(const struct small_m_work *work, const struct chunk *c, size_t panel, size_t count,
                               const uint8_t *codes) {
    if (c->k + c->depth == work->args.k && panel + count < work->count) {
        return (const uint8_t *)work->panels[panel + count] + QUANTISED_HEADER;
    }
    if (c->k + c->depth == work->args.k && work->next) {
        return (const uint8_t *)work->next[panel + count - work->count] + QUANTISED_HEADER;
    }
    return codes + (c->ends ? c->scales * c->layout.stride : quantised_code_bytes(&c->layout, c->depth));
}

// Panels [first, first + count) in turns.
static void multiply_chunk(struct small_m_work *work, const struct chunk *c, size_t first, size_t count) {
    const struct ieee_decoder *decoder = work->decoder;
    const uint8_t *codes = chunk_codes(c, 0);
    struct scale_places at = scale_places(c);
    size_t k = work->found->all ? c->k : 0, scale = work->found->all ? c->scale : 0;
    bool whole = takes_integer(work, &c->layout), zeros = c->format->zero_points;
    struct small_m_args small_m = {
        .panels = count,
        .zeros = zeros ? (size_t)(chunk_zeros(c, 0) - codes) : 0,
        .last_zeros = zeros ? (size_t)(chunk_zeros(c, c->scales - 1) - chunk_codes(c, c->scales - 1)) : 0,
        .scales = c->scales,
        .stride = c->layout.stride,
        .scale_k = c->layout.scale_k,
        .last_k = last_depth(c, decoder->line_k),
        .starts = c->starts,
        .ends = c->ends,
    };
    for (size_t p = 0; p < count; p++) {
        const uint8_t *panel = work->panels[first + p];
        small_m.codes[p] = panel + (codes - (const uint8_t *)work->args.panel);
        small_m.ahead[p] = ahead_of(work, c, first + p, count, small_m.codes[p]);
        small_m.scale[p] = (const panel_row *)work->scales[p];
        if (c->ends) {
            chunk_scales(c, &at, panel, work->scales[p]);
        }
    }
    for (size_t r = 0; r < work->args.rows; r++) {
        small_m.x[r] = work->found->x[r] + k;
        small_m.integer_blocks[r] = whole ? work->found->blocks[r] + scale * integer_blocks(c->layout.scale_k) : NULL;
        small_m.integer_lines[r] = whole ? work->found->lines[r] + k / INTEGER_LINE_K : NULL;
        small_m.partials[r] = work->partials[r];
        small_m.sums[r] = work->sums + r * KERNEL_SUMS + first * EXPERTD_KERNEL_PANEL;
    }
    decoder->multiply[work->args.rows - 1](&small_m);
}

// Panels [first, first + count) in turns. Not inlined: no fma may move across a change of the floating-point mode in the caller.
static __attribute__((noinline)) bool multiply_panels(struct small_m_work *work, size_t first, size_t count) {
    bool all = work->found->all;
    struct chunk c = chunk_of(work);
    while (chunk_next(&c, count == 1 ? SMALL_M_K : TURN_K)) {
        if (!all && !find_rows(work, &c, 0, 0)) {
            return false;
        }
        multiply_chunk(work, &c, first, count);
    }
    return true;
}

// Panels in turns are a gain only where rows are laid out for them.
static bool multiply_all(struct small_m_work *work) {
    size_t count = work->args.rows >= work->decoder->transpose_rows ? work->count : 1;
    for (size_t p = 0; p < work->count; p++) {
        if (quantised_has_special(work->panels[p])) {
            return false;
        }
    }
    for (size_t r = 0; r < work->args.rows; r++) {
        memset(work->sums + r * KERNEL_SUMS, 0, work->count * EXPERTD_KERNEL_PANEL * sizeof *work->sums);
    }
    for (size_t first = 0; first < work->count; first += count) {
        if (!multiply_panels(work, first, count)) {
            return false;
        }
    }
    return true;
}

// rows_cached: found is as a call for the same rows left it. False where an element or a panel cannot be taken.
static bool multiply(struct small_m_work *work, size_t found_bytes, bool rows_cached) {
    float_mode before = float_mode_set_ieee();
    if (!rows_cached) {
        found_init(work->found, work->args.rows, work->args.k, found_bytes);
        if (work->found->all) {
            find_all(work);
        }
    }
    bool done = (work->found->all && !work->found->taken) ? false : multiply_all(work);
    float_mode_restore(before);
    return done;
}

bool avx2_quantised_small_m(const struct panel_args *args, const struct expertd_quantised_format *format) {
    float sums[SMALL_M_ROWS * KERNEL_SUMS] __attribute__((aligned(64)));
    char found[PANEL_FOUND_BYTES] __attribute__((aligned(64)));
    struct small_m_work work = {.args = *args,
                                .panels = &args->panel,
                                .count = 1,
                                .format = format,
                                .decoder = ieee_decoder_of(format),
                                .found = (struct found *)found,
                                .sums = sums};
    bool done = multiply(&work, sizeof found, false);
    for (size_t r = 0; done && r < args->rows; r++) {
        memcpy(args->out + r * args->out_stride, sums + r * KERNEL_SUMS, args->columns * sizeof *args->out);
    }
    return done;
}

static bool multiply_small_m(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    struct small_m_work work = {.args = {.x = group->x, .rows = group->rows, .panel = group->panels[0], .k = group->k},
                                .panels = group->panels,
                                .next = group->next,
                                .count = group->count,
                                .format = format,
                                .decoder = ieee_decoder_of(format),
                                .found = group->scratch,
                                .sums = group->sums};
    return multiply(&work, KERNEL_SCRATCH_BYTES, group->rows_cached);
}

void avx2_quantised_macrokernel_bf16(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    bool done = group->rows <= SMALL_M_ROWS ? multiply_small_m(group, format)
                : group->rows <= WIDE_ROWS  ? false
                                            : avx2_quantised_large_m_macrokernel(group, format);
    if (!done) {
        macrokernel_panel_by_panel(group, format, avx2_quantised_bf16);
    }
}
#endif
