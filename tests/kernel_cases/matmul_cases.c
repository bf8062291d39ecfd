// grouped_matmul and transposed_grouped_matmul.
#include "matmul_case.h"

#include <stdlib.h>

#include "device.h"

static FALLIBLE existing_mode(const struct kernel_case *c, enum expertd_existing_mode *out) {
    const char *text = safetensors_metadata(&c->file, "existing_out_mode");
    *out = EXPERTD_EXISTING_NONE;
    if (!text) {
        return OK;
    }
    if (strcmp(text, "overwrite") != 0 && strcmp(text, "accumulate") != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "existing_out_mode", "existing_out_mode is \"%s\": it is overwrite or accumulate", text);
    }
    *out = text[0] == 'o' ? EXPERTD_EXISTING_OVERWRITE : EXPERTD_EXISTING_ACCUMULATE;
    return OK;
}

static FALLIBLE take_workspace(size_t bytes, void **out) {
    if (posix_memalign(out, 64, bytes + 1) != 0) {
        *out = NULL;
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a workspace of %zu bytes", bytes);
    }
    return OK;
}

static enum expertd_dtype out_dtype(enum expertd_dtype lhs, enum expertd_dtype preferred) {
    return preferred ? preferred : lhs == EXPERTD_DTYPE_I8 ? EXPERTD_DTYPE_I32 : EXPERTD_DTYPE_F32;
}

static FALLIBLE multiply_on_device(struct case_device *d, struct expertd_grouped_matmul_args *args, void *out) {
    struct expertd_plain_weights plain = *args->rhs.plain;
    size_t bytes = args->m * args->out_stride * expertd_dtype_size(out_dtype(args->lhs_dtype, args->out_dtype));
    void *lhs, *rhs, *existing;
    TRY(case_device_copy(d, args->lhs, args->m * args->lhs_stride * expertd_dtype_size(args->lhs_dtype), &lhs));
    TRY(case_device_copy(d, plain.data, plain.groups * plain.k * plain.n * expertd_dtype_size(plain.dtype), &rhs));
    TRY(case_device_copy(d, args->existing_out, bytes, &existing));
    TRY(case_device_copy(d, out, bytes, &args->out));
    plain.data = rhs;
    args->lhs = lhs;
    args->rhs = expertd_rhs_plain(&plain);
    args->existing_out = existing;
    TRY(expertd_device_grouped_matmul(d->operations, args));
    return case_back(d, args->out, bytes, out);
}

static FALLIBLE multiply(void *context, const struct case_target *target, void *out) {
    struct expertd_grouped_matmul_args args = *(struct expertd_grouped_matmul_args *)context;
    struct expertd_team *team = target->team;
    args.out = out;
    if (target->device) {
        err_t e = multiply_on_device(target->device, &args, out);
        case_device_drop(target->device);
        return e;
    }
    void *workspace;
    TRY(take_workspace(expertd_grouped_matmul_workspace_bytes(&args, team), &workspace));
    err_t e = expertd_grouped_matmul(&args, team, workspace);
    free(workspace);
    return e;
}

FALLIBLE matmul_case_read(const struct kernel_case *c, struct expertd_grouped_matmul_tensors *tensors,
                          struct expertd_matmul_options *options) {
    *tensors = (struct expertd_grouped_matmul_tensors){
        .lhs = case_tensor(c, "lhs"),
        .rhs = case_tensor(c, "rhs"),
        .group_sizes = case_tensor(c, "group_sizes"),
        .existing_out = case_tensor(c, "existing_out"),
    };
    TRY(case_options(c, options));
    TRY(case_flag(c, "transpose_rhs", &tensors->transpose_rhs));
    TRY(case_integer(c, "group_offset", 0, &tensors->group_offset));
    TRY(case_dtype(c, "preferred_element_type", &tensors->preferred_element_type));
    return existing_mode(c, &tensors->existing_mode);
}

