#include "kernels/operations/grouped_matmul_general.h"

#include <string.h>

#include "base/sizes.h"
#include "kernels/operations/grouped_matmul_check.h"
#include "kernels/operations/product_lists.h"
#include "kernels/plain/product_operation.h"
#include "kernels/products/matmul_check.h"

enum { TASK_ROWS = 64 }; // rows outside the local groups that a task sets

struct general {
    const struct expertd_grouped_matmul_args *args;
    struct expertd_matmul_options options;
    struct expertd_rhs_shape rhs;
    struct product product;
    struct product_limits limits;
    size_t local_begin, local_end; // rows of the local groups
    size_t next, next_row;         // local group that next_group yields next, and its first row
};

// The workspace may be computed from arguments that are not checked yet, and the layout is an array index.
static enum expertd_packed_layout known_layout(const struct expertd_packed_weights *packed) {
    return (size_t)packed->layout < EXPERTD_PACKED_LAYOUTS ? packed->layout : EXPERTD_PACKED_PANELS;
}

static void general_init(const struct expertd_grouped_matmul_args *args, struct general *g) {
    *g = (struct general){.args = args, .options = args->options ? *args->options : expertd_matmul_options_default()};
    g->rhs = expertd_rhs_shape(&args->rhs);
    enum expertd_dtype lhs = args->lhs_dtype ? args->lhs_dtype : g->rhs.dtype;
    bool packed = args->rhs.kind == EXPERTD_RHS_PACKED;
    g->product = (struct product){
        .num_groups = args->num_actual_groups,
        .a = {.dtype = lhs},
        .b = {.dtype = g->rhs.dtype},
        .b_is_packed = packed,
        .b_format = packed && args->rhs.packed ? args->rhs.packed->format : NULL,
        .b_layout = packed && args->rhs.packed ? known_layout(args->rhs.packed) : EXPERTD_PACKED_PANELS,
        .out_dtype = matmul_out_dtype(lhs, args->out_dtype),
        .copy_a_rows = args->lhs_k_stride > 1,
        .options = &g->options,
    };
    if (args->m && g->rhs.n) {
        g->limits = (struct product_limits){.m = args->m, .n = g->rhs.n, .k = g->rhs.k};
    }
}

static struct product_operand lhs_from(const struct general *g, size_t row) {
    const struct expertd_grouped_matmul_args *args = g->args;
    size_t skipped = args->lhs_rows ? 0 : row * args->lhs_stride * expertd_dtype_size(g->product.a.dtype);
    return (struct product_operand){
        .data = (const char *)args->lhs + skipped, .line_stride = args->lhs_stride, .k_stride = larger(args->lhs_k_stride, 1)};
}

static struct product_operand rhs_of(const struct general *g, size_t i) {
    if (g->product.b_is_packed) {
        return (struct product_operand){0};
    }
    const struct expertd_plain_weights *plain = g->args->rhs.plain;
    size_t row = expertd_plain_row_stride(plain);
    return (struct product_operand){
        .data = (const char *)plain->data + i * expertd_plain_group_stride(plain) * expertd_dtype_size(plain->dtype),
        .line_stride = plain->transposed ? row : 1,
        .k_stride = plain->transposed ? 1 : row,
    };
}

// Blocks that are not read may be NULL.
static const void *packed_of(const struct general *g, size_t i, size_t m) {
    bool is_read = g->product.b_is_packed && m && g->rhs.k && g->rhs.n;
    return is_read ? g->args->rhs.packed->data[i] : NULL;
}

// Yields the next local group.
static struct product_group next_group(void *context) {
    struct general *g = context;
    const struct expertd_grouped_matmul_args *args = g->args;
    const size_t i = g->next++, row = g->next_row;
    size_t size = expertd_dtype_size(g->product.out_dtype);
    const char *existing = args->existing_out;
    const size_t m = (size_t)args->group_sizes[args->group_offset + i];
    g->next_row += m;
    return (struct product_group){
        .a = lhs_from(g, row),
        .b = rhs_of(g, i),
        .a_rows = args->lhs_rows ? args->lhs_rows + row : NULL,
        .b_packed = packed_of(g, i, m),
        .m = m,
        .n = g->rhs.n,
        .k = g->rhs.k,
        .out = (char *)args->out + row * args->out_stride * size,
        .out_stride = args->out_stride,
        .c = existing ? existing + row * args->existing_stride * size : NULL,
        .c_stride = args->existing_stride,
        .alpha = 1.0f,
        .beta = args->existing_mode == EXPERTD_EXISTING_ACCUMULATE,
    };
}

