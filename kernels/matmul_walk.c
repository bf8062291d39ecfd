// A task is a span of rows of one group against a run of its panels. Spans are as long as a kernel call takes, so that weights are
// read once for many rows; where that leaves threads idle (one group and many rows: shared experts, routers) they are shorter. All
// spans of a group take a run of panels before the next run is begun, so that its threads share what they read of the last cache.
// A thread claims its next task before it starts the one at hand, so that it can fetch the next panels into its cache meanwhile.
// None of these choices can be seen in a bit of the output.
#include "kernels/matmul_walk.h"

#include <stdatomic.h>

#include "kernels/cpu/stream.h"
#include "kernels/panel_kernels.h"
#include "kernels/quantised.h"
#include "kernels/sizes.h"
#include "kernels/tuning.h"

enum {
    SPAN_ROWS_MIN = SCHEDULE_CALL_ROWS_MIN,
    FEW_ROWS = 12, // are multiplied in one go, as fast as memory gives the panels, where there is no group kernel
    ZERO_ROWS = 48,
    FETCHED_ROWS_BYTES = 128 << 10, // at most, so that they and the panels stay in L2
    SUMS_BYTES = KERNEL_CALL_ROWS * KERNEL_SUMS * sizeof(float),
};
_Static_assert(SUMS_BYTES + KERNEL_SCRATCH_BYTES <= TEAM_SCRATCH_BYTES, "a thread's scratch");

struct walk_span {
    uint32_t first_row, rows;
    uint32_t group;            // local
    uint32_t siblings, eldest; // spans of the same group, and the index of the first of them
};

// An operand as the kernels read it.
struct walk_operand {
    void *const *data; // [groups]
    size_t panel_bytes;
    struct panel_kernels kernels;
};

struct walk_work {
    const struct matmul_walk *walk;
    struct walk_operand operand[WALK_OPERANDS];
    size_t k, n, element; // bytes of an element of lhs
    struct matmul_schedule schedule;
    const struct walk_span *spans;
    size_t num_spans;
    size_t panels, panels_per_run, runs;
    size_t zero_before, zero_from; // rows [0, zero_before) and [zero_from, m) belong to no local group
    size_t zero_tasks_before;      // then those from zero_from on
    size_t tasks;
    struct team *team;
    _Atomic size_t claimed;
};

size_t matmul_walk_scratch_bytes(size_t m, size_t num_groups) {
    size_t spans_max = size_plus(m / SPAN_ROWS_MIN, num_groups);
    return aligned(size_times(spans_max, sizeof(struct walk_span)));
}

// Each local group's rows in spans of at most `limit`, as even as can be.
static size_t make_spans(const struct grouped_matmul_args *args, size_t first_row, size_t limit, struct walk_span *spans) {
    size_t count = 0, row = first_row;
    for (size_t g = 0; g < args->num_actual_groups; g++) {
        size_t left = (size_t)args->group_sizes[args->group_offset + g];
        uint32_t siblings = (uint32_t)div_up(left, limit), eldest = (uint32_t)count;
        for (size_t pieces = siblings; pieces > 0; pieces--) {
            size_t rows = div_up(left, pieces);
            spans[count++] = (struct walk_span){(uint32_t)row, (uint32_t)rows, (uint32_t)g, siblings, eldest};
            row += rows;
            left -= rows;
        }
    }
    return count;
}

static size_t rows_of_groups(const struct grouped_matmul_args *args, size_t begin, size_t end) {
    size_t rows = 0;
    for (size_t g = begin; g < end; g++) {
        rows += (size_t)args->group_sizes[g];
    }
    return rows;
}

static size_t panels_per_call(const struct walk_work *work) {
    return KERNEL_GROUP / work->walk->operands;
}

// Few enough for reading to be what counts; where group kernels take any number of rows, as few as elsewhere a panel kernel does.
static bool is_few(const struct walk_work *work) {
    size_t few = panels_few_rows(&work->operand[0].kernels), most = few ? few : FEW_ROWS;
    for (size_t i = 0; i < work->num_spans; i++) {
        if (work->spans[i].rows > most) {
            return false;
        }
    }
    return true;
}

