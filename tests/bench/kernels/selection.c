#include "tests/bench/kernels/selection.h"

#include <string.h>

#include "expertd/kernels/kernel_select.h"
#include "tests/flags/flags.h"

enum { CACHE_MULTIPLE = 4 };

static const uint64_t WEIGHTS_BYTES_MIN = 1200000000;

// The formats of current checkpoints; the names contain the code and the k of a scale.
static const struct expertd_quantised_format E4M3_BLOCK = {
    .code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F32, .scale_of_panel = true, .scale_k = 128};
static const struct expertd_quantised_format E4M3_ROW = {.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F32};
static const struct expertd_quantised_format MXFP8 = {.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F8_E8M0, .scale_k = 32};
static const struct expertd_quantised_format MXFP4 = {.code = EXPERTD_CODE_E2M1, .scale = EXPERTD_DTYPE_F8_E8M0, .scale_k = 32};
static const struct expertd_quantised_format NVFP4 = {
    .code = EXPERTD_CODE_E2M1, .scale = EXPERTD_DTYPE_F8_E4M3, .global = EXPERTD_GLOBAL_MULTIPLY, .scale_k = 16};
static const struct expertd_quantised_format INT4_32 = {.code = EXPERTD_CODE_INT4, .scale = EXPERTD_DTYPE_BF16, .scale_k = 32};
static const struct expertd_quantised_format INT4_128 = {.code = EXPERTD_CODE_INT4, .scale = EXPERTD_DTYPE_BF16, .scale_k = 128};
static const struct expertd_quantised_format INT8_128 = {.code = EXPERTD_CODE_INT8, .scale = EXPERTD_DTYPE_BF16, .scale_k = 128};

// GGUF's block types.
#define GGUF(name, code_, scale_, minima_, scale_k_)                                                                               \
    static const struct expertd_quantised_format name = {                                                                          \
        .code = EXPERTD_CODE_##code_, .scale = EXPERTD_DTYPE_##scale_, .minima = minima_, .scale_k = scale_k_}
GGUF(Q8_0, INT8, F16, false, 32);
GGUF(Q4_0, INT4, F16, false, 32);
GGUF(Q4_1, UINT4, F16, true, 32);
GGUF(Q5_1, INT8, F16, true, 32);
GGUF(Q2_K, UINT4, I8, true, 16);
GGUF(Q3_K, INT4, I8, false, 16);
GGUF(Q4_K, UINT4, I8, true, 32);
GGUF(Q5_K, INT8, I8, true, 32);
GGUF(Q6_K, INT8, I8, false, 16);
GGUF(IQ4_NL, IQ4, F16, false, 32);
GGUF(IQ4_XS, IQ4, I8, false, 32);
GGUF(UINT4_32_MIN, UINT4, F32, true, 32); // Q4_K with its scales multiplied out

static const struct bench_dtype DTYPES[] = {
    {"bf16", EXPERTD_DTYPE_BF16, NULL, false, EXPERTD_DTYPE_BF16, EXPERTD_GEMM_UNSCALED},
    {"f32", EXPERTD_DTYPE_F32, NULL, false, EXPERTD_DTYPE_F32, EXPERTD_GEMM_UNSCALED},
    {"i8", EXPERTD_DTYPE_I8, NULL, true, EXPERTD_DTYPE_I8, EXPERTD_GEMM_UNSCALED},
    {"f16", EXPERTD_DTYPE_NONE, NULL, true, EXPERTD_DTYPE_F16, EXPERTD_GEMM_UNSCALED},
    {"e4m3-128x128", EXPERTD_DTYPE_BF16, &E4M3_BLOCK, true, EXPERTD_DTYPE_F8_E4M3, EXPERTD_GEMM_BLOCK_128X128}, // DeepSeek-V3
    {"e4m3-row", EXPERTD_DTYPE_BF16, &E4M3_ROW, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"mxfp8", EXPERTD_DTYPE_BF16, &MXFP8, true, EXPERTD_DTYPE_F8_E4M3, EXPERTD_GEMM_MXFP8_1X32},
    {"mxfp4", EXPERTD_DTYPE_BF16, &MXFP4, true, EXPERTD_DTYPE_U8, EXPERTD_GEMM_MXFP4_1X32}, // gpt-oss
    {"nvfp4", EXPERTD_DTYPE_BF16, &NVFP4, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"int4-32", EXPERTD_DTYPE_BF16, &INT4_32, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"int4-128", EXPERTD_DTYPE_BF16, &INT4_128, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"int8-128", EXPERTD_DTYPE_BF16, &INT8_128, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"q8_0", EXPERTD_DTYPE_BF16, &Q8_0, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"q4_0", EXPERTD_DTYPE_BF16, &Q4_0, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"q4_1", EXPERTD_DTYPE_BF16, &Q4_1, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"q5_1", EXPERTD_DTYPE_BF16, &Q5_1, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"q2_k", EXPERTD_DTYPE_BF16, &Q2_K, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"q3_k", EXPERTD_DTYPE_BF16, &Q3_K, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"q4_k", EXPERTD_DTYPE_BF16, &Q4_K, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"q5_k", EXPERTD_DTYPE_BF16, &Q5_K, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"q6_k", EXPERTD_DTYPE_BF16, &Q6_K, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"iq4_nl", EXPERTD_DTYPE_BF16, &IQ4_NL, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"iq4_xs", EXPERTD_DTYPE_BF16, &IQ4_XS, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
    {"uint4-32-min", EXPERTD_DTYPE_BF16, &UINT4_32_MIN, true, EXPERTD_DTYPE_NONE, EXPERTD_GEMM_UNSCALED},
};
enum { DTYPE_ROWS = sizeof DTYPES / sizeof *DTYPES };

static err_t take_shape(void *context, const char *name, size_t length) {
    struct selection *s = context;
    if (s->num_shapes == SELECTION_SHAPES_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "--shape names more than %d shapes", SELECTION_SHAPES_MAX);
    }
    TRY(shape_find(name, length, &s->shapes[s->num_shapes]));
    s->num_shapes++;
    return OK;
}

static err_t take_dtype(void *context, const char *name, size_t length) {
    struct selection *s = context;
    const char *names[DTYPE_ROWS];
    size_t found = 0;
    if (s->num_dtypes == SELECTION_DTYPES_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "--dtype names more than %d dtypes", SELECTION_DTYPES_MAX);
    }
    for (size_t i = 0; i < DTYPE_ROWS; i++) {
        names[i] = DTYPES[i].name;
    }
    TRY(flags_find("dtype", name, length, names, DTYPE_ROWS, "--list names them", &found));
    const struct bench_dtype *dtype = &DTYPES[found];
    if (s->op == OP_GMM && !dtype->dtype) {
        FAIL(EXPERTD_ERR_USAGE, "--dtype %s: there are no packed weights of it; use --op gmm-plain, tgmm or grouped-gemm",
             dtype->name);
    }
    if (s->op != OP_GMM && (!dtype->plain || (dtype->scaling && s->op != OP_GROUPED_GEMM))) {
        FAIL(EXPERTD_ERR_USAGE, "--dtype %s: this operation has no plain operands of it%s", dtype->name,
             dtype->plain ? "; use --op grouped-gemm" : "");
    }
    if (dtype->plain == EXPERTD_DTYPE_U8 && s->op == OP_GROUPED_GEMM && !s->transposed) {
        FAIL(EXPERTD_ERR_USAGE, "--dtype %s: two codes of k share a byte, so weights are [groups, n, k]: add --transposed",
             dtype->name);
    }
    s->dtypes[s->num_dtypes++] = dtype;
    return OK;
}

