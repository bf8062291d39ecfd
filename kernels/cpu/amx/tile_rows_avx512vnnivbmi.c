// Converts bf16 rows to integer digits for tiles: tile_rows.h.
#if defined(__x86_64__)
#include "kernels/cpu/amx/tile_rows.h"

#include <immintrin.h>
#include <math.h>

#include "expertd/base/dtype.h"
#include "kernels/cpu/backend/backend.h"
#include "kernels/cpu/backend/backends.h"

// A column's partial sum rarely exceeds LIKELY * sqrt(sum of squares of x): two standard deviations for uniformly distributed
// codes. If it exceeds the limit, the second block is computed again by fmas.
static const float LIKELY = 2 * 4.6f;

enum {
    LANES = 16,
    VEC_K = 32, // bf16 of a vector
    BLOCK_VECS = TILE_K / VEC_K,
    FRACTION_BITS = 7,
    MAGNITUDE = 0x7fff,
    EXPONENT_MIN = 127 - 100, // exponent fields of 2^-100 and 2^100
    EXPONENT_END = 127 + 100,
    LAST_BIT_BIAS = 127 + FRACTION_BITS, // bias of a last bit's exponent field
    DIGIT_BIASES = 0x808080,             // the digits of X are the bytes of X + DIGIT_BIASES, minus 0x80 each
};

// A block of a row, and the quantities that decide whether it is exact.
struct block {
    __m512i x[BLOCK_VECS];
    uint32_t unit;      // exponent field of the lowest last bit; MAGNITUDE: all elements are 0
    float sum, squares; // of the elements' magnitudes
    bool in_range;      // all elements are 0 or of a magnitude in [2^-100, 2^100)
};

// A row in one scale group.
struct row_scale {
    uint8_t exact; // number of exact blocks
    uint32_t unit[TILE_BLOCKS];
    float limit;
};

