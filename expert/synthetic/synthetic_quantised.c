#include "expert/synthetic/synthetic_quantised.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "expert/synthetic/synthetic_fill.h"
#include "expertd/kernels/weights.h"

struct synthetic_format {
    struct expertd_quantised_format format;
    size_t columns; // n that share a scale
    const char *name;
};

static const struct synthetic_format FORMATS[] = {
    {{.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F32, .scale_of_panel = true, .scale_k = 128}, 128, "fp8_block128"},
    {{.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_BF16}, 1, "fp8_channel"},
    {{.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F8_E8M0, .scale_k = 32}, 1, "mxfp8"},
    {{.code = EXPERTD_CODE_E2M1, .scale = EXPERTD_DTYPE_F8_E8M0, .scale_k = 32}, 1, "mxfp4"},
    {{.code = EXPERTD_CODE_E2M1, .scale = EXPERTD_DTYPE_F8_E4M3, .global = EXPERTD_GLOBAL_MULTIPLY, .scale_k = 16}, 1, "nvfp4"},
    {{.code = EXPERTD_CODE_INT4, .scale = EXPERTD_DTYPE_BF16, .scale_k = 32}, 1, "int4_group32"},
    {{.code = EXPERTD_CODE_INT4, .scale = EXPERTD_DTYPE_F16, .zero_points = true, .scale_k = 128}, 1, "int4_group128_zero"},
    {{.code = EXPERTD_CODE_INT8, .scale = EXPERTD_DTYPE_F32}, 1, "int8_channel"},
};
enum { FORMAT_COUNT = sizeof FORMATS / sizeof *FORMATS };

// The global scale of NVFP4. With it the block scales are well inside the range of E4M3.
static const float GLOBAL = 0x1p-9f;
static const char NOT_GENERATED[1] = {0}; // data of a matrix that is described but not generated: not NULL, never read

const char *synthetic_format_name(size_t i) {
    return i < FORMAT_COUNT ? FORMATS[i].name : NULL;
}

const struct synthetic_format *synthetic_format_find(const char *name, size_t length) {
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        if (strlen(FORMATS[i].name) == length && memcmp(FORMATS[i].name, name, length) == 0) {
            return &FORMATS[i];
        }
    }
    return NULL;
}

static unsigned code_bits(const struct expertd_quantised_format *format) {
    return format->code == EXPERTD_CODE_E2M1 || format->code == EXPERTD_CODE_INT4 ? 4 : 8;
}

static struct expertd_code_words rows_of(const void *data, unsigned bits, size_t stride) {
    return (struct expertd_code_words){data, bits, 8, stride, 8 * stride, 1, 8, NULL, 0, 0};
}

void synthetic_describe_codes(const struct synthetic_format *format, size_t n, size_t k, struct quantised_matrix *out) {
    unsigned bits = code_bits(&format->format);
    *out = (struct quantised_matrix){.format = format->format, .stored = format->name};
    out->format.scale_of_panel =
        format->format.scale_of_panel && (format->columns % EXPERTD_KERNEL_PANEL == 0 || format->columns >= n);
    size_t scales = quantised_scales(&out->format, k);
    out->codes = rows_of(NOT_GENERATED, bits, bits == 4 ? (k + 1) / 2 * 2 : k);
    if (out->format.zero_points) {
        out->zeros = rows_of(NOT_GENERATED, 8, scales);
    }
    out->scale_columns = format->columns;
    out->scale_n_stride = scales;
    out->scale_g_stride = 1;
}

static size_t scale_count(const struct quantised_matrix *m, size_t n, size_t k) {
    return (n / m->scale_columns + (n % m->scale_columns != 0)) * quantised_scales(&m->format, k);
}

static size_t codes_bytes(const struct quantised_matrix *m, size_t n) {
    return n * m->codes.n_stride * m->codes.bits / 8;
}

static size_t zeros_bytes(const struct quantised_matrix *m, size_t n, size_t k) {
    return m->format.zero_points ? n * quantised_scales(&m->format, k) : 0;
}