FALLIBLE matmul_case_run(const struct kernel_case *c, struct expertd_grouped_matmul_args *args) {
    struct case_answer answer = {out_dtype(args->lhs_dtype, args->out_dtype), 2, {args->m, expertd_rhs_shape(&args->rhs).n}};
    struct case_run run = {multiply, args, answer};
    return c->expected_error ? OK : case_run_twice(c, &run);
}

FALLIBLE run_grouped_matmul(const struct kernel_case *c) {
    struct expertd_grouped_matmul_tensors tensors;
    struct expertd_matmul_options options;
    struct expertd_plain_weights rhs;
    struct expertd_grouped_matmul_args args;
    TRY(matmul_case_read(c, &tensors, &options));
    TRY(expertd_grouped_matmul_from_tensors(&tensors, &rhs, &args));
    args.options = &options;
    return matmul_case_run(c, &args);
}

static FALLIBLE multiply_transposed_on_device(struct case_device *d, struct expertd_transposed_grouped_matmul_args *args,
                                              void *out) {
    size_t size = expertd_dtype_size(out_dtype(args->lhs_dtype, args->out_dtype)),
           bytes = args->num_actual_groups * args->k * args->n * size;
    void *lhs, *rhs, *existing;
    TRY(case_device_copy(d, args->lhs, args->k * args->m * expertd_dtype_size(args->lhs_dtype), &lhs));
    TRY(case_device_copy(d, args->rhs, args->m * args->n * expertd_dtype_size(args->rhs_dtype), &rhs));
    TRY(case_device_copy(d, args->existing_out, bytes, &existing));
    TRY(case_device_copy(d, out, bytes, &args->out));
    args->lhs = lhs;
    args->rhs = rhs;
    args->existing_out = existing;
    TRY(expertd_device_transposed_grouped_matmul(d->operations, args));
    return case_back(d, args->out, bytes, out);
}

static FALLIBLE multiply_transposed(void *context, const struct case_target *target, void *out) {
    struct expertd_transposed_grouped_matmul_args args = *(struct expertd_transposed_grouped_matmul_args *)context;
    struct expertd_team *team = target->team;
    args.out = out;
    if (target->device) {
        err_t e = multiply_transposed_on_device(target->device, &args, out);
        case_device_drop(target->device);
        return e;
    }
    void *workspace;
    TRY(take_workspace(expertd_transposed_grouped_matmul_workspace_bytes(&args, team), &workspace));
    err_t e = expertd_transposed_grouped_matmul(&args, team, workspace);
    free(workspace);
    return e;
}

FALLIBLE run_transposed_grouped_matmul(const struct kernel_case *c) {
    struct expertd_transposed_grouped_matmul_tensors tensors = {
        .lhs = case_tensor(c, "lhs"),
        .rhs = case_tensor(c, "rhs"),
        .group_sizes = case_tensor(c, "group_sizes"),
        .existing_out = case_tensor(c, "existing_out"),
    };
    struct expertd_matmul_options options;
    struct expertd_transposed_grouped_matmul_args args;
    bool all = !safetensors_metadata(&c->file, "num_actual_groups");
    TRY(case_options(c, &options));
    TRY(case_integer(c, "group_offset", 0, &tensors.group_offset));
    TRY(case_integer(c, "num_actual_groups", EXPERTD_TGMM_ALL_GROUPS, &tensors.num_actual_groups));
    if (!all && tensors.num_actual_groups < 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "num_actual_groups", "num_actual_groups is negative");
    }
    TRY(case_dtype(c, "preferred_element_type", &tensors.preferred_element_type));
    TRY(existing_mode(c, &tensors.existing_mode));
    TRY(expertd_transposed_grouped_matmul_from_tensors(&tensors, &args));
    args.options = &options;
    struct case_run run = {
        multiply_transposed, &args, {out_dtype(args.lhs_dtype, args.out_dtype), 3, {args.num_actual_groups, args.k, args.n}}};
    return c->expected_error ? OK : case_run_twice(c, &run);
}
