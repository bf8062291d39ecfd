// What a run of the engine holds, and how it is split: a task is a span of rows of one group against a run of its panels
// (product_span.c).
#include "kernels/plain/product.h"

#include <string.h>

#include "expertd/kernels/weights.h"
#include "kernels/cpu/common/nontemporal_store.h"
#include "kernels/operations/matmul_check.h"
#include "kernels/plain/product_work.h"

enum {
    ROW_TILE = 48,   // rows of a task at least, where spans are cut: a multiple of every tile of rows that a kernel takes but 5
    ROWS_MIN = 24,   // of a call
    HELD_ROWS = 480, // whose sums a thread keeps, untold: 480 KB at most
    RUN_PANELS = 8,  // of a task at most, untold
    TASKS_PER_THREAD = 4,   // at least, so that the last ones to finish differ little
    LINES_BYTES = 1 << 20,  // of converted rows and
    PANELS_BYTES = 1 << 19, // of panels that a thread holds, untold
    BLOCK_BYTES = 96 << 10, // of a panel's block of K: L2 holds four of them, what is packed next, and sums
};

enum expertd_dtype product_sum_dtype(enum expertd_dtype a, enum expertd_dtype b) {
    if (a == EXPERTD_DTYPE_I8) {
        return EXPERTD_DTYPE_I8;
    }
    bool a_codes = expertd_dtype_size(a) == 1, b_codes = expertd_dtype_size(b) == 1;
    return (a == EXPERTD_DTYPE_BF16 || a_codes) && (b == EXPERTD_DTYPE_BF16 || b_codes) ? EXPERTD_DTYPE_BF16 : EXPERTD_DTYPE_F32;
}

struct expertd_matmul_tiling product_ask_tiling(const struct expertd_matmul_options *options, size_t m, size_t k, size_t n) {
    bool asked = options->tiling_of && m && n; // else there is nothing to cut
    return asked ? options->tiling_of(options->tiling_context, m, k, n) : options->tiling;
}

static struct panel_kernels kernels_of(const struct product *product) {
    enum expertd_dtype sum = product_sum_dtype(product->a.dtype, product->b.dtype);
    return (struct panel_kernels){
        .of = backend_kernels(kernel_selected(), sum), .format = product->b_format, .layout = product->b_layout};
}

// Rows of a group that may multiply weights where they lie: none where tiling says how K is to be cut.
static size_t rows_unpacked(const struct product *product, const struct product_limits *limits, const struct product_holding *h) {
    const struct element_kernels *kernels = backend_kernels(kernel_selected(), h->sum);
    bool plain = !product->b_is_packed && !product->a.scale_dtype && !product->b.scale_dtype && limits->tiling.tk == 0;
    bool read = h->sum == EXPERTD_DTYPE_F32 || product->b.dtype == h->sum; // as they lie
    bool can = read && (kernels->n_major || kernels->k_major);
    return plain && can ? at_most(h->rows, N_MAJOR_SPAN_ROWS) : 0;
}

// k of a block: all of it for panel kernels and for panels packed at load, whose blocks are the group kernels' own business.
static size_t k_step_of(const struct product *product, const struct product_limits *limits, const struct product_holding *h) {
    size_t step = limits->tiling.tk;
    if (!h->grouped || product->b_is_packed) {
        return limits->k;
    }
    size_t unit = KERNEL_K_UNIT(kernel_selected()->arithmetic, h->sum);
    step = step ? div_up(at_most(step, limits->k), unit) * unit : BLOCK_BYTES / (EXPERTD_KERNEL_PANEL * expertd_dtype_size(h->sum));
    if (h->scaled_blocks) {
        step = div_up(step, product->k_per_scale) * product->k_per_scale;
    }
    return at_most(step, limits->k);
}

// Of a row's k. Not a power of two apart: rows would share cache sets.
static size_t converted_bytes(size_t k, enum expertd_dtype sum) {
    return aligned(k * expertd_dtype_size(sum)) + 64;
}

static struct product_holding holding_by(const struct product *product, const struct product_limits *limits, bool grouped) {
    const struct expertd_matmul_options *options = product->options;
    struct product_holding h = {.sum = product_sum_dtype(product->a.dtype, product->b.dtype), .grouped = grouped};
    h.scaled_blocks = product->a.scale_dtype && product->k_per_scale;
    h.k_step = k_step_of(product, limits, &h);
    h.panel_bytes = product->b_is_packed ? 0 : expertd_packed_group_bytes(h.sum, h.k_step, EXPERTD_KERNEL_PANEL);
    if (product->copy_lines_of_a || product->a.dtype != h.sum) {
        h.line_bytes = converted_bytes(h.k_step, h.sum);
    }
    size_t tm = limits->tiling.tm;
    h.rows = tm ? tm : KERNEL_CALL_ROWS;
    if (!tm && h.line_bytes) {
        size_t held = LINES_BYTES / h.line_bytes;
        h.rows = held > ROWS_MIN ? held : ROWS_MIN;
    }
    h.rows = at_most(at_most(h.rows, KERNEL_CALL_ROWS), limits->m ? limits->m : 1);
    h.n_major_rows = rows_unpacked(product, limits, &h);
    size_t whole = converted_bytes(limits->k, h.sum);
    h.n_major_line_bytes = h.line_bytes && h.n_major_rows && whole <= LINES_BYTES / h.n_major_rows ? whole : 0;
    h.held_rows = h.k_step < limits->k ? at_most(limits->m ? limits->m : 1, HELD_ROWS) : h.rows;
    size_t panels = div_up(limits->n, EXPERTD_KERNEL_PANEL);
    h.panels = options->input_buffer_count;
    if (!h.panels) {
        h.panels = h.panel_bytes > BLOCK_BYTES ? PANELS_BYTES / h.panel_bytes : KERNEL_PANELS_MAX;
    }
    h.panels = at_most(at_most(h.panels ? h.panels : 1, KERNEL_PANELS_MAX), panels ? panels : 1);
    h.sums_stride = grouped ? KERNEL_SUMS : h.panels * EXPERTD_KERNEL_PANEL;
    return h;
}