// Panels of a task: what a call takes, or a long read where there are few rows; less where threads would have too few tasks.
static size_t run_of(const struct walk_work *work, size_t wanted) {
    const struct walk_operand *operand = &work->operand[0];
    size_t bytes = operand->panel_bytes * work->walk->operands;
    size_t run = panels_per_call(work);
    if (is_few(work) && bytes > 0) {
        bool by_groups = panels_go_by_groups(&operand->kernels) && panels_few_rows(&operand->kernels) == 0; // few rows too
        size_t least = by_groups ? run : 1;
        run = div_up(work->schedule.run_bytes, bytes);
        run = run < least ? least : run;
    }
    size_t longest = work->num_spans * work->panels / wanted;
    run = run > longest ? longest : run;
    return run ? run : 1;
}

static void split(struct walk_work *work, unsigned threads, struct walk_span *spans) {
    const struct grouped_matmul_args *args = work->walk->args;
    struct schedule_class class = tuning_class(args, threads);
    work->schedule = args->schedule ? *args->schedule : tuning_schedule(&class);
    size_t wanted = threads > 1 ? (size_t)threads * work->schedule.tasks_per_thread : 1;
    INVARIANT(schedule_is_valid(&work->schedule)); // else there are more spans than there is room for
    work->zero_before = rows_of_groups(args, 0, args->group_offset);
    work->panels = div_up(work->n, KERNEL_PANEL);
    work->spans = spans;
    work->num_spans = make_spans(args, work->zero_before, work->schedule.call_rows, spans);
    if (work->num_spans * work->panels < wanted * panels_per_call(work)) {
        work->num_spans = make_spans(args, work->zero_before, SPAN_ROWS_MIN, spans);
    }
    work->panels_per_run = run_of(work, wanted);
    work->runs = div_up(work->panels, work->panels_per_run);
    work->zero_from = work->zero_before + rows_of_groups(args, args->group_offset, args->group_offset + args->num_actual_groups);
    work->zero_tasks_before = div_up(work->zero_before, ZERO_ROWS);
    work->tasks = work->num_spans * work->runs + work->zero_tasks_before + div_up(args->m - work->zero_from, ZERO_ROWS);
}

static const void *panel_at(const struct walk_work *work, size_t operand, size_t group, size_t panel) {
    const struct walk_operand *o = &work->operand[operand];
    return (const char *)o->data[group] + panel * o->panel_bytes;
}

// Columns of `count` panels from `panel` on: the last one may be short.
static size_t columns_from(const struct walk_work *work, size_t panel, size_t count) {
    size_t column = panel * KERNEL_PANEL, columns = count * KERNEL_PANEL;
    return work->n - column < columns ? work->n - column : columns;
}

// The panels of one call: those of each operand one after another.
static size_t list_panels(const struct walk_work *work, size_t group, size_t first, size_t count, const void **panels) {
    size_t listed = 0;
    for (size_t i = 0; i < work->walk->operands; i++) {
        for (size_t p = first; p < first + count; p++) {
            panels[listed++] = panel_at(work, i, group, p);
        }
    }
    return listed;
}

// A call: a span against a few neighbouring panels of each operand.
struct walk_call {
    const struct walk_span *span;
    bool rows_kept;          // the thread's last call was for these rows
    size_t panel, count;     // of each operand
    const void *const *x;    // [span->rows]
    const void *const *next; // the panels after these; NULL: none
    float *sums;
    void *scratch;
    size_t scratch_more; // beyond KERNEL_SCRATCH_BYTES
};

static void multiply_few(const struct walk_work *work, const struct walk_call *call) {
    for (size_t i = 0; i < work->walk->operands; i++) {
        for (size_t p = 0; p < call->count; p++) {
            struct panel_args args = {
                .x = call->x,
                .rows = call->span->rows,
                .panel = panel_at(work, i, call->span->group, call->panel + p),
                .k = work->k,
                .out = call->sums + (i * call->count + p) * KERNEL_PANEL,
                .out_stride = KERNEL_SUMS,
                .columns = columns_from(work, call->panel + p, 1),
            };
            multiply_panel(&work->operand[i].kernels, &args);
        }
    }
}

static void multiply_many(const struct walk_work *work, const struct walk_call *call) {
    const void *panels[KERNEL_GROUP];
    struct panel_group_args args = {
        .x = call->x,
        .rows = call->span->rows,
        .panels = panels,
        .count = list_panels(work, call->span->group, call->panel, call->count, panels),
        .k = work->k,
        .sums = call->sums,
        .scratch = call->scratch,
        .next = call->next,
        .rows_kept = call->rows_kept,
        .scratch_more = call->scratch_more,
    };
    multiply_panels(&work->operand[0].kernels, &args);
}

