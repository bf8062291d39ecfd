#include "expert/quantised/ggml_blocks.h"

#include <string.h>

#include "base/err.h"

// Elements of a small block, and of a block of the K types with the elements that share a scale there.
enum { BLOCK = 32, HALF = BLOCK / 2, K_BLOCK = 256, PAIR = 64 };

static void copy_f16(uint8_t *to, const uint8_t *from) {
    memcpy(to, from, sizeof(uint16_t));
}

// The minimum of types whose blocks store its negative.
static void copy_negated_f16(uint8_t *to, const uint8_t *from) {
    to[0] = from[0];
    to[1] = from[1] ^ 0x80;
}

// ---- codes. ggml puts the elements j and j + half of a run into the nibbles of one byte; rows have neighbours there.

static void nibbles_as_row(const uint8_t *from, size_t half, uint8_t *to) {
    for (size_t i = 0; i < half / 2; i++) {
        uint8_t first = from[2 * i], second = from[2 * i + 1];
        to[i] = (uint8_t)((first & 15) | (second & 15) << 4);
        to[half / 2 + i] = (uint8_t)(first >> 4 | (second & 0xf0));
    }
}

// Codes of 5 bits: nibbles, and the fifth bits in one word.
static void five_bits_as_row(const uint8_t *nibbles, const uint8_t *high, unsigned subtract, uint8_t *to) {
    for (size_t i = 0; i < HALF; i++) {
        unsigned first = nibbles[i] & 15, second = nibbles[i] >> 4;
        first |= (high[i / 8] >> (i % 8) & 1u) << 4;
        second |= (high[(i + HALF) / 8] >> (i % 8) & 1u) << 4;
        to[i] = (uint8_t)(first - subtract);
        to[i + HALF] = (uint8_t)(second - subtract);
    }
}

// ---- blocks of 32 elements: a scale of F16, a minimum where the type has one, codes

static void decode_q4_0(const uint8_t *block, const struct ggml_parts *out) {
    copy_f16(out->scales, block);
    nibbles_as_row(block + 2, HALF, out->codes);
}

static void decode_q4_1(const uint8_t *block, const struct ggml_parts *out) {
    copy_f16(out->scales, block);
    copy_negated_f16(out->minima, block + 2);
    nibbles_as_row(block + 4, HALF, out->codes);
}

static void decode_q5_0(const uint8_t *block, const struct ggml_parts *out) {
    copy_f16(out->scales, block);
    five_bits_as_row(block + 6, block + 2, 16, out->codes);
}

static void decode_q5_1(const uint8_t *block, const struct ggml_parts *out) {
    copy_f16(out->scales, block);
    copy_negated_f16(out->minima, block + 2);
    five_bits_as_row(block + 8, block + 4, 0, out->codes);
}

static void decode_q8_0(const uint8_t *block, const struct ggml_parts *out) {
    copy_f16(out->scales, block);
    memcpy(out->codes, block + 2, BLOCK);
}

// The codes are those of E2M1: ggml doubles the values of its table and halves the scale.
static void decode_mxfp4(const uint8_t *block, const struct ggml_parts *out) {
    out->scales[0] = block[0];
    nibbles_as_row(block + 1, HALF, out->codes);
}

// The scales are E4M3 without a sign. ggml reads 0x7f as 0, and ignores the highest bit of all others. 0xff, which would be 480,
// becomes NaN: no writer produces it.
static void decode_nvfp4(const uint8_t *block, const struct ggml_parts *out) {
    enum { SCALES = 4, SPAN = 16 };
    for (size_t i = 0; i < SCALES; i++) {
        out->scales[i] = block[i] == 0x7f ? 0 : block[i] & 0x7f;
        nibbles_as_row(block + SCALES + i * SPAN / 2, SPAN / 2, out->codes + i * SPAN / 2);
    }
}

// ---- blocks of 256 elements: scales of 4, 6 or 8 bits, which a super scale of F16 multiplies

// 2 bits, 16 scales and minima of 4 bits each.
static void decode_q2_k(const uint8_t *block, const struct ggml_parts *out) {
    const uint8_t *scales = block, *codes = block + 16;
    copy_f16(out->super_scales, block + 80);
    copy_f16(out->super_minima, block + 82);
    for (size_t g = 0; g < K_BLOCK / 16; g++) {
        out->scales[g] = scales[g] & 15;
        out->minima[g] = scales[g] >> 4;
    }
    for (size_t run = 0; run < K_BLOCK / BLOCK; run++) { // bits 2i of 32 bytes are the i-th run of 32 elements
        const uint8_t *at = codes + run / 4 * BLOCK;
        const unsigned shift = (unsigned)(run % 4 * 2);
        for (size_t i = 0; i < HALF; i++) {
            out->codes[run * HALF + i] = (uint8_t)((at[2 * i] >> shift & 3) | (at[2 * i + 1] >> shift & 3) << 4);
        }
    }
}