// Panels first give way to the limit, then rows.
static void fit_limit(struct product_holding *h, size_t limit) {
    if (product_lane_bytes(h) > limit) {
        h->n_major_rows = 0;
    }
    while (h->panels > 1 && product_lane_bytes(h) > limit) {
        h->panels--;
        h->sums_stride = h->grouped ? KERNEL_SUMS : h->panels * EXPERTD_KERNEL_PANEL;
    }
    while (h->held_rows > 1 && product_lane_bytes(h) > limit) {
        h->held_rows = h->held_rows / 2;
        h->rows = at_most(h->rows, h->held_rows);
    }
}

// By the kernels for groups of panels where there are any; where a limit leaves no room for what they need, by whichever way needs
// less.
static struct product_holding holding_of(const struct product *product, const struct product_limits *limits) {
    size_t limit = product->options->compiler.vmem_limit_bytes;
    struct panel_kernels kernels = kernels_of(product);
    bool grouped = panels_go_by_groups(&kernels);
    struct product_holding h = holding_by(product, limits, grouped);
    if (limit) {
        fit_limit(&h, limit);
    }
    if (limit && grouped && product_lane_bytes(&h) > limit) {
        struct product_holding by_panels = holding_by(product, limits, false);
        fit_limit(&by_panels, limit);
        h = product_lane_bytes(&by_panels) < product_lane_bytes(&h) ? by_panels : h;
    }
    return h;
}

FALLIBLE product_check(const struct product *product, const struct product_limits *limits, bool gathered) {
    const struct expertd_compiler_params *compiler = &product->options->compiler;
    TRY(matmul_check_tiling(&limits->tiling));
    struct product_holding h = holding_of(product, limits);
    if (compiler->vmem_limit_bytes && product_lane_bytes(&h) > compiler->vmem_limit_bytes) {
        FAIL_FIELD(
            EXPERTD_ERR_INVALID, "vmem_limit_bytes",
            "vmem_limit_bytes is %zu, but a thread needs %zu for a row, a panel of %d columns over k = %zu and what its kernels "
            "keep themselves: raise it",
            compiler->vmem_limit_bytes, product_lane_bytes(&h), EXPERTD_KERNEL_PANEL, limits->k);
    }
    if (!compiler->allow_input_fusion[0] && (gathered || h.line_bytes)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "allow_input_fusion",
                   "allow_input_fusion of lhs is false, but it is gathered, cast or transposed, which is part of the load here");
    }
    if (!compiler->allow_input_fusion[1] && (!product->b_is_packed || product->b_format)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "allow_input_fusion", "allow_input_fusion of rhs is false, but %s",
                   product->b_format ? "codes are widened as part of the load; pack them as F32 or BF16 first"
                                     : "plain weights are packed as part of the load; pack them first");
    }
    return OK;
}

static size_t list_bytes(size_t num_groups) {
    return aligned((num_groups + 1) * sizeof(size_t));
}

size_t product_workspace_bytes(const struct product *product, const struct product_limits *limits, size_t num_groups,
                               unsigned threads) {
    struct product_holding h = holding_of(product, limits);
    return list_bytes(num_groups) + threads * aligned(product_lane_bytes(&h));
}

static size_t runs_of(const struct product_work *work, const struct product_group *g) {
    return div_up(div_up(g->n, EXPERTD_KERNEL_PANEL), work->run_panels);
}

static size_t spans_of(const struct product_work *work, const struct product_group *g) {
    return div_up(g->m, work->span_rows);
}

static struct product_span span_of(const struct product_work *work, const struct product_group *g, size_t span, size_t run) {
    size_t spans = spans_of(work, g), panels = div_up(g->n, EXPERTD_KERNEL_PANEL);
    size_t short_ones = g->m / spans, longer = g->m % spans; // spans as even as can be
    size_t row = span * short_ones + at_most(span, longer);
    return (struct product_span){.group = g,
                                 .row = row,
                                 .end = row + short_ones + (span < longer),
                                 .panel = run * work->run_panels,
                                 .panel_end = at_most((run + 1) * work->run_panels, panels)};
}

