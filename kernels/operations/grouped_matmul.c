// The grouped matmul. Packed weights without further options go to the walk (matmul_walk.c), everything else to the product engine
// (grouped_matmul_general.c).
#include "expertd/kernels/grouped_matmul.h"

#include "kernels/operations/grouped_matmul_check.h"
#include "kernels/operations/grouped_matmul_general.h"
#include "kernels/operations/matmul_walk.h"
#include "kernels/operations/walk_results.h"
#include "kernels/products/matmul_check.h"

size_t expertd_packed_matmul_workspace_bytes(size_t m, size_t num_groups) {
    return matmul_walk_scratch_bytes(m, num_groups);
}

// Does the walk support it: packed weights, no existing_out, no options?
static bool is_walked(const struct expertd_grouped_matmul_args *args) {
    return args->rhs.kind == EXPERTD_RHS_PACKED && args->rhs.packed && args->lhs_k_stride <= 1 && !args->options &&
           !args->existing_mode;
}

size_t expertd_grouped_matmul_workspace_bytes(const struct expertd_grouped_matmul_args *args, const struct expertd_team *team) {
    if (is_walked(args)) {
        return expertd_packed_matmul_workspace_bytes(args->m, args->num_groups);
    }
    return grouped_matmul_general_bytes(args, team);
}

static void store(const void *context, const struct walk_sums *sums) {
    walk_results_store(context, sums, NULL);
}

static void zero_rows(const void *context, size_t begin, size_t end) {
    const struct walk_results *results = context;
    walk_results_zero(results->product, results->dtype, begin, end);
}

FALLIBLE expertd_grouped_matmul(const struct expertd_grouped_matmul_args *args, struct expertd_team *team, void *workspace) {
    if (!is_walked(args)) {
        return grouped_matmul_general(args, team, workspace);
    }
    TRY(expertd_grouped_matmul_check(args));
    TRY(grouped_matmul_check_out(args));
    TRY(matmul_check_workspace(workspace, expertd_packed_matmul_workspace_bytes(args->m, args->num_groups)));
    const struct walk_results results = {.product = args, .dtype = matmul_out_dtype(args->rhs.packed->dtype, args->out_dtype)};
    struct matmul_walk walk = {
        .args = args,
        .rhs = {args->rhs.packed},
        .operands = 1,
        .out_element = walk_results_stream(args, results.dtype) ? 0 : expertd_dtype_size(results.dtype),
        .epilogue = store,
        .zero = zero_rows,
        .context = &results,
    };
    matmul_walk(&walk, team, workspace);
    return OK;
}
