// Up to SMALL_M_ROWS rows of bf16 against quantised weights, in IEEE mode (quantised_ieee.h): one panel after the other, or several
// round-robin, as the decoder prefers.
//
// Rows are prepared (widened to f32, split into integer digits) once for all panels of a call, and for later calls with the same
// rows. Where scratch cannot hold the whole of K, they are prepared again for each chunk.
#if defined(__x86_64__)
#include <string.h>

#include "base/err.h"
#include "kernels/cpu/avx2/quantised/quantised_chunk_avx2.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"

enum {
    SMALL_M_K = 256, // k of a chunk, one panel at a time: rows and scales stay in L1 with the codes
    SHORT_K = 128,   // the same where scales and minima take much space
    SHORT_K_SCALE_BYTES = 2 << 10,
    ROUND_ROBIN_K = 64, // k of a chunk, panels round-robin: the lines in flight of four panels stay in L1 with the rows
    PREPARED_UNIT = 64, // the prepared k of a row are a multiple of this
    SCALE_K_LEAST = 16,
    // Per row and k: an f32, the digits, a share of a struct integer_block, a share of a scale group's sum.
    SUM_BYTES = 1,
    PREPARED_BYTES =
        sizeof(float) + sizeof(struct integer_line) / INTEGER_LINE_K + sizeof(struct integer_block) / SCALE_K_LEAST + SUM_BYTES,
    PANEL_PREPARED_BYTES = 1024 + SMALL_M_ROWS * PREPARED_BYTES * (SMALL_M_K + PREPARED_UNIT),
};

_Static_assert(sizeof(float) <= SUM_BYTES * SCALE_K_LEAST, "a sum for each scale group");
_Static_assert(sizeof(struct integer_block) % SCALE_K_LEAST == 0 && sizeof(struct integer_line) % INTEGER_LINE_K == 0,
               "PREPARED_BYTES divides both by their k");

// The prepared rows, and their memory.
struct prepared {
    bool whole_k;   // prepared over the whole of K; else chunk by chunk
    bool supported; // if whole_k: every row is supported
    float *x[SMALL_M_ROWS];
    struct integer_line *lines[SMALL_M_ROWS];
    struct integer_block *blocks[SMALL_M_ROWS];
    float *minus[SMALL_M_ROWS]; // of each scale group, with minima
    char memory[] __attribute__((aligned(64)));
};

// Rows against panels; sums and partials are rows of KERNEL_SUMS floats.
struct small_m_work {
    struct panel_args args; // of the first panel
    const void *const *panels;
    const void *const *next; // panels of the thread's next call; NULL: not known
    size_t count;
    const struct expertd_quantised_format *format;
    const struct ieee_decoder *decoder;
    struct prepared *prepared;
    float *sums;
    panel_row scales[KERNEL_PANELS_MAX][SMALL_M_K / SCALE_K_LEAST];
    panel_row minima[SMALL_M_K / SCALE_K_LEAST];
    float partials[SMALL_M_ROWS][KERNEL_SUMS] __attribute__((aligned(64)));
};

// Divides the memory at p, `bytes` bytes including the structure itself, into the arrays of the rows.
static void prepared_init(struct prepared *p, size_t rows, size_t k, size_t bytes) {
    char *at = p->memory;
    size_t capacity = (bytes - sizeof *p) / (rows * PREPARED_BYTES) / PREPARED_UNIT * PREPARED_UNIT;
    p->whole_k = k <= capacity;
    for (size_t r = 0; r < rows; r++) {
        p->x[r] = (float *)at;
        p->lines[r] = (struct integer_line *)(p->x[r] + capacity);
        p->blocks[r] = (struct integer_block *)(p->lines[r] + capacity / INTEGER_LINE_K);
        p->minus[r] = (float *)(p->blocks[r] + capacity / SCALE_K_LEAST);
        at += capacity * PREPARED_BYTES;
    }
}

static bool uses_integer(const struct small_m_work *work, const struct quantised_layout *layout) {
    size_t longest = work->args.rows == 1 ? INTEGER_SCALE_K : INTEGER_BLOCK_K;
    return work->decoder->integers.max && work->args.rows <= INTEGER_ROWS && layout->scale_k <= longest;
}

