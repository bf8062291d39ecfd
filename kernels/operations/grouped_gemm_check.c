// Argument checks of the ragged grouped GEMM, and the table of scalings.
#include <stdint.h>
#include <string.h>

#include "base/sizes.h"
#include "expertd/kernels/grouped_gemm.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/operations/grouped_gemm_shape.h"
#include "kernels/products/matmul_check.h"

static const struct gemm_scaling_rule RULES[] = {
    [EXPERTD_GEMM_UNSCALED] = {"none", EXPERTD_DTYPE_NONE, 0, 0, 1},
    [EXPERTD_GEMM_TENSOR] = {"tensor", EXPERTD_DTYPE_F32, 0, 0, 1},
    [EXPERTD_GEMM_BLOCK_128X128] = {"block_128x128", EXPERTD_DTYPE_F32, 128, 128, 1},
    [EXPERTD_GEMM_BLOCK_1X128] = {"block_1x128", EXPERTD_DTYPE_F32, 1, 128, 1},
    [EXPERTD_GEMM_MXFP8_1X32] = {"mxfp8_1x32", EXPERTD_DTYPE_F8_E8M0, 1, 32, 1},
    [EXPERTD_GEMM_MXFP4_1X32] = {"mxfp4_1x32", EXPERTD_DTYPE_F8_E8M0, 1, 32, 2},
};

enum { RULES_COUNT = sizeof RULES / sizeof *RULES };

const struct gemm_scaling_rule *gemm_scaling_rule(enum expertd_gemm_scaling scaling) {
    INVARIANT((size_t)scaling < RULES_COUNT);
    return &RULES[scaling];
}

struct gemm_scale_grid gemm_scale_grid(const struct expertd_gemm_operand *operand, bool k_is_last, size_t first, size_t last) {
    const struct gemm_scaling_rule *rule = gemm_scaling_rule(operand->scaling);
    if (!rule->lines) {
        return (struct gemm_scale_grid){1, 1};
    }
    return (struct gemm_scale_grid){div_up(first, k_is_last ? rule->lines : rule->k),
                                    div_up(last, k_is_last ? rule->k : rule->lines)};
}

// The argument names of an operand, for messages.
struct names {
    const char *operand, *first_dims, *last_dims, *scaling, *scale;
};

static const struct names NAMES_A = {"a", "a_first_dims", "a_last_dims", "scaling_a", "a_scale"};
static const struct names NAMES_B = {"b", "b_first_dims", "b_last_dims", "scaling_b", "b_scale"};
static const struct names NAMES_OUT = {"out", "out_first_dims", "out_last_dims", NULL, NULL};

static FALLIBLE check_dim(const struct expertd_gemm_dim *dim, const char *name, size_t num_groups) {
    if (!dim->ragged && (dim->dtype == EXPERTD_DTYPE_NONE || num_groups == 0)) {
        return OK;
    }
    if (dim->dtype != EXPERTD_DTYPE_I32 && dim->dtype != EXPERTD_DTYPE_I64) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s is %s: sizes must be I32 or I64", name, expertd_dtype_name(dim->dtype));
    }
    if (!dim->ragged || (uintptr_t)dim->ragged % expertd_dtype_size(dim->dtype) != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s is at %p: sizes of %s must be aligned to %zu bytes", name, dim->ragged,
                   expertd_dtype_name(dim->dtype), expertd_dtype_size(dim->dtype));
    }
    if (dim->count != num_groups) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s has %zu sizes, but there are %zu groups", name, dim->count, num_groups);
    }
    for (size_t g = 0; g < num_groups; g++) {
        if (gemm_dim_at(dim, g) < 0) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s[%zu] is %lld: a size must not be negative", name, g,
                       (long long)gemm_dim_at(dim, g));
        }
    }
    return OK;
}