static void find_local_rows(struct general *g) {
    const struct expertd_grouped_matmul_args *args = g->args;
    for (size_t i = 0; i < args->group_offset; i++) {
        g->local_begin += (size_t)args->group_sizes[i];
    }
    g->local_end = g->next_row = g->local_begin;
    for (size_t i = 0; i < args->num_actual_groups; i++) {
        g->local_end += (size_t)args->group_sizes[args->group_offset + i];
    }
}

// A row outside the local groups: 0, or existing_out's.
static void set_other_row(const struct general *g, size_t row) {
    const struct expertd_grouped_matmul_args *args = g->args;
    size_t size = expertd_dtype_size(g->product.out_dtype), bytes = g->rhs.n * size;
    char *out = (char *)args->out + row * args->out_stride * size;
    if (args->existing_mode == EXPERTD_EXISTING_NONE) {
        memset(out, 0, bytes);
    } else if (args->existing_out != args->out) {
        memcpy(out, (const char *)args->existing_out + row * args->existing_stride * size, bytes);
    }
}

static void set_other_rows_task(void *context, size_t task, unsigned thread) {
    (void)thread;
    const struct general *g = context;
    size_t others = g->args->m - (g->local_end - g->local_begin);
    for (size_t i = task * TASK_ROWS; i < others && i < (task + 1) * TASK_ROWS; i++) {
        set_other_row(g, i < g->local_begin ? i : i - g->local_begin + g->local_end);
    }
}

static void set_other_rows(struct general *g, struct expertd_team *team) {
    size_t others = g->args->m - (g->local_end - g->local_begin);
    if (g->rhs.n) {
        expertd_team_run(team, (others + TASK_ROWS - 1) / TASK_ROWS, set_other_rows_task, g);
    }
}

size_t grouped_matmul_general_bytes(const struct expertd_grouped_matmul_args *args, const struct expertd_team *team) {
    struct general g;
    general_init(args, &g);
    g.limits.tiling = product_tiling(&g.options, g.limits.m, g.limits.k, g.limits.n);
    return product_operation_bytes(&g.product, &g.limits, team);
}

// Checks all arguments and fills *g.
static FALLIBLE prepare(const struct expertd_grouped_matmul_args *args, struct general *g) {
    general_init(args, g);
    TRY(expertd_matmul_options_check(&g->options));
    if (!g->options.compiler.disable_bounds_checks) {
        TRY(expertd_grouped_matmul_check(args));
        TRY(grouped_matmul_check_out(args));
    }
    g->limits.tiling = product_tiling(&g->options, g->limits.m, g->limits.k, g->limits.n);
    TRY(product_check(&g->product, &g->limits, args->lhs_rows));
    find_local_rows(g);
    return OK;
}

FALLIBLE grouped_matmul_products(const struct expertd_grouped_matmul_args *args, struct product_group *groups, struct product *out,
                                 size_t local[2]) {
    struct general g;
    TRY(prepare(args, &g));
    product_operation_list(&g.product, &(struct product_source){next_group, &g}, groups, out);
    local[0] = g.local_begin;
    local[1] = g.local_end;
    return OK;
}

FALLIBLE grouped_matmul_general(const struct expertd_grouped_matmul_args *args, struct expertd_team *team, void *workspace) {
    struct general g;
    TRY(prepare(args, &g));
    TRY(product_operation_run(&g.product, &g.limits, &(struct product_source){next_group, &g}, team, workspace));
    set_other_rows(&g, g.options.interpret ? NULL : team);
    return OK;
}

FALLIBLE grouped_matmul_general_reference(const struct expertd_grouped_matmul_args *args) {
    struct general g;
    TRY(prepare(args, &g));
    product_operation_reference(&g.product, &(struct product_source){next_group, &g});
    set_other_rows(&g, NULL);
    return OK;
}
