// Quantised weights by AVX2: the entry points, and quantised_body.h's kernel for rows of f32 and for the rows of bf16 and the
// panels that quantised_ieee.h does not support. Chunks of codes are widened to f32 in L1 and multiplied by tiles of 6 rows x 16
// columns.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/avx2/quantised/quantised_ieee.h"
#include "kernels/cpu/avx2/quantised/scales_avx2.h"
#include "kernels/cpu/backend/backends.h"

typedef __m256 vec;
enum { LANES = 8, PANEL_VECS = 2 };

static inline vec vec_zero(void) {
    return _mm256_setzero_ps();
}

static inline vec vec_load(const float *p) {
    return _mm256_loadu_ps(p);
}

static inline void vec_store(float *p, vec v) {
    _mm256_storeu_ps(p, v);
}

static inline vec vec_broadcast(const float *p) {
    return _mm256_broadcast_ss(p);
}

static inline vec vec_fma(vec a, vec b, vec c) {
    return _mm256_fmadd_ps(a, b, c);
}

static inline vec vec_mul(vec a, vec b) {
    return _mm256_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b) {
    return _mm256_div_ps(a, b);
}

static inline vec vec_huge(void) {
    return _mm256_set1_ps(3.0e38f);
}

// min(|a|, b). VMINPS returns its second operand where one is NaN.
static inline vec vec_least(vec a, vec b) {
    return _mm256_min_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a), b);
}

static inline bool vec_any_tiny(vec a) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, _mm256_set1_ps(0x1p-126f), _CMP_LT_OQ)) != 0;
}

static inline vec vec_scale(enum expertd_dtype dtype, const uint8_t *p) {
    return scale_widen(dtype, p);
}

// The value of the nibble whose lowest bit is `bit`, of 8 columns.
PANEL_INLINE vec widen_nibble(enum expertd_weight_code code, __m256i words, int bit, vec zero) {
    __m256i index = _mm256_srli_epi32(words, bit);
    if (code == EXPERTD_CODE_E2M1) {
        vec magnitude = _mm256_permutevar8x32_ps(_mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f), index);
        __m256i sign = _mm256_and_si256(_mm256_slli_epi32(words, 28 - bit), _mm256_set1_epi32((int)0x80000000));
        return _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign));
    }
    index = _mm256_and_si256(index, _mm256_set1_epi32(15));
    if (code == EXPERTD_CODE_IQ4) { // the zero bytes of an index look up entry 0; VPSLLD and VPSRAD remove what they find
        const __m256i values =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
        __m256i bytes = _mm256_shuffle_epi8(values, index);
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(bytes, 24), 24));
    }
    return _mm256_sub_ps(_mm256_cvtepi32_ps(index), zero);
}

PANEL_INLINE void widen_nibbles(enum expertd_weight_code code, const uint8_t *codes, const float *zeros, size_t depth,
                                float (*wide)[EXPERTD_KERNEL_PANEL]) {
    for (size_t i = 0; i < depth; i += 8) {
        for (size_t c = 0; c < EXPERTD_KERNEL_PANEL; c += LANES, codes += 4 * LANES) {
            __m256i words = _mm256_loadu_si256((const __m256i *)codes);
            vec zero = vec_load(zeros + c);
            PANEL_UNROLL for (size_t pair = 0; pair < 4; pair++) {
                vec_store(&wide[i + 2 * pair][c], widen_nibble(code, words, (int)(4 * pair), zero));
                vec_store(&wide[i + 2 * pair + 1][c], widen_nibble(code, words, (int)(16 + 4 * pair), zero));
            }
        }
    }
}

// `high`: 8 codes in the high bytes of 16-bit words, of 4 columns: k 0 and 2, or k 1 and 3.
PANEL_INLINE vec widen_byte(enum expertd_weight_code code, __m128i high, vec zero) {
    if (code == EXPERTD_CODE_INT8) {
        return _mm256_sub_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_srai_epi16(high, 8))), zero);
    }
    return float8_widen(code, high);
}