// Do the groups' matrices fit into `capacity` elements?
static FALLIBLE check_fits(const struct expertd_gemm_dim *first, const struct expertd_gemm_dim *last, const struct names *names,
                           size_t num_groups, uint64_t capacity) {
    const char *name = first->ragged ? names->first_dims : last->ragged ? names->last_dims : names->operand;
    uint64_t sum = 0, product;
    for (size_t g = 0; g < num_groups; g++) {
        uint64_t rows = (uint64_t)gemm_dim_at(first, g), columns = (uint64_t)gemm_dim_at(last, g);
        if (__builtin_mul_overflow(rows, columns, &product) || __builtin_add_overflow(sum, product, &sum) || sum > capacity) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, name,
                       "groups up to number %zu, which is [%llu, %llu], need more than the %llu elements of %s", g,
                       (unsigned long long)rows, (unsigned long long)columns, (unsigned long long)capacity, names->operand);
        }
    }
    return OK;
}

static FALLIBLE check_sizes(const struct expertd_grouped_gemm_args *args) {
    size_t groups = args->num_groups;
    if (groups > EXPERTD_GROUPED_GEMM_GROUPS_MAX) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "num_groups", "num_groups is %zu: a call takes %d at most", groups,
                   EXPERTD_GROUPED_GEMM_GROUPS_MAX);
    }
    TRY(check_dim(&args->a.first, NAMES_A.first_dims, groups));
    TRY(check_dim(&args->a.last, NAMES_A.last_dims, groups));
    TRY(check_dim(&args->b.first, NAMES_B.first_dims, groups));
    TRY(check_dim(&args->b.last, NAMES_B.last_dims, groups));
    TRY(check_dim(&args->out_first, NAMES_OUT.first_dims, groups));
    return check_dim(&args->out_last, NAMES_OUT.last_dims, groups);
}

static FALLIBLE check_dims(const struct expertd_grouped_gemm_args *args) {
    size_t groups = args->num_groups;
    TRY(check_sizes(args));
    size_t codes_a = gemm_scaling_rule(args->a.scaling)->codes_per_element;
    size_t codes_b = gemm_scaling_rule(args->b.scaling)->codes_per_element;
    TRY(check_fits(&args->a.first, &args->a.last, &NAMES_A, groups, (uint64_t)args->a.count * codes_a));
    TRY(check_fits(&args->b.first, &args->b.last, &NAMES_B, groups, (uint64_t)args->b.count * codes_b));
    return check_fits(&args->out_first, &args->out_last, &NAMES_OUT, groups, args->out_count);
}

// A dimension that two of the three matrices share. The later argument is reported.
struct agreement {
    const char *dimension;
    const struct expertd_gemm_dim *earlier, *later;
    const char *earlier_name, *later_name, *later_operand;
};

static FALLIBLE check_agreement(const struct agreement *pair, size_t num_groups) {
    for (size_t g = 0; g < num_groups; g++) {
        long long earlier = gemm_dim_at(pair->earlier, g), later = gemm_dim_at(pair->later, g);
        if (earlier != later) {
            const char *name = pair->later->ragged ? pair->later_name : pair->later_operand;
            FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s of group %zu is %lld in %s, but %lld in %s", pair->dimension, g, earlier,
                       pair->earlier_name, later, pair->later_name);
        }
    }
    return OK;
}

static FALLIBLE check_agreements(const struct expertd_grouped_gemm_args *args) {
    const struct expertd_gemm_operand *a = &args->a, *b = &args->b;
    bool ta = args->trans_a, tb = args->trans_b;
    const char *a_names[] = {NAMES_A.first_dims, NAMES_A.last_dims}, *b_names[] = {NAMES_B.first_dims, NAMES_B.last_dims};
    const struct expertd_gemm_dim *a_dims[] = {&a->first, &a->last}, *b_dims[] = {&b->first, &b->last};
    const struct agreement pairs[] = {
        {"K", a_dims[!ta], b_dims[tb], a_names[!ta], b_names[tb], NAMES_B.operand},
        {"M", a_dims[ta], &args->out_first, a_names[ta], NAMES_OUT.first_dims, NAMES_OUT.operand},
        {"N", b_dims[!tb], &args->out_last, b_names[!tb], NAMES_OUT.last_dims, NAMES_OUT.operand},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        TRY(check_agreement(&pairs[i], args->num_groups));
    }
    return OK;
}

