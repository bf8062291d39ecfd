#include "kernels/products/product.h"

#include <string.h>

enum expertd_dtype product_sum_dtype(enum expertd_dtype a, enum expertd_dtype b) {
    if (a == EXPERTD_DTYPE_I8) {
        return EXPERTD_DTYPE_I8;
    }
    bool a_codes = expertd_dtype_size(a) == 1, b_codes = expertd_dtype_size(b) == 1;
    return (a == EXPERTD_DTYPE_BF16 || a_codes) && (b == EXPERTD_DTYPE_BF16 || b_codes) ? EXPERTD_DTYPE_BF16 : EXPERTD_DTYPE_F32;
}

float product_scale(enum expertd_dtype dtype, const void *scales, size_t index) {
    if (dtype == EXPERTD_DTYPE_F8_E8M0) {
        uint8_t exponent = ((const uint8_t *)scales)[index];
        if (exponent == 0xff) {
            return expertd_f32_from_bits(0x7fc00000u);
        }
        return expertd_f32_from_bits(exponent ? (uint32_t)exponent << 23 : 0x00400000u); // 0 is 2^-127, a subnormal
    }
    float scale;
    memcpy(&scale, (const char *)scales + index * sizeof scale, sizeof scale);
    return scale;
}
