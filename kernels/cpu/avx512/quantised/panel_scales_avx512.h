// Widens the scales of a panel's 64 columns to f32, with VBMI. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PANEL_SCALES_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PANEL_SCALES_AVX512_H

#include <string.h>

#include "kernels/cpu/avx512/quantised/code_tables_avx512.h"
#include "kernels/cpu/avx512/quantised/scales_avx512.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/layout/quantised_layout.h"

enum { PANEL_SCALES = 16, PANEL_SCALES_VECS = EXPERTD_KERNEL_PANEL / PANEL_SCALES };

// The byte permutation that precedes two VPUNPCK: bytes 4v to 4v + 3 of each 128-bit lane belong to vector v, so that the unpacked
// 32-bit words have the columns in order.
#define SCALES_QUARTER(q)                                                                                                          \
    4 * (q), 4 * (q) + 1, 4 * (q) + 2, 4 * (q) + 3, 4 * (q) + 16, 4 * (q) + 17, 4 * (q) + 18, 4 * (q) + 19, 4 * (q) + 32,          \
        4 * (q) + 33, 4 * (q) + 34, 4 * (q) + 35, 4 * (q) + 48, 4 * (q) + 49, 4 * (q) + 50, 4 * (q) + 51

// E4M3 by VPERMI2B, 64 at a time: a third of the instructions of scale_e4m3. The two bytes of a bf16 are the upper half of an f32.
PANEL_INLINE void panel_scales_e4m3(const uint8_t *codes, __m512 *to) {
    static const struct byte_table TABLE = {{TIMES_64(E4M3_HIGH, 0), TIMES_64(E4M3_HIGH, 64)},
                                            {TIMES_64(E4M3_LOW, 0), TIMES_64(E4M3_LOW, 64)}};
    static const uint8_t ORDER[EXPERTD_KERNEL_PANEL] = {SCALES_QUARTER(0), SCALES_QUARTER(1), SCALES_QUARTER(2), SCALES_QUARTER(3)};
    const __m512i code = _mm512_permutexvar_epi8(_mm512_loadu_si512(ORDER), _mm512_loadu_si512(codes)),
                  zero = _mm512_setzero_si512();
    __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(TABLE.high), code, _mm512_loadu_si512(TABLE.high + 64));
    __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(TABLE.low), code, _mm512_loadu_si512(TABLE.low + 64));
    high = _mm512_ternarylogic_epi32(code, _mm512_set1_epi8((char)0x80), high, 0xea); // code & sign | high
    const __m512i halves[2] = {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
    PANEL_UNROLL for (size_t v = 0; v < PANEL_SCALES_VECS; v++) {
        __m512i half = halves[v / 2], word = v % 2 ? _mm512_unpackhi_epi16(zero, half) : _mm512_unpacklo_epi16(zero, half);
        to[v] = _mm512_castsi512_ps(word);
    }
}

// One switch for all columns. Always inlined, since a call would spill the caller's sums.
PANEL_INLINE void panel_scales(const struct expertd_quantised_format *format, const uint8_t *scales, __m512 global, __m512 *to) {
    if (format->scale_of_panel) {
        const __m512 scale = format_scale(format, scales, global);
        PANEL_UNROLL for (size_t v = 0; v < PANEL_SCALES_VECS; v++) {
            to[v] = scale;
        }
        return;
    }
    switch (format->scale) {
    case EXPERTD_DTYPE_F32:
        PANEL_UNROLL for (size_t v = 0; v < PANEL_SCALES_VECS; v++) {
            to[v] = _mm512_loadu_ps(scales + 4 * v * PANEL_SCALES);
        }
        return;
    case EXPERTD_DTYPE_BF16:
        PANEL_UNROLL for (size_t v = 0; v < PANEL_SCALES_VECS; v++) {
            to[v] = scale_bf16(scales + 2 * v * PANEL_SCALES);
        }
        return;
    case EXPERTD_DTYPE_F16:
        PANEL_UNROLL for (size_t v = 0; v < PANEL_SCALES_VECS; v++) {
            to[v] = scale_f16(scales + 2 * v * PANEL_SCALES);
        }
        return;
    case EXPERTD_DTYPE_F8_E8M0:
        PANEL_UNROLL for (size_t v = 0; v < PANEL_SCALES_VECS; v++) {
            to[v] = scale_e8m0(scales + v * PANEL_SCALES);
        }
        return;
    default:
        panel_scales_e4m3(scales, to);
        break;
    }
    PANEL_UNROLL for (size_t v = 0; v < PANEL_SCALES_VECS; v++) {
        to[v] = format->global == EXPERTD_GLOBAL_DIVIDE ? _mm512_div_ps(to[v], global) : _mm512_mul_ps(to[v], global);
    }
}

