#include "expertd/kernels/from_tensors.h"

#include "kernels/products/matmul_check.h"

static FALLIBLE check_rank(const struct expertd_tensor_view *tensor, const char *name, uint32_t rank) {
    char text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    if (!tensor) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s is missing", name);
    }
    if (tensor->rank != rank) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s is %s: it must have %u dimensions", name,
                   expertd_tensor_shape_text(tensor->shape, tensor->rank, text), rank);
    }
    uint64_t bytes;
    if (err_is(expertd_tensor_bytes(tensor->dtype, tensor->shape, rank, &bytes)) || bytes != tensor->bytes) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s is %s%s, which is not %llu bytes", name, expertd_dtype_name(tensor->dtype),
                   expertd_tensor_shape_text(tensor->shape, rank, text), (unsigned long long)tensor->bytes);
    }
    return OK;
}

static FALLIBLE check_group_sizes(const struct expertd_tensor_view *sizes) {
    TRY(check_rank(sizes, "group_sizes", 1));
    if (sizes->dtype != EXPERTD_DTYPE_I32) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "group_sizes", "group_sizes are %s: they must be I32", expertd_dtype_name(sizes->dtype));
    }
    return OK;
}

static FALLIBLE check_existing(const struct expertd_tensor_view *existing, enum expertd_dtype out, const uint64_t *shape,
                               uint32_t rank) {
    if (!existing) {
        return OK;
    }
    TRY(check_rank(existing, "existing_out", rank));
    bool same = existing->dtype == out;
    for (uint32_t i = 0; i < rank; i++) {
        same = same && existing->shape[i] == shape[i];
    }
    if (!same) {
        char existing_text[EXPERTD_TENSOR_SHAPE_TEXT_MAX], out_text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL_FIELD(EXPERTD_ERR_INVALID, "existing_out", "existing_out is %s%s, but out is %s%s",
                   expertd_dtype_name(existing->dtype), expertd_tensor_shape_text(existing->shape, rank, existing_text),
                   expertd_dtype_name(out), expertd_tensor_shape_text(shape, rank, out_text));
    }
    return OK;
}

static FALLIBLE check_not_negative(int64_t value, const char *name) {
    if (value < 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s is %lld: it must not be negative", name, (long long)value);
    }
    return OK;
}

FALLIBLE expertd_grouped_matmul_from_tensors(const struct expertd_grouped_matmul_tensors *t, struct expertd_plain_weights *rhs,
                                             struct expertd_grouped_matmul_args *args) {
    TRY(check_rank(t->lhs, "lhs", 2));
    TRY(check_rank(t->rhs, "rhs", 3));
    TRY(check_group_sizes(t->group_sizes));
    TRY(check_not_negative(t->group_offset, "group_offset"));
    *rhs = (struct expertd_plain_weights){
        .dtype = t->rhs->dtype,
        .groups = t->rhs->shape[0],
        .k = t->rhs->shape[t->transpose_rhs ? 2 : 1],
        .n = t->rhs->shape[t->transpose_rhs ? 1 : 2],
        .transposed = t->transpose_rhs,
        .data = t->rhs->data,
    };
    *args = (struct expertd_grouped_matmul_args){
        .lhs = t->lhs->data,
        .lhs_stride = t->lhs->shape[1],
        .rhs = expertd_rhs_plain(rhs),
        .group_sizes = t->group_sizes->data,
        .num_groups = t->group_sizes->shape[0],
        .group_offset = (size_t)t->group_offset,
        .num_actual_groups = rhs->groups,
        .m = t->lhs->shape[0],
        .out_stride = rhs->n,
        .lhs_dtype = t->lhs->dtype,
        .out_dtype = t->preferred_element_type,
        .existing_mode = t->existing_mode,
        .existing_out = t->existing_out ? t->existing_out->data : NULL,
        .existing_stride = rhs->n,
    };
    if (rhs->k != t->lhs->shape[1]) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs", "k is %zu in rhs, but %llu in lhs", rhs->k, (unsigned long long)t->lhs->shape[1]);
    }
    TRY(matmul_check_dtypes(args->lhs_dtype, rhs->dtype, args->out_dtype));
    uint64_t shape[] = {args->m, rhs->n};
    TRY(check_existing(t->existing_out, matmul_out_dtype(args->lhs_dtype, args->out_dtype), shape, 2));
    return expertd_grouped_matmul_check(args);
}

FALLIBLE expertd_transposed_grouped_matmul_from_tensors(const struct expertd_transposed_grouped_matmul_tensors *t,
                                                        struct expertd_transposed_grouped_matmul_args *args) {
    TRY(check_rank(t->lhs, "lhs", 2));
    TRY(check_rank(t->rhs, "rhs", 2));
    TRY(check_group_sizes(t->group_sizes));
    TRY(check_not_negative(t->group_offset, "group_offset"));
    if (t->num_actual_groups != EXPERTD_TGMM_ALL_GROUPS) {
        TRY(check_not_negative(t->num_actual_groups, "num_actual_groups"));
    }
    *args = (struct expertd_transposed_grouped_matmul_args){
        .lhs = t->lhs->data,
        .rhs = t->rhs->data,
        .lhs_dtype = t->lhs->dtype,
        .rhs_dtype = t->rhs->dtype,
        .k = t->lhs->shape[0],
        .m = t->lhs->shape[1],
        .n = t->rhs->shape[1],
        .group_sizes = t->group_sizes->data,
        .num_groups = t->group_sizes->shape[0],
        .group_offset = (size_t)t->group_offset,
        .num_actual_groups =
            t->num_actual_groups == EXPERTD_TGMM_ALL_GROUPS ? t->group_sizes->shape[0] : (size_t)t->num_actual_groups,
        .out_dtype = t->preferred_element_type,
        .existing_mode = t->existing_mode,
        .existing_out = t->existing_out ? t->existing_out->data : NULL,
    };
    if (t->rhs->shape[0] != args->m) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs", "m is %llu in rhs, but %zu in lhs", (unsigned long long)t->rhs->shape[0], args->m);
    }
    TRY(expertd_transposed_grouped_matmul_check(args));
    uint64_t shape[] = {args->num_actual_groups, args->k, args->n};
    return check_existing(t->existing_out, matmul_out_dtype(args->lhs_dtype, args->out_dtype), shape, 3);
}
