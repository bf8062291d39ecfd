// Finds which lines of a row can be summed exactly as integers, and splits them into digits.
#if defined(__x86_64__)
#include "kernels/cpu/avx2/quantised/quantised_integer.h"

#include <immintrin.h>

#include <math.h>

#include "expertd/base/dtype.h"
#include "kernels/cpu/backend/backends.h"

// Range of a row's unit. Within it no power of two that is used leaves f32's range, and no sum does (sums are below 2^24 units). A
// decoder's fold of 2^-24 makes the unit of its codes 2^24.
static const float UNIT_LEAST = 0x1p-120f, UNIT_GREATEST = 0x1p72f;

// Margin: rounding may have made a computed limit too large.
static const float LIMIT_MARGIN = 1 - 0x1p-20f;

// The lowest useful limit, relative to the most that a block can add. Partial sums hardly ever stay below a lower one, so the
// block's integer sums would be wasted.
static const float LIMIT_LEAST_SHARE = 0.5f;

enum { DIGIT_BIASES = 0x808080 }; // X plus this, minus 0x80 in each of the three bytes, has X's digits as bytes

// Decides whether the sums over some lines of a row are exact.
struct exactness {
    __m256 least; // lowest set bits
    __m256 sum;   // sum of magnitudes: exact while the condition holds, and once rounded at least 2^24 times `least`
};

// The lowest set bit of each of 8 bf16 (held as f32), as a power of two; UNIT_GREATEST for 0. For NaN and Inf the result does not
// matter: their sum of magnitudes fails the condition.
static inline __m256 last_bits(__m256i x) {
    const __m256i exponent_mask = _mm256_set1_epi32(0x7f800000), hidden = _mm256_set1_epi32(0x80);
    __m256i significand = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(0x7f)), hidden);
    __m256i last = _mm256_and_si256(significand, _mm256_sub_epi32(_mm256_setzero_si256(), significand));
    __m256 power = _mm256_castsi256_ps(_mm256_and_si256(x, exponent_mask));
    __m256 bits = _mm256_mul_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(last), _mm256_set1_ps(0x1p-7f)), power);
    __m256 is_0 = _mm256_cmp_ps(power, _mm256_setzero_ps(), _CMP_EQ_OQ);
    return _mm256_blendv_ps(bits, _mm256_set1_ps(UNIT_GREATEST), is_0);
}

static inline void exactness_add(struct exactness *s, const float *x) {
    __m256 value = _mm256_loadu_ps(x);
    s->least = _mm256_min_ps(s->least, last_bits(_mm256_castps_si256(value)));
    s->sum = _mm256_add_ps(s->sum, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), value));
}

static inline float least_of(__m256 v) {
    __m128 half = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_min_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_min_ss(half, _mm_movehdup_ps(half)));
}

static inline float sum_of(__m256 v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

static inline int32_t sum_of_integer(__m256i v) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

// State from one block of a scale group to the next.
struct progress {
    bool first;  // no block before
    float least; // smallest unit of the blocks before
};

// Returns how many of the block's first lines are exact, and sets their unit and the limit of the partial sums.
static size_t exact_lines(const float *x, size_t lines, uint32_t code_max, const struct progress *before, float *unit,
                          float *limit) {
    struct exactness s = {_mm256_set1_ps(UNIT_GREATEST), _mm256_setzero_ps()};
    for (size_t i = 0; i + INTEGER_LINES <= lines; i += INTEGER_LINES) {
        for (size_t j = i; j < i + INTEGER_LINES; j++) {
            exactness_add(&s, x + j * INTEGER_LINE_K);
        }
        float least = least_of(s.least), most = sum_of(s.sum) * (float)code_max;
        float slack = 0x1p24f * (least < before->least ? least : before->least) - 0.5f * most;
        if (!(least >= UNIT_LEAST && most < 0x1p24f * least) || !(before->first || slack > LIMIT_LEAST_SHARE * most)) {
            return i;
        }
        *unit = least;
        *limit = before->first ? INFINITY : LIMIT_MARGIN * slack;
    }
    return lines / INTEGER_LINES * INTEGER_LINES;
}

// Digits of 8 X, each X's in the bytes of its 32-bit word, to the order of struct integer_line.
static inline __m256i digits_in_line_order(__m256i words) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i transposed = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    return _mm256_shuffle_epi8(_mm256_permutevar8x32_epi32(words, order), transposed);
}

static void prepare_block(const float *x, size_t lines, struct integer_codes codes, struct progress *progress,
                          struct integer_block *block, struct integer_line *out) {
    const __m256i biases = _mm256_set1_epi32(DIGIT_BIASES), offset = _mm256_set1_epi8(codes.offset);
    float unit = 1, limit = INFINITY;
    block->lines = (uint16_t)exact_lines(x, lines, codes.max, progress, &unit, &limit);
    const __m256 factor = _mm256_set1_ps(1 / unit);
    __m256i sum = _mm256_setzero_si256(), digits = sum, start = sum;
    for (size_t i = 0; i < block->lines; i++) {
        __m256i integers = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i * INTEGER_LINE_K), factor));
        __m256i words = _mm256_xor_si256(_mm256_add_epi32(integers, biases), biases), line = digits_in_line_order(words);
        sum = _mm256_add_epi32(sum, integers);
        digits = _mm256_or_si256(digits, words);
        start = _mm256_sub_epi16(start, _mm256_maddubs_epi16(offset, line));
        _mm256_storeu_si256((__m256i *)&out[i], line);
    }
    block->sum = sum_of_integer(sum);
    block->digits = _mm256_testz_si256(digits, _mm256_set1_epi32(0xff0000)) ? 2 : INTEGER_DIGITS;
    block->unit = unit * codes.unit;
    block->limit = limit * codes.unit;
    _mm_storeu_si128((__m128i *)block->start, _mm_add_epi16(_mm256_castsi256_si128(start), _mm256_extracti128_si256(start, 1)));
    *progress = (struct progress){false, unit < progress->least ? unit : progress->least};
}

void integer_prepare(const float *x, size_t lines, struct integer_codes codes, struct integer_block *blocks,
                     struct integer_line *out) {
    struct progress progress = {true, UNIT_GREATEST};
    for (size_t line = 0; line < lines; line += INTEGER_BLOCK_LINES, blocks++) {
        size_t count = lines - line < INTEGER_BLOCK_LINES ? lines - line : INTEGER_BLOCK_LINES;
        prepare_block(x + line * INTEGER_LINE_K, count, codes, &progress, blocks, out + line);
        if (blocks->lines < count) {
            return;
        }
    }
}
#endif
