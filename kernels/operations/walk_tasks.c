// Spans are as long as a kernel call takes, so that weights are read once for many rows; where that leaves threads idle (one group
// and many rows: shared experts, routers) they are shorter. All spans of a group take a run of panels before the next run is begun,
// so that its threads share what they read of the last cache.
//
// But where the kernel keeps what it made of a span's rows, that costs more to make again than weights cost to read: a span then is
// as many rows as are kept, and one thread takes it against all panels, which are one stream of memory. The last spans are cut
// finer, so that threads end together.
#include "kernels/operations/walk_tasks.h"

#include "base/err.h"
#include "base/sizes.h"

enum {
    SPAN_ROWS_MIN = EXPERTD_SCHEDULE_CALL_ROWS_MIN,
    SMALL_M_ROWS = 12, // are multiplied in one go, as fast as memory gives the panels, where there is no kernel for few
    ZERO_ROWS = 48,
    LAST_SPANS = 2, // of each thread, that are not taken whole
};

size_t walk_spans_bytes(size_t m, size_t num_groups) {
    size_t spans_max = size_plus(m / SPAN_ROWS_MIN, num_groups);
    return aligned(size_times(spans_max, sizeof(struct walk_span)));
}

// Each local group's rows in spans of at most `limit`, as even as can be. alone: none waits for its siblings at a run of panels.
static size_t make_spans(const struct expertd_grouped_matmul_args *args, size_t first_row, size_t limit, bool alone,
                         struct walk_span *spans) {
    size_t count = 0, row = first_row;
    for (size_t g = 0; g < args->num_actual_groups; g++) {
        size_t left = (size_t)args->group_sizes[args->group_offset + g], eldest = count;
        for (size_t siblings = div_up(left, limit), pieces = siblings; pieces > 0; pieces--) {
            size_t rows = div_up(left, pieces);
            spans[count] = (struct walk_span){(uint32_t)row, (uint32_t)rows, (uint32_t)g, (uint32_t)siblings, (uint32_t)eldest};
            if (alone) {
                spans[count].siblings = 1;
                spans[count].eldest = (uint32_t)count;
            }
            count++;
            row += rows;
            left -= rows;
        }
    }
    return count;
}

static size_t rows_of_groups(const struct expertd_grouped_matmul_args *args, size_t begin, size_t end) {
    size_t rows = 0;
    for (size_t g = begin; g < end; g++) {
        rows += (size_t)args->group_sizes[g];
    }
    return rows;
}

// Few enough for reading to be what counts; where group kernels take any number of rows, as few as elsewhere a panel kernel does.
static bool is_small_m(const struct walk_shape *shape, const struct walk_tasks *tasks) {
    size_t small_m = panels_small_m_rows(shape->kernels), most = small_m ? small_m : SMALL_M_ROWS;
    for (size_t i = 0; i < tasks->num_spans; i++) {
        if (tasks->spans[i].rows > most) {
            return false;
        }
    }
    return true;
}

// Panels of a task: what a call takes, or a long read where there are few rows; less where threads would have too few tasks.
static size_t run_of(const struct walk_shape *shape, const struct walk_tasks *tasks, size_t wanted) {
    size_t run = shape->panels_per_call;
    if (tasks->small_m && shape->panel_bytes > 0) {
        bool by_groups = panels_go_by_groups(shape->kernels) && panels_small_m_rows(shape->kernels) == 0; // few rows too
        size_t least = by_groups ? run : 1;
        run = div_up(shape->schedule->run_bytes, shape->panel_bytes);
        run = run < least ? least : run;
    }
    size_t longest = tasks->num_spans * tasks->panels / wanted;
    run = run > longest ? longest : run;
    return run ? run : 1;
}

