// MLX's affine codes to those of the kernels: see struct affine_source. Source: mlx/ops.cpp and mlx/backend/cpu/quantized.cpp of
// MLX.
#include <math.h>
#include <string.h>

#include "expert/quantised/quantised_matrix.h"

enum { BYTE_CODES = 8, NIBBLE = 4 };

// 8 codes take `bits` bytes.
static inline uint64_t next_codes(const uint8_t *at, unsigned bits) {
    uint64_t eight = 0;
    memcpy(&eight, at, bits);
    return eight;
}

static inline void stream_to_nibbles(const uint8_t *from, unsigned bits, size_t k, uint8_t *to) {
    const uint64_t mask = (1u << bits) - 1;
    for (size_t i = 0; i < k; i += BYTE_CODES, from += bits) {
        uint64_t eight = next_codes(from, bits);
        for (size_t j = 0; j < BYTE_CODES / 2; j++, eight >>= 2 * bits) {
            *to++ = (uint8_t)((eight & mask) | (eight >> bits & mask) << NIBBLE);
        }
    }
}

static inline void stream_to_bytes(const uint8_t *from, unsigned bits, size_t k, uint8_t *to) {
    const uint64_t mask = (1u << bits) - 1;
    for (size_t i = 0; i < k; i += BYTE_CODES, from += bits) {
        uint64_t eight = next_codes(from, bits);
        for (size_t j = 0; j < BYTE_CODES; j++, eight >>= bits) {
            *to++ = (uint8_t)(eight & mask);
        }
    }
}

// The number of bits is a compile-time constant in each call, so that the inner loops have no variable shifts.
static void stream_to_row(const uint8_t *from, unsigned bits, size_t k, uint8_t *to) {
    switch (bits) {
    case 1:
        stream_to_nibbles(from, 1, k, to);
        break;
    case 2:
        stream_to_nibbles(from, 2, k, to);
        break;
    case 3:
        stream_to_nibbles(from, 3, k, to);
        break;
    case 5:
        stream_to_bytes(from, 5, k, to);
        break;
    default:
        INVARIANT(bits == 6);
        stream_to_bytes(from, 6, k, to);
        break;
    }
}

void quantised_affine_codes(const struct quantised_matrix *m, size_t n, size_t k, uint8_t *rows) {
    const uint8_t *from = m->codes.data;
    for (size_t row = 0; row < n; row++) {
        stream_to_row(from, m->affine.bits, k, rows);
        from += m->codes.n_stride * m->affine.bits / BYTE_CODES;
        rows += quantised_row_bytes(m->codes.bits, k);
    }
}

// The little-endian value's sign is in its last byte.
static void copy_negated(const uint8_t *from, size_t size, uint8_t *to) {
    memcpy(to, from, size);
    to[size - 1] ^= 0x80;
}

// bias + 128 * scale; *exact: fp32 holds it (Knuth's TwoSum gives the error of the sum). NaN and infinite values count as exact:
// they are reported as such.
static float shifted_bias(float scale, float bias, bool *exact) {
    const float shift = 128 * scale, sum = bias + shift, part = sum - bias;
    const float error = (bias - (sum - part)) + (shift - part);
    *exact = error == 0 || !isfinite(scale) || !isfinite(bias);
    return sum;
}

size_t quantised_affine_scales(const struct quantised_matrix *m, size_t n, size_t scales, void *out, void *minima, float *stored) {
    const size_t size = expertd_dtype_size(m->affine.dtype);
    uint8_t *scale_bytes = out, *minimum_bytes = minima;
    float *wide_scales = out, *wide_minima = minima;
    size_t inexact = 0;
    for (size_t i = 0; i < n * scales; i++) {
        const size_t at = (i / scales * m->scale_n_stride + i % scales * m->scale_g_stride) * size;
        const uint8_t *scale = (const uint8_t *)m->scales + at, *bias = (const uint8_t *)m->affine.biases + at;
        if (!stored) {
            memcpy(scale_bytes + i * size, scale, size);
            copy_negated(bias, size, minimum_bytes + i * size);
            continue;
        }
        float wide_bias;
        bool exact;
        expertd_dtype_widen(m->affine.dtype, scale, 1, &wide_scales[i]);
        expertd_dtype_widen(m->affine.dtype, bias, 1, &wide_bias);
        stored[i] = -wide_bias;
        wide_minima[i] = -shifted_bias(wide_scales[i], wide_bias, &exact);
        inexact += !exact;
    }
    return inexact;
}
