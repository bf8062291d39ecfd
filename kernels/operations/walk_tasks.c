// A span has as many rows as one kernel call takes, so that weights are read once for many rows. Where that leaves threads idle
// (one group with many rows, such as shared experts and routers), spans are shorter. Tasks of one run follow each other, so that
// threads share the run's panels in the last-level cache.
//
// Some kernels cache converted rows between calls. Converting them again would cost more than reading weights again. A span then
// has the rows that fit into that cache, and one task multiplies it by all panels (a full span). The last spans are split into runs
// nevertheless, so that all threads end at about the same time.
#include "kernels/operations/walk_tasks.h"

#include "base/err.h"
#include "base/sizes.h"

enum {
    SPAN_ROWS_MIN = EXPERTD_SCHEDULE_CALL_ROWS_MIN,
    SMALL_M_ROWS = 12,        // bound by reading panels, for backends without a small_m of their own
    ZERO_ROWS = 48,           // rows that one task sets to 0
    CUT_SPANS_PER_THREAD = 2, // spans at the end that are split into runs
};

size_t walk_spans_bytes(size_t m, size_t num_groups) {
    size_t spans_max = size_plus(m / SPAN_ROWS_MIN, num_groups);
    return aligned(size_times(spans_max, sizeof(struct walk_span)));
}

// Cuts each local group's rows into spans of about equal size, at most `limit` rows. alone: spans do not share runs of panels.
static size_t make_spans(const struct expertd_grouped_matmul_args *args, size_t first_row, size_t limit, bool alone,
                         struct walk_span *spans) {
    size_t count = 0, row = first_row;
    for (size_t g = 0; g < args->num_actual_groups; g++) {
        size_t left = (size_t)args->group_sizes[args->group_offset + g], first_span = count;
        for (size_t group_spans = div_up(left, limit), pieces = group_spans; pieces > 0; pieces--) {
            size_t rows = div_up(left, pieces);
            spans[count] =
                (struct walk_span){(uint32_t)row, (uint32_t)rows, (uint32_t)g, (uint32_t)group_spans, (uint32_t)first_span};
            if (alone) {
                spans[count].group_spans = 1;
                spans[count].first_span = (uint32_t)count;
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

// Is every span so short that reading the panels bounds the speed?
static bool is_small_m(const struct walk_shape *shape, const struct walk_tasks *tasks) {
    size_t small_m = panels_small_m_rows(shape->kernels), most = small_m ? small_m : SMALL_M_ROWS;
    for (size_t i = 0; i < tasks->num_spans; i++) {
        if (tasks->spans[i].rows > most) {
            return false;
        }
    }
    return true;
}

// Panels of a run: those of one call; with small m, run_bytes of weights; fewer where threads would get too few tasks.
static size_t run_of(const struct walk_shape *shape, const struct walk_tasks *tasks, size_t wanted) {
    size_t run = shape->panels_per_call;
    if (tasks->small_m && shape->panel_bytes > 0) {
        bool by_macrokernel = panels_have_macrokernel(shape->kernels) && panels_small_m_rows(shape->kernels) == 0;
        size_t least = by_macrokernel ? run : 1;
        run = div_up(shape->schedule->run_bytes, shape->panel_bytes);
        run = run < least ? least : run;
    }
    size_t longest = tasks->num_spans * tasks->panels / wanted;
    run = run > longest ? longest : run;
    return run ? run : 1;
}

// Rows that the kernel caches between calls, over all of K. 0: it caches none, or so few that weights would be read too often.
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
    return cached >= SPAN_ROWS_MIN && !kernels->single_panels ? cached : 0;
}

// The number of full spans: all but the last ones. Those have at least as many rows as one longest span per thread, so that all
// threads have work while one of them finishes its last full span.
static size_t count_full_spans(const struct walk_tasks *tasks, size_t threads) {
    size_t longest = 0, full = tasks->num_spans, rows = 0;
    for (size_t i = 0; i < tasks->num_spans; i++) {
        longest = longest < tasks->spans[i].rows ? tasks->spans[i].rows : longest;
    }
    while (full > 0 && (tasks->num_spans - full < CUT_SPANS_PER_THREAD * threads || rows < longest * threads)) {
        rows += tasks->spans[--full].rows;
    }
    return full;
}

void walk_tasks_make(const struct walk_shape *shape, struct walk_span *spans, struct walk_tasks *out) {
    const struct expertd_grouped_matmul_args *args = shape->args;
    size_t wanted = shape->threads > 1 ? shape->threads * shape->schedule->tasks_per_thread : 1, cached = rows_cached(shape);
    size_t limit = cached && cached < shape->schedule->call_rows ? cached : shape->schedule->call_rows;
    *out = (struct walk_tasks){.spans = spans, .panels = shape->panels, .m = args->m};
    INVARIANT(expertd_schedule_is_valid(shape->schedule)); // else there would be more spans than walk_spans_bytes allows
    out->zero_before = rows_of_groups(args, 0, args->group_offset);
    out->num_spans = make_spans(args, out->zero_before, limit, cached > 0, spans);
    if (out->num_spans * out->panels < wanted * shape->panels_per_call) {
        out->num_spans = make_spans(args, out->zero_before, SPAN_ROWS_MIN, cached > 0, spans);
    }
    out->small_m = is_small_m(shape, out);
    out->panels_per_run = run_of(shape, out, wanted);
    out->runs = div_up(out->panels, out->panels_per_run);
    out->full_spans = cached && out->runs ? count_full_spans(out, shape->threads) : 0;
    out->products = out->full_spans + (out->num_spans - out->full_spans) * out->runs;
    out->zero_from = out->zero_before + rows_of_groups(args, args->group_offset, args->group_offset + args->num_actual_groups);
    out->zero_tasks_before = div_up(out->zero_before, ZERO_ROWS);
    out->count = out->products + out->zero_tasks_before + div_up(args->m - out->zero_from, ZERO_ROWS);
}

bool walk_product(const struct walk_tasks *tasks, size_t task, struct walk_product *out) {
    if (task >= tasks->products) {
        return false; // also avoids a division by 0 runs
    }
    if (task < tasks->full_spans) {
        *out = (struct walk_product){&tasks->spans[task], 0, tasks->panels};
        return true;
    }
    size_t run = task - tasks->full_spans;
    const struct walk_span *any = &tasks->spans[tasks->full_spans + run / tasks->runs]; // of the group
    size_t in_group = run - (any->first_span - tasks->full_spans) * tasks->runs;
    size_t panel = in_group / any->group_spans * tasks->panels_per_run, end = panel + tasks->panels_per_run;
    *out = (struct walk_product){&tasks->spans[any->first_span + in_group % any->group_spans], panel,
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