static bool is_many(const struct panel_kernels *kernels, size_t rows) {
    return panels_go_by_groups(kernels) && rows > panels_few_rows(kernels);
}

static void multiply(const struct walk_work *work, const struct walk_call *call) {
    if (work->k == 0) { // and panels that may be nowhere
        memset(call->sums, 0, call->span->rows * KERNEL_SUMS * sizeof *call->sums);
    } else if (is_many(&work->operand[0].kernels, call->span->rows)) {
        multiply_many(work, call);
    } else {
        multiply_few(work, call);
    }
    struct walk_sums sums = {
        .first_row = call->span->first_row,
        .rows = call->span->rows,
        .group = call->span->group,
        .column = call->panel * KERNEL_PANEL,
        .columns = columns_from(work, call->panel, call->count),
        .sums = {call->sums, call->sums + call->count * KERNEL_PANEL},
    };
    work->walk->finish(work->walk->context, &sums);
}

static const void *lhs_row(const struct walk_work *work, size_t row) {
    const struct grouped_matmul_args *args = work->walk->args;
    size_t index = args->lhs_rows ? args->lhs_rows[row] : row;
    return (const char *)args->lhs + index * args->lhs_stride * work->element;
}

// Where a task begins; NULL: it is no product.
static const struct walk_span *task_span(const struct walk_work *work, size_t task, size_t *panel) {
    if (task >= work->num_spans * work->runs) {
        return NULL; // there may be no runs at all to divide by
    }
    const struct walk_span *any = &work->spans[task / work->runs]; // of the group
    size_t in_group = task - any->eldest * work->runs;
    *panel = in_group / any->siblings * work->panels_per_run;
    return &work->spans[any->eldest + in_group % any->siblings];
}

static size_t call_panels(const struct walk_work *work, size_t panel, size_t end) {
    size_t most = panels_per_call(work);
    size_t limit = end < work->panels ? end : work->panels;
    return limit - panel < most ? limit - panel : most;
}

// The panels that this thread takes after those up to `panel`: of the same task, or of its next one. False where there are none,
// or fewer than `count`.
static bool next_panels(const struct walk_work *work, const struct walk_call *call, size_t end, size_t next_task,
                        const void **panels) {
    size_t panel = call->panel + call->count;
    const struct walk_span *span = call->span;
    if (panel >= end || panel >= work->panels) {
        span = next_task < work->tasks ? task_span(work, next_task, &panel) : NULL;
        end = panel + work->panels_per_run;
    }
    if (!span || !work->k || call_panels(work, panel, end) < call->count) {
        return false;
    }
    list_panels(work, span->group, panel, call->count, panels);
    return true;
}

// The rows that a thread's scratch holds something of.
struct walk_kept_rows {
    const void *x[KERNEL_CALL_ROWS];
    size_t rows;
};

// A thread's.
struct walk_memory {
    char *sums;  // SUMS_BYTES, and the kernels' scratch behind them
    size_t more; // bytes of that beyond KERNEL_SCRATCH_BYTES
    struct walk_kept_rows kept;
};

// Are they kept? They are from now on.
static bool rows_kept(struct walk_kept_rows *kept, const void *const *x, size_t rows) {
    if (kept->rows == rows && memcmp(kept->x, x, rows * sizeof *x) == 0) {
        return true;
    }
    memcpy(kept->x, x, rows * sizeof *x);
    kept->rows = rows;
    return false;
}

// The rows of the next task's span into L2, where they are others: the last product left them anywhere.
static void fetch_next_rows(const struct walk_work *work, const struct walk_span *span, size_t next_task) {
    size_t panel, bytes = work->k * work->element;
    const struct walk_span *next = task_span(work, next_task, &panel);
    if (!next || next == span || next->rows * bytes > FETCHED_ROWS_BYTES) {
        return;
    }
    for (size_t r = 0; r < next->rows; r++) {
        const char *x = lhs_row(work, next->first_row + r);
        for (size_t at = 0; at < bytes; at += STREAM_LINE) {
            __builtin_prefetch(x + at, 0, 2);
        }
    }
}

