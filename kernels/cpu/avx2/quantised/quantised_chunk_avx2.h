// Widens the bf16 rows and the scales of a chunk of K (quantised_chunk.h) to f32, for the kernels of quantised_ieee.h. Private to
// avx2/quantised.
#ifndef EXPERTD_KERNELS_CPU_AVX2_QUANTISED_QUANTISED_CHUNK_AVX2_H
#define EXPERTD_KERNELS_CPU_AVX2_QUANTISED_QUANTISED_CHUNK_AVX2_H

#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx2/quantised/quantised_ieee.h"
#include "kernels/cpu/avx2/quantised/scales_avx2.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/row_sums.h"

enum {
    LANES = 8,
    ROW_UNIT = 2 * LANES, // a widened row is padded to a multiple of this number of elements
};

// Widens 16 elements, times fold. Updates two minima and maxima of bits: *least of (magnitude - 1), which makes 0 the greatest, and
// *most of the magnitude.
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

// Widens `depth` elements, times fold, and pads them with +0 to a multiple of ROW_UNIT. False if the row is not supported: an
// element is below 2^IEEE_EXPONENT_MIN in magnitude but not 0, or is not below 2^IEEE_EXPONENT_END.
static inline bool widen_row(const uint16_t *x, size_t depth, float fold, float *wide) {
    __m256i least = _mm256_set1_epi16(-1), most = _mm256_setzero_si256();
    __m256 factor = _mm256_set1_ps(fold);
    size_t full = depth / ROW_UNIT * ROW_UNIT;
    for (size_t i = 0; i < full; i += ROW_UNIT) {
        widen_16(x + i, factor, &least, &most, wide + i);
    }
    if (full < depth) {
        uint16_t tail[ROW_UNIT] = {0};
        memcpy(tail, x + full, (depth - full) * sizeof *tail);
        widen_16(tail, factor, &least, &most, wide + full);
    }
    const __m256i bound = _mm256_set1_epi16(((127 + IEEE_EXPONENT_MIN) << 7) - 1);
    const __m256i end = _mm256_set1_epi16(((127 + IEEE_EXPONENT_END) << 7) - 1);
    __m256i supported = _mm256_and_si256(_mm256_cmpeq_epi16(_mm256_max_epu16(least, bound), least),
                                         _mm256_cmpeq_epi16(_mm256_min_epu16(most, end), most));
    return _mm256_movemask_epi8(supported) == -1;
}

// Byte offsets of a chunk's scales from the start of a panel. The last group of K may be short, so the last offset is kept apart.
struct scale_offsets {
    size_t first, last;
};

static inline struct scale_offsets scale_offsets(const struct chunk *c) {
    return (struct scale_offsets){quantised_scales_at(&c->layout, c->scale, c->args->k),
                                  quantised_scales_at(&c->layout, c->scale + c->scales - 1, c->args->k)};
}

PANEL_INLINE size_t scale_offset(const struct chunk *c, const struct scale_offsets *at, size_t s) {
    return s + 1 == c->scales ? at->last : at->first + s * c->layout.stride;
}