PANEL_INLINE void widen_bytes(enum expertd_weight_code code, const uint8_t *codes, const float *zeros, size_t depth,
                              float (*wide)[EXPERTD_KERNEL_PANEL]) {
    const __m128i high_byte = _mm_set1_epi16((short)0xff00);
    for (size_t i = 0; i < depth; i += 4) {
        for (size_t c = 0; c < EXPERTD_KERNEL_PANEL; c += 4, codes += 16) {
            __m128i words = _mm_loadu_si128((const __m128i *)codes);
            __m128 quarter = _mm_loadu_ps(zeros + c);
            vec zero = _mm256_set_m128(quarter, quarter);
            vec even = widen_byte(code, _mm_slli_epi16(words, 8), zero);
            vec odd = widen_byte(code, _mm_and_si128(words, high_byte), zero);
            _mm_storeu_ps(&wide[i][c], _mm256_castps256_ps128(even));
            _mm_storeu_ps(&wide[i + 1][c], _mm256_castps256_ps128(odd));
            _mm_storeu_ps(&wide[i + 2][c], _mm256_extractf128_ps(even, 1));
            _mm_storeu_ps(&wide[i + 3][c], _mm256_extractf128_ps(odd, 1));
        }
    }
}

static void quantised_widen(const struct expertd_quantised_format *format, const uint8_t *codes, const uint8_t *zeros, size_t depth,
                            float (*wide)[EXPERTD_KERNEL_PANEL]) {
    float zero[EXPERTD_KERNEL_PANEL];
    for (size_t c = 0; c < EXPERTD_KERNEL_PANEL; c++) {
        bool is_int8 = format->code == EXPERTD_CODE_INT8;
        zero[c] = zeros ? (is_int8 ? (float)(int8_t)zeros[c] : (float)zeros[c]) : format->code == EXPERTD_CODE_INT4 ? 8.0f : 0.0f;
    }
    switch (format->code) {
    case EXPERTD_CODE_E2M1:
        widen_nibbles(EXPERTD_CODE_E2M1, codes, zero, depth, wide);
        break;
    case EXPERTD_CODE_INT4:
    case EXPERTD_CODE_UINT4:
        widen_nibbles(EXPERTD_CODE_INT4, codes, zero, depth, wide);
        break;
    case EXPERTD_CODE_IQ4:
        widen_nibbles(EXPERTD_CODE_IQ4, codes, zero, depth, wide);
        break;
    case EXPERTD_CODE_INT8:
        widen_bytes(EXPERTD_CODE_INT8, codes, zero, depth, wide);
        break;
    case EXPERTD_CODE_E5M2:
        widen_bytes(EXPERTD_CODE_E5M2, codes, zero, depth, wide);
        break;
    default:
        widen_bytes(EXPERTD_CODE_E4M3, codes, zero, depth, wide);
        break;
    }
}

static bool ieee_panel(const struct panel_args *args, const struct expertd_quantised_format *format) {
    return args->rows <= SMALL_M_ROWS    ? avx2_quantised_small_m(args, format)
           : args->rows <= MEDIUM_M_ROWS ? avx2_quantised_medium_m(args, format)
                                         : avx2_quantised_large_m(args, format);
}

#define QUANTISED_IEEE
#define quantised_ieee ieee_panel
#define PANEL_TARGET(name) avx2_##name
#include "kernels/cpu/common/quantised_body.h"

void avx2_quantised_macrokernel_bf16(const struct macrokernel_args *args, const struct expertd_quantised_format *format) {
    bool done = args->rows <= SMALL_M_ROWS    ? avx2_quantised_small_m_macrokernel(args, format)
                : args->rows <= MEDIUM_M_ROWS ? false
                                              : avx2_quantised_large_m_macrokernel(args, format);
    if (!done) {
        macrokernel_panel_by_panel(args, format, avx2_quantised_bf16);
    }
}
#endif
