// A task's work: a call is up to `rows` rows against a few panels. A block of K of those panels is packed into the thread's
// scratch, where they were not at load, then all rows of the span pass over it, their sums held meanwhile; then the next block. So
// packing is paid once for all rows of a span, and a block stays in L2 over its rows.
#include <string.h>

#include "kernels/cpu/stream.h"
#include "kernels/finish.h"
#include "kernels/product_work.h"
#include "kernels/quantised.h"
#include "kernels/weights.h"

enum {
    FEW_ROWS = 6, // a tile
    // Over a few k (tgmm of few rows) panels of f32 cost nothing to read again, and the sums of so few rows stay in L1 on their way
    // out. Panels of bf16 may be widened in each call, which costs more than that gains.
    SHORT_K = 128,
    SHORT_K_ROWS = 24,
};

// A thread's scratch.
struct lane {
    char *panels, *lines;
    float *sums, *partial; // [held_rows], [rows]
    void *kernel;          // the group kernels' own
};

// Rows against neighbouring panels, over a block of K.
struct call {
    const struct work *work;
    const struct product_group *group;
    const struct lane *lane;
    const void *x[KERNEL_CALL_ROWS];
    const void *panels[KERNEL_GROUP];
    const void *next[KERNEL_GROUP];
    bool has_next, grouped;
    size_t row, rows;
    size_t panel, count;
    size_t k, depth;
    float *sums; // of the first row
};

static size_t held_bytes(const struct holding *h) {
    return h->held_rows * h->sums_stride * sizeof(float);
}

static size_t partial_bytes(const struct holding *h) {
    return h->scaled_blocks ? h->rows * h->sums_stride * sizeof(float) : 0;
}

size_t product_lane_bytes(const struct holding *h) {
    return h->panels * h->panel_bytes + aligned(h->rows * h->line_bytes) + aligned(held_bytes(h)) + aligned(partial_bytes(h)) +
           (h->grouped ? KERNEL_SCRATCH_BYTES : 0);
}

static struct lane lane_of(const struct work *work, unsigned thread) {
    const struct holding *h = &work->holding;
    char *at = work->scratch + thread * work->scratch_bytes;
    struct lane lane = {.panels = at};
    lane.lines = at += h->panels * h->panel_bytes;
    lane.sums = (float *)(at += aligned(h->rows * h->line_bytes));
    lane.partial = (float *)(at += aligned(held_bytes(h)));
    lane.kernel = at + aligned(partial_bytes(h));
    return lane;
}

// ---- where operands lie

static size_t packed_panel_bytes(const struct work *work, size_t k) {
    const struct quantised_format *format = work->product->b_format;
    return format ? quantised_group_bytes(format, k, KERNEL_PANEL) : packed_group_bytes(work->holding.sum, k, KERNEL_PANEL);
}

static void point_to_packed(const struct work *work, const struct product_group *g, size_t panel, size_t count,
                            const void **panels) {
    size_t bytes = packed_panel_bytes(work, g->k);
    for (size_t p = 0; p < count; p++) {
        panels[p] = (const char *)g->b_packed + (panel + p) * bytes;
    }
}

static void take_panels(struct call *c) {
    const struct work *work = c->work;
    if (c->group->b_packed) {
        point_to_packed(work, c->group, c->panel, c->count, c->panels);
        return;
    }
    for (size_t p = 0; p < c->count; p++) {
        c->panels[p] = c->lane->panels + p * work->holding.panel_bytes;
    }
    size_t column = c->panel * KERNEL_PANEL;
    struct line_range range = {&c->group->b, NULL, column, at_most(c->group->n - column, c->count * KERNEL_PANEL), c->k, c->depth};
    lines_pack(&work->read_b, &range, c->lane->panels, work->holding.panel_bytes);
}

// Pointers to the call's rows, which are converted first where they cannot be read in place.
static void point_to_rows(struct call *c) {
    const struct holding *h = &c->work->holding;
    const struct product_group *g = c->group;
    size_t size = dtype_size(h->sum);
    if (h->line_bytes) {
        struct line_range range = {&g->a, g->a_rows, c->row, c->rows, c->k, c->depth};
        lines_read(&c->work->read_a, &range, c->lane->lines, h->line_bytes / size);
    }
    for (size_t r = 0; r < c->rows; r++) {
        size_t line = g->a_rows ? g->a_rows[c->row + r] : c->row + r;
        c->x[r] =
            h->line_bytes ? c->lane->lines + r * h->line_bytes : (const char *)g->a.data + (line * g->a.line_stride + c->k) * size;
    }
}

// ---- sums

static void multiply_group(const struct call *c, const struct panel_group_args *args) {
    const struct kernel_backend *backend = c->work->backend;
    switch (c->work->holding.sum) {
    case DTYPE_I8:
        backend->group_i8(args);
        return;
    case DTYPE_F32:
        backend->group_f32(args);
        return;
    default:
        backend->group_bf16(args);
        return;
    }
}

