// What the arguments of a grouped matmul must be, whatever the kind of its weights.
#include "kernels/grouped_matmul.h"
#include "kernels/matmul_check.h"
#include "kernels/quantised.h"

static FALLIBLE check_packed(const struct packed_weights *rhs) {
    bool known = rhs->dtype == DTYPE_F32 || rhs->dtype == DTYPE_BF16 || (rhs->dtype == DTYPE_I8 && !rhs->format);
    if (!known) {
        FAIL_FIELD(ERR_INVALID, "rhs", "rhs is %s: weights are packed as F32, BF16 or I8", dtype_name(rhs->dtype));
    }
    if (rhs->format) {
        TRY(quantised_check(rhs->format));
    }
    size_t bytes =
        rhs->format ? quantised_group_bytes(rhs->format, rhs->k, rhs->n) : packed_group_bytes(rhs->dtype, rhs->k, rhs->n);
    if (rhs->group_bytes < bytes) {
        FAIL_FIELD(ERR_INVALID, "rhs", "a group of rhs has %zu bytes, but %s%s[%zu, %zu] packs into %zu", rhs->group_bytes,
                   rhs->format ? "quantised, for " : "", dtype_name(rhs->dtype), rhs->n, rhs->k, bytes);
    }
    return OK;
}

static FALLIBLE check_operands(const struct grouped_matmul_args *args, const struct rhs_shape *rhs) {
    enum dtype lhs = args->lhs_dtype ? args->lhs_dtype : rhs->dtype;
    if (args->m > INT32_MAX) {
        FAIL_FIELD(ERR_INVALID, "m", "m is %zu: at most %d rows can be numbered", args->m, INT32_MAX);
    }
    if (args->lhs_stride < rhs->k) {
        FAIL_FIELD(ERR_INVALID, "lhs", "rows of lhs are %zu elements apart, but k is %zu", args->lhs_stride, rhs->k);
    }
    if (args->rhs.kind == RHS_PACKED) {
        TRY(check_packed(args->rhs.packed));
        if (lhs != rhs->dtype) {
            FAIL_FIELD(ERR_INVALID, "lhs", "lhs is %s, but rhs was packed for rows of %s", dtype_name(lhs), dtype_name(rhs->dtype));
        }
    }
    return matmul_check_dtypes(lhs, rhs->dtype, args->out_dtype);
}

static FALLIBLE check_groups(const struct grouped_matmul_args *args, size_t held) {
    TRY(matmul_check_sizes(args->group_sizes, args->num_groups, args->m));
    if (args->group_offset > args->num_groups || args->num_actual_groups > args->num_groups - args->group_offset) {
        FAIL_FIELD(ERR_INVALID, "group_offset", "groups %zu and the %zu from there on are held, but there are %zu",
                   args->group_offset, args->num_actual_groups, args->num_groups);
    }
    if (args->num_actual_groups != held) {
        FAIL_FIELD(ERR_INVALID, "num_actual_groups", "num_actual_groups is %zu, but rhs holds %zu groups", args->num_actual_groups,
                   held);
    }
    return OK;
}

FALLIBLE grouped_matmul_check(const struct grouped_matmul_args *args) {
    struct rhs_shape rhs = rhs_shape(&args->rhs);
    TRY(check_operands(args, &rhs));
    TRY(check_groups(args, rhs.groups));
    TRY(matmul_check_existing(args->existing_mode, args->existing_out, args->existing_stride, rhs.n, args->m));
    if (args->out_stride < rhs.n) {
        FAIL_FIELD(ERR_INVALID, "out", "rows of out are %zu elements apart, but n is %zu", args->out_stride, rhs.n);
    }
    if (args->schedule && !schedule_is_valid(args->schedule)) {
        FAIL_FIELD(ERR_INVALID, "schedule",
                   "schedule has call_rows %u, run_bytes %u, tasks_per_thread %u: schedule.h gives the bounds",
                   args->schedule->call_rows, args->schedule->run_bytes, args->schedule->tasks_per_thread);
    }
    return OK;
}
