// A task's work: a call is up to `rows` rows against a few panels. A block of K of those panels is packed into the thread's
// scratch, where they were not at load, then all rows of the span pass over it, their sums held meanwhile; then the next block. So
// packing is paid once for all rows of a span, and a block stays in L2 over its rows.
#include <string.h>

#include "expertd/kernels/quantised.h"
#include "expertd/kernels/weights.h"
#include "kernels/cpu/common/nontemporal_store.h"
#include "kernels/plain/product_call.h"
#include "kernels/plain/product_unpacked.h"

enum {
    // Over a few k (tgmm of few rows) panels of f32 cost nothing to read again, and the sums of so few rows stay in L1 on their way
    // out. Panels of bf16 may be widened in each call, which costs more than that gains.
    SHORT_K = 128,
    SHORT_K_ROWS = 24,
};

// ---- where operands lie

static size_t packed_panel_bytes(const struct product_work *work, size_t k) {
    const struct expertd_quantised_format *format = work->product->b_format;
    return format ? expertd_quantised_group_bytes(format, k, EXPERTD_KERNEL_PANEL)
                  : expertd_packed_group_bytes(work->holding.sum, k, EXPERTD_KERNEL_PANEL);
}

static void point_to_packed(const struct product_work *work, const struct product_group *g, size_t panel, size_t count,
                            const void **panels) {
    size_t bytes = packed_panel_bytes(work, g->k);
    for (size_t p = 0; p < count; p++) {
        panels[p] = (const char *)g->b_packed + (panel + p) * bytes;
    }
}

static void take_panels(struct product_call *c) {
    const struct product_work *work = c->work;
    if (c->group->b_packed) {
        point_to_packed(work, c->group, c->panel, c->count, c->panels);
        return;
    }
    for (size_t p = 0; p < c->count; p++) {
        c->panels[p] = c->lane->panels + p * work->holding.panel_bytes;
    }
    size_t column = c->panel * EXPERTD_KERNEL_PANEL;
    struct line_range range = {&c->group->b, NULL,    column, at_most(c->group->n - column, c->count * EXPERTD_KERNEL_PANEL),
                               c->k,         c->depth};
    lines_pack(&work->read_b, &range, c->lane->panels, work->holding.panel_bytes);
}

// ---- sums

// What is fetched during [begin, end) of `all` steps.
static struct memory_ahead share_of(const struct memory_ahead *ahead, size_t begin, size_t end, size_t all) {
    struct memory_ahead share = *ahead;
    if (share.runs > 0) {
        size_t first = ahead->runs * begin / all;
        share.from = (const char *)ahead->from + first * ahead->stride;
        share.runs = ahead->runs * end / all - first;
    }
    return share;
}

// The call's sums to `out`. goes_on: added to what is there. rows_cached: macrokernel_args'.
static void multiply(const struct product_call *c, float *out, bool goes_on, bool rows_cached) {
    if (c->grouped) {
        struct macrokernel_args args = {.x = c->x,
                                        .rows = c->rows,
                                        .panels = c->panels,
                                        .count = c->count,
                                        .k = c->depth,
                                        .sums = out,
                                        .scratch = c->lane->kernel,
                                        .next = c->has_next ? c->next : NULL,
                                        .goes_on = goes_on,
                                        .rows_cached = rows_cached,
                                        .ahead = c->ahead};
        multiply_panels(&c->work->kernels, &args);
        return;
    }
    for (size_t p = 0; p < c->count; p++) {
        struct panel_args args = {.x = c->x,
                                  .rows = c->rows,
                                  .panel = c->panels[p],
                                  .k = c->depth,
                                  .out = out + p * EXPERTD_KERNEL_PANEL,
                                  .out_stride = c->work->holding.sums_stride,
                                  .columns = EXPERTD_KERNEL_PANEL};
        multiply_panel(&c->work->kernels, &args);
    }
}

// A call's block of K, scale by scale.
static void multiply_scaled(const struct product_call *c) {
    const struct product_holding *h = &c->work->holding;
    size_t step = c->work->product->k_per_scale, size = expertd_dtype_size(h->sum);
    if (c->k == 0) {
        memset(c->sums, 0, c->rows * h->sums_stride * sizeof(float));
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
        multiply(&part, c->lane->partial, false, false);
        call_add_scaled(&part, part.k / step, c->lane->partial, c->sums);
    }
}

