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
        .copy_lines_of_a = !t->options.compiler.fuse_transposed_lhs_in_matmul,
        .options = &t->options,
    };
    size_t rows_max = 0;
    for (size_t i = 0; i < args->num_actual_groups && args->group_offset + i < args->num_groups; i++) {
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
        FAIL_FIELD(ERR_INVALID, "num_actual_groups", "groups %zu and the %zu from there on are asked for, but there are %zu",
                   args->group_offset, args->num_actual_groups, args->num_groups);
    }
    return OK;
}

FALLIBLE transposed_grouped_matmul_check(const struct transposed_grouped_matmul_args *args) {
    TRY(matmul_check_dtypes(args->lhs_dtype, args->rhs_dtype, args->out_dtype));
    TRY(matmul_check_sizes(args->group_sizes, args->num_groups, args->m));
    TRY(check_groups(args));
    return matmul_check_existing(args->existing_mode, args->existing_out, args->n, args->n, args->num_actual_groups * args->k);
}

static FALLIBLE check_transposed(const struct transposed *t) {
    TRY(matmul_options_check(&t->options));
    if (!t->options.compiler.disable_bounds_checks) {
        TRY(transposed_grouped_matmul_check(t->args));
    }
    return product_check(&t->product, &t->limits, false);
}

// The `i`-th group held here, whose rows begin at `row`.
static struct product_group group_at(const struct transposed *t, size_t i, size_t row) {
    const struct transposed_grouped_matmul_args *args = t->args;
    size_t out_bytes = args->k * args->n * dtype_size(t->product.out_dtype);
    return (struct product_group){
        .a = {.data = (const char *)args->lhs + row * dtype_size(args->lhs_dtype), .line_stride = args->m, .k_stride = 1},
        .b = {.data = (const char *)args->rhs + row * args->n * dtype_size(args->rhs_dtype), .line_stride = 1, .k_stride = args->n},
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
    TRY(matmul_check_workspace(&t.options, transposed_grouped_matmul_workspace_bytes(args, team)));
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
