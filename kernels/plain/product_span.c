// Computes a span. A block of K of a few panels is packed into the thread's scratch, unless the panels were packed at load. Then
// calls multiply all rows of the span by it, while their sums stay in scratch; then the next block follows. So a block is packed
// once for all rows of the span, and stays in L2 for them.
#include "kernels/plain/product_span.h"

#include <string.h>

#include "expertd/kernels/quantised.h"
#include "expertd/kernels/weights.h"
#include "kernels/cpu/common/nontemporal_store.h"
#include "kernels/plain/product_call.h"
#include "kernels/plain/product_unpacked.h"

enum {
    // With small k (tgmm over groups of few rows), calls take fewer rows: reading f32 panels again is cheap, and the sums of 24
    // rows stay in L1 until the epilogue. Not for bf16, whose panels may be widened in each call.
    SHORT_K = 128,
    SHORT_K_ROWS = 24,
};

// ---- operands

static size_t packed_panel_bytes(const struct product_state *state, size_t k) {
    const struct expertd_quantised_format *format = state->product->b_format;
    return format ? expertd_quantised_group_bytes(format, k, EXPERTD_KERNEL_PANEL)
                  : expertd_packed_group_bytes(state->blocking.sum, k, EXPERTD_KERNEL_PANEL);
}

static void point_to_packed(const struct product_state *state, const struct product_group *g, size_t panel, size_t count,
                            const void **panels) {
    size_t bytes = packed_panel_bytes(state, g->k);
    for (size_t p = 0; p < count; p++) {
        panels[p] = (const char *)g->b_packed + (panel + p) * bytes;
    }
}

static void prepare_panels(struct product_call *c) {
    const struct product_state *state = c->state;
    if (c->group->b_packed) {
        point_to_packed(state, c->group, c->panel, c->count, c->panels);
        return;
    }
    for (size_t p = 0; p < c->count; p++) {
        c->panels[p] = c->scratch->panels + p * state->blocking.panel_bytes;
    }
    size_t column = c->panel * EXPERTD_KERNEL_PANEL;
    struct line_range range = {&c->group->b, NULL,    column, at_most(c->group->n - column, c->count * EXPERTD_KERNEL_PANEL),
                               c->k,         c->depth};
    lines_pack(&state->read_b, &range, c->scratch->panels, state->blocking.panel_bytes);
}

// ---- sums

// The part of a prefetch range for steps [begin, end) of `all`.
static struct prefetch_range share_of(const struct prefetch_range *ahead, size_t begin, size_t end, size_t all) {
    struct prefetch_range share = *ahead;
    if (share.runs > 0) {
        size_t first = ahead->runs * begin / all;
        share.from = (const char *)ahead->from + first * ahead->stride;
        share.runs = ahead->runs * end / all - first;
    }
    return share;
}

// Computes the call's sums into `out`. accumulate: adds to the sums there. rows_cached: as in macrokernel_args.
static void multiply(const struct product_call *c, float *out, bool accumulate, bool rows_cached) {
    if (c->by_macrokernel) {
        struct macrokernel_args args = {.x = c->x,
                                        .rows = c->rows,
                                        .panels = c->panels,
                                        .count = c->count,
                                        .k = c->depth,
                                        .sums = out,
                                        .scratch = c->scratch->kernel,
                                        .next = c->has_next ? c->next : NULL,
                                        .accumulate = accumulate,
                                        .rows_cached = rows_cached,
                                        .ahead = c->ahead};
        multiply_panels(&c->state->kernels, &args);
        return;
    }
    for (size_t p = 0; p < c->count; p++) {
        struct panel_args args = {.x = c->x,
                                  .rows = c->rows,
                                  .panel = c->panels[p],
                                  .k = c->depth,
                                  .out = out + p * EXPERTD_KERNEL_PANEL,
                                  .out_stride = c->state->blocking.sums_stride,
                                  .columns = EXPERTD_KERNEL_PANEL};
        multiply_panel(&c->state->kernels, &args);
    }
}

// A call over a block of K with scales, one scale group after another.
static void multiply_scaled(const struct product_call *c) {
    const struct product_blocking *blocks = &c->state->blocking;
    size_t step = c->state->product->k_per_scale, size = expertd_dtype_size(blocks->sum);
    if (c->k == 0) {
        memset(c->sums, 0, c->rows * blocks->sums_stride * sizeof(float));
    }
    for (size_t at = 0; at < c->depth; at += step) {
        struct product_call part = *c;
        part.k = c->k + at;
        part.depth = at_most(step, c->depth - at);
        part.has_next = false;
        part.ahead = share_of(&c->ahead, at, at + part.depth, c->depth);
        for (size_t r = 0; r < c->rows; r++) {
            part.x[r] = (const char *)c->x[r] + at * size;
        }
        for (size_t p = 0; p < c->count; p++) {
            part.panels[p] = (const char *)c->panels[p] + at * EXPERTD_KERNEL_PANEL * size;
        }
        multiply(&part, c->scratch->partial, false, false);
        call_add_scaled(&part, part.k / step, c->scratch->partial, c->sums);
    }
}