// Scales of any dtype. `dtype` and `kind` are compile-time constants in each copy.
PANEL_INLINE void widen_scales_of(const struct chunk *c, const struct scale_offsets *at, const uint8_t *panel,
                                  enum expertd_dtype dtype, enum expertd_global_scale kind, panel_row *out) {
    size_t size = expertd_dtype_size(dtype);
    __m256 global = _mm256_broadcast_ss((const float *)panel);
    bool one = c->format->scale_of_panel;
    for (size_t s = 0; s < c->scales; s++) {
        const uint8_t *scales = panel + scale_offset(c, at, s);
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

// E4M3 scales with a global scale, by scale_e4m3_rebiased: the missing factor of 2^120 is multiplied into the global scale. Each
// result is the product or quotient of the same two numbers, hence has the same bits, as long as the global scale stays within
// f32's range and no scale is NaN. False if either fails: the caller must then use widen_scales_of.
static inline bool widen_scales_e4m3(const struct chunk *c, const struct scale_offsets *at, const uint8_t *panel, panel_row *out) {
    float global;
    memcpy(&global, panel, sizeof global);
    bool divides = c->format->global == EXPERTD_GLOBAL_DIVIDE;
    if (c->format->scale_of_panel || !(divides ? global >= 0x1p-6f && global < 0x1p120f : global >= 0.0f && global < 0x1p7f)) {
        return false;
    }
    const __m256 factor = _mm256_set1_ps(divides ? global * 0x1p-120f : global * 0x1p120f);
    for (size_t s = 0; s < c->scales; s++) {
        const uint8_t *scales = panel + scale_offset(c, at, s);
        if (scales_e4m3_nan(scales) || scales_e4m3_nan(scales + EXPERTD_KERNEL_PANEL / 2)) {
            return false;
        }
        PANEL_UNROLL for (size_t v = 0; v < EXPERTD_KERNEL_PANEL; v += LANES) {
            __m256 scale = scale_e4m3_rebiased(scales + v);
            _mm256_store_ps(&out[s][v], divides ? _mm256_div_ps(scale, factor) : _mm256_mul_ps(scale, factor));
        }
    }
    return true;
}

// E8M0 scales: the code is the exponent of the f32, except for 0 (2^-127) and 255 (NaN). False if one of these occurs: the caller
// must then use widen_scales_of.
static inline bool widen_scales_e8m0(const struct chunk *c, const struct scale_offsets *at, const uint8_t *panel, panel_row *out) {
    if (c->format->scale_of_panel) {
        return false;
    }
    for (size_t s = 0; s < c->scales; s++) {
        const uint8_t *scales = panel + scale_offset(c, at, s);
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

// I8 times the super scales, which are `super` bytes behind the first of their EXPERTD_SUPER_K k.
static inline void widen_scales_i8(const struct chunk *c, const struct scale_offsets *at, const uint8_t *panel, size_t super,
                                   panel_row *out) {
    for (size_t s = 0; s < c->scales; s++) {
        const uint8_t *scales = panel + scale_offset(c, at, s),
                      *supers = panel + quantised_supers_at(&c->layout, c->scale + s) + super;
        PANEL_UNROLL for (size_t v = 0; v < EXPERTD_KERNEL_PANEL; v += LANES) {
            __m256 factor = scale_widen(EXPERTD_DTYPE_F16, supers + v * sizeof(uint16_t));
            _mm256_store_ps(&out[s][v], _mm256_mul_ps(scale_widen(EXPERTD_DTYPE_I8, scales + v), factor));
        }
    }
}

PANEL_INLINE void widen_scales(const struct chunk *c, const struct scale_offsets *at, const uint8_t *panel,
                               enum expertd_dtype dtype, panel_row *out) {
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

// out[s][column]: the chunk's scales as f32, global scale included. The dtype is a compile-time constant in each copy.
static inline void chunk_scales(const struct chunk *c, const struct scale_offsets *at, const uint8_t *panel, panel_row *out) {
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
    case EXPERTD_DTYPE_I8:
        widen_scales_i8(c, at, panel, 0, out);
        return;
    default:
        widen_scales(c, at, panel, EXPERTD_DTYPE_F8_E4M3, out);
        return;
    }
}

// out[s][column]: the chunk's minima as f32.
static inline void widen_minima(const struct chunk *c, const struct scale_offsets *scales, const uint8_t *panel, panel_row *out) {
    const struct scale_offsets at = {scales->first + c->layout.scale_size, scales->last + c->layout.scale_size};
    switch (c->format->scale) {
    case EXPERTD_DTYPE_F32:
        widen_scales_of(c, &at, panel, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, out);
        return;
    case EXPERTD_DTYPE_BF16:
        widen_scales_of(c, &at, panel, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, out);
        return;
    case EXPERTD_DTYPE_I8:
        widen_scales_i8(c, &at, panel, QUANTISED_SUPER, out);
        return;
    default:
        widen_scales_of(c, &at, panel, EXPERTD_DTYPE_F16, EXPERTD_GLOBAL_NONE, out);
        return;
    }
}

// minus[s] = -(the sum of a row over the chunk's scale group s). The chunk ends with a scale group.
static inline void chunk_row_sums(const struct chunk *c, size_t row, float *minus) {
    const size_t first = c->scale * c->layout.scale_k;
    row_sums_minus((const uint16_t *)c->args->x[row] + first, true, c->k + c->depth - first, c->layout.scale_k, minus);
}

// k of the chunk's last scale group, rounded up to full lines of codes.
static inline size_t last_depth(const struct chunk *c, size_t line_k) {
    return (chunk_depth(c, c->scales - 1) + line_k - 1) / line_k * line_k;
}

#endif