PANEL_INLINE uint32_t least_word(__m512i words) {
    const __m256i half = _mm256_min_epu16(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
    const __m128i quarter = _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return (uint32_t)_mm_cvtsi128_si32(_mm_minpos_epu16(quarter)) & 0xffff;
}

PANEL_INLINE __m512 widened(__m512i x, size_t half) {
    const __m256i words = half ? _mm512_extracti64x4_epi64(x, 1) : _mm512_castsi512_si256(x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

PANEL_INLINE __m512i last_bits(__m512i magnitude, __m512i exponent) {
    const __m512i significand = _mm512_ternarylogic_epi32(magnitude, _mm512_set1_epi16(0x7f), _mm512_set1_epi16(0x80), 0xea);
    const __m512i below = _mm512_andnot_si512(significand, _mm512_sub_epi16(significand, _mm512_set1_epi16(1)));
    return _mm512_add_epi16(exponent, _mm512_popcnt_epi16(below));
}

// Loads up to TILE_K elements, padded with 0.
PANEL_INLINE struct block block_load(const uint16_t *x, size_t depth) {
    struct block b;
    const __mmask64 valid = depth < TILE_K ? ((__mmask64)1 << depth) - 1 : ~(__mmask64)0;
    __m512i least = _mm512_set1_epi16(MAGNITUDE);
    __m512 sum = _mm512_setzero_ps(), squares = sum;
    __mmask32 out = 0;
    PANEL_UNROLL for (size_t v = 0; v < BLOCK_VECS; v++) {
        b.x[v] = _mm512_maskz_loadu_epi16((__mmask32)(valid >> v * VEC_K), x + v * VEC_K);
        const __m512i magnitude = _mm512_and_si512(b.x[v], _mm512_set1_epi16(MAGNITUDE));
        const __m512i exponent = _mm512_srli_epi16(magnitude, FRACTION_BITS);
        const __mmask32 not_0 = _mm512_test_epi16_mask(magnitude, magnitude);
        const __m512i above = _mm512_sub_epi16(exponent, _mm512_set1_epi16(EXPONENT_MIN));
        out |= _mm512_mask_cmpge_epu16_mask(not_0, above, _mm512_set1_epi16(EXPONENT_END - EXPONENT_MIN));
        least = _mm512_mask_min_epu16(least, not_0, least, last_bits(magnitude, exponent));
        PANEL_UNROLL for (size_t half = 0; half < 2; half++) {
            const __m512 wide = widened(magnitude, half);
            sum = _mm512_add_ps(sum, wide);
            squares = _mm512_fmadd_ps(wide, wide, squares);
        }
    }
    b.unit = least_word(least);
    b.sum = _mm512_reduce_add_ps(sum);
    b.squares = _mm512_reduce_add_ps(squares);
    b.in_range = out == 0;
    return b;
}

// 2^(unit - LAST_BIT_BIAS)
PANEL_INLINE float unit_value(uint32_t unit) {
    return expertd_f32_from_bits((unit + 127 - LAST_BIT_BIAS) << 23);
}

// Finds the exact blocks of a row's scale group. The f32 sum of magnitudes may be rounded only from 2^24 units on, where the block
// is not exact anyway. False if an element is out of range.
PANEL_INLINE bool analyse(const uint16_t *x, size_t depth, float code_max, struct row_scale *found) {
    bool in_range = true;
    uint32_t least = MAGNITUDE;
    float squares = 0;
    *found = (struct row_scale){.limit = INFINITY};
    for (size_t at = 0; at < depth; at += TILE_K) {
        const struct block b = block_load(x + at, depth - at);
        const size_t index = at / TILE_K;
        in_range = in_range && b.in_range;
        if (!in_range || found->exact < index) {
            continue;
        }
        const uint32_t unit = b.unit == MAGNITUDE ? LAST_BIT_BIAS : b.unit;
        const float most = b.sum * code_max;
        least = b.unit < least ? b.unit : least;
        squares += b.squares;
        found->unit[index] = unit;
        if (!(most < 0x1p24f * unit_value(unit))) {
            continue;
        }
        if (index > 0) {
            found->limit = 0x1p24f * unit_value(least == MAGNITUDE ? LAST_BIT_BIAS : least) - 0.5f * most;
            if (!(found->limit >= LIKELY * sqrtf(squares))) {
                continue;
            }
        }
        found->exact++;
    }
    return in_range;
}

// The byte order that collects one digit of 16 k from 32-bit words: k 0 4 1 5, 2 6 3 7 of each 8.
#define TILE_WORD(d, k) 4 * (k) + (d), 4 * ((k) + 4) + (d), 4 * ((k) + 1) + (d), 4 * ((k) + 5) + (d)
#define TILE_16(d) TILE_WORD(d, 0), TILE_WORD(d, 2), TILE_WORD(d, 8), TILE_WORD(d, 10)

// Stores the three digits of a block's elements.
PANEL_INLINE void store_digits(const struct block *b, uint32_t unit, int8_t *to) {
    static const uint8_t ORDER[64] = {TILE_16(0), TILE_16(1), TILE_16(2), TILE_16(3)};
    const __m512 factor = _mm512_set1_ps(1 / unit_value(unit));
    const __m512i biases = _mm512_set1_epi32(DIGIT_BIASES), order = _mm512_loadu_si512(ORDER);
    PANEL_UNROLL for (size_t i = 0; i < TILE_K / LANES; i++, to += LANES) {
        const __m512i exact = _mm512_cvtps_epi32(_mm512_mul_ps(widened(b->x[i / 2], i % 2), factor));
        const __m512i words = _mm512_xor_si512(_mm512_add_epi32(exact, biases), biases);
        const __m512i digits = _mm512_permutexvar_epi8(order, words);
        _mm_storeu_si128((__m128i *)to, _mm512_castsi512_si128(digits));
        _mm_storeu_si128((__m128i *)(to + TILE_K), _mm512_extracti32x4_epi32(digits, 1));
        _mm_storeu_si128((__m128i *)(to + 2 * TILE_K), _mm512_extracti32x4_epi32(digits, 2));
    }
}

// Sorts the rows into slots by their number of exact blocks. slot_of[r]: row r's slot.
static void sort_rows(const struct row_scale *found, size_t rows, size_t blocks, uint8_t *count, struct tile_slot *slots,
                      uint8_t *slot_of) {
    size_t next[TILE_BLOCKS + 1] = {0}, have[TILE_BLOCKS + 1] = {0};
    for (size_t r = 0; r < rows; r++) {
        have[found[r].exact]++;
    }
    for (size_t w = blocks; w > 0; w--) {
        next[w - 1] = next[w] + have[w];
    }
    count[0] = (uint8_t)(rows - have[0]), count[1] = (uint8_t)have[TILE_BLOCKS];
    for (size_t r = 0; r < rows; r++) {
        const struct row_scale *f = &found[r];
        slot_of[r] = (uint8_t)next[f->exact]++;
        struct tile_slot *slot = &slots[slot_of[r]];
        *slot = (struct tile_slot){.row = (uint32_t)r, .limit = f->limit};
        for (size_t b = 0; b < f->exact; b++) {
            slot->unit[b] = unit_value(f->unit[b]);
        }
    }
}

bool tile_rows_make(const struct tile_rows *to, const void *const *x, size_t k, size_t end, float code_max) {
    struct row_scale found[KERNEL_CALL_ROWS];
    uint8_t slot_of[KERNEL_CALL_ROWS];
    const size_t rows = to->rows, slot_bytes = TILE_DIGITS * TILE_K;
    struct tile_slot *slots = to->slots;
    int8_t *digits = to->digits;
    bool in_range = true;
    for (size_t scale = 0; k < end && in_range; scale++, k += to->scale_k, slots += rows) {
        const size_t depth = end - k < to->scale_k ? end - k : to->scale_k;
        for (size_t r = 0; r < rows; r++) {
            in_range = analyse((const uint16_t *)x[r] + k, depth, code_max, &found[r]) && in_range;
        }
        sort_rows(found, rows, (depth + TILE_K - 1) / TILE_K, to->count[scale], slots, slot_of);
        for (size_t r = 0; r < rows; r++) {
            for (size_t b = 0; b < found[r].exact; b++) {
                const struct block block = block_load((const uint16_t *)x[r] + k + b * TILE_K, depth - b * TILE_K);
                store_digits(&block, found[r].unit[b], digits + (b * rows + slot_of[r]) * slot_bytes);
            }
        }
        digits += to->blocks * rows * slot_bytes;
    }
    return in_range;
}
#endif
