#include "expert/host/ffn.h"

#include <string.h>

#include "base/clock.h"
#include "expertd/kernels/expert_matmul.h"

enum {
    FFN_CHUNK_BYTES = 96 << 20, // upper bound for one chunk's intermediate rows
    FFN_CHUNK_ROWS_MIN = 256,   // shorter chunks would read the weights too often
};

static size_t chunk_rows(const struct ffn_sizes *sizes) {
    size_t row_bytes = sizes->max_intermediate_size * expertd_dtype_size(sizes->dtype);
    size_t rows = row_bytes ? FFN_CHUNK_BYTES / row_bytes : 0;
    if (rows < FFN_CHUNK_ROWS_MIN) {
        rows = FFN_CHUNK_ROWS_MIN;
    }
    return rows < sizes->max_rows ? rows : sizes->max_rows;
}

// Lays out all pieces of the scratch. With memory NULL the bytes are only counted.
static size_t lay_out(struct ffn_scratch *scratch, const struct ffn_sizes *sizes, char *memory) {
    size_t rows = chunk_rows(sizes);
    size_t width = sizes->max_hidden_size > sizes->max_intermediate_size ? sizes->max_hidden_size : sizes->max_intermediate_size;
    size_t parts[] = {rows * sizes->max_intermediate_size * expertd_dtype_size(sizes->dtype), sizes->max_experts * sizeof(int32_t),
                      expertd_packed_matmul_workspace_bytes(rows, sizes->max_experts),
                      sizes->ordered ? rows * width * expertd_dtype_size(sizes->dtype) : 0};
    void **pieces[] = {&scratch->inner, (void **)&scratch->group_sizes, &scratch->matmul, &scratch->ordered};
    size_t used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (memory) {
            *pieces[i] = memory + used;
        }
        used += arena_rounded(parts[i]);
    }
    scratch->chunk_rows = rows;
    return used;
}

size_t ffn_scratch_bytes(const struct ffn_sizes *sizes) {
    struct ffn_scratch unused;
    return lay_out(&unused, sizes, NULL);
}

void ffn_scratch_init(struct ffn_scratch *scratch, const struct ffn_sizes *sizes, void *memory) {
    lay_out(scratch, sizes, memory);
}

// One chunk: rows [first, first + rows) of the batch, of the experts of one run. scratch->group_sizes has the rows of each expert.
struct ffn_chunk {
    const struct ffn_args *args;
    const struct expert_weights *weights; // the run
    struct ffn_scratch *scratch;
    struct expertd_team *team;
    size_t first, rows;
};

// The arguments that both products of a chunk share.
static struct expertd_grouped_matmul_args product(const struct ffn_chunk *chunk, const struct expertd_packed_weights *weights) {
    return (struct expertd_grouped_matmul_args){
        .rhs = expertd_rhs_packed(weights),
        .group_sizes = chunk->scratch->group_sizes,
        .num_groups = weights->groups,
        .num_actual_groups = weights->groups,
        .m = chunk->rows,
    };
}

// A pass that copies the chunk's rows into the k order of their expert's codes.
struct ordering {
    const struct ffn_chunk *chunk;
    const char *from;
    size_t stride;        // bytes
    const uint32_t *rows; // index in `from` of each row; NULL: consecutive
    void *const *orders;  // [groups] to [k]
    size_t k;
};

// The group of a row of the chunk: an index into the experts of the run.
static size_t group_of(const struct ffn_chunk *chunk, size_t row) {
    const int32_t *sizes = chunk->scratch->group_sizes;
    size_t group = 0, end = (size_t)sizes[0];
    while (row >= end) {
        end += (size_t)sizes[++group];
    }
    return group;
}

static void order_row(void *context, size_t row, unsigned thread) {
    (void)thread;
    const struct ordering *o = context;
    const uint32_t *order = o->orders[group_of(o->chunk, row)];
    size_t size = expertd_dtype_size(o->chunk->args->dtype);
    const char *from = o->from + (o->rows ? o->rows[row] : row) * o->stride;
    char *to = (char *)o->chunk->scratch->ordered + row * o->k * size;
    for (size_t k = 0; k < o->k; k++) {
        memcpy(to + k * size, from + order[k] * size, size);
    }
}

// Reorders the rows and lets the product read the result.
static void order_rows(struct ordering *o, struct expertd_grouped_matmul_args *product) {
    expertd_team_run(o->chunk->team, o->chunk->rows, order_row, o);
    product->lhs = o->chunk->scratch->ordered;
    product->lhs_stride = o->k;
    product->lhs_rows = NULL;
}

