// Splits a list of products into tasks. A task is a span of rows of one group by a run of its panels (product_span.c).
#include "kernels/plain/product_engine.h"

#include "base/sizes.h"
#include "kernels/cpu/common/nontemporal_store.h"
#include "kernels/plain/product_span.h"
#include "kernels/products/matmul_check.h"

enum {
    SPAN_ROWS_MIN = 48,   // splits into equal tiles for every kernel except AMX's integer tiles of 5 rows
    RUN_PANELS = 8,       // of a task at most, where tiling gives no tn
    TASKS_PER_THREAD = 4, // at least, so that all threads end at about the same time
};

struct expertd_matmul_tiling product_tiling(const struct expertd_matmul_options *options, size_t m, size_t k, size_t n) {
    bool by_function = options->tiling_of && m && n;
    return by_function ? options->tiling_of(options->tiling_context, m, k, n) : options->tiling;
}

FALLIBLE product_check(const struct product *product, const struct product_limits *limits, bool gathered) {
    const struct expertd_compiler_params *compiler = &product->options->compiler;
    TRY(matmul_check_tiling(&limits->tiling));
    struct product_blocking blocks = product_blocking_of(product, limits);
    if (compiler->vmem_limit_bytes && thread_scratch_bytes(&blocks) > compiler->vmem_limit_bytes) {
        FAIL_FIELD(
            EXPERTD_ERR_INVALID, "vmem_limit_bytes",
            "vmem_limit_bytes is %zu, but a thread needs %zu for a row, a panel of %d columns over k = %zu and its kernels' own "
            "scratch: raise it",
            compiler->vmem_limit_bytes, thread_scratch_bytes(&blocks), EXPERTD_KERNEL_PANEL, limits->k);
    }
    if (!compiler->allow_input_fusion[0] && (gathered || blocks.row_bytes)) {
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
    struct product_blocking blocks = product_blocking_of(product, limits);
    return list_bytes(num_groups) + threads * aligned(thread_scratch_bytes(&blocks));
}

static size_t runs_of(const struct product_state *state, const struct product_group *g) {
    return div_up(div_up(g->n, EXPERTD_KERNEL_PANEL), state->run_panels);
}

static size_t spans_of(const struct product_state *state, const struct product_group *g) {
    return div_up(g->m, state->span_rows);
}

static struct product_span span_of(const struct product_state *state, const struct product_group *g, size_t span, size_t run) {
    size_t spans = spans_of(state, g), panels = div_up(g->n, EXPERTD_KERNEL_PANEL);
    size_t rows = g->m / spans, longer = g->m % spans; // the first `longer` spans have one row more
    size_t row = span * rows + at_most(span, longer);
    return (struct product_span){.group = g,
                                 .row = row,
                                 .end = row + rows + (span < longer),
                                 .panel = run * state->run_panels,
                                 .panel_end = at_most((run + 1) * state->run_panels, panels)};
}

// The group of a task, by binary search: the last group whose first task is not after it.
static size_t group_of(const struct product_state *state, size_t task) {
    size_t low = 0, high = state->product->num_groups;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (state->first_task[middle] <= task) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static struct product_span task_span(const struct product_state *state, size_t task) {
    size_t g = group_of(state, task);
    const struct product_group *group = &state->product->groups[g];
    size_t runs = runs_of(state, group), local = task - state->first_task[g];
    return span_of(state, group, local / runs, local % runs);
}

// A thread claims its next task before it runs the current one, so that the kernels can prefetch the next weights.
static void run_claimed(void *context, size_t unused, unsigned thread) {
    (void)unused;
    struct product_state *state = context;
    size_t task = atomic_fetch_add(&state->claimed, 1);
    while (task < state->tasks) {
        size_t next = atomic_fetch_add(&state->claimed, 1);
        struct product_span span = task_span(state, task), after;
        if (next < state->tasks) {
            after = task_span(state, next);
        }
        product_run_span(state, &span, next < state->tasks ? &after : NULL, thread);
        task = next;
    }
}

// One run of panels with every m tile in order.
static void run_columns(void *context, size_t run, unsigned thread) {
    const struct product_state *state = context;
    for (size_t g = 0; g < state->product->num_groups; g++) {
        const struct product_group *group = &state->product->groups[g];
        for (size_t s = 0; group->m && run < runs_of(state, group) && s < spans_of(state, group); s++) {
            struct product_span span = span_of(state, group, s, run);
            product_run_span(state, &span, NULL, thread);
        }
    }
}

static size_t count_tasks(const struct product_state *state, size_t *first_task) {
    const struct product *p = state->product;
    size_t tasks = 0, runs_max = 0;
    for (size_t g = 0; g < p->num_groups; g++) {
        size_t runs = p->groups[g].m ? runs_of(state, &p->groups[g]) : 0; // where m is 0, n has no limit
        runs_max = runs > runs_max ? runs : runs_max;
        first_task[g] = tasks;
        tasks += runs * spans_of(state, &p->groups[g]);
    }
    first_task[p->num_groups] = tasks;
    return state->m_in_order ? runs_max : tasks;
}

// Makes the runs of equal length without changing their number.
static size_t even_runs(struct product_state *state, size_t panels, size_t tasks) {
    INVARIANT(panels > 0 && state->run_panels > 0);
    size_t even = div_up(panels, div_up(panels, state->run_panels));
    if (even == state->run_panels) {
        return tasks;
    }
    state->run_panels = even;
    return count_tasks(state, state->first_task);
}

// Chooses span_rows and run_panels. Starts with all rows of a group and long runs; while there are too few tasks for the team,
// halves the runs, then the spans. Returns the number of tasks.
static size_t split(struct product_state *state, const struct product_limits *limits, unsigned threads) {
    const struct expertd_matmul_options *options = state->product->options;
    size_t wanted = threads > 1 ? (size_t)threads * TASKS_PER_THREAD : 1;
    size_t all_rows = limits->m ? limits->m : 1, all_panels = limits->n ? div_up(limits->n, EXPERTD_KERNEL_PANEL) : 1;
    bool n_in_order = options->compiler.dimension_semantics[0] == EXPERTD_DIMENSION_ARBITRARY;
    state->m_in_order = options->compiler.dimension_semantics[1] == EXPERTD_DIMENSION_ARBITRARY;
    state->span_rows = state->blocking.k_block < limits->k ? at_most(all_rows, state->blocking.sums_rows) : all_rows;
    state->run_panels = state->blocking.unpacked_rows ? UNPACKED_COLUMNS / EXPERTD_KERNEL_PANEL : RUN_PANELS;
    state->run_panels = limits->tiling.tn ? div_up(limits->tiling.tn, EXPERTD_KERNEL_PANEL) : state->run_panels;
    state->run_panels = n_in_order ? all_panels : state->run_panels;
    size_t tasks = count_tasks(state, state->first_task);
    while (tasks < wanted && !n_in_order && state->run_panels > 1) {
        state->run_panels = state->run_panels / 2;
        tasks = count_tasks(state, state->first_task);
    }
    while (tasks < wanted && !state->m_in_order && state->span_rows > SPAN_ROWS_MIN) {
        state->span_rows = div_up(state->span_rows / 2, SPAN_ROWS_MIN) * SPAN_ROWS_MIN;
        tasks = count_tasks(state, state->first_task);
    }
    return even_runs(state, all_panels, tasks);
}

// Results larger than a core's caches are written with non-temporal stores, which do not read the lines first.
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
    struct product_state state = {.product = product, .backend = kernel_selected(), .kernels = product_panel_kernels(product)};
    state.blocking = product_blocking_of(product, limits);
    state.first_task = (size_t *)at;
    state.streams = streams(product);
    state.read_a = (struct line_reader){state.backend, product->a.dtype, state.blocking.sum};
    state.read_b = (struct line_reader){state.backend, product->b.dtype, state.blocking.sum};
    state.scratch = at + list_bytes(product->num_groups);
    state.scratch_bytes = aligned(thread_scratch_bytes(&state.blocking));
    state.tasks = split(&state, limits, threads);
    if (state.m_in_order) {
        expertd_team_run(team, state.tasks, run_columns, &state);
    } else {
        expertd_team_run(team, at_most(state.tasks, threads), run_claimed, &state);
    }
}
