#include "expertd/kernels/grouped_gemm.h"

#include <string.h>

#include "base/sizes.h"
#include "kernels/operations/grouped_gemm_shape.h"
#include "kernels/operations/product_lists.h"
#include "kernels/plain/product_operation.h"
#include "kernels/products/matmul_check.h"

// The next group, and its offsets in the buffers: in elements (codes) and in scales.
struct cursor {
    size_t group, a, b, out;
    size_t a_scale, b_scale;
};

struct gemm {
    const struct expertd_grouped_gemm_args *args;
    struct expertd_matmul_options options;
    struct product product;
    struct product_limits limits;
    struct cursor next;
};

static void gemm_init(const struct expertd_grouped_gemm_args *args, struct gemm *gemm) {
    *gemm = (struct gemm){.args = args, .options = args->options ? *args->options : expertd_matmul_options_default()};
    const struct gemm_scaling_rule *a = gemm_scaling_rule(args->a.scaling), *b = gemm_scaling_rule(args->b.scaling);
    gemm->product = (struct product){
        .num_groups = args->num_groups,
        .a = {args->a.dtype, a->scale_dtype, a->lines ? a->lines : 1},
        .b = {args->b.dtype, b->scale_dtype, b->lines ? b->lines : 1},
        .k_per_scale = a->k,
        .out_dtype = args->out_dtype,
        .copy_a_rows = args->trans_a,
        .options = &gemm->options,
    };
}

// For checked arguments. Groups without output do not count, since their m and n are not limited.
static void find_limits(struct gemm *gemm) {
    const struct expertd_grouped_gemm_args *args = gemm->args;
    const struct expertd_gemm_dim *k_dim = args->trans_a ? &args->a.first : &args->a.last;
    for (size_t g = 0; g < args->num_groups; g++) {
        size_t m = (size_t)gemm_dim_at(&args->out_first, g), n = (size_t)gemm_dim_at(&args->out_last, g);
        if (m && n) {
            gemm->limits.m = larger(gemm->limits.m, m);
            gemm->limits.n = larger(gemm->limits.n, n);
            gemm->limits.k = larger(gemm->limits.k, (size_t)gemm_dim_at(k_dim, g));
        }
    }
    gemm->limits.tiling = product_tiling(&gemm->options, gemm->limits.m, gemm->limits.k, gemm->limits.n);
}

// An operand's matrix of one group, which begins at element *at and scale *scale_at. Advances both past it.
static struct product_operand next_operand(const struct expertd_gemm_operand *operand, bool k_is_last, size_t group, size_t *at,
                                           size_t *scale_at) {
    size_t first = (size_t)gemm_dim_at(&operand->first, group), last = (size_t)gemm_dim_at(&operand->last, group);
    const struct gemm_scaling_rule *rule = gemm_scaling_rule(operand->scaling);
    struct product_operand next = {
        .data = (const char *)operand->data + *at * expertd_dtype_size(operand->dtype) / rule->codes_per_element,
        .line_stride = k_is_last ? last : 1,
        .k_stride = k_is_last ? 1 : last,
    };
    *at += first * last;
    if (!rule->scale_dtype) {
        return next;
    }
    next.scales = (const char *)operand->scales + *scale_at * expertd_dtype_size(operand->scale_dtype);
    struct gemm_scale_grid grid = gemm_scale_grid(operand, k_is_last, first, last);
    if (rule->lines) {
        next.scale_line_stride = k_is_last ? grid.last : 1;
        next.scale_k_stride = k_is_last ? 1 : grid.last;
    }
    *scale_at += rule->lines || operand->scale_count > 1 ? grid.first * grid.last : 0; // one scale for all groups: do not advance
    return next;
}

static float factor(const float *values, size_t count, size_t group, float absent) {
    return values ? values[count == 1 ? 0 : group] : absent;
}

static struct product_group next_group(void *context) {
    struct gemm *gemm = context;
    struct cursor *cursor = &gemm->next;
    const struct expertd_grouped_gemm_args *args = gemm->args;
    const size_t g = cursor->group++;
    size_t m = (size_t)gemm_dim_at(&args->out_first, g), n = (size_t)gemm_dim_at(&args->out_last, g);
    size_t out_bytes = cursor->out * expertd_dtype_size(args->out_dtype);
    struct product_group group = {
        .a = next_operand(&args->a, !args->trans_a, g, &cursor->a, &cursor->a_scale),
        .b = next_operand(&args->b, args->trans_b, g, &cursor->b, &cursor->b_scale),
        .m = m,
        .n = n,
        .k = (size_t)gemm_dim_at(args->trans_a ? &args->a.first : &args->a.last, g),
        .out = (char *)args->out + out_bytes,
        .out_stride = n,
        .c = args->c ? (const char *)args->c + out_bytes : NULL,
        .c_stride = n,
        .alpha = factor(args->alpha, args->alpha_count, g, 1.0f),
        .beta = factor(args->beta, args->beta_count, g, 0.0f),
    };
    cursor->out += m * n;
    return group;
}

size_t expertd_grouped_gemm_workspace_bytes(const struct expertd_grouped_gemm_args *args, const struct expertd_team *team) {
    struct gemm gemm;
    if (err_is(grouped_gemm_check_sizes(args))) {
        return 0;
    }
    gemm_init(args, &gemm);
    find_limits(&gemm);
    return product_operation_bytes(&gemm.product, &gemm.limits, team);
}

// Checks all arguments and fills *gemm.
static FALLIBLE prepare(const struct expertd_grouped_gemm_args *args, struct gemm *gemm) {
    if (!args->options || !args->options->compiler.disable_bounds_checks) {
        TRY(expertd_grouped_gemm_check(args));
        TRY(grouped_gemm_check_out(args));
    }
    gemm_init(args, gemm);
    TRY(expertd_matmul_options_check(&gemm->options));
    find_limits(gemm);
    return product_check(&gemm->product, &gemm->limits, false);
}

// Sets the elements after the last group to 0, once all groups were yielded.
static void zero_rest(const struct gemm *gemm) {
    const struct expertd_grouped_gemm_args *args = gemm->args;
    size_t size = expertd_dtype_size(args->out_dtype), end = gemm->next.out;
    if (end < args->out_count) {
        memset((char *)args->out + end * size, 0, (args->out_count - end) * size);
    }
}

FALLIBLE grouped_gemm_products(const struct expertd_grouped_gemm_args *args, struct product_group *groups, struct product *out,
                               size_t *out_elements) {
    struct gemm gemm;
    TRY(prepare(args, &gemm));
    product_operation_list(&gemm.product, &(struct product_source){next_group, &gemm}, groups, out);
    *out_elements = gemm.next.out;
    return OK;
}

FALLIBLE expertd_grouped_gemm(const struct expertd_grouped_gemm_args *args, struct expertd_team *team, void *workspace) {
    struct gemm gemm;
    TRY(prepare(args, &gemm));
    TRY(product_operation_run(&gemm.product, &gemm.limits, &(struct product_source){next_group, &gemm}, team, workspace));
    zero_rest(&gemm);
    return OK;
}

FALLIBLE expertd_grouped_gemm_reference(const struct expertd_grouped_gemm_args *args) {
    struct gemm gemm;
    TRY(prepare(args, &gemm));
    product_operation_reference(&gemm.product, &(struct product_source){next_group, &gemm});
    zero_rest(&gemm);
    return OK;
}