// Rows that the kernel keeps from call to call over the whole of K; 0: so few that it reads weights too often, or it keeps none.
static size_t rows_cached(const struct walk_shape *shape) {
    const struct panel_kernels *kernels = shape->kernels;
    const struct macrokernel_caching caching = panels_caching(kernels);
    const size_t most = panels_cached_rows(kernels);
    size_t cached = 0;
    if (kernels->format && kernels->of->quantised_span) {
        cached = kernels->of->quantised_span(kernels->format, shape->row_bytes / sizeof(uint16_t));
    } else if (caching.bytes && shape->row_bytes) {
        cached = caching.bytes / (shape->row_bytes * caching.times);
    }
    cached = cached < most ? cached : most;
    return cached >= SPAN_ROWS_MIN && !kernels->one_by_one ? cached : 0;
}

// Spans that one thread each takes against all panels: but for the last ones, whose rows are as many as every thread's longest
// span, so that there is work for all while one is at its last whole span.
static size_t whole_spans(const struct walk_tasks *tasks, size_t threads) {
    size_t longest = 0, whole = tasks->num_spans, rows = 0;
    for (size_t i = 0; i < tasks->num_spans; i++) {
        longest = longest < tasks->spans[i].rows ? tasks->spans[i].rows : longest;
    }
    while (whole > 0 && (tasks->num_spans - whole < LAST_SPANS * threads || rows < longest * threads)) {
        rows += tasks->spans[--whole].rows;
    }
    return whole;
}

void walk_tasks_make(const struct walk_shape *shape, struct walk_span *spans, struct walk_tasks *out) {
    const struct expertd_grouped_matmul_args *args = shape->args;
    size_t wanted = shape->threads > 1 ? shape->threads * shape->schedule->tasks_per_thread : 1, cached = rows_cached(shape);
    size_t limit = cached && cached < shape->schedule->call_rows ? cached : shape->schedule->call_rows;
    *out = (struct walk_tasks){.spans = spans, .panels = shape->panels, .m = args->m};
    INVARIANT(expertd_schedule_is_valid(shape->schedule)); // else there are more spans than there is room for
    out->zero_before = rows_of_groups(args, 0, args->group_offset);
    out->num_spans = make_spans(args, out->zero_before, limit, cached > 0, spans);
    if (out->num_spans * out->panels < wanted * shape->panels_per_call) {
        out->num_spans = make_spans(args, out->zero_before, SPAN_ROWS_MIN, cached > 0, spans);
    }
    out->small_m = is_small_m(shape, out);
    out->panels_per_run = run_of(shape, out, wanted);
    out->runs = div_up(out->panels, out->panels_per_run);
    out->whole = cached && out->runs ? whole_spans(out, shape->threads) : 0;
    out->products = out->whole + (out->num_spans - out->whole) * out->runs;
    out->zero_from = out->zero_before + rows_of_groups(args, args->group_offset, args->group_offset + args->num_actual_groups);
    out->zero_tasks_before = div_up(out->zero_before, ZERO_ROWS);
    out->count = out->products + out->zero_tasks_before + div_up(args->m - out->zero_from, ZERO_ROWS);
}

bool walk_product(const struct walk_tasks *tasks, size_t task, struct walk_product *out) {
    if (task >= tasks->products) {
        return false; // there may be no runs at all to divide by
    }
    if (task < tasks->whole) {
        *out = (struct walk_product){&tasks->spans[task], 0, tasks->panels};
        return true;
    }
    size_t run = task - tasks->whole;
    const struct walk_span *any = &tasks->spans[tasks->whole + run / tasks->runs]; // of the group
    size_t in_group = run - (any->eldest - tasks->whole) * tasks->runs;
    size_t panel = in_group / any->siblings * tasks->panels_per_run, end = panel + tasks->panels_per_run;
    *out = (struct walk_product){&tasks->spans[any->eldest + in_group % any->siblings], panel,
                                 end < tasks->panels ? end : tasks->panels};
    return true;
}

void walk_zeros(const struct walk_tasks *tasks, size_t task, size_t *begin, size_t *end) {
    size_t zeros = task - tasks->products;
    bool before = zeros < tasks->zero_tasks_before;
    size_t limit = before ? tasks->zero_before : tasks->m;
    *begin = before ? zeros * ZERO_ROWS : tasks->zero_from + (zeros - tasks->zero_tasks_before) * ZERO_ROWS;
    *end = limit - *begin < ZERO_ROWS ? limit : *begin + ZERO_ROWS;
}
