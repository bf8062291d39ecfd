// quantised_grouped_matmul: README.md has its tensors and attributes.
#include <stdlib.h>

#include "expertd/kernels/quantised.h"
#include "matmul_case.h"

enum { PACKED_ALIGNMENT = 64, GROUPS_MAX = 1 << 16 };

// The case's rhs: codes, scales, zero points, global scales.
struct coded {
    struct expertd_quantised_format format;
    const struct expertd_tensor_view *codes, *scales, *zeros, *global; // zeros and global may be NULL
    size_t groups, n, k;
    size_t scale_n; // columns of a scale, at most n
    size_t scales_n, scales_k;
};

struct code_rule {
    const char *name;
    enum expertd_weight_code code;
    enum expertd_dtype codes, zeros;
};

static FALLIBLE find_rule(const struct kernel_case *c, const struct code_rule **out) {
    static const struct code_rule RULES[] = {
        {"E4M3", EXPERTD_CODE_E4M3, EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_NONE},
        {"E5M2", EXPERTD_CODE_E5M2, EXPERTD_DTYPE_F8_E5M2, EXPERTD_DTYPE_NONE},
        {"E2M1", EXPERTD_CODE_E2M1, EXPERTD_DTYPE_U8, EXPERTD_DTYPE_NONE},
        {"INT4", EXPERTD_CODE_INT4, EXPERTD_DTYPE_U8, EXPERTD_DTYPE_U8},
        {"INT8", EXPERTD_CODE_INT8, EXPERTD_DTYPE_I8, EXPERTD_DTYPE_I8},
    };
    const char *text = case_text(c, "rhs_code");
    for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++) {
        if (strcmp(text, RULES[i].name) == 0) {
            *out = &RULES[i];
            return OK;
        }
    }
    FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs_code", "rhs_code is \"%s\": it is E4M3, E5M2, E2M1, INT4 or INT8", text);
}

static FALLIBLE must_be(const struct expertd_tensor_view *view, const char *name, enum expertd_dtype dtype,
                        const struct case_answer *wanted) {
    char found_text[EXPERTD_TENSOR_SHAPE_TEXT_MAX], wanted_text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    bool same = view && view->rank == wanted->rank && (dtype == EXPERTD_DTYPE_NONE || view->dtype == dtype);
    for (uint32_t i = 0; same && i < wanted->rank; i++) {
        same = view->shape[i] == wanted->shape[i];
    }
    if (!same) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s is %s%s: with these weights it is %s%s", name,
                   view ? expertd_dtype_name(view->dtype) : "missing",
                   view ? expertd_tensor_shape_text(view->shape, view->rank, found_text) : "",
                   dtype == EXPERTD_DTYPE_NONE ? "of shape " : expertd_dtype_name(dtype),
                   expertd_tensor_shape_text(wanted->shape, wanted->rank, wanted_text));
    }
    return OK;
}

static FALLIBLE read_codes(const struct kernel_case *c, const struct code_rule *rule, struct coded *w) {
    const struct expertd_tensor_view *lhs = case_tensor(c, "lhs");
    if (!lhs || lhs->rank != 2 || (lhs->dtype != EXPERTD_DTYPE_F32 && lhs->dtype != EXPERTD_DTYPE_BF16)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "lhs",
                   "lhs is missing, or not F32 or BF16 [m, k], which quantised weights are multiplied by");
    }
    w->codes = case_tensor(c, "rhs");
    w->k = lhs->shape[1];
    w->format.code = rule->code;
    size_t bytes = rule->codes == EXPERTD_DTYPE_U8 ? w->k / 2 + w->k % 2 : w->k;
    struct case_answer wanted = {rule->codes, 3, {0, 0, bytes}};
    if (!w->codes || w->codes->rank != 3) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs", "rhs is missing, or its codes are not [L, n, k]");
    }
    w->groups = wanted.shape[0] = w->codes->shape[0];
    w->n = wanted.shape[1] = w->codes->shape[1];
    TRY(must_be(w->codes, "rhs", rule->codes, &wanted));
    if (w->groups > GROUPS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "rhs has %zu groups: a case has at most %d", w->groups, GROUPS_MAX);
    }
    return OK;
}

