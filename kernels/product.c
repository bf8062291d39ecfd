// A task is a span of rows of one group against a run of its panels. Within it, `buffers` panels at a time are packed into the
// thread's scratch, and blocks of rows pass over them: packing is paid once for all rows of the span, the conversion of a row once
// for the panels of a buffer (once for the run where the span is a single block).
#include "kernels/product.h"

#include <string.h>

#include "kernels/backend.h"
#include "kernels/finish.h"
#include "kernels/product_lines.h"
#include "kernels/quantised.h"
#include "kernels/weights.h"

enum {
    ROW_TILE = 48,  // rows of a task at least, where spans are cut: a multiple of every tile of rows that a kernel takes but 5
    ROWS_MIN = 24,  // of a block
    RUN_PANELS = 8, // of a task at most, untold
    TASKS_PER_THREAD = 4,   // at least, so that the last ones to finish differ little
    LINES_BYTES = 1 << 20,  // of converted rows and
    PANELS_BYTES = 1 << 19, // of panels that a thread holds, untold: together they stay in L2
    BUFFERS_MAX = 64,
};

// How much a thread holds.
struct holding {
    enum dtype sum;
    size_t panel_bytes, buffers;
    size_t line_bytes, rows; // of a block; line_bytes is 0 where lines are read in place
    bool scaled;
};

struct work {
    const struct product *product;
    const struct kernel_backend *backend;
    struct holding holding;
    struct line_reader read_a, read_b;
    size_t *first_task; // [num_groups + 1]; unused where m tiles go in order
    size_t span_rows;   // at most, of a task
    size_t run_panels;  // at most, of a task
    bool m_in_order;    // a task is a run of panels of every group
    char *scratch;
    size_t scratch_bytes; // of one thread
};

// A thread's scratch.
struct lane {
    char *panels;
    char *lines;
    float *partial, *sums; // [rows, KERNEL_PANEL]
};

static size_t div_up(size_t a, size_t b) {
    return a / b + (a % b != 0);
}

static size_t aligned(size_t bytes) {
    return div_up(bytes, 64) * 64;
}

static size_t at_most(size_t a, size_t b) {
    return a < b ? a : b;
}

enum dtype product_sum_dtype(enum dtype a, enum dtype b) {
    if (a == DTYPE_I8) {
        return DTYPE_I8;
    }
    bool a_codes = dtype_size(a) == 1, b_codes = dtype_size(b) == 1;
    return (a == DTYPE_BF16 || a_codes) && (b == DTYPE_BF16 || b_codes) ? DTYPE_BF16 : DTYPE_F32;
}

static struct matmul_tiling tiling_of(const struct product *product, const struct product_limits *limits) {
    const struct matmul_options *options = product->options;
    if (options->tiling_of) {
        return options->tiling_of(options->tiling_context, limits->m, limits->k, limits->n);
    }
    return options->tiling;
}

static size_t lane_bytes(const struct holding *h) {
    return h->buffers * h->panel_bytes + aligned(h->rows * h->line_bytes) +
           (h->scaled ? 2 : 1) * h->rows * KERNEL_PANEL * sizeof(float);
}

// Buffers first give way to the limit, then rows.
static void fit_limit(struct holding *h, size_t limit) {
    while (h->buffers > 1 && lane_bytes(h) > limit) {
        h->buffers--;
    }
    while (h->rows > 1 && lane_bytes(h) > limit) {
        h->rows = h->rows / 2;
    }
}