static void multiply_i8(const struct call *c, size_t panel, float *out) {
    struct panel_i8_args args = {.x = (const int8_t *const *)c->x,
                                 .rows = c->rows,
                                 .panel = c->panels[panel],
                                 .k = c->depth,
                                 .out = (int32_t *)out,
                                 .out_stride = c->work->holding.sums_stride,
                                 .columns = KERNEL_PANEL};
    c->work->backend->panel_i8(&args);
}

static void multiply_float(const struct call *c, size_t panel, float *out) {
    const struct kernel_backend *backend = c->work->backend;
    const struct quantised_format *format = c->work->product->b_format;
    bool wide = c->work->holding.sum == DTYPE_F32;
    struct panel_args args = {.x = c->x,
                              .rows = c->rows,
                              .panel = c->panels[panel],
                              .k = c->depth,
                              .out = out,
                              .out_stride = c->work->holding.sums_stride,
                              .columns = KERNEL_PANEL};
    if (format) {
        (wide ? backend->quantised_f32 : backend->quantised_bf16)(&args, format);
    } else {
        (wide ? backend->panel_f32 : backend->panel_bf16)(&args);
    }
}

// The call's sums to `out`. goes_on: added to what is there.
static void multiply(const struct call *c, float *out, bool goes_on) {
    if (c->grouped) {
        struct panel_group_args args = {.x = c->x,
                                        .rows = c->rows,
                                        .panels = c->panels,
                                        .count = c->count,
                                        .k = c->depth,
                                        .sums = out,
                                        .scratch = c->lane->kernel,
                                        .next = c->has_next ? c->next : NULL,
                                        .goes_on = goes_on};
        multiply_group(c, &args);
        return;
    }
    for (size_t p = 0; p < c->count; p++) {
        (c->work->holding.sum == DTYPE_I8 ? multiply_i8 : multiply_float)(c, p, out + p * KERNEL_PANEL);
    }
}

static void read_scales(const struct product_format *format, const struct product_operand *operand, size_t first, size_t count,
                        size_t k_block, float *scales) {
    for (size_t i = 0; i < count; i++) {
        size_t line = (first + i) / format->lines_per_scale;
        scales[i] =
            scale_read(format->scale_dtype, operand->scales, line * operand->scale_line_stride + k_block * operand->scale_k_stride);
    }
}

// sums = fma(partial, the scales' product, sums).
static void add_scaled(const struct call *c, size_t k_block, const float *partial, float *sums) {
    const struct product *p = c->work->product;
    float row_scales[KERNEL_CALL_ROWS], column_scales[KERNEL_SUMS] = {0};
    size_t column = c->panel * KERNEL_PANEL;
    read_scales(&p->a, &c->group->a, c->row, c->rows, k_block, row_scales);
    read_scales(&p->b, &c->group->b, column, at_most(c->group->n - column, c->count * KERNEL_PANEL), k_block, column_scales);
    struct add_scaled_args scaled = {.partial = partial,
                                     .rows = c->rows,
                                     .columns = c->count * KERNEL_PANEL,
                                     .stride = c->work->holding.sums_stride,
                                     .row_scales = row_scales,
                                     .column_scales = column_scales,
                                     .sums = sums};
    c->work->backend->add_scaled(&scaled);
}

// A call's block of K, scale by scale.
static void multiply_scaled(const struct call *c) {
    const struct holding *h = &c->work->holding;
    size_t step = c->work->product->k_per_scale, size = dtype_size(h->sum);
    if (c->k == 0) {
        memset(c->sums, 0, c->rows * h->sums_stride * sizeof(float));
    }
    for (size_t at = 0; at < c->depth; at += step) {
        struct call part = *c;
        part.k = c->k + at;
        part.depth = at_most(step, c->depth - at);
        part.has_next = false;
        for (size_t r = 0; r < c->rows; r++) {
            part.x[r] = (const char *)c->x[r] + at * size;
        }
        for (size_t p = 0; p < c->count; p++) {
            part.panels[p] = (const char *)c->panels[p] + at * KERNEL_PANEL * size;
        }
        multiply(&part, c->lane->partial, false);
        add_scaled(&part, part.k / step, c->lane->partial, c->sums);
    }
}

// ---- results

static void finish_i32(const struct call *c) {
    size_t columns = at_most(c->group->n - c->panel * KERNEL_PANEL, c->count * KERNEL_PANEL);
    for (size_t r = 0; r < c->rows; r++) {
        const int32_t *sums = (const int32_t *)(c->sums + r * c->work->holding.sums_stride);
        size_t at = (c->row + r) * c->group->out_stride + c->panel * KERNEL_PANEL;
        size_t c_at = (c->row + r) * c->group->c_stride + c->panel * KERNEL_PANEL;
        int32_t *out = (int32_t *)c->group->out + at;
        const int32_t *more = c->group->beta != 0.0f ? (const int32_t *)c->group->c + c_at : NULL;
        for (size_t i = 0; i < columns; i++) {
            out[i] = (int32_t)((uint32_t)sums[i] + (more ? (uint32_t)more[i] : 0)); // wraps, as the sums do
        }
    }
}