static size_t blocks_of(size_t length, size_t block) {
    return block ? length / block + (length % block != 0) : length != 0;
}

// Parses "n,k": columns and k of a scale; 0: all.
static FALLIBLE read_scale_block(const struct kernel_case *c, struct coded *w) {
    const char *text = case_text(c, "scale_block");
    char *comma, *end;
    bool digits = *text >= '0' && *text <= '9';
    unsigned long long n = digits ? strtoull(text, &comma, 10) : 0, k = 0;
    digits = digits && *comma == ',' && comma[1] >= '0' && comma[1] <= '9';
    k = digits ? strtoull(comma + 1, &end, 10) : 0;
    if (!digits || *end || k % 16 != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "scale_block",
                   "scale_block is \"%s\": it is n,k, the columns and the k of a scale, k a multiple of 16; 0: all", text);
    }
    w->scale_n = n && n < w->n ? n : w->n;
    w->format.scale_k = k;
    w->scales_n = blocks_of(w->n, n);
    w->scales_k = blocks_of(w->k, k);
    w->format.scale_of_panel = w->scale_n % 64 == 0 || w->scale_n == w->n;
    return OK;
}

static FALLIBLE read_scales(const struct kernel_case *c, struct coded *w) {
    w->scales = case_tensor(c, "rhs_scale");
    TRY(read_scale_block(c, w));
    TRY(must_be(w->scales, "rhs_scale", EXPERTD_DTYPE_NONE,
                &(struct case_answer){EXPERTD_DTYPE_NONE, 3, {w->groups, w->scales_n, w->scales_k}}));
    w->format.scale = w->scales->dtype;
    bool known = expertd_dtype_is_float16_or_32(w->format.scale) || w->format.scale == EXPERTD_DTYPE_F8_E8M0 ||
                 w->format.scale == EXPERTD_DTYPE_F8_E4M3;
    if (!known) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs_scale", "rhs_scale is %s: scales are F32, BF16, F16, F8_E8M0 or F8_E4M3",
                   expertd_dtype_name(w->format.scale));
    }
    return OK;
}

static FALLIBLE read_zeros(const struct kernel_case *c, const struct code_rule *rule, struct coded *w) {
    w->zeros = case_tensor(c, "rhs_zero");
    w->format.zero_points = w->zeros != NULL;
    if (!w->zeros) {
        return OK;
    }
    if (rule->zeros == EXPERTD_DTYPE_NONE) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs_zero", "rhs_zero is given, but codes of %s have no zero points", rule->name);
    }
    TRY(must_be(w->zeros, "rhs_zero", rule->zeros, &(struct case_answer){rule->zeros, 3, {w->groups, w->n, w->scales_k}}));
    const uint8_t *zeros = w->zeros->data;
    for (uint64_t i = 0; rule->code == EXPERTD_CODE_INT4 && i < w->zeros->bytes; i++) {
        if (zeros[i] > EXPERTD_INT4_ZERO_MAX) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs_zero", "rhs_zero[%llu] is %u: those of INT4 are 0 to %d", (unsigned long long)i,
                       zeros[i], EXPERTD_INT4_ZERO_MAX);
        }
    }
    return OK;
}

static FALLIBLE read_global(const struct kernel_case *c, struct coded *w) {
    const char *how = case_text(c, "rhs_global_op");
    w->global = case_tensor(c, "rhs_global");
    if (!w->global && !*how) {
        return OK;
    }
    TRY(must_be(w->global, "rhs_global", EXPERTD_DTYPE_F32, &(struct case_answer){EXPERTD_DTYPE_F32, 1, {w->groups}}));
    if (strcmp(how, "multiply") != 0 && strcmp(how, "divide") != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs_global_op", "rhs_global_op is \"%s\": it is multiply or divide", how);
    }
    if (w->format.scale != EXPERTD_DTYPE_F8_E4M3) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs_global", "rhs_global is given, but goes with a rhs_scale of F8_E4M3 alone");
    }
    w->format.global = how[0] == 'm' ? EXPERTD_GLOBAL_MULTIPLY : EXPERTD_GLOBAL_DIVIDE;
    return OK;
}

