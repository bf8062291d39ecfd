// Codes to elements.
#include <math.h>

#include "expert/quantised/quantised_matrix.h"

enum { CHUNK = 256 };

static float scale_value(const struct expertd_quantised_format *format, const void *at) {
    float value;
    if (format->scale == EXPERTD_DTYPE_F8_E8M0) {
        uint8_t code = *(const uint8_t *)at;
        return code == 0 ? 0x1p-127f : code == 255 ? NAN : expertd_f32_from_bits((uint32_t)code << 23);
    }
    if (format->scale == EXPERTD_DTYPE_I8) {
        return *(const int8_t *)at;
    }
    expertd_dtype_widen(format->scale, at, 1, &value);
    return value;
}

static float code_value(enum expertd_weight_code code, unsigned bits) {
    static const float E2M1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    static const int8_t IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    switch (code) {
    case EXPERTD_CODE_E4M3:
        return expertd_f32_from_e4m3((uint8_t)bits);
    case EXPERTD_CODE_E5M2:
        return expertd_f32_from_e5m2((uint8_t)bits);
    case EXPERTD_CODE_E2M1:
        return bits & 8 ? -E2M1[bits & 7] : E2M1[bits & 7];
    case EXPERTD_CODE_INT4:
    case EXPERTD_CODE_UINT4:
        return (float)bits;
    case EXPERTD_CODE_IQ4:
        return IQ4[bits & 15];
    default:
        return (float)(int8_t)bits;
    }
}

// The value to subtract from a code; INT4 without zero points: 8.
static float zero_value(const struct quantised_rows *r, size_t row, size_t g) {
    bool int4 = r->format.code == EXPERTD_CODE_INT4;
    if (r->stored_minima) {
        return -128; // the stored minima are of the stored codes
    }
    if (!r->source.zeros.data) {
        return int4 ? 8 : 0;
    }
    uint8_t zero = ((const uint8_t *)r->source.zeros.data)[row * r->scales + g];
    return int4 ? (float)zero : (float)(int8_t)zero;
}

// The super scale or super minimum of a scale; 1 without them.
static float super_value(const struct quantised_rows *r, const void *supers, size_t row, size_t g) {
    float value = 1;
    if (supers) {
        size_t at = row * r->source.super_n_stride + g * r->format.scale_k / EXPERTD_SUPER_K * r->source.super_g_stride;
        expertd_dtype_widen(EXPERTD_DTYPE_F16, (const char *)supers + at * sizeof(uint16_t), 1, &value);
    }
    return value;
}

float quantised_rows_scale(const struct quantised_rows *r, size_t row, size_t g) {
    float scale = scale_value(&r->format, quantised_rows_scale_at(r, (r->source.scale_first + row) / r->source.scale_columns, g)) *
                  super_value(r, r->source.super_scales, row, g);
    float global = r->source.global;
    return r->format.global == EXPERTD_GLOBAL_MULTIPLY ? scale * global
           : r->format.global == EXPERTD_GLOBAL_DIVIDE ? scale / global
                                                       : scale;
}

static float minimum_value(const struct quantised_rows *r, size_t row, size_t g) {
    if (!r->source.minima) {
        return 0;
    }
    if (r->stored_minima) {
        return r->stored_minima[row * r->scales + g];
    }
    const void *at = (const char *)r->source.minima + (row * r->scales + g) * expertd_dtype_size(r->format.scale);
    return scale_value(&r->format, at) * super_value(r, r->source.super_minima, row, g);
}

// The k [begin, begin + count) of a row, which have one scale.
struct k_range {
    size_t row, begin, count;
    float zero, scale, minimum;
};

static void widen_range(const struct quantised_rows *r, const struct k_range *range, const float values[256],
                        enum expertd_dtype dtype, char *row) {
    float wide[CHUNK];
    const struct expertd_code_words *codes = &r->source.codes;
    const uint8_t *from = (const uint8_t *)codes->data + range->row * quantised_row_bytes(codes->bits, codes->n_stride);
    size_t size = expertd_dtype_size(dtype);
    for (size_t i = 0; i < range->count; i++) {
        size_t at = range->begin + i;
        unsigned code = codes->bits == 8 ? from[at] : from[at / 2] >> (at % 2 * 4) & 15;
        float product = (values[code] - range->zero) * range->scale; // exact with minima, unless scales are F32
        wide[i] = r->source.minima ? product - range->minimum : product;
    }
    if (!r->order) {
        expertd_dtype_narrow(wide, range->count, dtype, row + range->begin * size);
        return;
    }
    for (size_t i = 0; i < range->count; i++) {
        expertd_dtype_narrow(&wide[i], 1, dtype, row + r->order[range->begin + i] * size);
    }
}

void quantised_rows_widen(const struct quantised_rows *r, size_t n, size_t k, enum expertd_dtype dtype, void *out) {
    float values[256];
    size_t span = r->format.scale_k ? r->format.scale_k : k, size = expertd_dtype_size(dtype);
    for (unsigned bits = 0; bits < 256; bits++) {
        values[bits] = code_value(r->format.code, r->source.codes.bits == 8 ? bits : bits & 15);
    }
    struct k_range range = {0};
    for (; range.row < n; range.row++) {
        char *to = (char *)out + range.row * k * size;
        for (range.begin = 0; range.begin < k; range.begin += range.count) {
            size_t g = range.begin / span, end = k - g * span < span ? k : (g + 1) * span;
            range.count = end - range.begin < CHUNK ? end - range.begin : CHUNK;
            range.zero = zero_value(r, range.row, g);
            range.scale = quantised_rows_scale(r, range.row, g);
            range.minimum = minimum_value(r, range.row, g);
            widen_range(r, &range, values, dtype, to);
        }
    }
}