static struct integer_codes integer_codes_of(const struct small_m_work *work) {
    struct integer_codes codes = work->decoder->integers;
    codes.max = work->format->code == EXPERTD_CODE_INT4 && !work->format->zero_points ? EXPERTD_INT4_ZERO_MAX / 2 : codes.max;
    codes.unit /= work->decoder->fold;
    return codes;
}

// Prepares one row over a chunk, at position `k` and scale group `scale` of the prepared row. False if the row is not supported.
static bool prepare_row(const struct small_m_work *work, const struct chunk *c, size_t row, size_t k, size_t scale) {
    const struct prepared *p = work->prepared;
    float *x = p->x[row] + k;
    if (!widen_row((const uint16_t *)c->args->x[row] + c->k, c->depth, work->decoder->fold, x)) {
        return false;
    }
    if (c->format->minima && c->ends) {
        chunk_row_sums(c, row, p->minus[row] + scale);
    }
    struct integer_codes codes = integer_codes_of(work);
    size_t lines = c->layout.scale_k / INTEGER_LINE_K, blocks = integer_blocks(c->layout.scale_k);
    for (size_t s = 0; uses_integer(work, &c->layout) && s < c->scales; s++) {
        size_t group_lines = s + 1 == c->scales ? last_depth(c, INTEGER_LINE_K) / INTEGER_LINE_K : lines;
        size_t before = s * lines;
        integer_prepare(x + before * INTEGER_LINE_K, group_lines, codes, p->blocks[row] + (scale + s) * blocks,
                        p->lines[row] + k / INTEGER_LINE_K + before);
    }
    return true;
}

static bool prepare_rows(const struct small_m_work *work, const struct chunk *c, size_t k, size_t scale) {
    for (size_t r = 0; r < work->args.rows; r++) {
        if (!prepare_row(work, c, r, k, scale)) {
            return false;
        }
    }
    return true;
}

static struct chunk chunk_of(const struct small_m_work *work) {
    return (struct chunk){.args = &work->args, .format = work->format, .layout = quantised_layout(work->format, work->args.k)};
}

static void prepare_all(const struct small_m_work *work) {
    struct chunk c = chunk_of(work);
    work->prepared->supported = true;
    while (work->prepared->supported && chunk_next(&c, SMALL_M_K)) {
        work->prepared->supported = prepare_rows(work, &c, c.k, c.scale);
    }
}

// The memory to prefetch while the chunk at `codes` of a panel is multiplied: the panel's next chunk; with its last chunk, the
// first one of the panel `count` panels later, in this call or the thread's next one.
static const uint8_t *chunk_ahead(const struct small_m_work *work, const struct chunk *c, size_t panel, size_t count,
                                  const uint8_t *codes) {
    if (c->k + c->depth == work->args.k && panel + count < work->count) {
        return (const uint8_t *)work->panels[panel + count] + quantised_codes_at(&c->layout, 0);
    }
    if (c->k + c->depth == work->args.k && work->next) {
        return (const uint8_t *)work->next[panel + count - work->count] + quantised_codes_at(&c->layout, 0);
    }
    return codes + (c->ends ? c->scales * c->layout.stride : quantised_code_bytes(&c->layout, c->depth));
}

