#include "expert/ffn.h"

#include <string.h>

#include "kernels/activation.h"
#include "kernels/grouped_matmul.h"

enum {
    FFN_RUN_BYTES = 96 << 20, // of one run's intermediate rows
    FFN_RUN_ROWS_MIN = 256,   // fewer would read the weights too often
};

static size_t run_rows(const struct ffn_sizes *sizes) {
    size_t row_bytes = (size_t)sizes->max_intermediate_size * (2 * sizeof(float) + dtype_size(sizes->dtype)) +
                       (size_t)sizes->max_hidden_size * sizeof(float);
    size_t rows = FFN_RUN_BYTES / row_bytes;
    if (rows < FFN_RUN_ROWS_MIN) {
        rows = FFN_RUN_ROWS_MIN;
    }
    return rows < sizes->max_rows ? rows : sizes->max_rows;
}

// Every piece of the scratch in order; `take` gets null memory when only the size is asked for.
static size_t lay_out(struct ffn_scratch *scratch, const struct ffn_sizes *sizes, char *memory) {
    size_t rows = run_rows(sizes);
    size_t sums = rows * sizes->max_intermediate_size * sizeof(float);
    size_t parts[] = {sums,
                      sums,
                      rows * sizes->max_intermediate_size * dtype_size(sizes->dtype),
                      rows * sizes->max_hidden_size * sizeof(float),
                      sizes->max_experts * sizeof(int32_t),
                      grouped_matmul_scratch_bytes(rows, sizes->max_experts)};
    void **places[] = {(void **)&scratch->gate, (void **)&scratch->up,          &scratch->hidden,
                       (void **)&scratch->down, (void **)&scratch->group_sizes, &scratch->matmul};
    size_t used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (memory) {
            *places[i] = memory + used;
        }
        used += arena_rounded(parts[i]);
    }
    scratch->run_rows = rows;
    return used;
}

size_t ffn_scratch_bytes(const struct ffn_sizes *sizes) {
    struct ffn_scratch unused;
    return lay_out(&unused, sizes, NULL);
}

void ffn_scratch_init(struct ffn_scratch *scratch, const struct ffn_sizes *sizes, void *memory) {
    lay_out(scratch, sizes, memory);
}

// One run: rows [first, first + rows) of the batch, whose sizes per expert are in scratch->group_sizes.
struct ffn_run {
    const struct ffn_args *args;
    struct ffn_scratch *scratch;
    struct team *team;
    size_t first, rows;
    size_t groups; // held here
};

// The expert whose rows hold row `row` of the run: a walk over the sizes, as biases are few models' and rows come in order per
// task.
static size_t group_of_row(const struct ffn_run *run, size_t row) {
    const int32_t *sizes = run->scratch->group_sizes + run->args->group_offset;
    size_t end = 0;
    for (size_t g = 0; g < run->groups; g++) {
        end += (size_t)sizes[g];
        if (row < end) {
            return g;
        }
    }
    INVARIANT(!"a row of the run");
}

static FALLIBLE multiply(const struct ffn_run *run, const struct grouped_matmul_args *args) {
    struct grouped_matmul_args full = *args;
    full.group_sizes = run->scratch->group_sizes;
    full.num_groups = run->args->num_groups;
    full.group_offset = run->args->group_offset;
    full.num_actual_groups = run->groups;
    full.m = run->rows;
    full.out_stride = args->rhs.packed->n;
    return grouped_matmul(&full, run->team, run->scratch->matmul);
}

static FALLIBLE gate_and_up(const struct ffn_run *run) {
    const struct ffn_args *a = run->args;
    struct grouped_matmul_args m = {.lhs = a->hidden, .lhs_stride = a->hidden_stride / dtype_size(a->dtype)};
    if (a->hidden_rows) {
        m.lhs_rows = a->hidden_rows + run->first;
    } else {
        m.lhs = (const char *)a->hidden + run->first * a->hidden_stride;
    }
    if (activation_is_gated(a->activation)) {
        m.rhs = rhs_packed(&a->weights->gate);
        m.out = run->scratch->gate;
        TRY(multiply(run, &m));
    }
    m.rhs = rhs_packed(&a->weights->up);
    m.out = run->scratch->up;
    return multiply(run, &m);
}