static FALLIBLE read_weights(const struct kernel_case *c, struct coded *w) {
    const struct code_rule *rule;
    *w = (struct coded){0};
    TRY(find_rule(c, &rule));
    TRY(read_codes(c, rule, w));
    TRY(read_scales(c, w));
    TRY(read_zeros(c, rule, w));
    TRY(read_global(c, w));
    return expertd_quantised_check(&w->format);
}

static struct expertd_code_words rows_of_codes(const struct expertd_tensor_view *view, size_t group, unsigned bits) {
    size_t rows = view->shape[1], bytes = view->shape[2], row = bytes * 8 / bits;
    const char *data = view->data;
    return (struct expertd_code_words){.data = data + group * rows * bytes,
                                       .bits = bits,
                                       .word = 8,
                                       .n_stride = row,
                                       .n_word_stride = 8 * row,
                                       .k_stride = 1,
                                       .k_word_stride = 8};
}

static FALLIBLE pack_group(const struct coded *w, size_t group, void *dst) {
    size_t scales = w->scales_n * w->scales_k * expertd_dtype_size(w->format.scale);
    struct expertd_quantised_source source = {
        .codes = rows_of_codes(w->codes, group, w->codes->dtype == EXPERTD_DTYPE_U8 ? 4 : 8),
        .scales = (const char *)w->scales->data + group * scales,
        .scale_columns = w->scale_n ? w->scale_n : 1,
        .scale_n_stride = w->scales_k,
        .scale_g_stride = 1,
    };
    if (w->zeros) {
        source.zeros = rows_of_codes(w->zeros, group, 8);
    }
    if (w->global) {
        source.global = ((const float *)w->global->data)[group];
    }
    return expertd_pack_quantised(&source, &w->format, w->k, w->n, dst);
}

// Packs all groups into one block; `data` has a pointer per group. The caller frees both.
static FALLIBLE pack(const struct coded *w, size_t group_bytes, void **data, void **block) {
    size_t bytes;
    if (__builtin_mul_overflow(group_bytes, w->groups, &bytes) || posix_memalign(block, PACKED_ALIGNMENT, bytes + 1) != 0) {
        *block = NULL;
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu packed groups of %zu bytes", w->groups, group_bytes);
    }
    for (size_t g = 0; g < w->groups; g++) {
        data[g] = (char *)*block + g * group_bytes;
        TRY(pack_group(w, g, data[g]));
    }
    return OK;
}

// Fills the arguments as for plain weights, whose shapes stand for those of the codes.
static FALLIBLE make_args(const struct kernel_case *c, const struct coded *w, struct expertd_matmul_options *options,
                          struct expertd_grouped_matmul_args *args) {
    struct expertd_grouped_matmul_tensors tensors;
    struct expertd_plain_weights plain;
    TRY(matmul_case_read(c, &tensors, options));
    struct expertd_tensor_view rhs = {tensors.lhs->dtype, 3, {w->groups, w->n, w->k}, w->codes->data, 0};
    TRY(expertd_tensor_bytes(rhs.dtype, rhs.shape, rhs.rank, &rhs.bytes));
    tensors.rhs = &rhs;
    tensors.transpose_rhs = true;
    TRY(expertd_grouped_matmul_from_tensors(&tensors, &plain, args));
    args->options = options;
    return OK;
}

FALLIBLE run_quantised_grouped_matmul(const struct kernel_case *c) {
    struct coded w;
    struct expertd_matmul_options options;
    struct expertd_grouped_matmul_args args;
    TRY(read_weights(c, &w));
    TRY(make_args(c, &w, &options, &args));
    if (c->device) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "devices multiply quantised weights within layers only: run this case without --device");
    }
    struct expertd_packed_weights packed = {.dtype = args.lhs_dtype,
                                            .groups = w.groups,
                                            .k = w.k,
                                            .n = w.n,
                                            .group_bytes = expertd_quantised_group_bytes(&w.format, w.k, w.n),
                                            .format = &w.format};
    void **data = calloc(w.groups + 1, sizeof *data), *block = NULL;
    err_t e = data ? pack(&w, packed.group_bytes, data, &block)
                   : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %zu groups", w.groups);
    if (!err_is(e)) {
        packed.data = data;
        args.rhs = expertd_rhs_packed(&packed);
        e = matmul_case_run(c, &args);
    }
    free(data), free(block);
    return e;
}