static struct holding holding_of(const struct product *product, const struct product_limits *limits) {
    const struct matmul_options *options = product->options;
    struct holding h = {.sum = product_sum_dtype(product->a.dtype, product->b.dtype), .scaled = product->a.scale_dtype};
    h.panel_bytes = product->b_is_packed ? 0 : packed_group_bytes(h.sum, limits->k, KERNEL_PANEL);
    if (product->copy_lines_of_a || product->a.dtype != h.sum) {
        h.line_bytes = aligned(limits->k * dtype_size(h.sum)) + 64; // not a power of two apart: lines would share cache sets
    }
    size_t tm = tiling_of(product, limits).tm;
    h.rows = tm ? tm : KERNEL_CALL_ROWS;
    if (!tm && h.line_bytes) {
        size_t held = LINES_BYTES / h.line_bytes;
        h.rows = held > ROWS_MIN ? held : ROWS_MIN;
    }
    h.rows = at_most(at_most(h.rows, KERNEL_CALL_ROWS), limits->m ? limits->m : 1);
    size_t panels = div_up(limits->n, KERNEL_PANEL);
    h.buffers = options->input_buffer_count;
    if (!h.buffers) {
        h.buffers = h.panel_bytes ? PANELS_BYTES / h.panel_bytes : RUN_PANELS;
    }
    h.buffers = at_most(at_most(h.buffers ? h.buffers : 1, BUFFERS_MAX), panels ? panels : 1);
    if (options->compiler.vmem_limit_bytes) {
        fit_limit(&h, options->compiler.vmem_limit_bytes);
    }
    return h;
}

FALLIBLE product_check(const struct product *product, const struct product_limits *limits, bool gathered) {
    const struct compiler_params *compiler = &product->options->compiler;
    struct holding h = holding_of(product, limits);
    if (compiler->vmem_limit_bytes && lane_bytes(&h) > compiler->vmem_limit_bytes) {
        FAIL_FIELD(ERR_INVALID, "vmem_limit_bytes",
                   "vmem_limit_bytes is %zu, but a thread needs at least %zu: a row and a panel of %d columns over k = %zu",
                   compiler->vmem_limit_bytes, lane_bytes(&h), KERNEL_PANEL, limits->k);
    }
    if (!compiler->allow_input_fusion[0] && (gathered || h.line_bytes)) {
        FAIL_FIELD(ERR_INVALID, "allow_input_fusion",
                   "allow_input_fusion of lhs is false, but it is gathered, cast or transposed, which is part of the load here");
    }
    if (!compiler->allow_input_fusion[1] && !product->b_is_packed) {
        FAIL_FIELD(ERR_INVALID, "allow_input_fusion",
                   "allow_input_fusion of rhs is false, but plain weights are packed as part of the load; pack them first");
    }
    return OK;
}

static size_t lists_bytes(size_t num_groups) {
    return aligned((num_groups + 1) * sizeof(size_t)) + 2 * aligned(LINE_CODES * sizeof(uint16_t));
}

size_t product_workspace_bytes(const struct product *product, const struct product_limits *limits, size_t num_groups,
                               unsigned threads) {
    struct holding h = holding_of(product, limits);
    return lists_bytes(num_groups) + threads * aligned(lane_bytes(&h));
}

static struct lane lane_of(const struct work *work, unsigned thread) {
    const struct holding *h = &work->holding;
    char *at = work->scratch + thread * work->scratch_bytes;
    struct lane lane = {.panels = at};
    lane.lines = at += h->buffers * h->panel_bytes;
    lane.sums = (float *)(at += aligned(h->rows * h->line_bytes));
    lane.partial = h->scaled ? lane.sums + h->rows * KERNEL_PANEL : lane.sums;
    return lane;
}

// Rows [row, row + rows) of a group against one panel.
struct tile {
    const struct work *work;
    const struct product_group *group;
    const struct lane *lane;
    const void *const *x;
    const char *panel;
    size_t row, rows;
    size_t column, columns;
};

static char *out_at(const struct tile *t, size_t r) {
    const struct product_group *g = t->group;
    return (char *)g->out + ((t->row + r) * g->out_stride + t->column) * dtype_size(t->work->product->out_dtype);
}

static const char *c_at(const struct tile *t, size_t r) {
    const struct product_group *g = t->group;
    return g->c ? (const char *)g->c + ((t->row + r) * g->c_stride + t->column) * dtype_size(t->work->product->out_dtype) : NULL;
}

static void multiply_i8(const struct tile *t, int32_t *out, size_t out_stride) {
    struct panel_i8_args args = {.x = (const int8_t *const *)t->x,
                                 .rows = t->rows,
                                 .panel = t->panel,
                                 .k = t->group->k,
                                 .out = out,
                                 .out_stride = out_stride,
                                 .columns = t->columns};
    t->work->backend->panel_i8(&args);
}

