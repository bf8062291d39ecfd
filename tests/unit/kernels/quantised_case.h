// Random quantised matrices for the tests: the source as a file stores it, its packed form, and the scalar twins' answers.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_QUANTISED_CASE_H
#define EXPERTD_TESTS_UNIT_KERNELS_QUANTISED_CASE_H

#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/quantised.h"
#include "kernels/cpu/backend/backend.h"
#include "kernels/layout/quantised_layout.h"

// The formats of checkpoints, and some others.
static const struct expertd_quantised_format FORMATS[] = {
    {EXPERTD_CODE_E4M3, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, true, 128},         // 128 x 128 blocks
    {EXPERTD_CODE_E4M3, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, false, false, 0},         // per row
    {EXPERTD_CODE_E4M3, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, true, 0},           // per tensor
    {EXPERTD_CODE_E5M2, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 0},          //
    {EXPERTD_CODE_E5M2, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, true, 128},         //
    {EXPERTD_CODE_E4M3, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, true, 128},     // 128 x 128 blocks, UE8M0
    {EXPERTD_CODE_E4M3, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, false, 32},     // MXFP8
    {EXPERTD_CODE_E5M2, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, false, 32},     //
    {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, false, 32},     // MXFP4
    {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E4M3, EXPERTD_GLOBAL_MULTIPLY, false, false, false, 16}, // NVFP4 of ModelOpt
    {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E4M3, EXPERTD_GLOBAL_DIVIDE, false, false, false, 16},   // NVFP4 of compressed-tensors
    {EXPERTD_CODE_INT4, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, false, false, 32},        //
    {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F16, EXPERTD_GLOBAL_NONE, true, false, false, 128},         // AWQ, GPTQ
    {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, true, false, false, 64},          //
    {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 0},          //
    {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F16, EXPERTD_GLOBAL_NONE, true, false, false, 0},           //
    {EXPERTD_CODE_INT8, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, false, false, 128},       //
    {EXPERTD_CODE_INT8, EXPERTD_DTYPE_F16, EXPERTD_GLOBAL_NONE, true, false, false, 32},          //
    {EXPERTD_CODE_INT8, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 0},          //
    {EXPERTD_CODE_INT8, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, true, false, true, 272}, // longer than any kernel's chunk of K
    {EXPERTD_CODE_INT4, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, false, false, 1024 + 16}, //
    {EXPERTD_CODE_UINT4, EXPERTD_DTYPE_F16, EXPERTD_GLOBAL_NONE, false, true, false, 32},         // GGUF's Q4_1
    {EXPERTD_CODE_UINT4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, true, false, 32},         // Q4_K
    {EXPERTD_CODE_UINT4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, true, false, 16},         // Q2_K
    {EXPERTD_CODE_UINT4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, true, false, 0},          //
    {EXPERTD_CODE_UINT4, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, false, false, 48},       //
    {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 16},         // Q3_K
    {EXPERTD_CODE_INT8, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, true, false, 32},          // Q5_K
    {EXPERTD_CODE_INT8, EXPERTD_DTYPE_F16, EXPERTD_GLOBAL_NONE, false, true, false, 272},         //
    {EXPERTD_CODE_INT8, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 16},         // Q6_K
    {EXPERTD_CODE_IQ4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 32},          // IQ4_XS
    {EXPERTD_CODE_UINT4, EXPERTD_DTYPE_I8, EXPERTD_GLOBAL_NONE, false, true, false, 32},          // Q4_K with its own scales
    {EXPERTD_CODE_UINT4, EXPERTD_DTYPE_I8, EXPERTD_GLOBAL_NONE, false, true, false, 16},          // Q2_K
    {EXPERTD_CODE_INT4, EXPERTD_DTYPE_I8, EXPERTD_GLOBAL_NONE, false, false, false, 16},          // Q3_K
    {EXPERTD_CODE_INT8, EXPERTD_DTYPE_I8, EXPERTD_GLOBAL_NONE, false, true, false, 32},           // Q5_K
    {EXPERTD_CODE_INT8, EXPERTD_DTYPE_I8, EXPERTD_GLOBAL_NONE, false, false, false, 16},          // Q6_K
    {EXPERTD_CODE_IQ4, EXPERTD_DTYPE_I8, EXPERTD_GLOBAL_NONE, false, false, false, 128},          //
    {EXPERTD_CODE_IQ4, EXPERTD_DTYPE_F16, EXPERTD_GLOBAL_NONE, false, false, false, 128},         //
    {EXPERTD_CODE_UINT4, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, true, false, 64},        // MLX's affine codes of 4 bits
    {EXPERTD_CODE_INT8, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, true, false, 128},        // of 6 bits
};

struct quantised_case {
    struct expertd_quantised_format format;
    size_t k, n;
    size_t scales; // scale groups along K
    struct expertd_quantised_source source;
    uint8_t *codes, *zeros, *scale_bytes, *minima_bytes, *supers; // supers: F16, of scales, then of minima
    void *packed;                                                 // expertd_quantised_group_bytes
};

