// Rows of bf16 to whole numbers.
#if defined(__x86_64__)
#include "kernels/cpu/whole_rows.h"

#include <immintrin.h>

#include "base/dtype.h"
#include "kernels/cpu/backends.h"

// M (whole_rows.h) up to which columns' sums are likely to be below their limit, with X of three digits.
static const float LIKELY = 0x1.6p24f;

enum {
    VEC_K = 16,
    VECS_MAX = WHOLE_SCALE_K / VEC_K,
    EXPONENT_BITS = 7,
    MAGNITUDE = 0x7fff,
    EXPONENT_MIN = 127 - 100, // fields of a number's exponent
    EXPONENT_END = 127 + 100,
    LAST_BIT_BIAS = 127 + EXPONENT_BITS, // of a field that is the last bit's
    DIGIT_BIASES = 0x808080,             // X + these, less them byte by byte, are X's digits
};

PANEL_INLINE __m512i magnitudes(__m512i x) {
    return _mm512_and_si512(x, _mm512_set1_epi16(MAGNITUDE));
}

// Exponent fields of the elements' last bits; of 0 a huge one.
PANEL_INLINE __m512i last_bits(__m512i x) {
    const __m512i magnitude = magnitudes(x), one = _mm512_set1_epi16(1);
    const __m512i significand =
        _mm512_ternarylogic_epi32(x, _mm512_set1_epi16(0x7f), _mm512_set1_epi16(0x80), 0xea); // x & 0x7f | 0x80
    const __m512i below = _mm512_andnot_si512(significand, _mm512_sub_epi16(significand, one));
    const __m512i field = _mm512_add_epi16(_mm512_srli_epi16(magnitude, EXPONENT_BITS), _mm512_popcnt_epi16(below));
    return _mm512_mask_mov_epi16(field, _mm512_testn_epi16_mask(magnitude, magnitude), _mm512_set1_epi16(MAGNITUDE));
}

PANEL_INLINE uint32_t least_of(__m512i words) {
    const __m256i half = _mm256_min_epu16(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
    const __m128i quarter = _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return (uint32_t)_mm_cvtsi128_si32(_mm_minpos_epu16(quarter)) & 0xffff;
}

// Is each 0 or within the exponents?
PANEL_INLINE bool in_range(__m512i x) {
    const __m512i magnitude = magnitudes(x), least = _mm512_set1_epi16(EXPONENT_MIN << EXPONENT_BITS);
    const __m512i span = _mm512_set1_epi16((EXPONENT_END - EXPONENT_MIN) << EXPONENT_BITS);
    return _mm512_mask_cmpge_epu16_mask(_mm512_test_epi16_mask(magnitude, magnitude), _mm512_sub_epi16(magnitude, least), span) ==
           0;
}

PANEL_INLINE __m512 widened(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

// The sums of two vectors' elements: of `a` in lane 0, of `b` in lane 8.
PANEL_INLINE __m512 sums_of(__m512 a, __m512 b) {
    __m512 sum = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    sum = _mm512_add_ps(sum, _mm512_shuffle_f32x4(sum, sum, 0xb1));
    sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, 0x4e));
    return _mm512_add_ps(sum, _mm512_permute_ps(sum, 0xb1));
}

// X's digits in their order: 16 of each.
PANEL_INLINE __m512i digits_of(__m512i words) {
#define WHOLE_WORD(d, first) (first) * 4 + (d), ((first) + 4) * 4 + (d), ((first) + 1) * 4 + (d), ((first) + 5) * 4 + (d)
#define WHOLE_DIGIT(d) WHOLE_WORD(d, 0), WHOLE_WORD(d, 2), WHOLE_WORD(d, 8), WHOLE_WORD(d, 10)
    static const uint8_t ORDER[64] = {WHOLE_DIGIT(0), WHOLE_DIGIT(1), WHOLE_DIGIT(2), WHOLE_DIGIT(3)};
    return _mm512_permutexvar_epi8(_mm512_loadu_si512(ORDER), words);
}

// A scale of a row.
struct scale {
    __m512i whole[VECS_MAX]; // X, its digits bytes
    uint32_t field;          // of its last bit
    float sum, most;         // of X, of their magnitudes times the codes' greatest
    enum whole_class class;
};

