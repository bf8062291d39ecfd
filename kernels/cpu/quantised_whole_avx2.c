// Which sums of a row can be taken in whole numbers, and the numbers.
#if defined(__x86_64__)
#include "kernels/cpu/quantised_whole.h"

#include <immintrin.h>

#include "base/dtype.h"
#include "kernels/cpu/backends.h"

enum {
    LANES = 8,
    // Biased exponents of the greatest x: below, a unit would not be an f32; above, sums might overflow on their way.
    EXPONENT_LEAST = 127 - 100,
    EXPONENT_GREATEST = 127 + 76,
};
static const uint32_t SUM_LIMIT = 1u << 24;

// One row's x of a scale, in units of 2^-(WHOLE_BITS - 1) of the greatest one's power of two, 8 to a vector.
struct numbers {
    __m256i x[WHOLE_SCALE_K / LANES];
    int32_t sum;
    int exponent; // of the unit
    int zeros;    // low bits that are 0 in all
};

static inline uint32_t or_of(__m256i v) {
    __m128i half = _mm_or_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_or_si128(half, _mm_shuffle_epi32(half, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_or_si128(half, _mm_shuffle_epi32(half, 0xb1)));
}

static inline int32_t sum_of(__m256i v) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

static inline uint32_t greatest_of(__m256i v) {
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

// Of the greatest of the magnitudes, biased; 127 where all are 0, for any will do.
PANEL_INLINE uint32_t greatest_exponent(const float *x, size_t vecs) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i greatest = _mm256_setzero_si256();
    PANEL_UNROLL for (size_t i = 0; i < vecs; i++) {
        greatest = _mm256_max_epi32(greatest, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i * LANES)), magnitude));
    }
    uint32_t exponent = greatest_of(greatest) >> 23;
    return exponent ? exponent : 127;
}

// False where the sums might pass 2^24.
PANEL_INLINE bool sums_fit(const struct numbers *n, size_t vecs, uint32_t code_max) {
    __m256i sum = _mm256_setzero_si256();
    PANEL_UNROLL for (size_t i = 0; i < vecs; i++) {
        sum = _mm256_add_epi32(sum, _mm256_abs_epi32(n->x[i]));
    }
    return ((uint64_t)(uint32_t)sum_of(sum) >> n->zeros) * code_max < SUM_LIMIT;
}

// False where an x is no multiple of the unit, or no number.
PANEL_INLINE bool measure(const float *x, size_t vecs, uint32_t code_max, struct numbers *n) {
    uint32_t greatest = greatest_exponent(x, vecs);
    if (greatest < EXPONENT_LEAST || greatest > EXPONENT_GREATEST) {
        return false;
    }
    n->exponent = (int)greatest - 127 - (WHOLE_BITS - 1);
    const __m256 factor = _mm256_set1_ps(f32_from_bits((uint32_t)(127 - n->exponent) << 23));
    __m256 exact = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    __m256i bits = _mm256_setzero_si256(), sum = bits;
    PANEL_UNROLL for (size_t i = 0; i < vecs; i++) {
        __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i * LANES), factor);
        __m256i whole = _mm256_cvtps_epi32(scaled);
        exact = _mm256_and_ps(exact, _mm256_cmp_ps(_mm256_cvtepi32_ps(whole), scaled, _CMP_EQ_OQ));
        bits = _mm256_or_si256(bits, whole);
        sum = _mm256_add_epi32(sum, whole);
        n->x[i] = whole;
    }
    n->zeros = __builtin_ctz(or_of(bits) | 1u << WHOLE_BITS);
    n->sum = sum_of(sum) >> n->zeros;
    return _mm256_movemask_ps(exact) == 0xff && sums_fit(n, vecs, code_max);
}

PANEL_INLINE void store(const struct numbers *n, size_t vecs, size_t parts, int16_t *high, int16_t *low) {
    const __m128i zeros = _mm_cvtsi32_si128(n->zeros);
    const __m256i below = _mm256_set1_epi32((1 << WHOLE_LOW_BITS) - 1);
    PANEL_UNROLL for (size_t i = 0; i < vecs; i += 2) {
        __m256i a = _mm256_sra_epi32(n->x[i], zeros), b = _mm256_sra_epi32(n->x[i + 1], zeros);
        if (parts == 2) {
            __m256i both = _mm256_packs_epi32(_mm256_and_si256(a, below), _mm256_and_si256(b, below));
            _mm256_storeu_si256((__m256i *)(low + i * LANES), _mm256_permute4x64_epi64(both, 0xd8));
            a = _mm256_srai_epi32(a, WHOLE_LOW_BITS), b = _mm256_srai_epi32(b, WHOLE_LOW_BITS);
        }
        _mm256_storeu_si256((__m256i *)(high + i * LANES), _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
    }
}

// One scale, of `vecs` vectors of 8 k, an even number.
PANEL_INLINE void find_scale(const float *x, size_t vecs, struct whole_codes codes, struct whole_scale *scale, int16_t *high,
                             int16_t *low) {
    struct numbers n;
    scale->parts = 0;
    if (!measure(x, vecs, codes.max, &n)) {
        return;
    }
    if (n.zeros >= WHOLE_LOW_BITS) {
        scale->parts = 1;
        store(&n, vecs, 1, high, low);
    } else {
        scale->parts = 2;
        store(&n, vecs, 2, high, low);
    }
    scale->sum = n.sum;
    scale->unit = f32_from_bits((uint32_t)(127 + n.exponent + n.zeros) << 23) * codes.unit;
}

void whole_find(const float *x, size_t scales, size_t scale_k, size_t last_k, struct whole_codes codes, struct whole_row *out) {
    for (size_t s = 0, k = 0; s < scales; s++, k += scale_k) {
        if ((s + 1 == scales ? last_k : scale_k) <= 16) {
            find_scale(x + k, 2, codes, &out->scales[s], out->x[0] + k, out->x[1] + k);
        } else {
            find_scale(x + k, 4, codes, &out->scales[s], out->x[0] + k, out->x[1] + k);
        }
    }
}
#endif
