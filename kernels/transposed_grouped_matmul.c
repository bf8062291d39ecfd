#include "kernels/transposed_grouped_matmul.h"

#include "kernels/matmul_check.h"
#include "kernels/product_lists.h"

struct transposed {
    const struct transposed_grouped_matmul_args *args;
    struct matmul_options options;
    struct product product;
    struct product_limits limits;
};

static void transposed_init(const struct transposed_grouped_matmul_args *args, struct transposed *t) {
    *t = (struct transposed){.args = args, .options = args->options ? *args->options : matmul_options_default()};
    t->product = (struct product){
        .num_groups = args->num_actual_groups,
        .a = {.dtype = args->lhs_dtype},
        .b = {.dtype = args->rhs_dtype},
        .out_dtype = matmul_out_dtype(args->lhs_dtype, args->out_dtype),
        .copy_lines_of_a = args->lhs_transposed || !t->options.compiler.fuse_transposed_lhs_in_matmul,
        .options = &t->options,
    };
    size_t rows_max = 0;
    size_t held = args->group_sizes ? args->num_actual_groups : 0; // asked before the arguments are checked
    for (size_t i = 0; i < held && args->group_offset + i < args->num_groups; i++) {
        int32_t size = args->group_sizes[args->group_offset + i];
        rows_max = size > 0 && (size_t)size > rows_max ? (size_t)size : rows_max;
    }
    if (args->k && args->n) {
        t->limits = (struct product_limits){args->k, args->n, rows_max};
    }
}

static FALLIBLE check_groups(const struct transposed_grouped_matmul_args *args) {
    if (args->group_offset > args->num_groups) {
        FAIL_FIELD(ERR_INVALID, "group_offset", "group_offset is %zu, but there are %zu groups", args->group_offset,
                   args->num_groups);
    }
    if (args->num_actual_groups > args->num_groups - args->group_offset) {
        FAIL_FIELD(ERR_INVALID, "num_actual_groups", "num_actual_groups is %zu from group %zu on, but there are %zu",
                   args->num_actual_groups, args->group_offset, args->num_groups);
    }
    return OK;
}

// Where the operands lie: a line of lhs is one of its k, of rhs one of its n; both run along m.
struct layout {
    size_t rows, columns, row_stride;
    struct product_operand at; // but for data
};

static struct layout layout_of(size_t lines, size_t m, bool m_first, size_t stride) {
    size_t rows = m_first ? m : lines, columns = m_first ? lines : m, row_stride = stride ? stride : columns;
    struct product_operand at = {.line_stride = m_first ? 1 : row_stride, .k_stride = m_first ? row_stride : 1};
    return (struct layout){rows, columns, row_stride, at};
}

static struct layout lhs_layout(const struct transposed_grouped_matmul_args *args) {
    return layout_of(args->k, args->m, args->lhs_transposed, args->lhs_stride);
}

static struct layout rhs_layout(const struct transposed_grouped_matmul_args *args) {
    return layout_of(args->n, args->m, !args->rhs_transposed, args->rhs_stride);
}

static FALLIBLE check_operand(const char *name, const void *data, enum dtype dtype, const struct layout *layout) {
    return matmul_check_rows(&(struct matmul_rows){name, data, dtype, layout->rows, layout->columns, layout->row_stride});
}

// The output's rows, one group's after another's.
static FALLIBLE out_rows(const struct transposed_grouped_matmul_args *args, const char *name, const void *data,
                         struct matmul_rows *rows) {
    size_t count;
    if (__builtin_mul_overflow(args->num_actual_groups, args->k, &count)) {
        FAIL_FIELD(ERR_INVALID, "out", "out of %zu groups of [%zu, %zu] is larger than memory can be", args->num_actual_groups,
                   args->k, args->n);
    }
    *rows = (struct matmul_rows){name, data, matmul_out_dtype(args->lhs_dtype, args->out_dtype), count, args->n, args->n};
    return OK;
}

FALLIBLE transposed_grouped_matmul_check(const struct transposed_grouped_matmul_args *args) {
    struct layout lhs = lhs_layout(args), rhs = rhs_layout(args);
    struct matmul_rows existing, out;
    TRY(matmul_check_dtypes(args->lhs_dtype, args->rhs_dtype, args->out_dtype));
    TRY(check_operand("lhs", args->lhs, args->lhs_dtype, &lhs));
    TRY(check_operand("rhs", args->rhs, args->rhs_dtype, &rhs));
    TRY(matmul_check_sizes(args->group_sizes, args->num_groups, args->m));
    TRY(check_groups(args));
    TRY(out_rows(args, "existing_out", args->existing_out, &existing));
    TRY(out_rows(args, "out", args->out, &out));
    return matmul_check_existing(args->existing_mode, &existing, &out);
}

