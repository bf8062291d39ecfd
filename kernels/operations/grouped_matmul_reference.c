// The scalar twin of the grouped matmul.
#include "expertd/kernels/grouped_matmul.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/operations/grouped_matmul_check.h"
#include "kernels/operations/grouped_matmul_general.h"
#include "kernels/reference/dot_reference.h"

static void reference_row(const struct expertd_grouped_matmul_args *args, size_t row, size_t group) {
    size_t lhs_row = args->lhs_rows ? args->lhs_rows[row] : row;
    const char *x = (const char *)args->lhs + lhs_row * args->lhs_stride * expertd_dtype_size(args->rhs.packed->dtype);
    for (size_t n = 0; n < args->rhs.packed->n; n++) {
        ((float *)args->out)[row * args->out_stride + n] = dot_packed_reference(args->rhs.packed, group, n, x);
    }
}

static void reference_rows(const struct expertd_grouped_matmul_args *args) {
    size_t row = 0;
    for (size_t g = 0; g < args->num_groups; g++) {
        size_t end = row + (size_t)args->group_sizes[g];
        int local = g >= args->group_offset && g < args->group_offset + args->num_actual_groups;
        for (; row < end; row++) {
            if (local) {
                reference_row(args, row, g - args->group_offset);
            }
        }
    }
}

FALLIBLE expertd_grouped_matmul_reference(const struct expertd_grouped_matmul_args *args) {
    if (!grouped_matmul_is_plain_serving(args)) {
        return grouped_matmul_general_reference(args);
    }
    TRY(expertd_grouped_matmul_check(args));
    TRY(grouped_matmul_check_out(args));
    for (size_t row = 0; row < args->m; row++) {
        for (size_t n = 0; n < args->rhs.packed->n; n++) {
            ((float *)args->out)[row * args->out_stride + n] = 0.0f;
        }
    }
    float_mode before = float_mode_set_ieee();
    reference_rows(args);
    float_mode_restore(before);
    return OK;
}
