// Converts bf16 rows to integers.
#if defined(__x86_64__)
#include "kernels/cpu/avx512/quantised_integer/integer_rows.h"

#include <immintrin.h>

#include "expertd/base/dtype.h"
#include "kernels/cpu/backend/backends.h"

// With three digits: M (integer_rows.h) up to which the sums of the columns are likely to stay below their limit.
static const float LIKELY_SUM_MAX = 0x1.6p24f;

enum {
    VEC_K = 16,
    VECS_MAX = VNNI_SCALE_K / VEC_K,
    FRACTION_BITS = 7,
    MAGNITUDE = 0x7fff,
    EXPONENT_MIN = 127 - 100, // exponent fields of elements and units: from here to below EXPONENT_END
    EXPONENT_END = 127 + 100,
    LAST_BIT_BIAS = 127 + FRACTION_BITS, // bias of the exponent field of an element's last set bit
    TWO_DIGITS_SHIFT = 7,                // two digits hold significands shifted left by at most so much,
    TWO_DIGITS_FRACTION = 0x7e,          // and at that shift with at most this fraction: 255 << 7 needs three digits
    DIGIT_BIASES = 0x808080,             // each byte of (X + these) XOR these is a digit of X
    DIGIT_BIASES_16 = 0x0080,
};

// The elements of one scale group, and the smallest exponent field of a last set bit.
struct group_elements {
    __m512i x, magnitude, exponent;
    uint32_t unit;
};

PANEL_INLINE uint32_t min_of(__m512i words) {
    const __m256i half = _mm256_min_epu16(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
    const __m128i quarter = _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return (uint32_t)_mm_cvtsi128_si32(_mm_minpos_epu16(quarter)) & 0xffff;
}

// Wraps; the sum of a row that proves inexact is not used.
PANEL_INLINE int32_t sum_of(__m512i words) {
    const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

PANEL_INLINE __m512i significands(__m512i x) { // x & 0x7f | 0x80
    return _mm512_ternarylogic_epi32(x, _mm512_set1_epi16(0x7f), _mm512_set1_epi16(0x80), 0xea);
}

PANEL_INLINE struct group_elements group_load(const uint16_t *x, size_t vecs) {
    const __m512i words = vecs == VECS_MAX ? _mm512_loadu_si512(x) : _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)x));
    const __m512i magnitude = _mm512_and_si512(words, _mm512_set1_epi16(MAGNITUDE)), significand = significands(words);
    const __m512i below = _mm512_andnot_si512(significand, _mm512_sub_epi16(significand, _mm512_set1_epi16(1)));
    const __m512i exponent = _mm512_srli_epi16(magnitude, FRACTION_BITS);
    const __m512i last_bit = _mm512_add_epi16(exponent, _mm512_popcnt_epi16(below));
    const __mmask32 is_0 = _mm512_testn_epi16_mask(magnitude, magnitude);
    uint32_t unit = min_of(_mm512_mask_mov_epi16(last_bit, is_0, _mm512_set1_epi16(MAGNITUDE)));
    return (struct group_elements){words, magnitude, exponent, unit < MAGNITUDE ? unit : LAST_BIT_BIAS};
}

PANEL_INLINE bool unit_in_range(const struct group_elements *s) {
    return s->unit >= EXPONENT_MIN && s->unit < EXPONENT_END;
}

PANEL_INLINE bool fits_two_digits(const struct group_elements *s) {
    const short max = (short)((s->unit + TWO_DIGITS_SHIFT) << FRACTION_BITS | TWO_DIGITS_FRACTION);
    return unit_in_range(s) && !_mm512_cmpgt_epi16_mask(s->magnitude, _mm512_set1_epi16(max));
}

// Byte indices that gather digit d of each 8 k in the order 0 4 1 5, 2 6 3 7; an X has `bytes` bytes.
#define INTEGER_WORD(bytes, d, k)                                                                                                  \
    (bytes) * (k) + (d), (bytes) * ((k) + 4) + (d), (bytes) * ((k) + 1) + (d), (bytes) * ((k) + 5) + (d)
#define INTEGER_8(bytes, d, k) INTEGER_WORD(bytes, d, k), INTEGER_WORD(bytes, d, (k) + 2)
#define INTEGER_16(bytes, d, k) INTEGER_8(bytes, d, k), INTEGER_8(bytes, d, (k) + 8)