// Scale g of 16: 6 bits, the lower four in the first 8 bytes, the upper two in the last 4.
static int q3_scale(const uint8_t *scales, size_t g) {
    int low = scales[g % 8] >> (g / 8 * 4) & 15, high = scales[8 + g % 4] >> (g / 4 * 2) & 3;
    return (low | high << 4) - 32;
}

// The codes plus 8 of a run of 32 elements: two bits of `low` at low_shift; ggml subtracts 4 where the bit of `high` is clear.
static void q3_run(const uint8_t *low, unsigned low_shift, const uint8_t *high, unsigned high_shift, uint8_t *to) {
    uint8_t codes[BLOCK];
    for (size_t i = 0; i < BLOCK; i++) {
        codes[i] = (uint8_t)((low[i] >> low_shift & 3u) + 4 + (high[i] >> high_shift & 1u) * 4);
    }
    for (size_t i = 0; i < HALF; i++) {
        to[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
    }
}

static void decode_q3_k(const uint8_t *block, const struct ggml_parts *out) {
    const uint8_t *high = block, *low = block + 32, *scales = block + 96;
    copy_f16(out->super_scales, block + 108);
    for (size_t g = 0; g < K_BLOCK / 16; g++) {
        out->scales[g] = (uint8_t)q3_scale(scales, g);
    }
    for (unsigned run = 0; run < K_BLOCK / BLOCK; run++) {
        q3_run(low + run / 4 * BLOCK, run % 4 * 2, high, run, out->codes + run * HALF);
    }
}

// Scale and minimum g of 8, of 6 bits each: those of the first four groups in the first 8 bytes, whose upper two bits belong to the
// last four groups.
static void k_scale(const uint8_t *scales, size_t g, unsigned *scale, unsigned *minimum) {
    if (g < 4) {
        *scale = scales[g] & 63;
        *minimum = scales[g + 4] & 63;
    } else {
        *scale = (scales[g + 4] & 15) | (scales[g - 4] >> 6) << 4;
        *minimum = scales[g + 4] >> 4 | (scales[g] >> 6) << 4;
    }
}

static void k_scales(const uint8_t *block, const struct ggml_parts *out) {
    copy_f16(out->super_scales, block);
    copy_f16(out->super_minima, block + 2);
    for (size_t g = 0; g < K_BLOCK / 32; g++) {
        unsigned scale, minimum;
        k_scale(block + 4, g, &scale, &minimum);
        out->scales[g] = (uint8_t)scale;
        out->minima[g] = (uint8_t)minimum;
    }
}

static void decode_q4_k(const uint8_t *block, const struct ggml_parts *out) {
    k_scales(block, out);
    for (size_t pair = 0; pair < K_BLOCK / PAIR; pair++) {
        nibbles_as_row(block + 16 + pair * BLOCK, BLOCK, out->codes + pair * BLOCK);
    }
}

static void decode_q5_k(const uint8_t *block, const struct ggml_parts *out) {
    const uint8_t *high = block + 16, *low = block + 48;
    k_scales(block, out);
    for (unsigned run = 0; run < K_BLOCK / BLOCK; run++) { // bit i of 32 bytes is the fifth bit of the i-th run of 32 elements
        const uint8_t *at = low + run / 2 * BLOCK;
        for (size_t i = 0; i < BLOCK; i++) {
            out->codes[run * BLOCK + i] = (uint8_t)((at[i] >> (run % 2 * 4) & 15u) | (high[i] >> run & 1u) << 4);
        }
    }
}

// 6 bits: nibbles and pairs of bits; 16 scales of 8 bits.
static void decode_q6_k(const uint8_t *block, const struct ggml_parts *out) {
    const uint8_t *low = block, *high = block + 128, *scales = block + 192;
    copy_f16(out->super_scales, block + 208);
    memcpy(out->scales, scales, K_BLOCK / 16);
    for (unsigned run = 0; run < K_BLOCK / BLOCK; run++) {
        const uint8_t *at = low + run / 4 * PAIR + run % 2 * BLOCK, *two = high + run / 4 * BLOCK;
        const unsigned shift = run % 4 / 2 * 4, two_shift = run % 4 * 2;
        for (size_t i = 0; i < BLOCK; i++) {
            out->codes[run * BLOCK + i] = (uint8_t)(((at[i] >> shift & 15u) | (two[i] >> two_shift & 3u) << 4) - 32);
        }
    }
}

// 8 scales of 6 bits: the lower four in nibbles, the upper two in one word.
static void decode_iq4_xs(const uint8_t *block, const struct ggml_parts *out) {
    const uint8_t *low = block + 4, *codes = block + 8;
    copy_f16(out->super_scales, block);
    for (size_t g = 0; g < K_BLOCK / BLOCK; g++) {
        int bits = (low[g / 2] >> (g % 2 * 4) & 15) | (block[2 + g / 4] >> (g % 4 * 2) & 3) << 4;
        out->scales[g] = (uint8_t)(bits - 32);
        nibbles_as_row(codes + g * HALF, HALF, out->codes + g * HALF);
    }
}

// ---- the table

#define F16_SCALES EXPERTD_DTYPE_F16
#define I8_SCALES EXPERTD_DTYPE_I8
#define FORMAT(CODE, SCALE, SPAN)                                                                                                  \
    { .code = (CODE), .scale = (SCALE), .scale_k = (SPAN) }
#define FORMAT_WITH_MINIMA(CODE, SCALE, SPAN)                                                                                      \
    { .code = (CODE), .scale = (SCALE), .scale_k = (SPAN), .minima = true }

static const struct ggml_format FORMATS[] = {
    {GGML_Q8_0, FORMAT(EXPERTD_CODE_INT8, F16_SCALES, 32), decode_q8_0},
    {GGML_Q4_0, FORMAT(EXPERTD_CODE_INT4, F16_SCALES, 32), decode_q4_0},
    {GGML_Q4_1, FORMAT_WITH_MINIMA(EXPERTD_CODE_UINT4, F16_SCALES, 32), decode_q4_1},
    {GGML_Q5_0, FORMAT(EXPERTD_CODE_INT8, F16_SCALES, 32), decode_q5_0},
    {GGML_Q5_1, FORMAT_WITH_MINIMA(EXPERTD_CODE_INT8, F16_SCALES, 32), decode_q5_1},
    {GGML_Q2_K, FORMAT_WITH_MINIMA(EXPERTD_CODE_UINT4, I8_SCALES, 16), decode_q2_k},
    {GGML_Q3_K, FORMAT(EXPERTD_CODE_INT4, I8_SCALES, 16), decode_q3_k},
    {GGML_Q4_K, FORMAT_WITH_MINIMA(EXPERTD_CODE_UINT4, I8_SCALES, 32), decode_q4_k},
    {GGML_Q5_K, FORMAT_WITH_MINIMA(EXPERTD_CODE_INT8, I8_SCALES, 32), decode_q5_k},
    {GGML_Q6_K, FORMAT(EXPERTD_CODE_INT8, I8_SCALES, 16), decode_q6_k},
    {GGML_IQ4_NL, FORMAT(EXPERTD_CODE_IQ4, F16_SCALES, 32), decode_q4_0},
    {GGML_IQ4_XS, FORMAT(EXPERTD_CODE_IQ4, I8_SCALES, 32), decode_iq4_xs},
    {GGML_MXFP4, FORMAT(EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E8M0, 32), decode_mxfp4},
    {GGML_NVFP4, FORMAT(EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E4M3, 16), decode_nvfp4},
};

const char GGML_SERVED[] =
    "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4";

const struct ggml_format *ggml_format_of(const struct ggml_type *type) {
    for (size_t i = 0; type && i < sizeof FORMATS / sizeof *FORMATS; i++) {
        if (FORMATS[i].id == type->id) {
            return &FORMATS[i];
        }
    }
    return NULL;
}

unsigned ggml_code_bits(const struct ggml_format *format) {
    return format->format.code == EXPERTD_CODE_INT8 ? 8 : 4;
}

size_t ggml_row_bytes(const struct ggml_format *format, size_t k) {
    const struct ggml_type *type = ggml_type_of(format->id);
    return k / type->elements * type->bytes;
}

// NULL for parts that the format does not have.
static uint8_t *behind(uint8_t *part, size_t bytes) {
    return part ? part + bytes : NULL;
}

void ggml_blocks_decode(const struct ggml_format *format, const void *blocks, size_t n, size_t k, const struct ggml_parts *out) {
    const struct ggml_type *type = ggml_type_of(format->id);
    const size_t elements = type->elements, code_bytes = elements * ggml_code_bits(format) / 8;
    const size_t scale_bytes = elements / format->format.scale_k * expertd_dtype_size(format->format.scale);
    const uint8_t *block = blocks;
    struct ggml_parts to = *out;
    INVARIANT(k % elements == 0);
    for (size_t i = 0; i < n * (k / elements); i++) {
        format->decode(block, &to);
        block += type->bytes;
        to.codes += code_bytes;
        to.scales += scale_bytes;
        to.minima = behind(to.minima, scale_bytes);
        to.super_scales = behind(to.super_scales, sizeof(uint16_t));
        to.super_minima = behind(to.super_minima, sizeof(uint16_t));
    }
}
