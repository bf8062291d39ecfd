// Rows of bf16 and scales of a chunk to f32, by AVX2, for quantised_ieee.h's kernels. Private to cpu/quantised_*.
#ifndef EXPERTD_KERNELS_CPU_AVX2_QUANTISED_QUANTISED_CHUNK_AVX2_H
#define EXPERTD_KERNELS_CPU_AVX2_QUANTISED_QUANTISED_CHUNK_AVX2_H

#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx2/quantised/quantised_ieee.h"
#include "kernels/cpu/avx2/quantised/scales_avx2.h"
#include "kernels/cpu/backends.h"

enum {
    LANES = 8,
    ROW_UNIT = 2 * LANES, // elements that a widened row is padded to
};

// *least: of each element's magnitude less one bit, so that 0 is the greatest; *most: of the magnitudes.
static inline void widen_16(const uint16_t *x, __m256 fold, __m256i *least, __m256i *most, float *wide) {
    __m256i all = _mm256_loadu_si256((const __m256i *)x);
    __m256i magnitude = _mm256_and_si256(all, _mm256_set1_epi16(0x7fff));
    *least = _mm256_min_epu16(*least, _mm256_sub_epi16(magnitude, _mm256_set1_epi16(1)));
    *most = _mm256_max_epu16(*most, magnitude);
    __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x));
    __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(x + LANES)));
    _mm256_storeu_ps(wide, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), fold));
    _mm256_storeu_ps(wide + LANES, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(high, 16)), fold));
}

// Times `fold`, and +0 up to two whole vectors. False where an element but 0 is below 2^IEEE_EXPONENT_MIN, or one is not below
// 2^IEEE_EXPONENT_END.
static inline bool widen_row(const uint16_t *x, size_t depth, float fold, float *wide) {
    __m256i least = _mm256_set1_epi16(-1), most = _mm256_setzero_si256();
    __m256 factor = _mm256_set1_ps(fold);
    size_t whole = depth / ROW_UNIT * ROW_UNIT;
    for (size_t i = 0; i < whole; i += ROW_UNIT) {
        widen_16(x + i, factor, &least, &most, wide + i);
    }
    if (whole < depth) {
        uint16_t tail[ROW_UNIT] = {0};
        memcpy(tail, x + whole, (depth - whole) * sizeof *tail);
        widen_16(tail, factor, &least, &most, wide + whole);
    }
    const __m256i bound = _mm256_set1_epi16(((127 + IEEE_EXPONENT_MIN) << 7) - 1);
    const __m256i end = _mm256_set1_epi16(((127 + IEEE_EXPONENT_END) << 7) - 1);
    __m256i taken = _mm256_and_si256(_mm256_cmpeq_epi16(_mm256_max_epu16(least, bound), least),
                                     _mm256_cmpeq_epi16(_mm256_min_epu16(most, end), most));
    return _mm256_movemask_epi8(taken) == -1;
}

// Where a chunk's scales lie, from any panel's start.
struct scale_places {
    size_t first, last; // its first scale's and its last one's
};

static inline struct scale_places scale_places(const struct chunk *c) {
    return (struct scale_places){quantised_scales_at(&c->layout, c->scale, c->args->k),
                                 quantised_scales_at(&c->layout, c->scale + c->scales - 1, c->args->k)};
}

PANEL_INLINE size_t scale_place(const struct chunk *c, const struct scale_places *at, size_t s) {
    return s + 1 == c->scales ? at->last : at->first + s * c->layout.stride;
}

// `dtype` and `global` are constants in each copy.
PANEL_INLINE void widen_scales_of(const struct chunk *c, const struct scale_places *at, const uint8_t *panel,
                                  enum expertd_dtype dtype, enum expertd_global_scale kind, panel_row *out) {
    size_t size = expertd_dtype_size(dtype);
    __m256 global = _mm256_broadcast_ss((const float *)panel);
    bool one = c->format->scale_of_panel;
    for (size_t s = 0; s < c->scales; s++) {
        const uint8_t *scales = panel + scale_place(c, at, s);
        PANEL_UNROLL for (size_t v = 0; v < EXPERTD_KERNEL_PANEL; v += LANES) {
            __m256 scale = scale_widen(dtype, scales + (one ? 0 : v * size));
            if (kind != EXPERTD_GLOBAL_NONE) {
                scale = kind == EXPERTD_GLOBAL_MULTIPLY ? _mm256_mul_ps(scale, global) : _mm256_div_ps(scale, global);
            }
            scale = one ? _mm256_broadcastss_ps(_mm256_castps256_ps128(scale)) : scale;
            _mm256_store_ps(&out[s][v], scale);
        }
    }
}