FALLIBLE selection_make(const struct bench_options *o, const struct machine *machine, struct selection *s) {
    *s = (struct selection){.num_threads = o->num_threads,
                            .weights_bytes = o->weights_bytes,
                            .op = o->op,
                            .layout = o->layout,
                            .transposed = o->transposed,
                            .out = o->out};
    memcpy(s->threads, o->threads, sizeof s->threads);
    if (s->num_threads == 0) {
        s->threads[s->num_threads++] = machine->cpus;
    }
    if (s->weights_bytes == 0) {
        uint64_t caches = CACHE_MULTIPLE * machine->cache_bytes;
        s->weights_bytes = caches > WEIGHTS_BYTES_MIN ? caches : WEIGHTS_BYTES_MIN;
    }
    if (o->shapes) {
        TRY(flags_names("--shape", o->shapes, take_shape, s));
    }
    for (size_t i = 0; !o->shapes && shape_at(i); i++) {
        if (!shape_at(i)->by_request) {
            s->shapes[s->num_shapes++] = shape_at(i);
        }
    }
    if (o->dtypes) {
        return flags_names("--dtype", o->dtypes, take_dtype, s);
    }
    for (size_t i = 0; i < DTYPE_ROWS; i++) {
        if (!DTYPES[i].by_request) {
            s->dtypes[s->num_dtypes++] = &DTYPES[i];
        }
    }
    return OK;
}

FALLIBLE bench_layout_of(enum bench_layout layout, enum expertd_dtype dtype, enum expertd_packed_layout *out) {
    bool either = dtype == EXPERTD_DTYPE_F32 || dtype == EXPERTD_DTYPE_BF16;
    if (layout == LAYOUT_BEST || !either) {
        *out = expertd_packed_layout_best(dtype);
        return OK;
    }
    *out = (enum expertd_packed_layout)(layout - LAYOUT_PANELS);
    if (!expertd_packed_layout_is_read(dtype, *out)) {
        FAIL(EXPERTD_ERR_USAGE, "--layout %s: the kernels %s do not support it for %s", expertd_packed_layout_name(*out),
             expertd_kernel_selected_name(), expertd_dtype_name(dtype));
    }
    return OK;
}

void selection_list(FILE *out) {
    fprintf(out, "%-12s%8s%8s%8s%8s\n", "shape", "groups", "k", "n", "rows");
    for (size_t i = 0; shape_at(i); i++) {
        const struct bench_shape *s = shape_at(i);
        fprintf(out, "%-12s%8zu%8zu%8zu%8zu   %s%s\n", s->name, s->groups, s->k, s->n, s->rows, s->text,
                s->by_request ? " (only if named)" : "");
    }
    fprintf(out, "dtypes:");
    for (size_t i = 0; i < DTYPE_ROWS; i++) {
        fprintf(out, " %s%s", DTYPES[i].name, DTYPES[i].by_request ? "*" : "");
    }
    fprintf(out, "   (* only if named)\n");
}
