#include "expertd/kernels/transposed_grouped_matmul.h"

#include "kernels/operations/product_lists.h"
#include "kernels/plain/product_operation.h"
#include "kernels/products/matmul_check.h"

struct transposed {
    const struct expertd_transposed_grouped_matmul_args *args;
    struct expertd_matmul_options options;
    struct product product;
    struct product_limits limits;
    size_t next, next_row; // group that next_group yields next, and its first row
};

// The rows of the largest group. The arguments may not be checked yet: 0 where the sizes cannot be read.
static size_t rows_of_largest(const struct expertd_transposed_grouped_matmul_args *args) {
    const int32_t *sizes = args->group_sizes;
    if (!sizes || (uintptr_t)sizes % sizeof *sizes != 0 || args->num_groups > PTRDIFF_MAX / sizeof *sizes) {
        return 0;
    }
    size_t rows_max = 0;
    for (size_t i = 0; i < args->num_actual_groups && args->group_offset + i < args->num_groups; i++) {
        int32_t size = sizes[args->group_offset + i];
        rows_max = size > 0 && (size_t)size > rows_max ? (size_t)size : rows_max;
    }
    return rows_max;
}

static void transposed_init(const struct expertd_transposed_grouped_matmul_args *args, struct transposed *t) {
    *t = (struct transposed){.args = args, .options = args->options ? *args->options : expertd_matmul_options_default()};
    t->product = (struct product){
        .num_groups = args->num_actual_groups,
        .a = {.dtype = args->lhs_dtype},
        .b = {.dtype = args->rhs_dtype},
        .out_dtype = matmul_out_dtype(args->lhs_dtype, args->out_dtype),
        .copy_a_rows = args->lhs_transposed || !t->options.compiler.fuse_transposed_lhs_in_matmul,
        .options = &t->options,
    };
    if (args->k && args->n) {
        t->limits = (struct product_limits){.m = args->k, .n = args->n, .k = rows_of_largest(args)};
    }
}

// The rows of the products are this operation's k, and their summed dimension is its m.
static void set_tiling(struct transposed *t, const struct expertd_matmul_tiling *tiling) {
    t->limits.tiling = (struct expertd_matmul_tiling){.tm = tiling->tk, .tk = tiling->tm, .tn = tiling->tn};
}

static FALLIBLE check_groups(const struct expertd_transposed_grouped_matmul_args *args) {
    if (args->group_offset > args->num_groups) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "group_offset", "group_offset is %zu, but there are %zu groups", args->group_offset,
                   args->num_groups);
    }
    if (args->num_actual_groups > args->num_groups - args->group_offset) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "num_actual_groups", "num_actual_groups is %zu from group %zu on, but there are %zu",
                   args->num_actual_groups, args->group_offset, args->num_groups);
    }
    return OK;
}

// An operand's layout in memory. A line of lhs is one k, a line of rhs is one n; both have m elements.
struct layout {
    size_t rows, columns, row_stride;
    struct product_operand at; // without data
};

static struct layout layout_of(size_t lines, size_t m, bool m_first, size_t stride) {
    size_t rows = m_first ? m : lines, columns = m_first ? lines : m, row_stride = stride ? stride : columns;
    struct product_operand at = {.line_stride = m_first ? 1 : row_stride, .k_stride = m_first ? row_stride : 1};
    return (struct layout){rows, columns, row_stride, at};
}

static struct layout lhs_layout(const struct expertd_transposed_grouped_matmul_args *args) {
    return layout_of(args->k, args->m, args->lhs_transposed, args->lhs_stride);
}

static struct layout rhs_layout(const struct expertd_transposed_grouped_matmul_args *args) {
    return layout_of(args->n, args->m, !args->rhs_transposed, args->rhs_stride);
}

static FALLIBLE check_operand(const char *name, const void *data, enum expertd_dtype dtype, const struct layout *layout) {
    return matmul_check_rows(&(struct matmul_rows){name, data, dtype, layout->rows, layout->columns, layout->row_stride});
}

