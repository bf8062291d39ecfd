// Argument checks of the grouped matmul.
#include "kernels/operations/grouped_matmul_check.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/kernel_select.h"
#include "expertd/kernels/quantised.h"
#include "kernels/products/matmul_check.h"

static FALLIBLE check_layout(const struct expertd_packed_weights *rhs) {
    if (rhs->layout == EXPERTD_PACKED_PANELS) {
        return OK;
    }
    if ((size_t)rhs->layout >= EXPERTD_PACKED_LAYOUTS || rhs->format || rhs->dtype == EXPERTD_DTYPE_I8) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs",
                   "rhs is packed in layout %d as %s%s: F32 and BF16 are packed as panels or slices, others as panels",
                   (int)rhs->layout, rhs->format ? "codes for " : "", expertd_dtype_name(rhs->dtype));
    }
    if (!expertd_packed_layout_is_read(rhs->dtype, rhs->layout)) {
        FAIL_FIELD(
            EXPERTD_ERR_INVALID, "rhs",
            "rhs is %s packed as %s, which the kernels %s do not read: select the backend before weights are packed, and pack "
            "them in the layout that expertd_packed_layout_best returns",
            expertd_dtype_name(rhs->dtype), expertd_packed_layout_name(rhs->layout), expertd_kernel_selected_name());
    }
    return OK;
}

static FALLIBLE check_packed_dtype(const struct expertd_packed_weights *rhs) {
    bool is_float = rhs->dtype == EXPERTD_DTYPE_F32 || rhs->dtype == EXPERTD_DTYPE_BF16;
    if (rhs->format && !is_float) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs", "rhs is quantised for rows of %s: the rows must be F32 or BF16",
                   expertd_dtype_name(rhs->dtype));
    }
    if (!is_float && rhs->dtype != EXPERTD_DTYPE_I8) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs", "rhs is %s: weights are packed as F32, BF16 or I8", expertd_dtype_name(rhs->dtype));
    }
    return OK;
}

static FALLIBLE check_format(const struct expertd_quantised_format *format) {
    err_t e = expertd_quantised_check(format);
    if (err_is(e)) {
        struct err_copy why;
        err_save(e, &why);
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs", "format of rhs: %.512s", why.message);
    }
    return OK;
}

static FALLIBLE check_packed(const struct expertd_packed_weights *rhs) {
    TRY(check_packed_dtype(rhs));
    TRY(check_layout(rhs));
    if (rhs->format) {
        TRY(check_format(rhs->format));
    }
    size_t bytes = rhs->format ? expertd_quantised_group_bytes(rhs->format, rhs->k, rhs->n)
                               : expertd_packed_group_bytes(rhs->dtype, rhs->k, rhs->n);
    if (rhs->group_bytes < bytes || bytes > PTRDIFF_MAX) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs", "a group of rhs has %zu bytes, but %s%s[%zu, %zu] packs into %zu", rhs->group_bytes,
                   rhs->format ? "quantised, for " : "", expertd_dtype_name(rhs->dtype), rhs->n, rhs->k, bytes);
    }
    return OK;
}

static FALLIBLE check_dtypes(const struct expertd_grouped_matmul_args *args, const struct expertd_rhs_shape *rhs,
                             enum expertd_dtype lhs) {
    if (args->rhs.kind == EXPERTD_RHS_PACKED) {
        TRY(check_packed(args->rhs.packed));
        if (lhs != rhs->dtype) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "lhs", "lhs is %s, but rhs was packed for rows of %s", expertd_dtype_name(lhs),
                       expertd_dtype_name(rhs->dtype));
        }
    }
    return matmul_check_dtypes(lhs, rhs->dtype, args->out_dtype);
}

static FALLIBLE check_lhs(const struct expertd_grouped_matmul_args *args, size_t k, enum expertd_dtype dtype) {
    struct matmul_rows rows = {"lhs", args->lhs, dtype, args->lhs_rows ? args->m != 0 : args->m, k, args->lhs_stride};
    if (args->m > INT32_MAX) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "m", "m is %zu: at most %d rows can be numbered", args->m, INT32_MAX);
    }
    if ((uintptr_t)args->lhs_rows % sizeof *args->lhs_rows != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "lhs_rows", "lhs_rows is at %p: it must be aligned to %zu bytes",
                   (const void *)args->lhs_rows, sizeof *args->lhs_rows);
    }
    if (args->lhs_k_stride <= 1) {
        return matmul_check_rows(&rows);
    }
    if (args->rhs.kind == EXPERTD_RHS_PACKED) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "lhs", "k of lhs are %zu elements apart, but packed weights need rows with contiguous k",
                   args->lhs_k_stride);
    }
    // The two strides are independent, so each direction is checked alone.
    struct matmul_rows n_major = {"lhs", args->lhs, dtype, k, rows.rows != 0, args->lhs_k_stride};
    TRY(matmul_check_rows(&n_major));
    rows.columns = rows.columns != 0;
    return args->lhs_stride ? matmul_check_rows(&rows) : OK;
}