static FALLIBLE gate_and_up(const struct ffn_chunk *chunk) {
    const struct ffn_args *a = chunk->args;
    const struct expert_weights *w = chunk->weights;
    struct expertd_gate_up_args args = {
        .product = product(chunk, &w->up),
        .gate = expertd_activation_is_gated(a->activation) ? &w->gate : NULL,
        .activation = a->activation,
        .gate_bias = w->gate_bias,
        .up_bias = w->up_bias,
    };
    args.product.lhs = a->hidden;
    args.product.lhs_stride = a->hidden_stride / expertd_dtype_size(a->dtype);
    if (a->hidden_rows) {
        args.product.lhs_rows = a->hidden_rows + chunk->first;
    } else {
        args.product.lhs = (const char *)a->hidden + chunk->first * a->hidden_stride;
    }
    if (w->hidden_order) {
        struct ordering ordering = {.chunk = chunk,
                                    .from = args.product.lhs,
                                    .stride = a->hidden_stride,
                                    .rows = args.product.lhs_rows,
                                    .orders = w->hidden_order,
                                    .k = a->hidden_size};
        order_rows(&ordering, &args.product);
    }
    args.product.out = chunk->scratch->inner;
    args.product.out_stride = a->intermediate_size;
    return expertd_expert_gate_up(&args, chunk->team, chunk->scratch->matmul);
}

static FALLIBLE down(const struct ffn_chunk *chunk) {
    const struct ffn_args *a = chunk->args;
    const struct expert_weights *w = chunk->weights;
    struct expertd_down_args args = {
        .product = product(chunk, &w->down),
        .bias = w->down_bias,
        .row_scale = a->row_scale ? a->row_scale + chunk->first : NULL,
    };
    args.product.lhs = chunk->scratch->inner;
    args.product.lhs_stride = a->intermediate_size;
    if (w->inner_order) {
        struct ordering ordering = {.chunk = chunk,
                                    .from = chunk->scratch->inner,
                                    .stride = a->intermediate_size * expertd_dtype_size(a->dtype),
                                    .orders = w->inner_order,
                                    .k = a->intermediate_size};
        order_rows(&ordering, &args.product);
    }
    args.product.out = (char *)a->results + chunk->first * a->results_stride;
    args.product.out_stride = a->results_stride / expertd_dtype_size(a->dtype);
    return expertd_expert_down(&args, chunk->team, chunk->scratch->matmul);
}

static FALLIBLE compute_chunk(const struct ffn_chunk *chunk) {
    int64_t start_ns = clock_now_ns();
    TRY(gate_and_up(chunk));
    int64_t middle_ns = clock_now_ns();
    TRY(down(chunk));
    chunk->scratch->gate_up_ns += (uint64_t)(middle_ns - start_ns);
    chunk->scratch->down_ns += (uint64_t)(clock_now_ns() - middle_ns);
    return OK;
}

// The rows of a run: [first, end) of the batch.
struct run_rows {
    const int32_t *group_sizes; // [groups] of each expert
    size_t groups, first, end;
};

// Cuts the chunk that begins at row `from`: consecutive experts, the first and the last perhaps in part. Sets scratch->group_sizes
// and returns the chunk's rows.
static size_t cut_chunk(const struct run_rows *run, struct ffn_scratch *scratch, size_t from) {
    int32_t *sizes = scratch->group_sizes;
    memset(sizes, 0, run->groups * sizeof *sizes);
    size_t begin = run->first, cut = 0;
    for (size_t g = 0; g < run->groups && cut < scratch->chunk_rows; g++) {
        size_t end = begin + (size_t)run->group_sizes[g];
        size_t start = begin > from ? begin : from;
        if (end > start) {
            size_t take = end - start < scratch->chunk_rows - cut ? end - start : scratch->chunk_rows - cut;
            sizes[g] = (int32_t)take;
            cut += take;
        }
        begin = end;
    }
    return cut;
}

static FALLIBLE compute_run(struct ffn_chunk *chunk, const struct run_rows *run) {
    for (chunk->first = run->first; chunk->first < run->end; chunk->first += chunk->rows) {
        chunk->rows = cut_chunk(run, chunk->scratch, chunk->first);
        TRY(compute_chunk(chunk));
    }
    return OK;
}

FALLIBLE ffn_forward(const struct ffn_args *args, struct ffn_scratch *scratch, struct expertd_team *team) {
    struct ffn_chunk chunk = {.args = args, .scratch = scratch, .team = team};
    struct run_rows rows = {.group_sizes = args->group_sizes};
    for (size_t r = 0; r < args->num_runs && rows.end < args->rows; r++) {
        chunk.weights = &args->runs[r];
        rows.groups = chunk.weights->up.groups;
        for (size_t g = 0; g < rows.groups; g++) {
            rows.end += (size_t)rows.group_sizes[g];
        }
        TRY(compute_run(&chunk, &rows));
        rows.first = rows.end;
        rows.group_sizes += rows.groups;
    }
    return OK;
}