// X = significand << (exponent - unit). The right shift is exact, since only zero bits leave; an element of value 0 becomes 0.
// Returns the sum of X.
PANEL_INLINE int32_t store_two_digits(const struct group_elements *s, size_t vecs, int8_t *to, size_t plane) {
    static const uint8_t ORDER[64] = {INTEGER_16(2, 0, 0), INTEGER_16(2, 0, 16), INTEGER_16(2, 1, 0), INTEGER_16(2, 1, 16)};
    const __m512i right = _mm512_sub_epi16(_mm512_set1_epi16((short)(s->unit + TWO_DIGITS_SHIFT)), s->exponent);
    const __m512i integers = _mm512_srlv_epi16(_mm512_slli_epi16(significands(s->x), TWO_DIGITS_SHIFT), right);
    const __m512i sign = _mm512_srai_epi16(s->x, 15), x = _mm512_sub_epi16(_mm512_xor_si512(integers, sign), sign);
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

// Stores three digits. Returns the sum of |X|, exact below 2^24 and else some value of at least 2^24; *sum is the sum of X if it is
// below.
PANEL_INLINE float store_three_digits(const struct group_elements *s, size_t vecs, int8_t *to, size_t plane, int32_t *sum) {
    static const uint8_t ORDER[64] = {INTEGER_16(4, 0, 0), INTEGER_16(4, 1, 0), INTEGER_16(4, 2, 0), INTEGER_16(4, 3, 0)};
    const __m512 factor = _mm512_set1_ps(expertd_f32_from_bits((127 + LAST_BIT_BIAS - s->unit) << 23));
    const __m256i halves[VECS_MAX] = {_mm512_castsi512_si256(s->x), _mm512_extracti64x4_epi64(s->x, 1)};
    const __m512i biases = _mm512_set1_epi32(DIGIT_BIASES);
    __m512 magnitudes = _mm512_setzero_ps();
    __m512i total = _mm512_setzero_si512();
    PANEL_UNROLL for (size_t i = 0; i < vecs; i++, to += VEC_K) {
        const __m512 x = _mm512_mul_ps(widened(halves[i]), factor);
        const __m512i integers = _mm512_cvtps_epi32(x), words = _mm512_xor_si512(_mm512_add_epi32(integers, biases), biases);
        const __m512i digits = _mm512_permutexvar_epi8(_mm512_loadu_si512(ORDER), words);
        total = _mm512_add_epi32(total, integers);
        magnitudes = _mm512_add_ps(magnitudes, _mm512_abs_ps(x)); // a rounded sum is at least 2^24
        _mm_storeu_si128((__m128i *)to, _mm512_castsi512_si128(digits));
        _mm_storeu_si128((__m128i *)(to + plane), _mm512_extracti32x4_epi32(digits, 1));
        _mm_storeu_si128((__m128i *)(to + 2 * plane), _mm512_extracti32x4_epi32(digits, 2));
    }
    *sum = sum_of(total);
    return _mm512_reduce_add_ps(magnitudes);
}

// Is each element 0 or within the range of exponents?
PANEL_INLINE bool in_range(const struct group_elements *s) {
    const __m512i above = _mm512_sub_epi16(s->exponent, _mm512_set1_epi16(EXPONENT_MIN));
    return _mm512_mask_cmpge_epu16_mask(_mm512_test_epi16_mask(s->magnitude, s->magnitude), above,
                                        _mm512_set1_epi16(EXPONENT_END - EXPONENT_MIN)) == 0;
}

PANEL_INLINE struct integer_slot slot_of(size_t row, const struct group_elements *s, struct integer_code_range range, int32_t limit,
                                         int32_t sum) {
    const float unit = expertd_f32_from_bits((s->unit + 127 - LAST_BIT_BIAS) << 23) * range.unit;
    return (struct integer_slot){(uint32_t)row, unit, limit, -range.max * sum};
}

// Where the rows of one scale group are stored.
struct group_rows {
    uint8_t *count, *inexact_rows;
    struct integer_slot *slots;
    int8_t *digits;
};

// False if the row needs a kernel that flushes. Three digits are stored before it is known whether they are exact.
PANEL_INLINE bool add_scale_group(const struct group_rows *to, size_t rows, size_t row, const uint16_t *x, size_t vecs,
                                  struct integer_code_range range) {
    const struct group_elements s = group_load(x, vecs);
    const size_t scale_k = vecs * VEC_K, plane = rows * scale_k;
    if (fits_two_digits(&s)) {
        const size_t at = to->count[INTEGER_TWO_DIGITS]++;
        const int32_t sum = store_two_digits(&s, vecs, to->digits + at * scale_k, plane);
        to->slots[at] = slot_of(row, &s, range, INT32_MAX, sum);
        return true;
    }
    if (unit_in_range(&s)) {
        const size_t at = rows - 1 - to->count[INTEGER_THREE_DIGITS];
        int32_t sum;
        const float sum_max = store_three_digits(&s, vecs, to->digits + at * scale_k, plane, &sum) * (float)range.max;
        if (sum_max < LIKELY_SUM_MAX) {
            to->count[INTEGER_THREE_DIGITS]++;
            to->slots[at] = slot_of(row, &s, range, sum_max < 0x1p24f ? INT32_MAX : (int32_t)(0x1p25f - sum_max), sum);
            return true;
        }
    }
    to->inexact_rows[to->count[INTEGER_INEXACT]++] = (uint8_t)row;
    return in_range(&s);
}

PANEL_INLINE bool add_row(const struct integer_rows *to, size_t row, const uint16_t *x, size_t k, size_t vecs,
                          struct integer_code_range range) {
    const size_t rows = to->rows, scale_k = vecs * VEC_K;
    struct group_rows group = {to->count[0], to->inexact_rows, to->slots, to->digits};
    bool accepted = true;
    for (size_t at = 0; at < k; at += scale_k) {
        accepted = add_scale_group(&group, rows, row, x + at, vecs, range) && accepted;
        group.count += sizeof *to->count;
        group.inexact_rows += rows;
        group.slots += rows;
        group.digits += VNNI_DIGITS * rows * scale_k;
    }
    return accepted;
}

bool integer_rows_add(const struct integer_rows *rows, size_t row, const uint16_t *x, size_t k, struct integer_code_range range) {
    return rows->scale_k == VNNI_SCALE_K ? add_row(rows, row, x, k, VECS_MAX, range) : add_row(rows, row, x, k, 1, range);
}
#endif