// The group that task number `task` belongs to: the last whose first task is not past it.
static size_t group_of(const struct product_work *work, size_t task) {
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

static struct product_span task_span(const struct product_work *work, size_t task) {
    size_t g = group_of(work, task);
    const struct product_group *group = &work->product->groups[g];
    size_t runs = runs_of(work, group), local = task - work->first_task[g];
    return span_of(work, group, local / runs, local % runs);
}

// A thread claims its next task before it starts the one at hand, whose kernels then fetch its weights.
static void run_claimed(void *context, size_t unused, unsigned thread) {
    (void)unused;
    struct product_work *work = context;
    size_t task = atomic_fetch_add(&work->claimed, 1);
    while (task < work->tasks) {
        size_t next = atomic_fetch_add(&work->claimed, 1);
        struct product_span span = task_span(work, task), after;
        if (next < work->tasks) {
            after = task_span(work, next);
        }
        product_run_span(work, &span, next < work->tasks ? &after : NULL, thread);
        task = next;
    }
}

// Every m tile of a run of columns, in order.
static void run_columns(void *context, size_t run, unsigned thread) {
    const struct product_work *work = context;
    for (size_t g = 0; g < work->product->num_groups; g++) {
        const struct product_group *group = &work->product->groups[g];
        for (size_t s = 0; group->m && run < runs_of(work, group) && s < spans_of(work, group); s++) {
            struct product_span span = span_of(work, group, s, run);
            product_run_span(work, &span, NULL, thread);
        }
    }
}

static size_t count_tasks(const struct product_work *work, size_t *first_task) {
    const struct product *p = work->product;
    size_t tasks = 0, runs_max = 0;
    for (size_t g = 0; g < p->num_groups; g++) {
        size_t runs = p->groups[g].m ? runs_of(work, &p->groups[g]) : 0; // of a group without rows n is bounded by nothing
        runs_max = runs > runs_max ? runs : runs_max;
        first_task[g] = tasks;
        tasks += runs * spans_of(work, &p->groups[g]);
    }
    first_task[p->num_groups] = tasks;
    return work->m_in_order ? runs_max : tasks;
}

// As many runs as they are, as even as can be.
static size_t even_runs(struct product_work *work, size_t panels, size_t tasks) {
    INVARIANT(panels > 0 && work->run_panels > 0);
    size_t even = div_up(panels, div_up(panels, work->run_panels));
    if (even == work->run_panels) {
        return tasks;
    }
    work->run_panels = even;
    return count_tasks(work, work->first_task);
}

// Whole groups and long runs, as long as they keep the team busy; then shorter runs; then row tiles.
static size_t split(struct product_work *work, const struct product_limits *limits, unsigned threads) {
    const struct expertd_matmul_options *options = work->product->options;
    size_t wanted = threads > 1 ? (size_t)threads * TASKS_PER_THREAD : 1;
    size_t all_rows = limits->m ? limits->m : 1, all_panels = limits->n ? div_up(limits->n, EXPERTD_KERNEL_PANEL) : 1;
    bool n_in_order = options->compiler.dimension_semantics[0] == EXPERTD_DIMENSION_ARBITRARY;
    work->m_in_order = options->compiler.dimension_semantics[1] == EXPERTD_DIMENSION_ARBITRARY;
    work->span_rows = work->holding.k_step < limits->k ? at_most(all_rows, work->holding.held_rows) : all_rows;
    work->run_panels = work->holding.n_major_rows ? N_MAJOR_COLUMNS / EXPERTD_KERNEL_PANEL : RUN_PANELS;
    work->run_panels = limits->tiling.tn ? div_up(limits->tiling.tn, EXPERTD_KERNEL_PANEL) : work->run_panels;
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
    return even_runs(work, all_panels, tasks);
}

// Do the results outgrow the caches of a core? Their lines are best not read first then.
static bool streams(const struct product *product) {
    size_t bytes = 0, size = expertd_dtype_size(product->out_dtype);
    for (size_t g = 0; g < product->num_groups && bytes < STREAM_BYTES_MIN; g++) {
        bytes += product->groups[g].m * product->groups[g].n * size;
    }
    return bytes >= STREAM_BYTES_MIN;
}

void product_run(const struct product *product, const struct product_limits *limits, struct expertd_team *team, void *workspace) {
    char *at = workspace;
    unsigned threads = team ? expertd_team_threads(team) : 1;
    struct product_work work = {.product = product, .backend = kernel_selected(), .kernels = kernels_of(product)};
    work.holding = holding_of(product, limits);
    work.first_task = (size_t *)at;
    work.streams = streams(product);
    work.read_a = (struct line_reader){work.backend, product->a.dtype, work.holding.sum};
    work.read_b = (struct line_reader){work.backend, product->b.dtype, work.holding.sum};
    work.scratch = at + list_bytes(product->num_groups);
    work.scratch_bytes = aligned(product_lane_bytes(&work.holding));
    work.tasks = split(&work, limits, threads);
    if (work.m_in_order) {
        expertd_team_run(team, work.tasks, run_columns, &work);
    } else {
        expertd_team_run(team, at_most(work.tasks, threads), run_claimed, &work);
    }
}