static inline int format_has_4_bits(const struct expertd_quantised_format *format) {
    return format->code != EXPERTD_CODE_E4M3 && format->code != EXPERTD_CODE_E5M2 && format->code != EXPERTD_CODE_INT8;
}

// A scale near 1 for VALUES_PLAIN; otherwise also zeros, subnormals, infinities and NaN of its dtype.
static inline void random_scale(struct random *random, enum expertd_dtype dtype, enum values values, uint8_t *out) {
    int any = values == VALUES_ANY, near = values == VALUES_PLAIN;
    uint32_t bits = expertd_f32_bits(random_f32(random, values));
    if (dtype == EXPERTD_DTYPE_F32) {
        memcpy(out, &bits, 4);
    } else if (dtype == EXPERTD_DTYPE_BF16) {
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy(out, &half, 2);
    } else if (dtype == EXPERTD_DTYPE_F16) {
        uint16_t half = any ? (uint16_t)random_next(random) : (uint16_t)((random_next(random) & 0x83ff) | (near ? 0x3800 : 0));
        memcpy(out, &half, 2);
    } else if (dtype == EXPERTD_DTYPE_I8) {
        *out = (uint8_t)random_next(random);
    } else if (dtype == EXPERTD_DTYPE_F8_E8M0) {
        *out = (uint8_t)(near ? 120 + random_below(random, 12) : any ? random_below(random, 256) : random_below(random, 4));
    } else {
        *out = (uint8_t)(near ? 0x28 + random_below(random, 0x20) : random_below(random, any ? 256 : 0x7f));
    }
}

static inline struct expertd_code_words plain_codes(const void *data, size_t k, unsigned bits) {
    return (struct expertd_code_words){data, bits, 8, k, 8 * k, 1, 8, NULL, 0, 0};
}

// A random code: any for VALUES_ANY, otherwise not NaN or Inf. For VALUES_PLAIN 8-bit floats are rarely 0 or subnormal.
static inline uint8_t random_code(struct random *random, const struct expertd_quantised_format *format, enum values values) {
    uint8_t code = (uint8_t)random_next(random);
    if (values == VALUES_ANY) {
        return code;
    }
    if (values == VALUES_PLAIN && random_below(random, 128)) {
        code |= format->code == EXPERTD_CODE_E4M3 && (code & 0x78) == 0   ? 0x08
                : format->code == EXPERTD_CODE_E5M2 && (code & 0x7c) == 0 ? 0x04
                                                                          : 0;
    }
    if (format->code == EXPERTD_CODE_E4M3 && (code & 0x7f) == 0x7f) {
        return 0x7e;
    }
    return format->code == EXPERTD_CODE_E5M2 && (code & 0x7c) == 0x7c ? 0x7b : code;
}

static inline void quantised_case_init(struct quantised_case *c, const struct expertd_quantised_format *format, size_t k, size_t n,
                                       enum values values, struct random *random) {
    size_t span = format->scale_k ? format->scale_k : k ? k : 1;
    *c = (struct quantised_case){.format = *format, .k = k, .n = n, .scales = (k + span - 1) / span};
    static const float GLOBALS[] = {0x1p-149f, 0x1p-127f, 0x1p-126f, 0.0117f, 0x1p100f};
    unsigned bits = format_has_4_bits(format) ? 4 : 8;
    size_t bytes = n * k * bits / 8 + 1, size = expertd_dtype_size(format->scale);
    size_t columns = format->scale_of_panel ? 128 : 1, rows = (n + columns - 1) / columns;
    c->codes = test_alloc(bytes);
    c->zeros = test_alloc(n * c->scales);
    c->scale_bytes = test_alloc(rows * c->scales * size);
    c->minima_bytes = test_alloc(rows * c->scales * size);
    for (size_t i = 0; i < bytes; i++) {
        c->codes[i] = random_code(random, format, values);
    }
    for (size_t i = 0; i < n * c->scales; i++) {
        c->zeros[i] = (uint8_t)random_below(random, bits == 4 ? 17 : 256);
    }
    for (size_t i = 0; i < rows * c->scales; i++) {
        random_scale(random, format->scale, values, c->scale_bytes + i * size);
    }
    for (size_t i = 0; format->minima && i < rows * c->scales; i++) {
        random_scale(random, format->scale, values, c->minima_bytes + i * size);
    }
    const size_t supers = format->scale == EXPERTD_DTYPE_I8 ? (k + EXPERTD_SUPER_K - 1) / EXPERTD_SUPER_K : 0;
    c->supers = test_alloc(2 * n * supers * sizeof(uint16_t) + 1);
    for (size_t i = 0; i < 2 * n * supers; i++) {
        random_scale(random, EXPERTD_DTYPE_F16, values, c->supers + i * sizeof(uint16_t));
    }
    c->source = (struct expertd_quantised_source){
        .codes = plain_codes(c->codes, k, bits),
        .scales = c->scale_bytes,
        .scale_columns = columns,
        .scale_n_stride = c->scales,
        .scale_g_stride = 1,
        .minima = format->minima ? c->minima_bytes : NULL,
        .super_scales = format->scale == EXPERTD_DTYPE_I8 ? c->supers : NULL,
        .super_minima = format->scale == EXPERTD_DTYPE_I8 && format->minima ? c->supers + n * supers * sizeof(uint16_t) : NULL,
        .super_n_stride = supers,
        .super_g_stride = 1,
        .global = values == VALUES_PLAIN ? 0.0117f : GLOBALS[random_below(random, COUNT_OF(GLOBALS))],
    };
    if (format->zero_points) {
        c->source.zeros = plain_codes(c->zeros, c->scales, 8);
    }
    c->packed = test_alloc(expertd_quantised_group_bytes(format, k, n));
    memset(c->packed, 0xa5, expertd_quantised_group_bytes(format, k, n));
    assert_false(err_is(expertd_pack_quantised(&c->source, format, k, n, c->packed)));
}

