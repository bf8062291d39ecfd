// A task is a span of rows by a run of panels (walk_tasks.h), computed by kernel calls of a few panels. A thread claims its next
// task before it runs the current one, so that it can prefetch the next panels.
#include "kernels/operations/matmul_walk.h"

#include <stdatomic.h>

#include "base/err.h"
#include "base/sizes.h"
#include "expertd/kernels/quantised.h"
#include "expertd/kernels/tuning.h"
#include "kernels/cpu/common/nontemporal_store.h"
#include "kernels/operations/walk_tasks.h"

enum {
    PREFETCH_ROWS_BYTES = 128 << 10, // at most, so that rows and panels stay in L2
    PREFETCH_OUT_BYTES = 4 << 10,    // at most
    SUMS_BYTES = KERNEL_CALL_ROWS * KERNEL_SUMS * sizeof(float),
};
_Static_assert(SUMS_BYTES + KERNEL_SCRATCH_BYTES <= EXPERTD_TEAM_SCRATCH_BYTES, "a thread's scratch");

// One operand's packed weights and their kernels.
struct walk_operand {
    void *const *data; // [groups]
    size_t panel_bytes;
    struct panel_kernels kernels;
};

struct walk_work {
    const struct matmul_walk *walk;
    struct walk_operand operand[WALK_OPERANDS];
    size_t k, n, element; // bytes of an element of lhs
    struct walk_tasks tasks;
    struct expertd_team *team;
    unsigned threads;
    _Atomic size_t claimed;
};

size_t matmul_walk_scratch_bytes(size_t m, size_t num_groups) {
    return walk_spans_bytes(m, num_groups);
}

static size_t panels_per_call(const struct walk_work *work) {
    return KERNEL_PANELS_MAX / work->walk->operands;
}

static size_t bytes_of_panels(const struct walk_work *work) {
    size_t bytes = 0;
    for (size_t i = 0; i < work->walk->operands; i++) {
        bytes += work->operand[i].panel_bytes;
    }
    return bytes;
}

static void cut(struct walk_work *work, unsigned threads, struct walk_span *spans) {
    const struct expertd_grouped_matmul_args *args = work->walk->args;
    const struct expertd_schedule_class class = expertd_tuning_class(args, threads);
    const struct expertd_matmul_schedule schedule = args->schedule ? *args->schedule : expertd_tuning_schedule(&class);
    const struct walk_shape shape = {
        .args = args,
        .kernels = &work->operand[0].kernels,
        .panels = div_up(work->n, EXPERTD_KERNEL_PANEL),
        .panels_per_call = panels_per_call(work),
        .panel_bytes = bytes_of_panels(work),
        .row_bytes = work->k * work->element,
        .threads = threads,
        .schedule = &schedule,
    };
    walk_tasks_make(&shape, spans, &work->tasks);
}

static const void *panel_at(const struct walk_work *work, size_t operand, size_t group, size_t panel) {
    const struct walk_operand *o = &work->operand[operand];
    return (const char *)o->data[group] + panel * o->panel_bytes;
}

// Columns of `count` panels from `panel` on; the last panel may be short.
static size_t columns_from(const struct walk_work *work, size_t panel, size_t count) {
    size_t column = panel * EXPERTD_KERNEL_PANEL, columns = count * EXPERTD_KERNEL_PANEL;
    return work->n - column < columns ? work->n - column : columns;
}

// The panels of one call, operand by operand.
static size_t list_panels(const struct walk_work *work, size_t group, size_t first, size_t count, const void **panels) {
    size_t listed = 0;
    for (size_t i = 0; i < work->walk->operands; i++) {
        for (size_t p = first; p < first + count; p++) {
            panels[listed++] = panel_at(work, i, group, p);
        }
    }
    return listed;
}

// A kernel call: a span by a few neighbouring panels of each operand.
struct walk_call {
    const struct walk_span *span;
    bool rows_cached;          // the thread's previous call had the same rows
    size_t panel, count;       // of each operand
    const void *const *x;      // [span->rows]
    const void *const *next;   // panels of the thread's next call, for prefetch; NULL: none
    const void *const *next_x; // [next_rows] rows of the thread's next task, where they are others
    size_t next_rows;
    float *sums;
    void *scratch;
    size_t scratch_more; // beyond KERNEL_SCRATCH_BYTES
};

static void multiply_small_m(const struct walk_work *work, const struct walk_call *call) {
    for (size_t i = 0; i < work->walk->operands; i++) {
        for (size_t p = 0; p < call->count; p++) {
            struct panel_args args = {
                .x = call->x,
                .rows = call->span->rows,
                .panel = panel_at(work, i, call->span->group, call->panel + p),
                .k = work->k,
                .out = call->sums + (i * call->count + p) * EXPERTD_KERNEL_PANEL,
                .out_stride = KERNEL_SUMS,
                .columns = columns_from(work, call->panel + p, 1),
            };
            multiply_panel(&work->operand[i].kernels, &args);
        }
    }
}

