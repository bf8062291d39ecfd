// Rows of bf16 to whole numbers.
#if defined(__x86_64__)
#include "kernels/cpu/avx512/quantised_integer/integer_rows.h"

#include <immintrin.h>

#include "expertd/base/dtype.h"
#include "kernels/cpu/backends.h"

// M (integer_rows.h) up to which columns' sums are likely to be below their limit, with X of three digits.
static const float LIKELY = 0x1.6p24f;

enum {
    VEC_K = 16,
    VECS_MAX = VNNI_SCALE_K / VEC_K,
    FRACTION_BITS = 7,
    MAGNITUDE = 0x7fff,
    EXPONENT_MIN = 127 - 100, // fields of a number's exponent
    EXPONENT_END = 127 + 100,
    LAST_BIT_BIAS = 127 + FRACTION_BITS, // of a field that is the last bit's
    TWO_SPREAD = 7,                      // of an exponent above the unit's that two digits have room for,
    TWO_FRACTION = 0x7e,                 // and of its fraction: 255 * 128 has three
    DIGIT_BIASES = 0x808080,             // X + these, less them byte by byte, are X's digits
    DIGIT_BIASES_16 = 0x0080,
};

// A scale's elements, and the exponent field of the least of their last bits.
struct scale {
    __m512i x, magnitude, exponent;
    uint32_t unit;
};

PANEL_INLINE uint32_t least_of(__m512i words) {
    const __m256i half = _mm256_min_epu16(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
    const __m128i quarter = _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return (uint32_t)_mm_cvtsi128_si32(_mm_minpos_epu16(quarter)) & 0xffff;
}

// Modulo 2^32: X that are not whole may be anything.
PANEL_INLINE int32_t sum_of(__m512i words) {
    const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

PANEL_INLINE __m512i significands(__m512i x) { // x & 0x7f | 0x80
    return _mm512_ternarylogic_epi32(x, _mm512_set1_epi16(0x7f), _mm512_set1_epi16(0x80), 0xea);
}

PANEL_INLINE struct scale scale_load(const uint16_t *x, size_t vecs) {
    const __m512i words = vecs == VECS_MAX ? _mm512_loadu_si512(x) : _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)x));
    const __m512i magnitude = _mm512_and_si512(words, _mm512_set1_epi16(MAGNITUDE)), significand = significands(words);
    const __m512i below = _mm512_andnot_si512(significand, _mm512_sub_epi16(significand, _mm512_set1_epi16(1)));
    const __m512i exponent = _mm512_srli_epi16(magnitude, FRACTION_BITS);
    const __m512i last_bit = _mm512_add_epi16(exponent, _mm512_popcnt_epi16(below));
    const __mmask32 is_0 = _mm512_testn_epi16_mask(magnitude, magnitude);
    uint32_t unit = least_of(_mm512_mask_mov_epi16(last_bit, is_0, _mm512_set1_epi16(MAGNITUDE)));
    return (struct scale){words, magnitude, exponent, unit < MAGNITUDE ? unit : LAST_BIT_BIAS};
}

PANEL_INLINE bool unit_is_taken(const struct scale *s) {
    return s->unit >= EXPONENT_MIN && s->unit < EXPONENT_END;
}

PANEL_INLINE bool has_two_digits(const struct scale *s) {
    const short most = (short)((s->unit + TWO_SPREAD) << FRACTION_BITS | TWO_FRACTION);
    return unit_is_taken(s) && !_mm512_cmpgt_epi16_mask(s->magnitude, _mm512_set1_epi16(most));
}

// Words of k by digits: 0 4 1 5, 2 6 3 7 of each 8, `bytes` of each X.
#define INTEGER_WORD(bytes, d, k)                                                                                                  \
    (bytes) * (k) + (d), (bytes) * ((k) + 4) + (d), (bytes) * ((k) + 1) + (d), (bytes) * ((k) + 5) + (d)
#define INTEGER_8(bytes, d, k) INTEGER_WORD(bytes, d, k), INTEGER_WORD(bytes, d, (k) + 2)
#define INTEGER_16(bytes, d, k) INTEGER_8(bytes, d, k), INTEGER_8(bytes, d, (k) + 8)

// X = significand << (exponent - unit), which is exact: bits that are shifted out to the right are 0. Of an element that is 0 all
// are. Returns the sum of X.
PANEL_INLINE int32_t two_store(const struct scale *s, size_t vecs, int8_t *to, size_t plane) {
    static const uint8_t ORDER[64] = {INTEGER_16(2, 0, 0), INTEGER_16(2, 0, 16), INTEGER_16(2, 1, 0), INTEGER_16(2, 1, 16)};
    const __m512i right = _mm512_sub_epi16(_mm512_set1_epi16((short)(s->unit + TWO_SPREAD)), s->exponent);
    const __m512i whole = _mm512_srlv_epi16(_mm512_slli_epi16(significands(s->x), TWO_SPREAD), right);
    const __m512i sign = _mm512_srai_epi16(s->x, 15), x = _mm512_sub_epi16(_mm512_xor_si512(whole, sign), sign);
    const __m512i biases = _mm512_set1_epi16(DIGIT_BIASES_16);
    const __m512i words = _mm512_xor_si512(_mm512_add_epi16(x, biases), biases);
    const __m512i digits = _mm512_permutexvar_epi8(_mm512_loadu_si512(ORDER), words);
    const __m256i low = _mm512_castsi512_si256(digits), high = _mm512_extracti64x4_epi64(digits, 1);
    if (vecs == VECS_MAX) {
        _mm256_storeu_si256((__m256i *)to, low);
        _mm256_storeu_si256((__m256i *)(to + plane), high);
    } else {
        _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(low));
        _mm_storeu_si128((__m128i *)(to + plane), _mm256_castsi256_si128(high));
    }
    return sum_of(_mm512_madd_epi16(x, _mm512_set1_epi16(1)));
}