// Number of arithmetics of bf16 sums.
enum { QUANTISED_ARITHMETICS = ARITHMETIC_SM_90 + 1 };

// The scalar twin's answer: row x against column n. For ARITHMETIC_CPU in the arithmetic of the selected backend.
static inline float quantised_twin(const struct quantised_case *c, enum kernel_arithmetic arithmetic, size_t n,
                                   enum expertd_dtype dtype, const void *x) {
    switch (arithmetic) {
    case ARITHMETIC_CPU_AMX:
        return expertd_dot_quantised_amx_reference(&c->format, c->packed, n, dtype, x, c->k);
    case ARITHMETIC_SM_90:
        return expertd_dot_quantised_sm90_reference(&c->format, c->packed, n, dtype, x, c->k);
    default:
        return expertd_dot_quantised_reference(&c->format, c->packed, n, dtype, x, c->k);
    }
}

// The twins' answers to rows of bf16, computed at first use.
struct quantised_wants {
    float *of[QUANTISED_ARITHMETICS]; // [rows][n]
};

static inline const float *quantised_want(struct quantised_wants *wants, enum kernel_arithmetic arithmetic,
                                          const struct quantised_case *c, const uint16_t *x, size_t rows) {
    if (!wants->of[arithmetic]) {
        float *want = wants->of[arithmetic] = test_alloc(rows * c->n * sizeof *want);
        for (size_t i = 0; i < rows * c->n; i++) {
            want[i] = quantised_twin(c, arithmetic, i % c->n, EXPERTD_DTYPE_BF16, x + i / c->n * c->k);
        }
    }
    return wants->of[arithmetic];
}

// To call when the rows change.
static inline void quantised_wants_clear(struct quantised_wants *wants) {
    for (size_t i = 0; i < QUANTISED_ARITHMETICS; i++) {
        free(wants->of[i]);
        wants->of[i] = NULL;
    }
}

// The addresses of panels [first, first + count).
static inline void quantised_panels(const struct quantised_case *c, size_t first, size_t count, const void **panels) {
    for (size_t p = 0; p < count; p++) {
        panels[p] = (const char *)c->packed + (first + p) * expertd_quantised_group_bytes(&c->format, c->k, EXPERTD_KERNEL_PANEL);
    }
}

static inline void quantised_case_deinit(struct quantised_case *c) {
    free(c->codes), free(c->zeros), free(c->scale_bytes), free(c->minima_bytes), free(c->supers), free(c->packed);
}

// Makes all 8-bit floats normal except a few: 0 and the greatest subnormal, at the first and the last k, at the borders of spans
// (quantised_plain_shift), and at random.
static inline void quantised_plant_small_codes(struct quantised_case *q, struct random *random) {
    const bool e4m3 = q->format.code == EXPERTD_CODE_E4M3;
    const size_t span = (size_t)4 << quantised_plain_shift(q->k), at[] = {0, 5 * span - 1, 6 * span, 9 * span, q->k - 1};
    for (size_t i = 0; i < q->n * q->k; i++) {
        q->codes[i] |= (q->codes[i] & 0x7c) == 0x7c ? 0 : 0x40;
        q->codes[i] &= (q->codes[i] & 0x7c) == 0x7c ? 0xdf : 0xff;
    }
    for (size_t i = 0; i < 2 * COUNT_OF(at); i++) {
        const size_t k = i < COUNT_OF(at) ? at[i] : random_below(random, (unsigned)q->k), n = random_below(random, (unsigned)q->n);
        q->codes[n * q->k + k % q->k] = (uint8_t)((i % 2 ? (e4m3 ? 7 : 3) : 0) | (i % 4 / 2 ? 0x80 : 0));
    }
    assert_false(err_is(expertd_pack_quantised(&q->source, &q->format, q->k, q->n, q->packed)));
}

#endif
