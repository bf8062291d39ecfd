// What the team does: a task is a span of rows of one group against a run of its panels, so that a panel is read once for all rows
// of the span. Spans are whole groups, so that weights are read once; where that leaves threads idle (one group and many rows:
// shared experts, routers), each row tile is a span of its own. Neither choice can be seen in a bit of the output.
#include "kernels/grouped_matmul.h"

#include <stdbool.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/group_metadata.h"
#include "kernels/grouped_matmul_general.h"
#include "kernels/quantised.h"
#include "kernels/tuning.h"

enum {
    ROW_TILE = 48, // rows: a multiple of every tile of rows that a kernel takes but 5
};

struct span {
    uint32_t first_row, rows;
    uint32_t group; // local
};

struct work {
    const struct grouped_matmul_args *args;
    panel_kernel *multiply;
    quantised_kernel *multiply_quantised; // where rhs has a format
    struct matmul_schedule schedule;
    const struct span *spans;
    size_t num_spans;
    size_t panels, panels_per_run, runs;
    size_t zero_before, zero_from; // rows [0, zero_before) and [zero_from, m) belong to no local group
    size_t zero_tasks_before;      // then those from zero_from on
};

static size_t div_up(size_t a, size_t b) {
    return a / b + (a % b != 0);
}

static size_t aligned(size_t bytes) {
    return div_up(bytes, 64) * 64;
}

size_t grouped_matmul_scratch_bytes(size_t m, size_t num_groups) {
    size_t visits = group_metadata_capacity(m, ROW_TILE, num_groups);
    return aligned((num_groups + 1) * sizeof(int32_t)) + 2 * aligned(visits * sizeof(int32_t)) +
           aligned(visits * sizeof(struct span));
}

size_t grouped_matmul_workspace_bytes(const struct grouped_matmul_args *args, const struct team *team) {
    if (grouped_matmul_is_plain_serving(args)) {
        return grouped_matmul_scratch_bytes(args->m, args->num_groups);
    }
    return grouped_matmul_general_bytes(args, team);
}

// The arrays of the metadata, and of the spans behind them, in the caller's scratch.
static struct span *lay_scratch(const struct grouped_matmul_args *args, void *scratch, struct group_metadata *metadata) {
    size_t visits = group_metadata_capacity(args->m, ROW_TILE, args->num_groups);
    char *at = scratch;
    metadata->group_offsets = (int32_t *)at;
    at += aligned((args->num_groups + 1) * sizeof(int32_t));
    metadata->group_ids = (int32_t *)at;
    at += aligned(visits * sizeof(int32_t));
    metadata->m_tile_ids = (int32_t *)at;
    at += aligned(visits * sizeof(int32_t));
    return (struct span *)at;
}

// Of `n` packed columns.
static size_t block_bytes(const struct packed_weights *rhs, size_t n) {
    return rhs->format ? quantised_group_bytes(rhs->format, rhs->k, n) : packed_group_bytes(rhs->dtype, rhs->k, n);
}

// Visits to spans: one per group, or one per visit.
static size_t make_spans(const struct grouped_matmul_args *args, const struct group_metadata *metadata, int whole_groups,
                         struct span *spans) {
    size_t count = 0;
    for (size_t v = 0; v < metadata->num_tiles; v++) {
        int32_t group = metadata->group_ids[v];
        uint32_t begin = (uint32_t)metadata->group_offsets[group], end = (uint32_t)metadata->group_offsets[group + 1];
        if (whole_groups && v > 0 && metadata->group_ids[v - 1] == group) {
            continue;
        }
        if (!whole_groups) {
            uint32_t tile = (uint32_t)metadata->m_tile_ids[v] * ROW_TILE;
            begin = tile > begin ? tile : begin;
            end = end - tile > ROW_TILE ? tile + ROW_TILE : end;
        }
        spans[count++] = (struct span){begin, end - begin, (uint32_t)group - (uint32_t)args->group_offset};
    }
    return count;
}

static size_t panel_bytes(const struct packed_weights *rhs) {
    return block_bytes(rhs, KERNEL_PANEL);
}

// Whole groups where they keep the team busy; then runs as long as that allows.
static void split(struct work *work, const struct group_metadata *metadata, unsigned threads, struct span *spans) {
    const struct grouped_matmul_args *args = work->args;
    struct schedule_class class = tuning_class(args, threads);
    work->schedule = args->schedule ? *args->schedule : tuning_schedule(&class);
    size_t wanted = threads > 1 ? (size_t)threads * work->schedule.tasks_per_thread : 1;
    INVARIANT(wanted > 0);
    work->panels = div_up(args->rhs.packed->n, KERNEL_PANEL);
    work->num_spans = make_spans(args, metadata, 1, spans);
    if (work->num_spans * work->panels < wanted) {
        work->num_spans = make_spans(args, metadata, 0, spans);
    }
    work->spans = spans;
    size_t bytes = panel_bytes(args->rhs.packed);
    size_t longest = work->num_spans * work->panels / wanted;
    size_t run = bytes ? div_up(work->schedule.run_bytes, bytes) : 1;
    run = run > longest ? longest : run;
    work->panels_per_run = run ? run : 1;
    work->runs = div_up(work->panels, work->panels_per_run);
}