// The output as rows, group after group.
static FALLIBLE out_rows(const struct expertd_transposed_grouped_matmul_args *args, const char *name, const void *data,
                         struct matmul_rows *rows) {
    size_t count;
    if (__builtin_mul_overflow(args->num_actual_groups, args->k, &count)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "out", "out of %zu groups of [%zu, %zu] is larger than memory can be",
                   args->num_actual_groups, args->k, args->n);
    }
    *rows = (struct matmul_rows){name, data, matmul_out_dtype(args->lhs_dtype, args->out_dtype), count, args->n, args->n};
    return OK;
}

FALLIBLE expertd_transposed_grouped_matmul_check(const struct expertd_transposed_grouped_matmul_args *args) {
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

// Yields the next local group.
static struct product_group next_group(void *context) {
    struct transposed *t = context;
    const struct expertd_transposed_grouped_matmul_args *args = t->args;
    const size_t i = t->next++, row = t->next_row, k = (size_t)args->group_sizes[args->group_offset + i];
    size_t out_bytes = args->k * args->n * expertd_dtype_size(t->product.out_dtype);
    struct product_operand a = lhs_layout(args).at, b = rhs_layout(args).at;
    a.data = (const char *)args->lhs + row * a.k_stride * expertd_dtype_size(args->lhs_dtype);
    b.data = (const char *)args->rhs + row * b.k_stride * expertd_dtype_size(args->rhs_dtype);
    t->next_row += k;
    return (struct product_group){
        .a = a,
        .b = b,
        .m = args->k,
        .n = args->n,
        .k = k,
        .out = (char *)args->out + i * out_bytes,
        .out_stride = args->n,
        .c = args->existing_out ? (const char *)args->existing_out + i * out_bytes : NULL,
        .c_stride = args->n,
        .alpha = 1.0f,
        .beta = args->existing_mode == EXPERTD_EXISTING_ACCUMULATE,
    };
}

static size_t first_row(const struct expertd_transposed_grouped_matmul_args *args) {
    size_t row = 0;
    for (size_t g = 0; g < args->group_offset; g++) {
        row += (size_t)args->group_sizes[g];
    }
    return row;
}

size_t expertd_transposed_grouped_matmul_workspace_bytes(const struct expertd_transposed_grouped_matmul_args *args,
                                                         const struct expertd_team *team) {
    struct transposed t;
    transposed_init(args, &t);
    const struct expertd_matmul_tiling tiling = product_tiling(&t.options, args->m, args->k, args->n);
    set_tiling(&t, &tiling);
    return product_operation_bytes(&t.product, &t.limits, team);
}

// Checks all arguments and fills *t.
static FALLIBLE prepare(const struct expertd_transposed_grouped_matmul_args *args, struct transposed *t) {
    transposed_init(args, t);
    TRY(expertd_matmul_options_check(&t->options));
    if (!t->options.compiler.disable_bounds_checks) {
        struct matmul_rows out;
        TRY(expertd_transposed_grouped_matmul_check(args));
        TRY(out_rows(args, "out", args->out, &out));
        TRY(matmul_check_rows(&out));
    }
    const struct expertd_matmul_tiling tiling = product_tiling(&t->options, args->m, args->k, args->n);
    TRY(matmul_check_tiling(&tiling)); // in the caller's terms, before set_tiling
    set_tiling(t, &tiling);
    TRY(product_check(&t->product, &t->limits, false));
    t->next_row = first_row(args);
    return OK;
}

FALLIBLE transposed_grouped_matmul_products(const struct expertd_transposed_grouped_matmul_args *args, struct product_group *groups,
                                            struct product *out) {
    struct transposed t;
    TRY(prepare(args, &t));
    product_operation_list(&t.product, &(struct product_source){next_group, &t}, groups, out);
    return OK;
}

FALLIBLE expertd_transposed_grouped_matmul(const struct expertd_transposed_grouped_matmul_args *args, struct expertd_team *team,
                                           void *workspace) {
    struct transposed t;
    TRY(prepare(args, &t));
    return product_operation_run(&t.product, &t.limits, &(struct product_source){next_group, &t}, team, workspace);
}

FALLIBLE expertd_transposed_grouped_matmul_reference(const struct expertd_transposed_grouped_matmul_args *args) {
    struct transposed t;
    TRY(prepare(args, &t));
    product_operation_reference(&t.product, &(struct product_source){next_group, &t});
    return OK;
}