static FALLIBLE check_transposed(const struct transposed *t) {
    TRY(matmul_options_check(&t->options));
    if (!t->options.compiler.disable_bounds_checks) {
        struct matmul_rows out;
        TRY(transposed_grouped_matmul_check(t->args));
        TRY(out_rows(t->args, "out", t->args->out, &out));
        TRY(matmul_check_rows(&out));
    }
    return product_check(&t->product, &t->limits, false);
}

// The `i`-th group held here, whose rows begin at `row`.
static struct product_group group_at(const struct transposed *t, size_t i, size_t row) {
    const struct transposed_grouped_matmul_args *args = t->args;
    size_t out_bytes = args->k * args->n * dtype_size(t->product.out_dtype);
    struct product_operand a = lhs_layout(args).at, b = rhs_layout(args).at;
    a.data = (const char *)args->lhs + row * a.k_stride * dtype_size(args->lhs_dtype);
    b.data = (const char *)args->rhs + row * b.k_stride * dtype_size(args->rhs_dtype);
    return (struct product_group){
        .a = a,
        .b = b,
        .m = args->k,
        .n = args->n,
        .k = (size_t)args->group_sizes[args->group_offset + i],
        .out = (char *)args->out + i * out_bytes,
        .out_stride = args->n,
        .c = args->existing_out ? (const char *)args->existing_out + i * out_bytes : NULL,
        .c_stride = args->n,
        .alpha = 1.0f,
        .beta = args->existing_mode == EXISTING_ACCUMULATE,
    };
}

static size_t first_row(const struct transposed_grouped_matmul_args *args) {
    size_t row = 0;
    for (size_t g = 0; g < args->group_offset; g++) {
        row += (size_t)args->group_sizes[g];
    }
    return row;
}

static size_t groups_bytes(const struct transposed_grouped_matmul_args *args) {
    return (args->num_actual_groups * sizeof(struct product_group) + 63) / 64 * 64;
}

size_t transposed_grouped_matmul_workspace_bytes(const struct transposed_grouped_matmul_args *args, const struct team *team) {
    struct transposed t;
    transposed_init(args, &t);
    return groups_bytes(args) +
           product_workspace_bytes(&t.product, &t.limits, args->num_actual_groups, team ? team_threads(team) : 1);
}

static void run_reference(struct transposed *t) {
    size_t row = first_row(t->args);
    for (size_t i = 0; i < t->args->num_actual_groups; i++) {
        struct product_group group = group_at(t, i, row);
        struct product one = t->product;
        one.groups = &group;
        one.num_groups = 1;
        product_reference(&one);
        row += group.k;
    }
}

static void take_groups(const struct transposed *t, struct product_group *groups) {
    size_t row = first_row(t->args);
    for (size_t i = 0; i < t->args->num_actual_groups; i++) {
        groups[i] = group_at(t, i, row);
        row += groups[i].k;
    }
}

FALLIBLE transposed_grouped_matmul_products(const struct transposed_grouped_matmul_args *args, struct product_group *groups,
                                            struct product *out) {
    struct transposed t;
    transposed_init(args, &t);
    TRY(check_transposed(&t));
    take_groups(&t, groups);
    *out = t.product;
    out->groups = groups;
    out->options = NULL;
    return OK;
}

FALLIBLE transposed_grouped_matmul(const struct transposed_grouped_matmul_args *args, struct team *team, void *workspace) {
    struct transposed t;
    transposed_init(args, &t);
    TRY(check_transposed(&t));
    size_t needed = transposed_grouped_matmul_workspace_bytes(args, team);
    TRY(matmul_check_given(&t.options, needed));
    TRY(matmul_check_workspace(workspace, t.options.interpret ? 0 : needed));
    if (t.options.interpret) {
        run_reference(&t);
        return OK;
    }
    struct product_group *groups = workspace;
    take_groups(&t, groups);
    t.product.groups = groups;
    product_run(&t.product, &t.limits, team, (char *)workspace + groups_bytes(args));
    return OK;
}

FALLIBLE transposed_grouped_matmul_reference(const struct transposed_grouped_matmul_args *args) {
    struct transposed t;
    transposed_init(args, &t);
    TRY(check_transposed(&t));
    run_reference(&t);
    return OK;
}