// Of `vecs` vectors; *taken becomes false where it cannot be.
PANEL_INLINE struct scale scale_make(const uint16_t *x, size_t vecs, struct whole_kind kind, bool *taken) {
    const __m256i *halves = (const __m256i *)x;
    const __m512i words = vecs == VECS_MAX ? _mm512_loadu_si512(x) : _mm512_zextsi256_si512(_mm256_loadu_si256(halves));
    const __m512i biases = _mm512_set1_epi32(DIGIT_BIASES);
    struct scale s = {.field = least_of(last_bits(words))};
    s.field = s.field < MAGNITUDE ? s.field : LAST_BIT_BIAS; // all are 0
    const __m512 factor = _mm512_set1_ps(f32_from_bits((127 + LAST_BIT_BIAS - s.field) << 23));
    __m512 sum = _mm512_setzero_ps(), most = _mm512_setzero_ps();
    __m512i digits = _mm512_setzero_si512();
    PANEL_UNROLL for (size_t i = 0; i < vecs; i++) {
        const __m512 value = _mm512_mul_ps(widened(_mm256_loadu_si256(halves + i)), factor);
        sum = i ? _mm512_add_ps(sum, value) : value;
        most = i ? _mm512_add_ps(most, _mm512_abs_ps(value)) : _mm512_abs_ps(value); // rounded it is 2^24 at least
        s.whole[i] = _mm512_xor_si512(_mm512_add_epi32(_mm512_cvtps_epi32(value), biases), biases);
        digits = _mm512_or_si512(digits, s.whole[i]);
    }
    const __m512 sums = sums_of(most, sum);
    s.sum = _mm_cvtss_f32(_mm512_extractf32x4_ps(sums, 2));
    s.most = _mm512_cvtss_f32(sums) * (float)kind.max;
    s.class = _mm512_test_epi32_mask(digits, _mm512_set1_epi32(0xff0000)) ? WHOLE_THREE : WHOLE_TWO;
    if (!(s.most < (kind.less_zero ? 0x1p24f : LIKELY)) || s.field < EXPONENT_MIN || s.field >= EXPONENT_END) {
        *taken = *taken && in_range(words);
        s.class = WHOLE_NOT;
    }
    return s;
}

PANEL_INLINE void digits_store(const struct scale *s, size_t vecs, int8_t *to, size_t plane) {
    PANEL_UNROLL for (size_t i = 0; i < vecs; i++, to += VEC_K) {
        const __m512i digits = digits_of(s->whole[i]);
        _mm_storeu_si128((__m128i *)to, _mm512_castsi512_si128(digits));
        _mm_storeu_si128((__m128i *)(to + plane), _mm512_extracti32x4_epi32(digits, 1));
        if (s->class == WHOLE_THREE) {
            _mm_storeu_si128((__m128i *)(to + 2 * plane), _mm512_extracti32x4_epi32(digits, 2));
        }
    }
}

PANEL_INLINE bool add(const struct whole_rows *to, size_t row, const uint16_t *x, size_t k, size_t vecs, struct whole_kind kind) {
    const size_t rows = to->rows, scale_k = vecs * VEC_K, plane = rows * scale_k;
    uint8_t *not_whole = to->not_whole;
    struct whole_place *places = to->places;
    int8_t *digits = to->digits;
    bool taken = true;
    for (size_t i = 0; i * scale_k < k; i++, not_whole += rows, places += rows, digits += WHOLE_DIGITS * plane) {
        const struct scale s = scale_make(x + i * scale_k, vecs, kind, &taken);
        const size_t before = to->count[i][s.class]++;
        if (s.class == WHOLE_NOT) {
            not_whole[before] = (uint8_t)row;
            continue;
        }
        const size_t at = s.class == WHOLE_TWO ? before : rows - 1 - before;
        struct whole_place *place = &places[at];
        place->row = (uint32_t)row;
        place->unit = f32_from_bits((s.field + 127 - LAST_BIT_BIAS) << 23) * kind.unit;
        place->limit = s.most < 0x1p24f ? INT32_MAX : (int32_t)(0x1p25f - s.most);
        if (kind.less_zero) {
            place->x = s.sum;
        } else {
            place->less = -kind.offset * (int32_t)s.sum;
        }
        digits_store(&s, vecs, digits + at * scale_k, plane);
    }
    return taken;
}

bool whole_rows_add(const struct whole_rows *rows, size_t row, const uint16_t *x, size_t k, struct whole_kind kind) {
    return rows->scale_k == WHOLE_SCALE_K ? add(rows, row, x, k, VECS_MAX, kind) : add(rows, row, x, k, 1, kind);
}
#endif