// ---- a span

// All rows of the span against a block of K of the call's panels. new_rows: they are not those of the call before. next: the block
// that is packed after it.
static void pass_rows(struct product_call *c, const struct product_span *span, bool new_rows, const struct memory_ahead *next) {
    const struct product_holding *h = &c->work->holding;
    size_t rows = span->end - span->row;
    bool first = c->k == 0, last = c->k + c->depth >= c->group->k;
    bool is_short = h->sum == EXPERTD_DTYPE_F32 && first && last && c->group->k <= SHORT_K;
    size_t most = is_short ? at_most(h->rows, SHORT_K_ROWS) : h->rows;
    for (size_t at = 0; at < rows; at += c->rows) {
        c->row = span->row + at;
        c->rows = call_part(rows - at, most);
        c->ahead = share_of(next, at, at + c->rows, rows);
        c->sums = c->lane->sums + (is_short || rows > h->held_rows ? 0 : at) * h->sums_stride;
        if (c->depth && (new_rows || c->rows < rows)) {
            call_point_to_rows(c);
        }
        if (c->depth == 0) {
            // nothing to add
        } else if (h->scaled_blocks) {
            multiply_scaled(c);
        } else {
            bool cached = rows <= panels_cached_rows(&c->work->kernels);
            multiply(c, c->sums, !first, cached && !new_rows && c->rows == rows);
        }
        if (last) {
            call_epilogue(c);
        }
    }
}

// The panels that the thread multiplies after the call's: of the same span, or of the next one, where they are as many.
static void find_next(struct product_call *c, const struct product_span *span, const struct product_span *after) {
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

// The block of weights that the thread packs after the call's: of the same panels, of the span's next ones, or of the next span's.
static struct memory_ahead next_block(const struct product_call *c, const struct product_span *span,
                                      const struct product_span *after) {
    const struct product_holding *h = &c->work->holding;
    const struct product_group *g = c->group;
    size_t panel = c->panel, count = c->count, k = c->k + c->depth;
    if (k >= g->k) {
        const struct product_span *next = panel + count < span->panel_end ? span : after;
        if (!next || product_stays_unpacked(c->work, next)) {
            return (struct memory_ahead){0};
        }
        k = 0, panel = next == span ? panel + count : next->panel;
        g = next->group, count = call_part(next->panel_end - panel, h->panels);
    }
    if (c->work->product->b_is_packed) { // as find_next says
        return (struct memory_ahead){0};
    }
    size_t column = panel * EXPERTD_KERNEL_PANEL;
    struct line_range range = {
        &g->b, NULL, column, at_most(g->n - column, count * EXPERTD_KERNEL_PANEL), k, at_most(h->k_step, g->k - k)};
    return lines_memory(&c->work->read_b, &range);
}

static void run_packed(struct product_call c, const struct product_span *span, const struct product_span *after) {
    const struct product_work *work = c.work;
    const struct product_holding *h = &work->holding;
    const struct product_group *g = c.group;
    c.stride = h->sums_stride;
    c.grouped = h->grouped && (!g->b_packed || span->end - span->row > panels_small_m_rows(&work->kernels));
    for (; c.panel < span->panel_end; c.panel += c.count) {
        c.count = call_part(span->panel_end - c.panel, h->panels);
        find_next(&c, span, after);
        c.k = 0;
        do {
            c.depth = at_most(h->k_step, g->k - c.k);
            if (c.depth) {
                take_panels(&c);
            }
            struct memory_ahead next = next_block(&c, span, after);
            pass_rows(&c, span, g->k > h->k_step || c.panel == span->panel, &next);
            c.k += c.depth;
        } while (c.k < g->k);
    }
}

void product_run_span(const struct product_work *work, const struct product_span *span, const struct product_span *after,
                      unsigned thread) {
    struct product_lane lane = call_lane(work, thread);
    struct product_call c = {.work = work,
                             .group = span->group,
                             .lane = &lane,
                             .panel = span->panel,
                             .line_bytes = work->holding.line_bytes,
                             .sums = lane.sums};
    if (product_stays_unpacked(work, span)) {
        product_run_unpacked(c, span);
    } else {
        run_packed(c, span, after);
    }
    stream_end(); // before the team hears that the task is done
}