static void activate_row(void *context, size_t row, unsigned thread) {
    (void)thread;
    const struct ffn_run *run = context;
    const struct ffn_args *a = run->args;
    size_t width = a->intermediate_size;
    struct activation_args args = {
        .activation = a->activation,
        .gate = activation_is_gated(a->activation) ? run->scratch->gate + row * width : NULL,
        .up = run->scratch->up + row * width,
        .width = width,
        .dtype = a->dtype,
        .out = (char *)run->scratch->hidden + row * width * dtype_size(a->dtype),
    };
    if (a->weights->up_bias) {
        size_t group = group_of_row(run, row);
        args.up_bias = a->weights->up_bias[group];
        args.gate_bias = a->weights->gate_bias ? a->weights->gate_bias[group] : NULL;
    }
    activation_row(&args);
}

static FALLIBLE down(const struct ffn_run *run) {
    struct grouped_matmul_args m = {
        .lhs = run->scratch->hidden,
        .lhs_stride = run->args->intermediate_size,
        .rhs = rhs_packed(&run->args->weights->down),
        .out = run->scratch->down,
    };
    return multiply(run, &m);
}

// sum (+ bias) (x the row's scale), rounded to D: the row that travels.
static void finish_row(void *context, size_t row, unsigned thread) {
    (void)thread;
    const struct ffn_run *run = context;
    const struct ffn_args *a = run->args;
    float *sums = run->scratch->down + row * a->hidden_size;
    if (a->weights->down_bias) {
        const float *bias = a->weights->down_bias[group_of_row(run, row)];
        for (size_t i = 0; i < a->hidden_size; i++) {
            sums[i] += bias[i];
        }
    }
    if (a->row_scale) {
        float scale = a->row_scale[run->first + row];
        for (size_t i = 0; i < a->hidden_size; i++) {
            sums[i] *= scale;
        }
    }
    dtype_narrow(sums, a->hidden_size, a->dtype, (char *)a->results + (run->first + row) * a->results_stride);
}

static FALLIBLE run_forward(struct ffn_run *run) {
    TRY(gate_and_up(run));
    team_run(run->team, run->rows, activate_row, run);
    TRY(down(run));
    team_run(run->team, run->rows, finish_row, run);
    return OK;
}

// Cuts the next run off the batch: whole experts and pieces of experts, in order. left[g] are the rows not yet cut.
static size_t cut_run(const struct ffn_args *args, struct ffn_scratch *scratch, size_t groups, size_t first) {
    int32_t *sizes = scratch->group_sizes + args->group_offset;
    memset(scratch->group_sizes, 0, args->num_groups * sizeof *scratch->group_sizes);
    size_t begin = 0, cut = 0;
    for (size_t g = 0; g < groups && cut < scratch->run_rows; g++) {
        size_t end = begin + (size_t)args->group_sizes[g];
        size_t from = begin > first ? begin : first;
        if (end > from) {
            size_t take = end - from < scratch->run_rows - cut ? end - from : scratch->run_rows - cut;
            sizes[g] = (int32_t)take;
            cut += take;
        }
        begin = end;
    }
    return cut;
}

FALLIBLE ffn_forward(const struct ffn_args *args, struct ffn_scratch *scratch, struct team *team) {
    struct ffn_run run = {.args = args, .scratch = scratch, .team = team, .groups = args->weights->up.groups};
    for (run.first = 0; run.first < args->rows; run.first += run.rows) {
        run.rows = cut_run(args, scratch, run.groups, run.first);
        TRY(run_forward(&run));
    }
    return OK;
}