// The same, stored to `to`.
PANEL_INLINE void panel_scales_to(const struct expertd_quantised_format *format, const uint8_t *scales, __m512 global, float *to) {
    __m512 factors[PANEL_SCALES_VECS];
    panel_scales(format, scales, global, factors);
    PANEL_UNROLL for (size_t v = 0; v < PANEL_SCALES_VECS; v++) {
        _mm512_store_ps(to + v * PANEL_SCALES, factors[v]);
    }
}

// Scales of I8 times their super scales, exactly.
PANEL_INLINE void panel_scales_super(const uint8_t *scales, const uint8_t *supers, __m512 *to) {
    PANEL_UNROLL for (size_t v = 0; v < PANEL_SCALES_VECS; v++) {
        to[v] = _mm512_mul_ps(scale_i8(scales + v * PANEL_SCALES), scale_f16(supers + 2 * v * PANEL_SCALES));
    }
}

// The scales of scale group g of a panel, stored at `stored`; with super scales, times these.
PANEL_INLINE void group_scales_to(const struct expertd_quantised_format *format, const struct quantised_layout *layout,
                                  const uint8_t *panel, size_t g, const uint8_t *stored, __m512 global, float *to) {
    __m512 factors[PANEL_SCALES_VECS];
    if (layout->super_size) {
        panel_scales_super(stored, panel + quantised_supers_at(layout, g), factors);
    } else {
        panel_scales(format, stored, global, factors);
    }
    PANEL_UNROLL for (size_t v = 0; v < PANEL_SCALES_VECS; v++) {
        _mm512_store_ps(to + v * PANEL_SCALES, factors[v]);
    }
}

// The same for the minima, which follow the scales at `stored`.
PANEL_INLINE void group_minima_to(const struct expertd_quantised_format *format, const struct quantised_layout *layout,
                                  const uint8_t *panel, size_t g, const uint8_t *stored, float *to) {
    __m512 minima[PANEL_SCALES_VECS];
    if (layout->super_size) {
        panel_scales_super(stored + layout->scale_size, panel + quantised_supers_at(layout, g) + QUANTISED_SUPER, minima);
    } else {
        panel_scales(format, stored + layout->scale_size, _mm512_set1_ps(1.0f), minima);
    }
    PANEL_UNROLL for (size_t v = 0; v < PANEL_SCALES_VECS; v++) {
        _mm512_store_ps(to + v * PANEL_SCALES, minima[v]);
    }
}

// The exponents of E8M0 scales, for VSCALEFPS.
PANEL_INLINE void panel_exponents_to(const uint8_t *scales, float *to) {
    PANEL_UNROLL for (size_t v = 0; v < PANEL_SCALES_VECS; v++) {
        _mm512_store_ps(to + v * PANEL_SCALES, exponent_e8m0(scales + v * PANEL_SCALES));
    }
}

// The panel's global scale in every lane; 1 if the format has none.
PANEL_INLINE __m512 panel_global(const struct expertd_quantised_format *format, const uint8_t *panel) {
    float global = 1.0f;
    if (format->global != EXPERTD_GLOBAL_NONE) {
        memcpy(&global, panel, sizeof global);
    }
    return _mm512_set1_ps(global);
}

#endif
