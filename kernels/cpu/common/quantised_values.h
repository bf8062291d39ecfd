// The values of codes and scales, in plain C. These are the definitions; the fast kernels' decoders give the same bits.
#ifndef EXPERTD_KERNELS_CPU_COMMON_QUANTISED_VALUES_H
#define EXPERTD_KERNELS_CPU_COMMON_QUANTISED_VALUES_H

#include <math.h>
#include <string.h>

#include "kernels/layout/quantised_layout.h"

static inline float f32_from_e2m1(unsigned code) {
    static const float VALUES[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return code & 8 ? -VALUES[code & 7] : VALUES[code & 7];
}

static inline float f32_from_iq4(unsigned code) {
    static const float VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return VALUES[code];
}

static inline float f32_from_e8m0(uint8_t code) {
    return code == 0 ? 0x1p-127f : code == 255 ? NAN : expertd_f32_from_bits((uint32_t)code << 23);
}

// The value of code (k, column) of a scale group, minus its zero point; zeros: NULL if there are none. Exact in bf16.
static inline float quantised_value(enum expertd_weight_code code, const uint8_t *codes, const uint8_t *zeros, size_t k,
                                    size_t column) {
    unsigned shift;
    size_t at = quantised_code_at(code_has_4_bits(code) ? 8 : 4, k, column, &shift);
    uint8_t byte = codes[at];
    switch (code) {
    case EXPERTD_CODE_E4M3:
        return expertd_f32_from_e4m3(byte);
    case EXPERTD_CODE_E5M2:
        return expertd_f32_from_e5m2(byte);
    case EXPERTD_CODE_E2M1:
        return f32_from_e2m1(byte >> shift & 15);
    case EXPERTD_CODE_INT4:
        return (float)((byte >> shift & 15) - (zeros ? zeros[column] : 8));
    case EXPERTD_CODE_UINT4:
        return (float)(byte >> shift & 15);
    case EXPERTD_CODE_IQ4:
        return f32_from_iq4(byte >> shift & 15);
    default:
        return (float)((int8_t)byte - (zeros ? (int8_t)zeros[column] : 0));
    }
}

// Element `column` of `values` times, where they are I8, its super scale, which is exact.
static inline float quantised_stored_scale(enum expertd_dtype dtype, const uint8_t *values, const uint8_t *supers, size_t column) {
    float value, super;
    const uint8_t *at = values + column * expertd_dtype_size(dtype);
    if (dtype == EXPERTD_DTYPE_F8_E8M0) {
        return f32_from_e8m0(*at);
    }
    if (dtype == EXPERTD_DTYPE_I8) {
        expertd_dtype_widen(EXPERTD_DTYPE_F16, supers + column * sizeof(uint16_t), 1, &super);
        return (float)(int8_t)*at * super;
    }
    expertd_dtype_widen(dtype, at, 1, &value);
    return value;
}

// A column's scale in scale group g of a panel of k: the block's scale times or divided by the panel's global scale, rounded once.
static inline float quantised_scale(const struct expertd_quantised_format *format, const struct quantised_layout *layout, size_t k,
                                    const uint8_t *panel, size_t g, size_t column) {
    const uint8_t *supers = layout->super_size ? panel + quantised_supers_at(layout, g) : NULL;
    float global, scale = quantised_stored_scale(format->scale, panel + quantised_scales_at(layout, g, k), supers,
                                                 format->scale_of_panel ? 0 : column);
    memcpy(&global, panel, sizeof global);
    return format->global == EXPERTD_GLOBAL_MULTIPLY ? scale * global
           : format->global == EXPERTD_GLOBAL_DIVIDE ? scale / global
                                                     : scale;
}

// A column's minimum in scale group g.
static inline float quantised_minimum(const struct expertd_quantised_format *format, const struct quantised_layout *layout,
                                      size_t k, const uint8_t *panel, size_t g, size_t column) {
    const uint8_t *supers = layout->super_size ? panel + quantised_supers_at(layout, g) + QUANTISED_SUPER : NULL;
    return quantised_stored_scale(format->scale, panel + quantised_zeros_at(layout, g, k), supers, column);
}

#endif
