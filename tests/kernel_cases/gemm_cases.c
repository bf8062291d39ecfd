// grouped_gemm.
#include <stdio.h>
#include <stdlib.h>

#include "case.h"
#include "device.h"
#include "expertd/kernels/grouped_gemm.h"

enum { NAME_MAX_BYTES = 32, GROUPS_MAX = 1 << 20 };

// Reads a dimension from attribute a_first or tensor a_first_dims; a case has one of the two.
static FALLIBLE read_dim(const struct kernel_case *c, const char *operand, const char *which, struct expertd_gemm_dim *out) {
    char same[NAME_MAX_BYTES], ragged[NAME_MAX_BYTES];
    snprintf(same, sizeof same, "%s_%s", operand, which);
    snprintf(ragged, sizeof ragged, "%s_%s_dims", operand, which);
    const struct expertd_tensor_view *sizes = case_tensor(c, ragged);
    int64_t value;
    TRY(case_integer(c, same, -1, &value));
    bool given = safetensors_metadata(&c->file, same);
    if (sizes) {
        if (given || sizes->rank != 1) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, ragged, "%s is not [G], or %s is given too", ragged, same);
        }
        *out = (struct expertd_gemm_dim){.ragged = sizes->data, .dtype = sizes->dtype, .count = sizes->shape[0]};
        return OK;
    }
    if (!given || value < 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, operand, "%s is \"%s\": without %s it is an integer from 0 on", same, case_text(c, same),
                   ragged);
    }
    *out = (struct expertd_gemm_dim){.same = (size_t)value};
    return OK;
}

static FALLIBLE read_scaling(const struct kernel_case *c, const char *key, enum expertd_gemm_scaling *out) {
    static const char *const NAMES[] = {"none", "tensor", "block_128x128", "block_1x128", "mxfp8_1x32", "mxfp4_1x32"};
    const char *text = safetensors_metadata(&c->file, key);
    *out = EXPERTD_GEMM_UNSCALED;
    for (size_t i = 0; text && i < sizeof NAMES / sizeof *NAMES; i++) {
        if (strcmp(text, NAMES[i]) == 0) {
            *out = (enum expertd_gemm_scaling)i;
            return OK;
        }
    }
    if (text) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, key, "%s is \"%s\": there is no such scaling", key, text);
    }
    return OK;
}

struct operand_names {
    const char *operand, *scaling, *scale;
};

static FALLIBLE read_operand(const struct kernel_case *c, const struct operand_names *names, struct expertd_gemm_operand *out) {
    const struct expertd_tensor_view *data = case_tensor(c, names->operand), *scale = case_tensor(c, names->scale);
    if (!data || data->rank != 1) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, names->operand, "%s is missing, or not flat", names->operand);
    }
    *out = (struct expertd_gemm_operand){.data = data->data, .dtype = data->dtype, .count = data->shape[0]};
    if (scale) {
        if (scale->rank != 1) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, names->scale, "%s is not flat", names->scale);
        }
        out->scales = scale->data;
        out->scale_dtype = scale->dtype;
        out->scale_count = scale->shape[0];
    }
    TRY(read_dim(c, names->operand, "first", &out->first));
    TRY(read_dim(c, names->operand, "last", &out->last));
    return read_scaling(c, names->scaling, &out->scaling);
}

static FALLIBLE read_factor(const struct kernel_case *c, const char *name, const float **values, size_t *count) {
    const struct expertd_tensor_view *view = case_tensor(c, name);
    if (!view) {
        return OK;
    }
    if (view->dtype != EXPERTD_DTYPE_F32 || view->rank != 1) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s is not F32 [1] or [num_groups]", name);
    }
    *values = view->data;
    *count = view->shape[0];
    return OK;
}

static FALLIBLE read_c(const struct kernel_case *c, struct expertd_grouped_gemm_args *args) {
    const struct expertd_tensor_view *view = case_tensor(c, "c");
    if (!view) {
        return OK;
    }
    if (view->dtype != args->out_dtype || view->rank != 1) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "c", "c is not flat, or not of the dtype of out");
    }
    args->c = view->data;
    args->c_count = view->shape[0];
    return OK;
}