size_t synthetic_codes_bytes(const struct quantised_matrix *m, size_t n, size_t k) {
    return arena_rounded(codes_bytes(m, n)) + arena_rounded(zeros_bytes(m, n, k)) +
           arena_rounded(scale_count(m, n, k) * expertd_dtype_size(m->format.scale));
}

// Random bytes, eight from each word.
static void fill_bytes(uint64_t key, size_t count, uint8_t *out) {
    for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
        uint64_t word = synthetic_word(key, i / sizeof word);
        memcpy(out + i, &word, count - i < sizeof word ? count - i : sizeof word);
    }
}

// The exponent of the power of two that scales approximately uniform codes to a standard deviation of 1 / sqrt(k).
static int exponent_for(enum expertd_weight_code code, size_t k) {
    static const float DEVIATION[EXPERTD_CODE_COUNT] = {[EXPERTD_CODE_E4M3] = 116,
                                                        [EXPERTD_CODE_E5M2] = 11500,
                                                        [EXPERTD_CODE_E2M1] = 2.9f,
                                                        [EXPERTD_CODE_INT4] = 4.6f,
                                                        [EXPERTD_CODE_INT8] = 74};
    int exponent;
    (void)frexpf(1.0f / (DEVIATION[code] * sqrtf((float)k)), &exponent);
    return exponent;
}

static void write_scale(const struct expertd_quantised_format *format, int exponent, uint8_t *out) {
    float value = ldexpf(1.0f, exponent);
    if (format->scale == EXPERTD_DTYPE_F8_E8M0) {
        *out = (uint8_t)(exponent + 127);
    } else if (format->scale == EXPERTD_DTYPE_F8_E4M3) {
        int e4m3 = exponent + 9, least = -6, most = 8; // relative to GLOBAL; the range of normal E4M3 numbers
        *out = (uint8_t)(((e4m3 < least ? least : e4m3 > most ? most : e4m3) + 7) << 3);
    } else {
        expertd_dtype_narrow(&value, 1, format->scale, out);
    }
}

static void fill_scales(uint64_t key, const struct quantised_matrix *m, size_t n, size_t k, uint8_t *out) {
    size_t count = scale_count(m, n, k), size = expertd_dtype_size(m->format.scale);
    int exponent = exponent_for(m->format.code, k);
    for (size_t i = 0; i < count; i++) {
        write_scale(&m->format, exponent - (int)(synthetic_word(key, i) & 1), out + i * size);
    }
}

static void replace_nan(enum expertd_weight_code code, size_t count, uint8_t *codes) {
    for (size_t i = 0; code == EXPERTD_CODE_E4M3 && i < count; i++) {
        codes[i] = (codes[i] & 0x7f) == 0x7f ? codes[i] & 0xfe : codes[i];
    }
}

void synthetic_fill_codes(const struct synthetic_tensor *t, struct quantised_matrix *m, void *out) {
    uint64_t key = synthetic_key(t->seed, t->layer, t->expert, t->tensor);
    uint8_t *codes = out, *zeros = codes + arena_rounded(codes_bytes(m, t->n));
    uint8_t *scales = zeros + arena_rounded(zeros_bytes(m, t->n, t->k));
    fill_bytes(key, codes_bytes(m, t->n), codes);
    replace_nan(m->format.code, codes_bytes(m, t->n), codes);
    m->codes.data = codes;
    if (m->format.zero_points) {
        fill_bytes(~key, zeros_bytes(m, t->n, t->k), zeros);
        for (size_t i = 0; i < zeros_bytes(m, t->n, t->k); i++) {
            zeros[i] = (uint8_t)(6 + zeros[i] % 5); // near the middle of the range, as quantisers choose them
        }
        m->zeros.data = zeros;
    }
    fill_scales(key + 1, m, t->n, t->k, scales);
    m->scales = scales;
    if (m->format.global != EXPERTD_GLOBAL_NONE) {
        m->global = &GLOBAL;
        m->global_dtype = EXPERTD_DTYPE_F32;
    }
}