// One chunk of panels [first, first + count).
static void multiply_chunk(struct small_m_work *work, const struct chunk *c, size_t first, size_t count) {
    const struct ieee_decoder *decoder = work->decoder;
    const uint8_t *codes = chunk_codes(c, 0);
    struct scale_offsets at = scale_offsets(c);
    size_t k = work->prepared->whole_k ? c->k : 0, scale = work->prepared->whole_k ? c->scale : 0;
    bool integers = uses_integer(work, &c->layout), zeros = c->format->zero_points;
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
        small_m.ahead[p] = chunk_ahead(work, c, first + p, count, small_m.codes[p]);
        small_m.scale[p] = (const panel_row *)work->scales[p];
        if (c->ends) {
            chunk_scales(c, &at, panel, work->scales[p]);
        }
    }
    if (c->format->minima && c->ends) {
        INVARIANT(count == 1); // no decoder of a format with minima multiplies panels round-robin
        widen_minima(c, &at, work->panels[first], work->minima);
        small_m.minima = (const panel_row *)work->minima;
    }
    for (size_t r = 0; r < work->args.rows; r++) {
        small_m.x[r] = work->prepared->x[r] + k;
        small_m.integer_blocks[r] = integers ? work->prepared->blocks[r] + scale * integer_blocks(c->layout.scale_k) : NULL;
        small_m.integer_lines[r] = integers ? work->prepared->lines[r] + k / INTEGER_LINE_K : NULL;
        small_m.minus[r] = work->prepared->minus[r] + scale;
        small_m.partials[r] = work->partials[r];
        small_m.sums[r] = work->sums + r * KERNEL_SUMS + first * EXPERTD_KERNEL_PANEL;
    }
    decoder->multiply[work->args.rows - 1](&small_m);
}

// k of a chunk, one panel at a time. Two chunks of codes and scales, and the widened scales, stay in L1.
static size_t chunk_k(const struct quantised_layout *layout) {
    const size_t scale_bytes = layout->scale_size + layout->zeros_size;
    return SMALL_M_K * scale_bytes < SHORT_K_SCALE_BYTES * layout->scale_k ? SMALL_M_K : SHORT_K;
}

// Panels [first, first + count), chunk by chunk. Not inlined: the compiler must not move an FMA across the caller's changes of the
// floating-point mode.
static __attribute__((noinline)) bool multiply_panels(struct small_m_work *work, size_t first, size_t count) {
    bool whole_k = work->prepared->whole_k;
    struct chunk c = chunk_of(work);
    const size_t k = count == 1 ? chunk_k(&c.layout) : ROUND_ROBIN_K;
    while (chunk_next(&c, k)) {
        if (!whole_k && !prepare_rows(work, &c, 0, 0)) {
            return false;
        }
        multiply_chunk(work, &c, first, count);
    }
    return true;
}

// Round-robin order pays only from the decoder's number of rows on.
static bool multiply_all(struct small_m_work *work) {
    size_t count = work->args.rows >= work->decoder->round_robin_rows ? work->count : 1;
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

// rows_cached: a call with the same rows has prepared them. False if a row or a panel is not supported.
static bool multiply(struct small_m_work *work, size_t prepared_bytes, bool rows_cached) {
    float_mode before = float_mode_set_ieee();
    if (!rows_cached) {
        prepared_init(work->prepared, work->args.rows, work->args.k, prepared_bytes);
        if (work->prepared->whole_k) {
            prepare_all(work);
        }
    }
    bool done = (work->prepared->whole_k && !work->prepared->supported) ? false : multiply_all(work);
    float_mode_restore(before);
    return done;
}

bool avx2_quantised_small_m(const struct panel_args *args, const struct expertd_quantised_format *format) {
    float sums[SMALL_M_ROWS * KERNEL_SUMS] __attribute__((aligned(64)));
    char prepared[PANEL_PREPARED_BYTES] __attribute__((aligned(64)));
    struct small_m_work work = {.args = *args,
                                .panels = &args->panel,
                                .count = 1,
                                .format = format,
                                .decoder = ieee_decoder_of(format),
                                .prepared = (struct prepared *)prepared,
                                .sums = sums};
    bool done = multiply(&work, sizeof prepared, false);
    for (size_t r = 0; done && r < args->rows; r++) {
        memcpy(args->out + r * args->out_stride, sums + r * KERNEL_SUMS, args->columns * sizeof *args->out);
    }
    return done;
}

bool avx2_quantised_small_m_macrokernel(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    struct small_m_work work = {.args = {.x = macro->x, .rows = macro->rows, .panel = macro->panels[0], .k = macro->k},
                                .panels = macro->panels,
                                .next = macro->next,
                                .count = macro->count,
                                .format = format,
                                .decoder = ieee_decoder_of(format),
                                .prepared = macro->scratch,
                                .sums = macro->sums};
    return multiply(&work, KERNEL_SCRATCH_BYTES, macro->rows_cached);
}
#endif