static bool scaling_takes(enum expertd_gemm_scaling scaling, enum expertd_dtype dtype) {
    switch (scaling) {
    case EXPERTD_GEMM_UNSCALED:
        return expertd_dtype_is_float16_or_32(dtype) || dtype == EXPERTD_DTYPE_I8;
    case EXPERTD_GEMM_TENSOR:
    case EXPERTD_GEMM_MXFP8_1X32:
        return dtype == EXPERTD_DTYPE_F8_E4M3 || dtype == EXPERTD_DTYPE_F8_E5M2;
    case EXPERTD_GEMM_BLOCK_128X128:
    case EXPERTD_GEMM_BLOCK_1X128:
        return dtype == EXPERTD_DTYPE_F8_E4M3;
    case EXPERTD_GEMM_MXFP4_1X32:
        return dtype == EXPERTD_DTYPE_U8;
    }
    return false;
}

static FALLIBLE check_known(const struct expertd_gemm_operand *operand, const struct names *names) {
    if ((size_t)operand->scaling >= RULES_COUNT) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, names->scaling, "%s is %d: there is no such scaling", names->scaling,
                   (int)operand->scaling);
    }
    return OK;
}

static FALLIBLE check_same_scaling(enum expertd_gemm_scaling a, enum expertd_gemm_scaling b) {
    bool deepseek = (a == EXPERTD_GEMM_BLOCK_1X128 && b == EXPERTD_GEMM_BLOCK_128X128) ||
                    (a == EXPERTD_GEMM_BLOCK_128X128 && b == EXPERTD_GEMM_BLOCK_1X128);
    if (a != b && !deepseek) {
        FAIL_FIELD(
            EXPERTD_ERR_INVALID, "scaling_b",
            "scaling_b is %s, but scaling_a is %s: both operands must have the same scaling; the exception is 1x128 with 128x128",
            RULES[b].name, RULES[a].name);
    }
    return OK;
}

static bool is_operand(enum expertd_dtype dtype) {
    return expertd_dtype_is_float16_or_32(dtype) || dtype == EXPERTD_DTYPE_I8 || dtype == EXPERTD_DTYPE_F8_E4M3 ||
           dtype == EXPERTD_DTYPE_F8_E5M2 || dtype == EXPERTD_DTYPE_U8;
}

// A dtype that no scaling supports is reported under the operand's name, regardless of its scaling.
static FALLIBLE check_operand(const struct expertd_gemm_operand *operand, const struct names *names) {
    if (!is_operand(operand->dtype)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, names->operand,
                   "%s is %s: operands are F32, F16, BF16 or I8, with a scaling F8_E4M3, F8_E5M2 or U8 (E2M1)", names->operand,
                   expertd_dtype_name(operand->dtype));
    }
    return OK;
}

static FALLIBLE check_scaling(const struct expertd_gemm_operand *operand, const struct names *names) {
    if (operand->scaling == EXPERTD_GEMM_UNSCALED && operand->dtype == EXPERTD_DTYPE_U8) { // U8 may also be meant as integers
        FAIL_FIELD(EXPERTD_ERR_INVALID, names->operand, "%s is U8, which is E2M1 codes where %s is %s, but it is none",
                   names->operand, names->scaling, RULES[EXPERTD_GEMM_MXFP4_1X32].name);
    }
    if (!scaling_takes(operand->scaling, operand->dtype)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, names->scaling, "%s is %s, which %s of %s cannot have", names->scaling,
                   RULES[operand->scaling].name, names->operand, expertd_dtype_name(operand->dtype));
    }
    return OK;
}

// A byte holds two E2M1 codes of neighbouring k, so K must be even and the last stored dimension.
static FALLIBLE check_pairs_of_codes(const struct expertd_gemm_operand *operand, const struct names *names, bool k_is_last,
                                     size_t num_groups) {
    if (operand->scaling != EXPERTD_GEMM_MXFP4_1X32) {
        return OK;
    }
    if (!k_is_last) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, names->scaling, "%s is mxfp4_1x32, for which K is the last stored dimension of %s",
                   names->scaling, names->operand);
    }
    for (size_t g = 0; g < num_groups; g++) {
        if (gemm_dim_at(&operand->last, g) % 2) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, names->scaling, "%s is mxfp4_1x32, two codes a byte, but K of group %zu is odd: %lld",
                       names->scaling, g, (long long)gemm_dim_at(&operand->last, g));
        }
    }
    return OK;
}