static void multiply_large_m(const struct walk_work *work, const struct walk_call *call) {
    const void *panels[KERNEL_PANELS_MAX];
    struct macrokernel_args args = {
        .x = call->x,
        .rows = call->span->rows,
        .panels = panels,
        .count = list_panels(work, call->span->group, call->panel, call->count, panels),
        .k = work->k,
        .sums = call->sums,
        .scratch = call->scratch,
        .next = call->next,
        .rows_cached = call->rows_cached,
        .scratch_more = call->scratch_more,
        .next_x = call->next_x,
        .next_rows = call->next_rows,
    };
    multiply_panels(&work->operand[0].kernels, &args);
}

static bool is_large_m(const struct panel_kernels *kernels, size_t rows) {
    return panels_have_macrokernel(kernels) && rows > panels_small_m_rows(kernels);
}

// With small m, prefetches the output lines before the kernel runs, so that the epilogue's stores do not wait for them. Larger
// outputs would be evicted again.
static void prefetch_out(const struct walk_work *work, const struct walk_call *call, size_t columns) {
    const struct expertd_grouped_matmul_args *args = work->walk->args;
    const size_t element = work->walk->out_element, bytes = columns * element;
    if (call->span->rows * bytes > PREFETCH_OUT_BYTES) {
        return;
    }
    for (size_t r = 0; r < call->span->rows; r++) {
        const size_t at = (call->span->first_row + r) * args->out_stride + call->panel * EXPERTD_KERNEL_PANEL;
        for (size_t line = 0; line < bytes; line += STREAM_LINE) {
            __builtin_prefetch((const char *)args->out + at * element + line, 1);
        }
    }
}

static void multiply(const struct walk_work *work, const struct walk_call *call) {
    prefetch_out(work, call, columns_from(work, call->panel, call->count));
    if (work->k == 0) { // panels may be NULL
        memset(call->sums, 0, call->span->rows * KERNEL_SUMS * sizeof *call->sums);
    } else if (is_large_m(&work->operand[0].kernels, call->span->rows)) {
        multiply_large_m(work, call);
    } else {
        multiply_small_m(work, call);
    }
    struct walk_sums sums = {
        .first_row = call->span->first_row,
        .rows = call->span->rows,
        .group = call->span->group,
        .column = call->panel * EXPERTD_KERNEL_PANEL,
        .columns = columns_from(work, call->panel, call->count),
        .sums = {call->sums, call->sums + call->count * EXPERTD_KERNEL_PANEL},
    };
    work->walk->epilogue(work->walk->context, &sums);
}

static const void *lhs_row(const struct walk_work *work, size_t row) {
    const struct expertd_grouped_matmul_args *args = work->walk->args;
    size_t index = args->lhs_rows ? args->lhs_rows[row] : row;
    return (const char *)args->lhs + index * args->lhs_stride * work->element;
}

static size_t call_panels(const struct walk_work *work, const struct walk_product *product) {
    size_t most = panels_per_call(work), left = product->end - product->panel;
    return left < most ? left : most;
}

// The panels of this thread's next call, in the same task or the next one. False where there are none, or fewer than in this call.
static bool next_panels(const struct walk_work *work, const struct walk_call *call, const struct walk_product *product,
                        const struct walk_product *next, const void **panels) {
    struct walk_product after = {product->span, call->panel + call->count, product->end};
    if (after.panel >= after.end) {
        after = *next;
    }
    if (!after.span || !work->k || call_panels(work, &after) < call->count) {
        return false;
    }
    list_panels(work, after.span->group, after.panel, call->count, panels);
    return true;
}

// The rows that a kernel's cache in the thread's scratch was made from.
struct walk_cached_rows {
    const void *x[KERNEL_CALL_ROWS];
    size_t rows;
};

// A thread's scratch.
struct walk_memory {
    char *sums;  // SUMS_BYTES, then the kernels' scratch
    size_t more; // bytes of the kernels' scratch beyond KERNEL_SCRATCH_BYTES
    struct walk_cached_rows cached;
};

// True where the cache is for these rows; else notes that it will be.
static bool rows_cached(struct walk_cached_rows *cached, const void *const *x, size_t rows) {
    if (cached->rows == rows && memcmp(cached->x, x, rows * sizeof *x) == 0) {
        return true;
    }
    memcpy(cached->x, x, rows * sizeof *x);
    cached->rows = rows;
    return false;
}

// Prefetches rows into L2, if they fit there together with the panels.
static void prefetch_rows(const struct walk_work *work, const void *const *x, size_t rows) {
    for (size_t r = 0; r < rows && rows * work->k * work->element <= PREFETCH_ROWS_BYTES; r++) {
        for (size_t at = 0; at < work->k * work->element; at += STREAM_LINE) {
            __builtin_prefetch((const char *)x[r] + at, 0, 2);
        }
    }
}

static size_t list_rows(const struct walk_work *work, const struct walk_span *span, const void **x) {
    for (size_t r = 0; r < span->rows; r++) {
        x[r] = lhs_row(work, span->first_row + r);
    }
    return span->rows;
}