static const void *lhs_row(const struct grouped_matmul_args *args, size_t row) {
    size_t index = args->lhs_rows ? args->lhs_rows[row] : row;
    return (const char *)args->lhs + index * args->lhs_stride * dtype_size(args->rhs.packed->dtype);
}

// All rows of a span against one panel, in calls as even as can be.
static void multiply_panel(const struct work *work, const struct span *span, size_t panel) {
    const struct grouped_matmul_args *args = work->args;
    const struct packed_weights *rhs = args->rhs.packed;
    size_t column = panel * KERNEL_PANEL;
    const void *x[KERNEL_CALL_ROWS];
    struct panel_args call = {
        .x = x,
        .panel = (const char *)rhs->data[span->group] + panel * panel_bytes(rhs),
        .k = rhs->k,
        .out_stride = args->out_stride,
        .columns = rhs->n - column < KERNEL_PANEL ? rhs->n - column : KERNEL_PANEL,
    };
    size_t calls = div_up(span->rows, work->schedule.call_rows);
    size_t row = span->first_row;
    for (size_t c = 0; c < calls; c++, row += call.rows) {
        call.rows = span->rows / calls + (c < span->rows % calls);
        for (size_t r = 0; r < call.rows; r++) {
            x[r] = lhs_row(args, row + r);
        }
        call.out = (float *)args->out + row * args->out_stride + column;
        if (rhs->format) {
            work->multiply_quantised(&call, rhs->format);
        } else {
            work->multiply(&call);
        }
    }
}

static void zero_rows(const struct grouped_matmul_args *args, size_t begin, size_t end) {
    for (size_t row = begin; row < end; row++) {
        memset((float *)args->out + row * args->out_stride, 0, args->rhs.packed->n * sizeof(float));
    }
}

static void zero_task(const struct work *work, size_t task) {
    int before = task < work->zero_tasks_before;
    size_t begin = before ? task * ROW_TILE : work->zero_from + (task - work->zero_tasks_before) * ROW_TILE;
    size_t limit = before ? work->zero_before : work->args->m;
    zero_rows(work->args, begin, limit - begin < ROW_TILE ? limit : begin + ROW_TILE);
}

static void run_task(void *context, size_t task, unsigned thread) {
    (void)thread;
    const struct work *work = context;
    size_t products = work->num_spans * work->runs;
    if (task >= products) {
        zero_task(work, task - products);
        return;
    }
    const struct span *span = &work->spans[task / work->runs];
    size_t first = task % work->runs * work->panels_per_run;
    for (size_t panel = first; panel < work->panels && panel < first + work->panels_per_run; panel++) {
        multiply_panel(work, span, panel);
    }
}

FALLIBLE grouped_matmul(const struct grouped_matmul_args *args, struct team *team, void *scratch) {
    if (!grouped_matmul_is_plain_serving(args)) {
        return grouped_matmul_general(args, team, scratch);
    }
    TRY(grouped_matmul_check(args));
    struct group_metadata metadata;
    struct span *spans = lay_scratch(args, scratch, &metadata);
    struct group_metadata_args groups = {
        .group_sizes = args->group_sizes,
        .num_groups = args->num_groups,
        .m = args->m,
        .tm = ROW_TILE,
        .start_group = args->group_offset,
        .num_local_groups = args->num_actual_groups,
    };
    TRY(make_group_metadata(&groups, &metadata));
    const struct kernel_backend *backend = kernel_selected();
    bool is_f32 = args->rhs.packed->dtype == DTYPE_F32;
    struct work work = {.args = args,
                        .multiply = is_f32 ? backend->panel_f32 : backend->panel_bf16,
                        .multiply_quantised = is_f32 ? backend->quantised_f32 : backend->quantised_bf16};
    split(&work, &metadata, team ? team_threads(team) : 1, spans);
    work.zero_before = (size_t)metadata.group_offsets[args->group_offset];
    work.zero_from = (size_t)metadata.group_offsets[args->group_offset + args->num_actual_groups];
    work.zero_tasks_before = div_up(work.zero_before, ROW_TILE);
    size_t zero_tasks = work.zero_tasks_before + div_up(args->m - work.zero_from, ROW_TILE);
    team_run(team, work.num_spans * work.runs + zero_tasks, run_task, &work);
    return OK;
}