static void multiply_float(const struct tile *t, float *out, size_t out_stride) {
    struct panel_args args = {.x = t->x,
                              .rows = t->rows,
                              .panel = t->panel,
                              .k = t->group->k,
                              .out = out,
                              .out_stride = out_stride,
                              .columns = t->columns};
    const struct kernel_backend *backend = t->work->backend;
    const struct quantised_format *format = t->work->product->b_format;
    bool wide = t->work->holding.sum == DTYPE_F32;
    if (format) {
        (wide ? backend->quantised_f32 : backend->quantised_bf16)(&args, format);
    } else {
        (wide ? backend->panel_f32 : backend->panel_bf16)(&args);
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

// Each K block's partial sums, then one fma with the product of its scales.
static void multiply_scaled(const struct tile *t) {
    const struct product *p = t->work->product;
    size_t k = t->group->k, step = p->k_per_scale ? p->k_per_scale : k;
    const void *x[KERNEL_CALL_ROWS];
    float row_scales[KERNEL_CALL_ROWS], column_scales[KERNEL_PANEL] = {0};
    memset(t->lane->sums, 0, t->rows * KERNEL_PANEL * sizeof(float));
    for (size_t k0 = 0, block = 0; k0 < k; k0 += step, block++) {
        for (size_t r = 0; r < t->rows; r++) {
            x[r] = (const uint16_t *)t->x[r] + k0;
        }
        struct panel_args args = {.x = x,
                                  .rows = t->rows,
                                  .panel = (const uint16_t *)t->panel + k0 * KERNEL_PANEL,
                                  .k = at_most(step, k - k0),
                                  .out = t->lane->partial,
                                  .out_stride = KERNEL_PANEL,
                                  .columns = KERNEL_PANEL};
        t->work->backend->panel_bf16(&args);
        read_scales(&p->a, &t->group->a, t->row, t->rows, block, row_scales);
        read_scales(&p->b, &t->group->b, t->column, t->columns, block, column_scales);
        struct add_scaled_args scaled = {t->lane->partial, t->rows, row_scales, column_scales, t->lane->sums};
        t->work->backend->add_scaled(&scaled);
    }
}

static void finish_i32(const struct tile *t) {
    const int32_t *sums = (const int32_t *)t->lane->sums;
    for (size_t r = 0; r < t->rows; r++) {
        int32_t *out = (int32_t *)out_at(t, r);
        const int32_t *c = (const int32_t *)c_at(t, r);
        for (size_t i = 0; i < t->columns; i++) {
            uint32_t add = t->group->beta != 0.0f ? (uint32_t)c[i] : 0; // wraps, as the sums do
            out[i] = (int32_t)((uint32_t)sums[r * KERNEL_PANEL + i] + add);
        }
    }
}

static void finish_float(const struct tile *t) {
    for (size_t r = 0; r < t->rows; r++) {
        struct finish_args args = {
            .sums = t->lane->sums + r * KERNEL_PANEL,
            .count = t->columns,
            .alpha = t->group->alpha,
            .beta = t->group->beta,
            .c = c_at(t, r),
            .dtype = t->work->product->out_dtype,
            .out = out_at(t, r),
        };
        t->work->backend->finish(&args);
    }
}

static void run_tile(const struct tile *t) {
    const struct product_group *g = t->group;
    const struct holding *h = &t->work->holding;
    enum dtype out = t->work->product->out_dtype;
    bool plain = !h->scaled && g->alpha == 1.0f && g->beta == 0.0f;
    if (h->sum == DTYPE_I8) {
        multiply_i8(t, plain ? (int32_t *)out_at(t, 0) : (int32_t *)t->lane->sums, plain ? g->out_stride : KERNEL_PANEL);
        if (!plain) {
            finish_i32(t);
        }
        return;
    }
    if (plain && out == DTYPE_F32) {
        multiply_float(t, (float *)out_at(t, 0), g->out_stride);
        return;
    }
    if (h->scaled) {
        multiply_scaled(t);
    } else {
        multiply_float(t, t->lane->sums, KERNEL_PANEL);
    }
    finish_float(t);
}

// Pointers to rows [row, row + rows), which are converted first where they cannot be read in place.
static void point_to_rows(const struct work *work, const struct product_group *g, const struct lane *lane, size_t row, size_t rows,
                          const void **x) {
    const struct holding *h = &work->holding;
    size_t size = dtype_size(h->sum);
    if (h->line_bytes && g->k) {
        struct line_range range = {&g->a, g->a_rows, row, rows, 0, g->k};
        lines_read(&work->read_a, &range, lane->lines, h->line_bytes / size);
    }
    for (size_t r = 0; r < rows; r++) {
        size_t line = g->a_rows ? g->a_rows[row + r] : row + r;
        bool held = h->line_bytes || g->k == 0; // no element: no pointer into what may be no memory
        x[r] = held ? lane->lines + r * h->line_bytes : (const char *)g->a.data + line * g->a.line_stride * size;
    }
}

// Panel `panel` of the group: where it was packed at load, or packed into buffer `buffer` now.
static const char *take_panel(const struct work *work, const struct product_group *g, const struct lane *lane, size_t panel,
                              size_t buffer) {
    if (g->b_packed) {
        const struct quantised_format *format = work->product->b_format;
        size_t bytes =
            format ? quantised_group_bytes(format, g->k, KERNEL_PANEL) : packed_group_bytes(work->holding.sum, g->k, KERNEL_PANEL);
        return (const char *)g->b_packed + panel * bytes;
    }
    char *packed = lane->panels + buffer * work->holding.panel_bytes;
    size_t column = panel * KERNEL_PANEL;
    struct line_range range = {&g->b, NULL, column, at_most(g->n - column, KERNEL_PANEL), 0, g->k};
    if (g->k) {
        lines_pack(&work->read_b, &range, packed);
    } else {
        memset(packed, 0, packed_group_bytes(work->holding.sum, 0, KERNEL_PANEL)); // int8's offsets
    }
    return packed;
}

// Rows [row, end) of a group against panels [panel, panel_end).
struct span {
    const struct product_group *group;
    size_t row, end;
    size_t panel, panel_end;
};

static void run_span(const struct work *work, const struct span *span, unsigned thread) {
    struct lane lane = lane_of(work, thread);
    const struct product_group *g = span->group;
    size_t blocks = div_up(span->end - span->row, work->holding.rows), rows = span->end - span->row;
    const char *panels[BUFFERS_MAX];
    const void *x[KERNEL_CALL_ROWS];
    for (size_t first = span->panel, count; first < span->panel_end; first += count) {
        count = at_most(work->holding.buffers, span->panel_end - first);
        for (size_t b = 0; b < count; b++) {
            panels[b] = take_panel(work, g, &lane, first + b, b);
        }
        struct tile tile = {.work = work, .group = g, .lane = &lane, .x = x, .row = span->row};
        for (size_t block = 0; block < blocks; block++, tile.row += tile.rows) {
            tile.rows = rows / blocks + (block < rows % blocks);
            if (blocks > 1 || first == span->panel) {
                point_to_rows(work, g, &lane, tile.row, tile.rows, x);
            }
            for (size_t b = 0; b < count; b++) {
                tile.panel = panels[b];
                tile.column = (first + b) * KERNEL_PANEL;
                tile.columns = at_most(g->n - tile.column, KERNEL_PANEL);
                run_tile(&tile);
            }
        }
    }
}

static size_t runs_of(const struct work *work, const struct product_group *g) {
    return div_up(div_up(g->n, KERNEL_PANEL), work->run_panels);
}

static size_t spans_of(const struct work *work, const struct product_group *g) {
    return div_up(g->m, work->span_rows);
}

static struct span span_of(const struct work *work, const struct product_group *g, size_t span, size_t run) {
    size_t spans = spans_of(work, g), panels = div_up(g->n, KERNEL_PANEL);
    size_t short_ones = g->m / spans, longer = g->m % spans; // spans as even as can be
    size_t row = span * short_ones + at_most(span, longer);
    return (struct span){.group = g,
                         .row = row,
                         .end = row + short_ones + (span < longer),
                         .panel = run * work->run_panels,
                         .panel_end = at_most((run + 1) * work->run_panels, panels)};
}

// The group that task number `task` belongs to: the last whose first task is not past it.
static size_t group_of(const struct work *work, size_t task) {
    size_t low = 0, high = work->product->num_groups;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (work->first_task[middle] <= task) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static void run_task(void *context, size_t task, unsigned thread) {
    const struct work *work = context;
    size_t g = group_of(work, task);
    const struct product_group *group = &work->product->groups[g];
    size_t runs = runs_of(work, group), local = task - work->first_task[g];
    struct span span = span_of(work, group, local / runs, local % runs);
    run_span(work, &span, thread);
}

// Every m tile of a run of columns, in order.
static void run_columns(void *context, size_t run, unsigned thread) {
    const struct work *work = context;
    for (size_t g = 0; g < work->product->num_groups; g++) {
        const struct product_group *group = &work->product->groups[g];
        for (size_t s = 0; group->m && run < runs_of(work, group) && s < spans_of(work, group); s++) {
            struct span span = span_of(work, group, s, run);
            run_span(work, &span, thread);
        }
    }
}

static size_t count_tasks(const struct work *work, size_t *first_task) {
    const struct product *p = work->product;
    size_t tasks = 0, runs_max = 0;
    for (size_t g = 0; g < p->num_groups; g++) {
        size_t runs = runs_of(work, &p->groups[g]);
        runs_max = runs > runs_max ? runs : runs_max;
        first_task[g] = tasks;
        tasks += runs * spans_of(work, &p->groups[g]);
    }
    first_task[p->num_groups] = tasks;
    return work->m_in_order ? runs_max : tasks;
}

// Whole groups and long runs, as long as they keep the team busy; then shorter runs; then row tiles.
static size_t split(struct work *work, const struct product_limits *limits, unsigned threads) {
    const struct matmul_options *options = work->product->options;
    struct matmul_tiling tiling = tiling_of(work->product, limits);
    size_t wanted = threads > 1 ? (size_t)threads * TASKS_PER_THREAD : 1;
    size_t all_rows = limits->m ? limits->m : 1, all_panels = limits->n ? div_up(limits->n, KERNEL_PANEL) : 1;
    bool n_in_order = options->compiler.dimension_semantics[0] == DIMENSION_ARBITRARY;
    work->m_in_order = options->compiler.dimension_semantics[1] == DIMENSION_ARBITRARY;
    work->span_rows = all_rows;
    work->run_panels = tiling.tn ? div_up(tiling.tn, KERNEL_PANEL) : RUN_PANELS;
    work->run_panels = n_in_order ? all_panels : work->run_panels;
    size_t tasks = count_tasks(work, work->first_task);
    while (tasks < wanted && !n_in_order && work->run_panels > 1) {
        work->run_panels = work->run_panels / 2;
        tasks = count_tasks(work, work->first_task);
    }
    while (tasks < wanted && !work->m_in_order && work->span_rows > ROW_TILE) {
        work->span_rows = div_up(work->span_rows / 2, ROW_TILE) * ROW_TILE;
        tasks = count_tasks(work, work->first_task);
    }
    return tasks;
}

void product_run(const struct product *product, const struct product_limits *limits, struct team *team, void *workspace) {
    char *at = workspace;
    unsigned threads = team ? team_threads(team) : 1;
    struct work work = {.product = product, .backend = kernel_selected(), .holding = holding_of(product, limits)};
    work.first_task = (size_t *)at;
    at += aligned((product->num_groups + 1) * sizeof(size_t));
    const struct product_format *formats[] = {&product->a, &product->b};
    struct line_reader *readers[] = {&work.read_a, &work.read_b};
    for (size_t i = 0; i < 2; i++, at += aligned(LINE_CODES * sizeof(uint16_t))) {
        *readers[i] = (struct line_reader){formats[i]->dtype, work.holding.sum, NULL};
        if (formats[i]->scale_dtype) {
            line_codes_fill(formats[i]->dtype, (uint16_t *)at);
            readers[i]->codes = (uint16_t *)at;
        }
    }
    work.scratch = at;
    work.scratch_bytes = aligned(lane_bytes(&work.holding));
    size_t tasks = split(&work, limits, threads);
    team_run(team, tasks, work.m_in_order ? run_columns : run_task, &work);
}
