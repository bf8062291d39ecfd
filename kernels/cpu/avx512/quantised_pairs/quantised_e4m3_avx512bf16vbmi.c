// Decoder of E4M3 for tiles and panels without NaN: by shifts and VPSHUFB, which use ports that VDPBF16PS leaves idle; VPERMI2B
// would take the slot of a product.
//
// A normal code with sign s, exponent eeee and mantissa mmm becomes the bf16 whose high byte is 0x3c + (eeee >> 1), with the sign,
// and whose low byte is emmm0000, e the lowest bit of the exponent. The eight subnormals are corrected by an XOR with table
// entries; the index is twice the code without its sign, clamped to 15. One constant (0x0f) serves all steps, because the registers
// hold sums.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/avx512/quantised/code_tables_avx512.h"
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs.h"
#include "kernels/cpu/backend/backends.h"

enum { PAIRS_LINE_K = 4, PAIRS_WORKING = 6, PAIRS_POWERS = 0, LANES = 16 };
enum { LINES_BYTES = EXPERTD_KERNEL_PANEL / LANES * QUANTISED_LINE };

#define TIMES_16(f) TIMES_8(f, 0), TIMES_8(f, 8)
#define HIGH_OF(nibble) (uint8_t)(0x3c + ((nibble)&7) + ((nibble)&8) * 16) // bit 3 of the nibble is the sign
#define HIGH_FLIP(i) (uint8_t)((i) % 2 ? 0 : E4M3_HIGH((i) / 2) ^ 0x3c)
#define LOW_FLIP(i) (uint8_t)((i) % 2 ? 0 : E4M3_LOW((i) / 2) ^ (i) / 2 << 4)

static const uint8_t HIGH[16] = {TIMES_16(HIGH_OF)}, HIGH_FLIPS[16] = {TIMES_16(HIGH_FLIP)}, LOW_FLIPS[16] = {TIMES_16(LOW_FLIP)};

struct tables {
    __m512i high, high_flips, low_flips;
};

struct line {
    __m512i high, low;
};

static inline __m512i broadcast_table(const uint8_t *table) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table));
}

static inline struct tables tables_load(const struct expertd_quantised_format *format) {
    (void)format;
    return (struct tables){broadcast_table(HIGH), broadcast_table(HIGH_FLIPS), broadcast_table(LOW_FLIPS)};
}

static inline __m512i zeros_load(const uint8_t *zeros) {
    (void)zeros;
    return _mm512_setzero_si512();
}

static inline struct line line_open(const uint8_t *codes, const struct tables *t, __m512i zero) {
    (void)zero;
    const __m512i q = _mm512_loadu_si512(codes);
    const __m512i nibbles = _mm512_set1_epi8(0x0f), upper = _mm512_and_si512(_mm512_srli_epi16(q, 4), nibbles);
    const __m512i twice = _mm512_min_epu8(_mm512_add_epi8(q, q), nibbles);
    const __m512i low = _mm512_andnot_si512(nibbles, _mm512_slli_epi16(q, 4));
    return (struct line){_mm512_xor_si512(_mm512_shuffle_epi8(t->high, upper), _mm512_shuffle_epi8(t->high_flips, twice)),
                         _mm512_xor_si512(low, _mm512_shuffle_epi8(t->low_flips, twice))};
}

static inline __m512i line_pair(const struct line *line, const struct tables *t, size_t pair) {
    (void)t;
    return pair ? _mm512_unpackhi_epi8(line->low, line->high) : _mm512_unpacklo_epi8(line->low, line->high);
}

#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs_tile_body.h"

const struct pairs_decoder pairs_e4m3 = {.line_k = PAIRS_LINE_K, .tile = PAIRS_TILES};
#endif
