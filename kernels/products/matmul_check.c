#include "kernels/products/matmul_check.h"

bool matmul_is_operand(enum expertd_dtype dtype) {
    return expertd_dtype_is_float16_or_32(dtype) || dtype == EXPERTD_DTYPE_I8;
}

FALLIBLE matmul_check_dtypes(enum expertd_dtype lhs, enum expertd_dtype rhs, enum expertd_dtype out) {
    if (!matmul_is_operand(lhs)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "lhs", "lhs is %s: operands are F32, F16, BF16 or I8", expertd_dtype_name(lhs));
    }
    if (!matmul_is_operand(rhs) || (lhs == EXPERTD_DTYPE_I8) != (rhs == EXPERTD_DTYPE_I8)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs", "rhs is %s, but lhs is %s: floats (F32, F16, BF16) go with floats, I8 with I8",
                   expertd_dtype_name(rhs), expertd_dtype_name(lhs));
    }
    bool fits = expertd_dtype_is_float16_or_32(out) || (lhs == EXPERTD_DTYPE_I8 && out == EXPERTD_DTYPE_I32);
    if (out != EXPERTD_DTYPE_NONE && !fits) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "preferred_element_type", "preferred_element_type is %s: sums of %s by %s give %s",
                   expertd_dtype_name(out), expertd_dtype_name(lhs), expertd_dtype_name(rhs),
                   lhs == EXPERTD_DTYPE_I8 ? "I32, F32, BF16 or F16" : "F32, BF16 or F16");
    }
    return OK;
}

enum expertd_dtype matmul_out_dtype(enum expertd_dtype lhs, enum expertd_dtype out) {
    if (out != EXPERTD_DTYPE_NONE) {
        return out;
    }
    return lhs == EXPERTD_DTYPE_I8 ? EXPERTD_DTYPE_I32 : EXPERTD_DTYPE_F32;
}

FALLIBLE matmul_check_sizes(const int32_t *group_sizes, size_t num_groups, size_t m) {
    uint64_t sum = 0;
    TRY(matmul_check_rows(&(struct matmul_rows){"group_sizes", group_sizes, EXPERTD_DTYPE_I32, 1, num_groups, num_groups}));
    for (size_t g = 0; g < num_groups; g++) {
        if (group_sizes[g] < 0) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "group_sizes", "group_sizes[%zu] is %d: a group cannot have fewer than 0 rows", g,
                       group_sizes[g]);
        }
        sum += (uint64_t)group_sizes[g];
    }
    if (sum > m) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "group_sizes", "group_sizes add up to %llu, but there are %zu rows (m)",
                   (unsigned long long)sum, m);
    }
    return OK;
}

FALLIBLE matmul_check_rows(const struct matmul_rows *rows) {
    size_t size = expertd_dtype_size(rows->dtype), span;
    bool empty = rows->rows == 0 || rows->columns == 0;
    if (!empty && !rows->data) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, rows->name, "%s is NULL, but has %zu rows of %zu elements", rows->name, rows->rows,
                   rows->columns);
    }
    if (rows->stride < rows->columns) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, rows->name, "rows of %s are %zu elements apart, but have %zu elements", rows->name,
                   rows->stride, rows->columns);
    }
    if (empty) {
        return OK;
    }
    if ((uintptr_t)rows->data % size != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, rows->name, "%s is at %p, but %s elements must be aligned to %zu bytes", rows->name,
                   rows->data, expertd_dtype_name(rows->dtype), size);
    }
    bool fits = !__builtin_mul_overflow(rows->rows - 1, rows->stride, &span) &&
                !__builtin_add_overflow(span, rows->columns, &span) && span <= PTRDIFF_MAX / size;
    if (!fits) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, rows->name, "%zu rows of %s, %zu elements apart, are larger than memory can be", rows->rows,
                   rows->name, rows->stride);
    }
    return OK;
}

FALLIBLE matmul_check_existing(enum expertd_existing_mode mode, const struct matmul_rows *existing, const struct matmul_rows *out) {
    if ((unsigned)mode > EXPERTD_EXISTING_ACCUMULATE) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "existing_out", "existing_out has mode %d: the modes are none, overwrite and accumulate",
                   (int)mode);
    }
    if (mode == EXPERTD_EXISTING_NONE && existing->data) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "existing_out", "existing_out is given without a mode: overwrite or accumulate");
    }
    if (mode == EXPERTD_EXISTING_NONE) {
        return OK;
    }
    if (existing->data && existing->data == out->data && existing->stride != out->stride && existing->rows > 1) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "existing_out",
                   "existing_out is out, but its rows are %zu elements apart and those of out %zu", existing->stride, out->stride);
    }
    return matmul_check_rows(existing);
}

FALLIBLE matmul_check_tiling(const struct expertd_matmul_tiling *tiling) {
    size_t given = (tiling->tm != 0) + (tiling->tk != 0) + (tiling->tn != 0);
    if (given != 0 && given != 3) {
        FAIL_FIELD(
            EXPERTD_ERR_INVALID, "tiling",
            "tiling is (%zu, %zu, %zu): a tile must have at least one row, one k and one column; if all are 0, the library chooses",
            tiling->tm, tiling->tk, tiling->tn);
    }
    return OK;
}

FALLIBLE matmul_check_given(const struct expertd_matmul_options *options, size_t needed) {
    size_t given = options->compiler.internal_scratch_in_bytes;
    if (given && given < needed) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "internal_scratch_in_bytes",
                   "internal_scratch_in_bytes is %zu, but this product needs %zu with this team", given, needed);
    }
    return OK;
}

FALLIBLE matmul_check_workspace(const void *workspace, size_t needed) {
    enum { ALIGNMENT = 64 };
    if (needed && (!workspace || (uintptr_t)workspace % ALIGNMENT != 0)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "workspace", "workspace is %p: this product needs %zu bytes, aligned to %d", workspace,
                   needed, ALIGNMENT);
    }
    return OK;
}