// Checked before the dimensions, whose meaning depends on the scalings.
static FALLIBLE check_scalings(const struct expertd_grouped_gemm_args *args) {
    TRY(check_known(&args->a, &NAMES_A));
    TRY(check_known(&args->b, &NAMES_B));
    TRY(check_operand(&args->a, &NAMES_A));
    TRY(check_operand(&args->b, &NAMES_B));
    TRY(check_same_scaling(args->a.scaling, args->b.scaling));
    TRY(check_scaling(&args->a, &NAMES_A));
    return check_scaling(&args->b, &NAMES_B);
}

static FALLIBLE check_codes(const struct expertd_grouped_gemm_args *args) {
    TRY(check_pairs_of_codes(&args->a, &NAMES_A, !args->trans_a, args->num_groups));
    return check_pairs_of_codes(&args->b, &NAMES_B, args->trans_b, args->num_groups);
}

static FALLIBLE check_scales(const struct expertd_gemm_operand *operand, const struct names *names, bool k_is_last,
                             size_t num_groups) {
    const struct gemm_scaling_rule *rule = &RULES[operand->scaling];
    const char *name = names->scale;
    if (!rule->scale_dtype) {
        if (operand->scales) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s is given, but %s is none", name, names->scaling);
        }
        return OK;
    }
    if (operand->scale_dtype != rule->scale_dtype) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s is %s, but %s takes %s", name,
                   operand->scales ? expertd_dtype_name(operand->scale_dtype) : "missing", rule->name,
                   expertd_dtype_name(rule->scale_dtype));
    }
    size_t needed = 0;
    for (size_t g = 0; g < num_groups; g++) {
        struct gemm_scale_grid grid =
            gemm_scale_grid(operand, k_is_last, (size_t)gemm_dim_at(&operand->first, g), (size_t)gemm_dim_at(&operand->last, g));
        needed += grid.first * grid.last;
    }
    bool one = !rule->lines && operand->scale_count == 1;
    if ((operand->scale_count != needed && !one) || (!operand->scales && needed)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s has %zu scales, but %s of these groups has %zu", name, operand->scale_count,
                   rule->name, needed);
    }
    return OK;
}

static FALLIBLE check_factor(const float *factor, size_t count, size_t num_groups, const char *name) {
    if (factor && count != 1 && count != num_groups) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s has %zu values: it must have one, or one for each of the %zu groups", name, count,
                   num_groups);
    }
    if ((uintptr_t)factor % sizeof *factor != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s is at %p: F32 values must be aligned to 4 bytes", name, (const void *)factor);
    }
    return OK;
}

static float factor_at(const float *factor, size_t count, size_t group, float absent) {
    return factor ? factor[count == 1 ? 0 : group] : absent;
}

// Compares bits, since the caller's floating-point mode may flush subnormals or trap NaN.
static bool is_zero(float factor) {
    return expertd_f32_bits(factor) << 1 == 0;
}

// Is the factor an integer in int32's range? From 2^23 on, every float is an integer.
static bool is_integer(float factor) {
    const uint32_t bits = expertd_f32_bits(factor);
    const int exponent = (int)(bits >> 23 & 255u) - 127;
    if (exponent < 0) {
        return is_zero(factor);
    }
    if (exponent >= 31) {
        return bits == expertd_f32_bits(-0x1p31f);
    }
    return exponent >= 23 || (bits & (0x7fffffu >> exponent)) == 0;
}

static FALLIBLE check_integer_factor(const char *name, size_t group, float factor) {
    if (is_integer(factor)) {
        return OK;
    }
    float_mode before = float_mode_set_ieee(); // so that the message does not show a subnormal as 0
    (void)err_record(EXPERTD_ERR_INVALID, name,
                     "%s of group %zu is %.9g: with an I32 output it must be an integer from -2^31 to 2^31 - 1; F32, BF16 and "
                     "F16 outputs take any factor",
                     name, group, (double)factor);
    float_mode_restore(before);
    return (err_t){EXPERTD_ERR_INVALID};
}