PANEL_INLINE __m512 widened(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

// Stores three digits. Returns the sum of the X's magnitudes, which is anything from 2^24 on where it is not so small; *sum: that
// of X where it is.
PANEL_INLINE float three_store(const struct scale *s, size_t vecs, int8_t *to, size_t plane, int32_t *sum) {
    static const uint8_t ORDER[64] = {INTEGER_16(4, 0, 0), INTEGER_16(4, 1, 0), INTEGER_16(4, 2, 0), INTEGER_16(4, 3, 0)};
    const __m512 factor = _mm512_set1_ps(expertd_f32_from_bits((127 + LAST_BIT_BIAS - s->unit) << 23));
    const __m256i halves[VECS_MAX] = {_mm512_castsi512_si256(s->x), _mm512_extracti64x4_epi64(s->x, 1)};
    const __m512i biases = _mm512_set1_epi32(DIGIT_BIASES);
    __m512 most = _mm512_setzero_ps();
    __m512i all = _mm512_setzero_si512();
    PANEL_UNROLL for (size_t i = 0; i < vecs; i++, to += VEC_K) {
        const __m512 x = _mm512_mul_ps(widened(halves[i]), factor);
        const __m512i whole = _mm512_cvtps_epi32(x), words = _mm512_xor_si512(_mm512_add_epi32(whole, biases), biases);
        const __m512i digits = _mm512_permutexvar_epi8(_mm512_loadu_si512(ORDER), words);
        all = _mm512_add_epi32(all, whole);
        most = _mm512_add_ps(most, _mm512_abs_ps(x)); // rounded it is 2^24 at least
        _mm_storeu_si128((__m128i *)to, _mm512_castsi512_si128(digits));
        _mm_storeu_si128((__m128i *)(to + plane), _mm512_extracti32x4_epi32(digits, 1));
        _mm_storeu_si128((__m128i *)(to + 2 * plane), _mm512_extracti32x4_epi32(digits, 2));
    }
    *sum = sum_of(all);
    return _mm512_reduce_add_ps(most);
}

// Is each 0 or within the exponents?
PANEL_INLINE bool in_range(const struct scale *s) {
    const __m512i above = _mm512_sub_epi16(s->exponent, _mm512_set1_epi16(EXPONENT_MIN));
    return _mm512_mask_cmpge_epu16_mask(_mm512_test_epi16_mask(s->magnitude, s->magnitude), above,
                                        _mm512_set1_epi16(EXPONENT_END - EXPONENT_MIN)) == 0;
}

PANEL_INLINE struct integer_place place_of(size_t row, const struct scale *s, struct integer_kind kind, int32_t limit,
                                           int32_t sum) {
    const float unit = expertd_f32_from_bits((s->unit + 127 - LAST_BIT_BIAS) << 23) * kind.unit;
    return (struct integer_place){(uint32_t)row, unit, limit, -kind.max * sum};
}

// Where a scale's rows go.
struct scale_rows {
    uint8_t *count, *not_whole;
    struct integer_place *places;
    int8_t *digits;
};

// False where the row cannot be taken. Three digits are stored before it is known whether they are whole.
PANEL_INLINE bool add_scale(const struct scale_rows *to, size_t rows, size_t row, const uint16_t *x, size_t vecs,
                            struct integer_kind kind) {
    const struct scale s = scale_load(x, vecs);
    const size_t scale_k = vecs * VEC_K, plane = rows * scale_k;
    if (has_two_digits(&s)) {
        const size_t at = to->count[INTEGER_TWO]++;
        const int32_t sum = two_store(&s, vecs, to->digits + at * scale_k, plane);
        to->places[at] = place_of(row, &s, kind, INT32_MAX, sum);
        return true;
    }
    if (unit_is_taken(&s)) {
        const size_t at = rows - 1 - to->count[INTEGER_THREE];
        int32_t sum;
        const float most = three_store(&s, vecs, to->digits + at * scale_k, plane, &sum) * (float)kind.max;
        if (most < LIKELY) {
            to->count[INTEGER_THREE]++;
            to->places[at] = place_of(row, &s, kind, most < 0x1p24f ? INT32_MAX : (int32_t)(0x1p25f - most), sum);
            return true;
        }
    }
    to->not_whole[to->count[INTEGER_NOT]++] = (uint8_t)row;
    return in_range(&s);
}

PANEL_INLINE bool add(const struct integer_rows *to, size_t row, const uint16_t *x, size_t k, size_t vecs,
                      struct integer_kind kind) {
    const size_t rows = to->rows, scale_k = vecs * VEC_K;
    struct scale_rows scale = {to->count[0], to->not_whole, to->places, to->digits};
    bool taken = true;
    for (size_t at = 0; at < k; at += scale_k) {
        taken = add_scale(&scale, rows, row, x + at, vecs, kind) && taken;
        scale.count += sizeof *to->count;
        scale.not_whole += rows;
        scale.places += rows;
        scale.digits += VNNI_DIGITS * rows * scale_k;
    }
    return taken;
}

bool integer_rows_add(const struct integer_rows *rows, size_t row, const uint16_t *x, size_t k, struct integer_kind kind) {
    return rows->scale_k == VNNI_SCALE_K ? add(rows, row, x, k, VECS_MAX, kind) : add(rows, row, x, k, 1, kind);
}
#endif