static FALLIBLE check_plain(const struct expertd_plain_weights *w) {
    size_t rows = w->transposed ? w->n : w->k, columns = w->transposed ? w->k : w->n, elements = rows && columns;
    struct matmul_rows group = {"rhs", w->data, w->dtype, w->groups ? rows : 0, columns, expertd_plain_row_stride(w)};
    TRY(matmul_check_rows(&group));
    size_t group_stride = elements ? expertd_plain_group_stride(w) : elements;
    struct matmul_rows groups = {"rhs", w->data, w->dtype, w->groups, elements, group_stride};
    return matmul_check_rows(&groups);
}

// Groups that have rows need a block.
static FALLIBLE check_packed_groups(const struct expertd_grouped_matmul_args *args) {
    enum { ALIGNMENT = 64 };
    const struct expertd_packed_weights *packed = args->rhs.packed;
    for (size_t g = 0; g < packed->groups && packed->k && packed->n; g++) {
        const void *data = packed->data ? packed->data[g] : NULL;
        bool has_rows = args->group_sizes[args->group_offset + g] > 0;
        if (has_rows && (!data || (uintptr_t)data % ALIGNMENT != 0)) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs", "group %zu of rhs is packed at %p: it must be aligned to %d bytes", g, data,
                       ALIGNMENT);
        }
    }
    return OK;
}

static FALLIBLE check_groups(const struct expertd_grouped_matmul_args *args, size_t held) {
    TRY(matmul_check_sizes(args->group_sizes, args->num_groups, args->m));
    if (held > args->num_groups) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "group_sizes", "group_sizes are of %zu groups, but rhs holds %zu", args->num_groups, held);
    }
    if (args->num_actual_groups != held) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "num_actual_groups", "num_actual_groups is %zu, but rhs holds %zu groups",
                   args->num_actual_groups, held);
    }
    if (args->group_offset > args->num_groups - held) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "group_offset", "group_offset is %zu, from where rhs holds %zu groups, but there are %zu",
                   args->group_offset, held, args->num_groups);
    }
    return OK;
}

// The arguments after the operands.
static FALLIBLE check_rest(const struct expertd_grouped_matmul_args *args, size_t n, enum expertd_dtype dtype) {
    struct matmul_rows existing = {"existing_out", args->existing_out, dtype, args->m, n, args->existing_stride};
    struct matmul_rows out = {"out", args->out, dtype, 0, n, args->out_stride};
    TRY(matmul_check_existing(args->existing_mode, &existing, &out));
    TRY(matmul_check_rows(&out));
    if (args->schedule && !expertd_schedule_is_valid(args->schedule)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "schedule",
                   "schedule has call_rows %u, run_bytes %u, tasks_per_thread %u: schedule.h gives the bounds",
                   args->schedule->call_rows, args->schedule->run_bytes, args->schedule->tasks_per_thread);
    }
    return OK;
}

FALLIBLE expertd_grouped_matmul_check(const struct expertd_grouped_matmul_args *args) {
    if ((args->rhs.kind != EXPERTD_RHS_PACKED && args->rhs.kind != EXPERTD_RHS_PLAIN) || !args->rhs.packed) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs", "rhs is of kind %d at %p: make it by expertd_rhs_packed or expertd_rhs_plain",
                   (int)args->rhs.kind, (const void *)args->rhs.packed);
    }
    struct expertd_rhs_shape rhs = expertd_rhs_shape(&args->rhs);
    enum expertd_dtype lhs = args->lhs_dtype ? args->lhs_dtype : rhs.dtype;
    if (!matmul_is_operand(rhs.dtype)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs", "rhs is %s: operands are F32, F16, BF16 or I8", expertd_dtype_name(rhs.dtype));
    }
    TRY(check_dtypes(args, &rhs, lhs));
    TRY(check_lhs(args, rhs.k, lhs));
    if (args->rhs.kind == EXPERTD_RHS_PLAIN) {
        TRY(check_plain(args->rhs.plain));
    }
    TRY(check_groups(args, rhs.groups));
    if (args->rhs.kind == EXPERTD_RHS_PACKED) {
        TRY(check_packed_groups(args));
    }
    return check_rest(args, rhs.n, matmul_out_dtype(lhs, args->out_dtype));
}

FALLIBLE grouped_matmul_check_out(const struct expertd_grouped_matmul_args *args) {
    struct expertd_rhs_shape rhs = expertd_rhs_shape(&args->rhs);
    enum expertd_dtype dtype = matmul_out_dtype(args->lhs_dtype ? args->lhs_dtype : rhs.dtype, args->out_dtype);
    return matmul_check_rows(&(struct matmul_rows){"out", args->out, dtype, args->m, rhs.n, args->out_stride});
}