// ---- a span

// Multiplies all rows of the span by a block of K of the call's panels. new_rows: the previous call had other rows or another k.
// next: the block that is packed next, for prefetch.
static void multiply_rows(struct product_call *c, const struct product_span *span, bool new_rows,
                          const struct prefetch_range *next) {
    const struct product_blocking *blocks = &c->state->blocking;
    size_t rows = span->end - span->row;
    bool first = c->k == 0, last = c->k + c->depth >= c->group->k;
    bool is_short = blocks->sum == EXPERTD_DTYPE_F32 && first && last && c->group->k <= SHORT_K;
    size_t most = is_short ? at_most(blocks->call_rows, SHORT_K_ROWS) : blocks->call_rows;
    for (size_t at = 0; at < rows; at += c->rows) {
        c->row = span->row + at;
        c->rows = call_part(rows - at, most);
        c->ahead = share_of(next, at, at + c->rows, rows);
        c->sums = c->scratch->sums + (is_short || rows > blocks->sums_rows ? 0 : at) * blocks->sums_stride;
        if (c->depth && (new_rows || c->rows < rows)) {
            call_point_to_rows(c);
        }
        if (c->depth == 0) {
            // k is 0: no sums
        } else if (blocks->scaled_blocks) {
            multiply_scaled(c);
        } else {
            bool cached = rows <= panels_cached_rows(&c->state->kernels);
            multiply(c, c->sums, !first, cached && !new_rows && c->rows == rows);
        }
        if (last) {
            call_epilogue(c);
        }
    }
}

// Finds the panels of the thread's next call, in this span or the next one, for prefetch. Valid only where they are as many.
static void find_next(struct product_call *c, const struct product_span *span, const struct product_span *after) {
    size_t next = c->panel + c->count, end = span->panel_end;
    const struct product_group *group = c->group;
    if (next >= end && after) {
        group = after->group;
        next = after->panel;
        end = after->panel_end;
    }
    c->has_next = c->by_macrokernel && group->b_packed && group->k == c->group->k && next + c->count <= end;
    if (c->has_next) {
        point_to_packed(c->state, group, next, c->count, c->next);
    }
}

// The weights that the thread packs next: the next block of K, else the span's next panels, else the next span's panels.
static struct prefetch_range next_block(const struct product_call *c, const struct product_span *span,
                                        const struct product_span *after) {
    const struct product_blocking *blocks = &c->state->blocking;
    const struct product_group *g = c->group;
    size_t panel = c->panel, count = c->count, k = c->k + c->depth;
    if (k >= g->k) {
        const struct product_span *next = panel + count < span->panel_end ? span : after;
        if (!next || product_is_read_in_place(c->state, next)) {
            return (struct prefetch_range){0};
        }
        k = 0, panel = next == span ? panel + count : next->panel;
        g = next->group, count = call_part(next->panel_end - panel, blocks->call_panels);
    }
    if (c->state->product->b_is_packed) { // find_next prefetches those
        return (struct prefetch_range){0};
    }
    size_t column = panel * EXPERTD_KERNEL_PANEL;
    struct line_range range = {
        &g->b, NULL, column, at_most(g->n - column, count * EXPERTD_KERNEL_PANEL), k, at_most(blocks->k_block, g->k - k)};
    return lines_to_prefetch(&c->state->read_b, &range);
}

static void run_packed(struct product_call c, const struct product_span *span, const struct product_span *after) {
    const struct product_state *state = c.state;
    const struct product_blocking *blocks = &state->blocking;
    const struct product_group *g = c.group;
    c.stride = blocks->sums_stride;
    c.by_macrokernel = blocks->by_macrokernel && (!g->b_packed || span->end - span->row > panels_small_m_rows(&state->kernels));
    for (; c.panel < span->panel_end; c.panel += c.count) {
        c.count = call_part(span->panel_end - c.panel, blocks->call_panels);
        find_next(&c, span, after);
        c.k = 0;
        do {
            c.depth = at_most(blocks->k_block, g->k - c.k);
            if (c.depth) {
                prepare_panels(&c);
            }
            struct prefetch_range next = next_block(&c, span, after);
            multiply_rows(&c, span, g->k > blocks->k_block || c.panel == span->panel, &next);
            c.k += c.depth;
        } while (c.k < g->k);
    }
}

void product_run_span(const struct product_state *state, const struct product_span *span, const struct product_span *after,
                      unsigned thread) {
    struct thread_scratch scratch = thread_scratch_at(&state->blocking, state->scratch + thread * state->scratch_bytes);
    struct product_call c = {.state = state,
                             .group = span->group,
                             .scratch = &scratch,
                             .panel = span->panel,
                             .row_bytes = state->blocking.row_bytes,
                             .sums = scratch.sums};
    if (product_is_read_in_place(state, span)) {
        product_run_unpacked(c, span);
    } else {
        run_packed(c, span, after);
    }
    stream_end(); // completes the non-temporal stores before the task ends
}