// Past the caches, by way of the first one where the sums are not yet the results.
static void finish_streamed(const struct call *c, const struct finish_args *args) {
    _Alignas(STREAM_LINE) float row[KERNEL_SUMS];
    struct finish_args staged = *args;
    staged.out = row;
    if (args->dtype == DTYPE_F32 && args->alpha == 1.0f && args->beta == 0.0f) {
        stream_copy(args->out, args->sums, args->count);
        return;
    }
    c->work->backend->finish(&staged);
    stream_bytes(args->out, row, args->count * dtype_size(args->dtype));
}

static void finish_float(const struct call *c) {
    enum dtype dtype = c->work->product->out_dtype;
    size_t size = dtype_size(dtype), column = c->panel * KERNEL_PANEL;
    const struct product_group *g = c->group;
    for (size_t r = 0; r < c->rows; r++) {
        struct finish_args args = {
            .sums = c->sums + r * c->work->holding.sums_stride,
            .count = at_most(g->n - column, c->count * KERNEL_PANEL),
            .alpha = g->alpha,
            .beta = g->beta,
            .c = g->c ? (const char *)g->c + ((c->row + r) * g->c_stride + column) * size : NULL,
            .dtype = dtype,
            .out = (char *)g->out + ((c->row + r) * g->out_stride + column) * size,
        };
        if (c->work->streams) {
            finish_streamed(c, &args);
        } else {
            c->work->backend->finish(&args);
        }
    }
}

static void finish(struct call *c) {
    const struct holding *h = &c->work->holding;
    const struct product *p = c->work->product;
    if (c->group->k == 0) { // a scale of nothing does not count, whatever it is
        memset(c->sums, 0, c->rows * h->sums_stride * sizeof(float));
    } else if (p->a.scale_dtype && !h->scaled_blocks) { // one scale for the whole of K
        for (size_t r = 0; r < c->rows; r++) {
            float *sums = c->sums + r * h->sums_stride, zero[KERNEL_SUMS] = {0};
            struct call row = *c;
            row.row += r, row.rows = 1;
            add_scaled(&row, 0, sums, zero);
            memcpy(sums, zero, c->count * KERNEL_PANEL * sizeof *zero);
        }
    }
    (h->sum == DTYPE_I8 ? finish_i32 : finish_float)(c);
}

// ---- a span

// What the next call takes of what is `left`, so that calls are as even as can be.
static size_t part_of(size_t left, size_t most) {
    return div_up(left, div_up(left, most));
}

// All rows of the span against a block of K of the call's panels. new_rows: they are not those of the call before.
static void pass_rows(struct call *c, const struct span *span, bool new_rows) {
    const struct holding *h = &c->work->holding;
    size_t rows = span->end - span->row;
    bool first = c->k == 0, last = c->k + c->depth >= c->group->k;
    bool is_short = h->sum == DTYPE_F32 && first && last && c->group->k <= SHORT_K;
    size_t most = is_short ? at_most(h->rows, SHORT_K_ROWS) : h->rows;
    for (size_t at = 0; at < rows; at += c->rows) {
        c->row = span->row + at;
        c->rows = part_of(rows - at, most);
        c->sums = c->lane->sums + (is_short || rows > h->held_rows ? 0 : at) * h->sums_stride;
        if (c->depth && (new_rows || c->rows < rows)) {
            point_to_rows(c);
        }
        if (c->depth == 0) {
            // nothing to add
        } else if (h->scaled_blocks) {
            multiply_scaled(c);
        } else {
            multiply(c, c->sums, !first);
        }
        if (last) {
            finish(c);
        }
    }
}

// The panels that the thread multiplies after the call's: of the same span, or of the next one, where they are as many.
static void find_next(struct call *c, const struct span *span, const struct span *after) {
    size_t next = c->panel + c->count, end = span->panel_end;
    const struct product_group *group = c->group;
    if (next >= end && after) {
        group = after->group;
        next = after->panel;
        end = after->panel_end;
    }
    c->has_next = c->grouped && group->b_packed && group->k == c->group->k && next + c->count <= end;
    if (c->has_next) {
        point_to_packed(c->work, group, next, c->count, c->next);
    }
}

// Up to as many rows the panel kernels are faster, on panels packed at load.
static size_t few_rows(const struct work *work) {
    return work->holding.sum == DTYPE_BF16 ? work->backend->few_bf16 : FEW_ROWS;
}

void product_run_span(const struct work *work, const struct span *span, const struct span *after, unsigned thread) {
    const struct holding *h = &work->holding;
    const struct product_group *g = span->group;
    struct lane lane = lane_of(work, thread);
    struct call c = {.work = work, .group = g, .lane = &lane, .panel = span->panel};
    c.grouped = h->grouped && (!g->b_packed || span->end - span->row > few_rows(work));
    for (; c.panel < span->panel_end; c.panel += c.count) {
        c.count = part_of(span->panel_end - c.panel, h->panels);
        find_next(&c, span, after);
        c.k = 0;
        do {
            c.depth = at_most(h->k_step, g->k - c.k);
            if (c.depth) {
                take_panels(&c);
            }
            pass_rows(&c, span, g->k > h->k_step || c.panel == span->panel);
            c.k += c.depth;
        } while (c.k < g->k);
    }
    stream_end(); // before the team hears that the task is done
}