// An I32 output is not rounded, so its factors must be integers.
static FALLIBLE check_integer_factors(const struct expertd_grouped_gemm_args *args) {
    for (size_t g = 0; args->out_dtype == EXPERTD_DTYPE_I32 && g < args->num_groups; g++) {
        TRY(check_integer_factor("alpha", g, factor_at(args->alpha, args->alpha_count, g, 1.0f)));
        TRY(check_integer_factor("beta", g, factor_at(args->beta, args->beta_count, g, 0.0f)));
    }
    return OK;
}

static FALLIBLE check_c(const struct expertd_grouped_gemm_args *args) {
    uint64_t needed = 0;
    bool read = false;
    for (size_t g = 0; g < args->num_groups; g++) {
        needed += (uint64_t)gemm_dim_at(&args->out_first, g) * (uint64_t)gemm_dim_at(&args->out_last, g);
        read = read || !is_zero(factor_at(args->beta, args->beta_count, g, 0.0f));
    }
    if (read && !args->c) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "c", "c is missing, but a beta is not 0");
    }
    if (args->c && args->c_count < needed) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "c", "c has %zu elements, but the groups have %llu", args->c_count,
                   (unsigned long long)needed);
    }
    return OK;
}

static FALLIBLE check_dtypes(const struct expertd_grouped_gemm_args *args) {
    bool integers = args->a.dtype == EXPERTD_DTYPE_I8;
    if (integers != (args->b.dtype == EXPERTD_DTYPE_I8)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "b", "b is %s, but a is %s: I8 goes with I8", expertd_dtype_name(args->b.dtype),
                   expertd_dtype_name(args->a.dtype));
    }
    if (!expertd_dtype_is_float16_or_32(args->out_dtype) && !(integers && args->out_dtype == EXPERTD_DTYPE_I32)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "preferred_element_type", "preferred_element_type is %s: sums of %s by %s give %s",
                   expertd_dtype_name(args->out_dtype), expertd_dtype_name(args->a.dtype), expertd_dtype_name(args->b.dtype),
                   integers ? "I32, F32, BF16 or F16" : "F32, BF16 or F16");
    }
    return OK;
}

// A buffer of `count` elements.
static FALLIBLE check_buffer(const char *name, const void *data, enum expertd_dtype dtype, size_t count) {
    return matmul_check_rows(&(struct matmul_rows){name, data, dtype, 1, count, count});
}

static FALLIBLE check_buffers(const struct expertd_grouped_gemm_args *args) {
    const struct expertd_gemm_operand *a = &args->a, *b = &args->b;
    TRY(check_buffer("a", a->data, a->dtype, a->count));
    TRY(check_buffer("b", b->data, b->dtype, b->count));
    TRY(check_buffer("a_scale", a->scales, a->scale_dtype, RULES[a->scaling].scale_dtype ? a->scale_count : 0));
    TRY(check_buffer("b_scale", b->scales, b->scale_dtype, RULES[b->scaling].scale_dtype ? b->scale_count : 0));
    return args->c ? check_buffer("c", args->c, args->out_dtype, args->c_count) : OK;
}

FALLIBLE grouped_gemm_check_out(const struct expertd_grouped_gemm_args *args) {
    return check_buffer("out", args->out, args->out_dtype, args->out_count);
}

FALLIBLE grouped_gemm_check_sizes(const struct expertd_grouped_gemm_args *args) {
    TRY(check_known(&args->a, &NAMES_A));
    TRY(check_known(&args->b, &NAMES_B));
    return check_sizes(args);
}

FALLIBLE expertd_grouped_gemm_check(const struct expertd_grouped_gemm_args *args) {
    TRY(check_scalings(args));
    TRY(check_dtypes(args));
    TRY(check_dims(args));
    TRY(check_agreements(args));
    TRY(check_codes(args));
    TRY(check_scales(&args->a, &NAMES_A, !args->trans_a, args->num_groups));
    TRY(check_scales(&args->b, &NAMES_B, args->trans_b, args->num_groups));
    TRY(check_factor(args->alpha, args->alpha_count, args->num_groups, "alpha"));
    TRY(check_factor(args->beta, args->beta_count, args->num_groups, "beta"));
    TRY(check_integer_factors(args));
    TRY(check_c(args));
    return check_buffers(args);
}