static FALLIBLE read_args(const struct kernel_case *c, struct expertd_grouped_gemm_args *args) {
    static const struct operand_names A = {"a", "scaling_a", "a_scale"}, B = {"b", "scaling_b", "b_scale"};
    int64_t groups;
    *args = (struct expertd_grouped_gemm_args){0};
    TRY(case_integer(c, "num_groups", -1, &groups));
    if (groups < 0 || groups > GROUPS_MAX) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "num_groups", "num_groups is \"%s\": it is an integer from 0 to %d",
                   case_text(c, "num_groups"), GROUPS_MAX);
    }
    args->num_groups = (size_t)groups;
    TRY(read_operand(c, &A, &args->a));
    TRY(read_operand(c, &B, &args->b));
    TRY(case_flag(c, "trans_a", &args->trans_a));
    TRY(case_flag(c, "trans_b", &args->trans_b));
    TRY(read_dim(c, "out", "first", &args->out_first));
    TRY(read_dim(c, "out", "last", &args->out_last));
    TRY(case_dtype(c, "preferred_element_type", &args->out_dtype));
    if (!args->out_dtype) {
        args->out_dtype = args->a.dtype == EXPERTD_DTYPE_I8 ? EXPERTD_DTYPE_I32 : EXPERTD_DTYPE_F32;
    }
    TRY(read_factor(c, "alpha", &args->alpha, &args->alpha_count));
    TRY(read_factor(c, "beta", &args->beta, &args->beta_count));
    return read_c(c, args);
}

static FALLIBLE operand_there(struct case_device *d, struct expertd_gemm_operand *operand) {
    void *data, *scales;
    TRY(case_device_copy(d, operand->data, operand->count * expertd_dtype_size(operand->dtype), &data));
    TRY(case_device_copy(d, operand->scales, operand->scale_count * expertd_dtype_size(operand->scale_dtype), &scales));
    operand->data = data;
    operand->scales = scales;
    return OK;
}

static FALLIBLE multiply_on_device(struct case_device *d, struct expertd_grouped_gemm_args *args, void *out) {
    size_t bytes = args->out_count * expertd_dtype_size(args->out_dtype);
    void *c;
    TRY(operand_there(d, &args->a));
    TRY(operand_there(d, &args->b));
    TRY(case_device_copy(d, args->c, args->c_count * expertd_dtype_size(args->out_dtype), &c));
    TRY(case_device_copy(d, out, bytes, &args->out));
    args->c = c;
    TRY(expertd_device_grouped_gemm(d->operations, args));
    return case_back(d, args->out, bytes, out);
}

static FALLIBLE multiply(void *context, const struct case_target *target, void *out) {
    struct expertd_grouped_gemm_args args = *(struct expertd_grouped_gemm_args *)context;
    struct expertd_team *team = target->team;
    args.out = out;
    if (target->device) {
        err_t e = multiply_on_device(target->device, &args, out);
        case_device_drop(target->device);
        return e;
    }
    void *workspace;
    size_t bytes = expertd_grouped_gemm_workspace_bytes(&args, team);
    if (posix_memalign(&workspace, 64, bytes + 1) != 0) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a workspace of %zu bytes", bytes);
    }
    err_t e = expertd_grouped_gemm(&args, team, workspace);
    free(workspace);
    return e;
}

FALLIBLE run_grouped_gemm(const struct kernel_case *c) {
    struct expertd_grouped_gemm_args args;
    struct expertd_matmul_options options;
    TRY(case_options(c, &options));
    TRY(read_args(c, &args));
    args.options = &options;
    const struct expertd_tensor_view *out = case_tensor(c, "out");
    args.out_count = SIZE_MAX; // an error case has no buffer, so none can be too short
    if (!c->expected_error) {
        if (!out || out->rank != 1) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "expected tensor out is missing, or not flat");
        }
        args.out_count = out->shape[0];
    }
    TRY(expertd_grouped_gemm_check(&args));
    struct case_run run = {multiply, &args, {args.out_dtype, 1, {args.out_count}}};
    return c->expected_error ? OK : case_run_twice(c, &run);
}