// next: the thread's next task; its span is NULL where there is none.
static void run_product(const struct walk_work *work, struct walk_product product, const struct walk_product *next,
                        struct walk_memory *memory) {
    const void *x[KERNEL_CALL_ROWS], *next_x[KERNEL_CALL_ROWS], *next_list[KERNEL_PANELS_MAX];
    const struct panel_kernels *kernels = &work->operand[0].kernels;
    const struct walk_span *span = product.span;
    size_t rows = list_rows(work, span, x), next_rows = 0;
    if (is_large_m(kernels, rows) && next->span && next->span != span) {
        next_rows = list_rows(work, next->span, next_x);
    }
    if (!panels_prefetch_rows(kernels)) {
        prefetch_rows(work, next_x, next_rows);
    }
    struct walk_call call = {.span = span,
                             .x = x,
                             .next_x = next_x,
                             .sums = (float *)memory->sums,
                             .scratch = memory->sums + SUMS_BYTES,
                             .scratch_more = panels_scratch_more(kernels, memory->more)};
    for (; product.panel < product.end; product.panel += call.count) {
        call.panel = product.panel;
        call.count = call_panels(work, &product);
        call.next = next_panels(work, &call, &product, next, next_list) ? next_list : NULL;
        call.rows_cached = rows_cached(&memory->cached, x, rows) && rows <= panels_cached_rows(kernels);
        call.next_rows = product.panel + call.count == product.end ? next_rows : 0; // prefetched earlier, they would be evicted
        multiply(work, &call);
    }
}

static void run_zero(const struct walk_work *work, size_t task) {
    size_t begin, end;
    walk_zeros(&work->tasks, task, &begin, &end);
    work->walk->zero(work->walk->context, begin, end);
}

static size_t claim(struct walk_work *work) {
    return atomic_fetch_add(&work->claimed, 1);
}

// Claims the next task early, so that it can be prefetched. Not for the last tasks with small m, which should go to the first idle
// thread: a router's product of one row by two panels is 1.8 times as fast so. With large m, claiming late would make more threads
// convert the same rows.
static bool claim_next(struct walk_work *work, size_t *task) {
    if (work->tasks.small_m && atomic_load(&work->claimed) + work->threads > work->tasks.count) {
        return false;
    }
    *task = claim(work);
    return true;
}

static void run_tasks(struct walk_work *work, char *scratch, size_t more) {
    struct walk_memory memory = {.sums = scratch, .more = more};
    for (size_t task = claim(work), next_task; task < work->tasks.count; task = next_task) {
        const bool claimed = claim_next(work, &next_task);
        struct walk_product product, next = {0};
        if (claimed) {
            walk_product(&work->tasks, next_task, &next);
        }
        if (walk_product(&work->tasks, task, &product)) {
            run_product(work, product, &next, &memory);
        } else {
            run_zero(work, task);
        }
        next_task = claimed ? next_task : claim(work);
    }
}

static void run_on_thread(void *context, size_t task, unsigned thread) {
    (void)task;
    struct walk_work *work = context;
    run_tasks(work, expertd_team_scratch(work->team, thread), EXPERTD_TEAM_SCRATCH_BYTES - SUMS_BYTES - KERNEL_SCRATCH_BYTES);
}

static void run_on_stack(void *context, size_t task, unsigned thread) {
    (void)task;
    (void)thread;
    _Alignas(64) char scratch[SUMS_BYTES + KERNEL_SCRATCH_BYTES];
    run_tasks(context, scratch, 0);
}

static struct walk_operand operand_of(const struct expertd_packed_weights *weights) {
    size_t panel_bytes = weights->format ? expertd_quantised_group_bytes(weights->format, weights->k, EXPERTD_KERNEL_PANEL)
                                         : expertd_packed_group_bytes(weights->dtype, weights->k, EXPERTD_KERNEL_PANEL);
    return (struct walk_operand){.data = weights->data, .panel_bytes = panel_bytes, .kernels = panel_kernels_of(weights)};
}

// NULL: plain elements.
static bool same_format(const struct expertd_quantised_format *f, const struct expertd_quantised_format *g) {
    return f && g ? expertd_quantised_format_equal(f, g) : f == g;
}

void matmul_walk(const struct matmul_walk *walk, struct expertd_team *team, void *scratch) {
    const struct expertd_packed_weights *weights = walk->rhs[0];
    INVARIANT(walk->operands > 0 && walk->operands <= WALK_OPERANDS);
    struct walk_work work = {
        .walk = walk, .k = weights->k, .n = weights->n, .element = expertd_dtype_size(weights->dtype), .team = team};
    for (size_t i = 0; i < walk->operands; i++) {
        work.operand[i] = operand_of(walk->rhs[i]);
    }
    struct panel_kernels *first = &work.operand[0].kernels, *last = &work.operand[walk->operands - 1].kernels;
    // A call with panels of both operands has one format, so operands of different formats are multiplied panel by panel.
    first->single_panels = !same_format(first->format, last->format);
    unsigned threads = work.threads = expertd_team_threads(team);
    cut(&work, threads, scratch);
    expertd_team_run(team, work.tasks.count < threads ? work.tasks.count : threads, team ? run_on_thread : run_on_stack, &work);
}