// Of E4M3 a global scale takes the bias in (2^120), which no scale can show where neither that leaves f32's range nor a NaN is
// among them: the product is that of the same two numbers. False: nothing is done.
static inline bool widen_scales_e4m3(const struct chunk *c, const struct scale_places *at, const uint8_t *panel, panel_row *out) {
    float global;
    memcpy(&global, panel, sizeof global);
    bool divides = c->format->global == EXPERTD_GLOBAL_DIVIDE;
    if (c->format->scale_of_panel || !(divides ? global >= 0x1p-6f && global < 0x1p120f : global >= 0.0f && global < 0x1p7f)) {
        return false;
    }
    const __m256 factor = _mm256_set1_ps(divides ? global * 0x1p-120f : global * 0x1p120f);
    for (size_t s = 0; s < c->scales; s++) {
        const uint8_t *scales = panel + scale_place(c, at, s);
        if (scales_e4m3_nan(scales) || scales_e4m3_nan(scales + EXPERTD_KERNEL_PANEL / 2)) {
            return false;
        }
        PANEL_UNROLL for (size_t v = 0; v < EXPERTD_KERNEL_PANEL; v += LANES) {
            __m256 scale = scale_e4m3_less_bias(scales + v);
            _mm256_store_ps(&out[s][v], divides ? _mm256_div_ps(scale, factor) : _mm256_mul_ps(scale, factor));
        }
    }
    return true;
}

// Of E8M0 the codes are exponents of f32, but for 0 and for NaN. False where one of these is among them: nothing is done.
static inline bool widen_scales_e8m0(const struct chunk *c, const struct scale_places *at, const uint8_t *panel, panel_row *out) {
    if (c->format->scale_of_panel) {
        return false;
    }
    for (size_t s = 0; s < c->scales; s++) {
        const uint8_t *scales = panel + scale_place(c, at, s);
        if (scales_e8m0_special(scales) || scales_e8m0_special(scales + EXPERTD_KERNEL_PANEL / 2)) {
            return false;
        }
        PANEL_UNROLL for (size_t v = 0; v < EXPERTD_KERNEL_PANEL; v += LANES) {
            __m256i exponents = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(scales + v)));
            _mm256_store_ps(&out[s][v], _mm256_castsi256_ps(_mm256_slli_epi32(exponents, 23)));
        }
    }
    return true;
}

PANEL_INLINE void widen_scales(const struct chunk *c, const struct scale_places *at, const uint8_t *panel, enum expertd_dtype dtype,
                               panel_row *out) {
    if (dtype == EXPERTD_DTYPE_F8_E8M0 && widen_scales_e8m0(c, at, panel, out)) {
        return;
    }
    if (dtype != EXPERTD_DTYPE_F8_E4M3 || c->format->global == EXPERTD_GLOBAL_NONE) {
        widen_scales_of(c, at, panel, dtype, EXPERTD_GLOBAL_NONE, out);
    } else if (widen_scales_e4m3(c, at, panel, out)) {
        return;
    } else if (c->format->global == EXPERTD_GLOBAL_MULTIPLY) {
        widen_scales_of(c, at, panel, dtype, EXPERTD_GLOBAL_MULTIPLY, out);
    } else {
        widen_scales_of(c, at, panel, dtype, EXPERTD_GLOBAL_DIVIDE, out);
    }
}

// The dtype is a constant in each copy.
static inline void chunk_scales(const struct chunk *c, const struct scale_places *at, const uint8_t *panel, panel_row *out) {
    switch (c->format->scale) {
    case EXPERTD_DTYPE_F32:
        widen_scales(c, at, panel, EXPERTD_DTYPE_F32, out);
        return;
    case EXPERTD_DTYPE_BF16:
        widen_scales(c, at, panel, EXPERTD_DTYPE_BF16, out);
        return;
    case EXPERTD_DTYPE_F16:
        widen_scales(c, at, panel, EXPERTD_DTYPE_F16, out);
        return;
    case EXPERTD_DTYPE_F8_E8M0:
        widen_scales(c, at, panel, EXPERTD_DTYPE_F8_E8M0, out);
        return;
    default:
        widen_scales(c, at, panel, EXPERTD_DTYPE_F8_E4M3, out);
        return;
    }
}

// Of the chunk's last scale, in whole lines.
static inline size_t last_depth(const struct chunk *c, size_t line_k) {
    return (chunk_depth(c, c->scales - 1) + line_k - 1) / line_k * line_k;
}

#endif