static void run_product(const struct walk_work *work, const struct walk_span *span, size_t panel, size_t next_task,
                        struct walk_memory *memory) {
    const void *x[KERNEL_CALL_ROWS], *next[KERNEL_GROUP];
    for (size_t r = 0; r < span->rows; r++) {
        x[r] = lhs_row(work, span->first_row + r);
    }
    const struct panel_kernels *kernels = &work->operand[0].kernels;
    if (is_many(kernels, span->rows)) {
        fetch_next_rows(work, span, next_task);
    }
    size_t end = panel + work->panels_per_run;
    struct walk_call call = {
        .span = span, .x = x, .sums = (float *)memory->sums, .scratch = memory->sums + SUMS_BYTES, .scratch_more = memory->more};
    for (; panel < end && panel < work->panels; panel += call.count) {
        call.panel = panel;
        call.count = call_panels(work, panel, end);
        call.next = next_panels(work, &call, end, next_task, next) ? next : NULL;
        call.rows_kept = rows_kept(&memory->kept, x, span->rows) && (span->rows <= KERNEL_QUANTISED_ROWS || !kernels->format);
        multiply(work, &call);
    }
}

static void run_zero(const struct walk_work *work, size_t task) {
    bool before = task < work->zero_tasks_before;
    size_t begin = before ? task * ZERO_ROWS : work->zero_from + (task - work->zero_tasks_before) * ZERO_ROWS;
    size_t limit = before ? work->zero_before : work->walk->args->m;
    work->walk->zero(work->walk->context, begin, limit - begin < ZERO_ROWS ? limit : begin + ZERO_ROWS);
}

static void run_tasks(struct walk_work *work, char *scratch, size_t more) {
    size_t task = atomic_fetch_add(&work->claimed, 1);
    struct walk_memory memory = {.sums = scratch, .more = more};
    while (task < work->tasks) {
        size_t next = atomic_fetch_add(&work->claimed, 1);
        size_t panel = 0;
        const struct walk_span *span = task_span(work, task, &panel);
        if (span) {
            run_product(work, span, panel, next, &memory);
        } else {
            run_zero(work, task - work->num_spans * work->runs);
        }
        task = next;
    }
}

static void run_on_thread(void *context, size_t task, unsigned thread) {
    (void)task;
    struct walk_work *work = context;
    run_tasks(work, team_scratch(work->team, thread), TEAM_SCRATCH_BYTES - SUMS_BYTES - KERNEL_SCRATCH_BYTES);
}

static void run_on_stack(void *context, size_t task, unsigned thread) {
    (void)task;
    (void)thread;
    _Alignas(64) char scratch[SUMS_BYTES + KERNEL_SCRATCH_BYTES];
    run_tasks(context, scratch, 0);
}

static struct walk_operand operand_of(const struct packed_weights *weights) {
    size_t panel_bytes = weights->format ? quantised_group_bytes(weights->format, weights->k, KERNEL_PANEL)
                                         : packed_group_bytes(weights->dtype, weights->k, KERNEL_PANEL);
    struct panel_kernels kernels = {.of = backend_kernels(kernel_selected(), weights->dtype), .format = weights->format};
    return (struct walk_operand){.data = weights->data, .panel_bytes = panel_bytes, .kernels = kernels};
}

void matmul_walk(const struct matmul_walk *walk, struct team *team, void *scratch) {
    const struct packed_weights *weights = walk->rhs[0];
    INVARIANT(walk->operands > 0 && walk->operands <= WALK_OPERANDS);
    struct walk_work work = {.walk = walk, .k = weights->k, .n = weights->n, .element = dtype_size(weights->dtype), .team = team};
    for (size_t i = 0; i < walk->operands; i++) {
        work.operand[i] = operand_of(walk->rhs[i]);
    }
    struct panel_kernels *first = &work.operand[0].kernels, *last = &work.operand[walk->operands - 1].kernels;
    // A call that takes panels of both operands is told of one format.
    first->one_by_one = first->format && last->format && !quantised_format_equal(first->format, last->format);
    unsigned threads = team_threads(team);
    split(&work, threads, scratch);
    team_run(team, work.tasks < threads ? work.tasks : threads, team ? run_on_thread : run_on_stack, &work);
}
