// Decoding and packing (pack.h), compiled once per instruction set. The including file defines PACK_TARGET(name), PACK_LANES,
// PACK_WORDS and
//   transpose_words(src, stride, dst)  transposes PACK_WORDS neighbouring words of PACK_LANES lines, `stride` bytes apart, to
//                                      dst[word * EXPERTD_KERNEL_PANEL + line]
//   PACK_INTERLEAVES_PANELS            optional: the file also defines interleave_panel_2(rows, dst) and interleave_panel_4(rows,
//                                      dst), which interleave 64 columns of 2 rows of 16-bit or of 4 rows of 8-bit elements
// The rest is plain C that the compiler vectorises.
#include <string.h>

#include "base/err.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/layout/pack.h"

enum { PACK_LINE = 64, PACK_ROWS_AHEAD = 16 };

// first ? a : b without a branch, so that the compiler vectorises the loops.
static inline uint32_t pack_choose(bool first, uint32_t a, uint32_t b) {
    uint32_t mask = 0u - (uint32_t)first;
    return (a & mask) | (b & ~mask);
}

// A float8's magnitude, with `mantissa` bits of fraction, as bf16 bits. Subnormal codes are converted as integers times `least`:
// multiplying subnormal f32 takes some CPUs a hundred cycles.
static inline uint32_t pack_f8_value(uint32_t magnitude, uint32_t mantissa, uint32_t bias_difference, float least) {
    uint32_t normal = (magnitude << (23 - mantissa)) + (bias_difference << 23);
    uint32_t tiny = expertd_f32_bits((float)(int32_t)magnitude * least);
    return pack_choose(magnitude >> mantissa != 0, normal, tiny) >> 16;
}

static void decode_e4m3(const uint8_t *restrict src, size_t count, uint16_t *restrict dst) {
    for (size_t i = 0; i < count; i++) {
        uint32_t code = src[i], magnitude = code & 0x7f;
        uint32_t value = pack_choose(magnitude == 0x7f, 0x7fc0, pack_f8_value(magnitude, 3, 120, 0x1p-9f));
        dst[i] = (uint16_t)(value | (code & 0x80) << 8);
    }
}

static void decode_e5m2(const uint8_t *restrict src, size_t count, uint16_t *restrict dst) {
    for (size_t i = 0; i < count; i++) {
        uint32_t code = src[i], magnitude = code & 0x7f, infinite = 0x7f80 | (magnitude & 3) << 5;
        uint32_t value = pack_choose(magnitude >= 0x7c, infinite, pack_f8_value(magnitude, 2, 112, 0x1p-16f));
        dst[i] = (uint16_t)(value | (code & 0x80) << 8);
    }
}

static inline uint16_t e2m1_value(uint32_t code) {
    uint32_t magnitude = code & 7, normal = (magnitude << 6) + (126u << 7);
    return (uint16_t)((magnitude > 1 ? normal : magnitude * (126u << 7)) | (code & 8) << 12);
}

static void decode_e2m1(const uint8_t *restrict src, size_t count, uint16_t *restrict dst) {
    for (size_t i = 0; i < count / 2; i++) {
        dst[2 * i] = e2m1_value(src[i] & 15u);
        dst[2 * i + 1] = e2m1_value(src[i] >> 4);
    }
    if (count % 2) {
        dst[count - 1] = e2m1_value(src[count / 2] & 15u);
    }
}

void PACK_TARGET(decode)(const struct decode_args *args) {
    switch (args->dtype) {
    case EXPERTD_DTYPE_F8_E4M3:
        decode_e4m3(args->src, args->count, args->dst);
        return;
    case EXPERTD_DTYPE_F8_E5M2:
        decode_e5m2(args->src, args->count, args->dst);
        return;
    default:
        INVARIANT(args->dtype == EXPERTD_DTYPE_U8);
        decode_e2m1(args->src, args->count, args->dst);
        return;
    }
}

// Word `word` of a line of `bytes` bytes; bytes past its end are 0.
static uint32_t word_at(const char *line, size_t word, size_t bytes) {
    uint32_t value = 0;
    size_t left = bytes - word * sizeof value;
    memcpy(&value, line + word * sizeof value, left < sizeof value ? left : sizeof value);
    return value;
}

// Packs up to PACK_LANES lines of `bytes` each as columns of a panel. The next PACK_LANES lines are prefetched, because the
// hardware prefetcher cannot follow so many streams.
static void pack_lines(const char *src, size_t stride, size_t lines, size_t bytes, uint32_t *panel) {
    size_t words = (bytes + 3) / 4, full_words = lines == PACK_LANES ? bytes / 4 / PACK_WORDS * PACK_WORDS : 0;
    for (size_t w = 0; w < full_words; w += PACK_WORDS) {
        if (w * 4 % PACK_LINE == 0) {
            for (size_t l = 0; l < PACK_LANES; l++) {
                __builtin_prefetch((const void *)((uintptr_t)src + (PACK_LANES + l) * stride + w * 4), 0, 2);
            }
        }
        transpose_words(src + w * 4, stride, panel + w * EXPERTD_KERNEL_PANEL);
    }
    for (size_t l = 0; l < lines; l++) {
        for (size_t w = full_words; w < words; w++) {
            panel[w * EXPERTD_KERNEL_PANEL + l] = word_at(src + l * stride, w, bytes);
        }
    }
}

void PACK_TARGET(pack_k_major)(const struct pack_args *args) {
    for (size_t line = 0; line < args->lines; line += PACK_LANES) {
        uint32_t *panel =
            (uint32_t *)((char *)args->panels + line / EXPERTD_KERNEL_PANEL * args->panel_bytes) + line % EXPERTD_KERNEL_PANEL;
        size_t lines = args->lines - line < PACK_LANES ? args->lines - line : PACK_LANES;
        pack_lines((const char *)args->src + line * args->stride, args->stride, lines, args->k * args->element, panel);
    }
}

// 16 bits at any address: a tensor of a file may begin at an odd one.
static inline uint32_t half_at(const char *row, size_t index) {
    uint16_t half;
    memcpy(&half, row + index * sizeof half, sizeof half);
    return half;
}

PANEL_INLINE void interleave_2(const char *restrict a, const char *restrict b, size_t count, uint32_t *restrict dst) {
    for (size_t i = 0; i < count; i++) {
        dst[i] = half_at(a, i) | half_at(b, i) << 16;
    }
}

PANEL_INLINE void interleave_4(const uint8_t *restrict a, const uint8_t *restrict b, const uint8_t *restrict c,
                               const uint8_t *restrict d, size_t count, uint32_t *restrict dst) {
    for (size_t i = 0; i < count; i++) {
        dst[i] = (uint32_t)a[i] | (uint32_t)b[i] << 8 | (uint32_t)c[i] << 16 | (uint32_t)d[i] << 24;
    }
}

// Interleaves the rows of k, k + 1, ... that make up one word into the words of `lines` columns of one panel; k past K count as 0.
// `element` is a constant, and so is `lines` for a full panel, so that the loops become a few vector instructions.
PANEL_INLINE void pack_interleave(const struct pack_args *args, size_t element, size_t k, size_t line, size_t lines,
                                  uint32_t *dst) {
    static const uint8_t ZEROS[EXPERTD_KERNEL_PANEL * sizeof(uint32_t)];
    const void *rows[4] = {ZEROS, ZEROS, ZEROS, ZEROS};
    for (size_t i = 0; i < 4 / element && k + i < args->k; i++) {
        rows[i] = (const char *)args->src + (k + i) * args->stride + line * element;
    }
#if defined(PACK_INTERLEAVES_PANELS)
    if (lines == EXPERTD_KERNEL_PANEL && element < 4) {
        if (element == 2) {
            interleave_panel_2(rows, dst);
        } else {
            interleave_panel_4(rows, dst);
        }
        return;
    }
#endif
    if (element == 4) {
        memcpy(dst, rows[0], lines * sizeof *dst);
    } else if (element == 2) {
        interleave_2(rows[0], rows[1], lines, dst);
    } else {
        interleave_4(rows[0], rows[1], rows[2], rows[3], lines, dst);
    }
}

static void prefetch_row(const char *row, size_t bytes) {
    for (size_t i = 0; i < bytes; i += PACK_LINE) {
        __builtin_prefetch(row + i, 0, 2);
    }
}

PANEL_INLINE void pack_n_major_of(const struct pack_args *args, size_t element) {
    size_t step = 4 / element;
    for (size_t k = 0, word = 0; k < args->k; k += step, word++) {
        for (size_t i = 0; i < step && k + PACK_ROWS_AHEAD + i < args->k; i++) {
            prefetch_row((const char *)args->src + (k + PACK_ROWS_AHEAD + i) * args->stride, args->lines * element);
        }
        char *row = (char *)args->panels + word * EXPERTD_KERNEL_PANEL * sizeof(uint32_t);
        size_t line = 0;
        for (; line + EXPERTD_KERNEL_PANEL <= args->lines; line += EXPERTD_KERNEL_PANEL, row += args->panel_bytes) {
            pack_interleave(args, element, k, line, EXPERTD_KERNEL_PANEL, (uint32_t *)(void *)row);
        }
        if (line < args->lines) {
            pack_interleave(args, element, k, line, args->lines - line, (uint32_t *)(void *)row);
        }
    }
}

void PACK_TARGET(pack_n_major)(const struct pack_args *args) {
    switch (args->element) {
    case 4:
        pack_n_major_of(args, 4);
        return;
    case 2:
        pack_n_major_of(args, 2);
        return;
    default:
        pack_n_major_of(args, 1);
        return;
    }
}

// Adds bytes + 128 of `count` quads per column to two 16-bit sums in each word of `halves`. `count` is a constant.
PANEL_INLINE void add_bytes(const int8_t (*quads)[4], size_t count, uint32_t *halves) {
    for (size_t c = 0; c < EXPERTD_KERNEL_PANEL; c++) {
        uint32_t sum = halves[c];
        PANEL_UNROLL for (size_t i = 0; i < count; i++) {
            uint32_t word;
            memcpy(&word, quads[i * EXPERTD_KERNEL_PANEL + c], sizeof word);
            word ^= 0x80808080u;
            sum += (word & 0x00ff00ffu) + (word >> 8 & 0x00ff00ffu);
        }
        halves[c] = sum;
    }
}

void PACK_TARGET(quad_offsets)(const struct offsets_args *args) {
    enum { MOST = 64, STEP = 4 }; // most quads whose sums fit into 16 bits; quads of a step
    const int8_t(*quads)[EXPERTD_KERNEL_PANEL][4] = args->quads;
    uint32_t sums[EXPERTD_KERNEL_PANEL] = {0};
    for (size_t q = 0, count; q < args->count; q += count) {
        uint32_t halves[EXPERTD_KERNEL_PANEL] = {0};
        count = args->count - q < MOST ? args->count - q : MOST;
        size_t i = 0;
        for (; i + STEP <= count; i += STEP) {
            add_bytes(quads[q + i], STEP, halves);
        }
        for (; i < count; i++) {
            add_bytes(quads[q + i], 1, halves);
        }
        for (size_t c = 0; c < EXPERTD_KERNEL_PANEL; c++) {
            sums[c] += (halves[c] & 0xffff) + (halves[c] >> 16);
        }
    }
    for (size_t c = 0; c < EXPERTD_KERNEL_PANEL; c++) { // subtracts the 128 that were added to each byte
        args->offsets[c] = (int32_t)(((uint32_t)args->count * 4 * 128 - sums[c]) << 7);
    }
}

// Moves even nibbles to the low 16 bits and odd ones to the high 16 bits: swaps nibbles 1 and 2 of each half, then bytes 1 and 2.
static inline uint32_t split_nibbles(uint32_t word) {
    uint32_t nibbles = (word ^ word >> 4) & 0x00f000f0u;
    word ^= nibbles ^ nibbles << 4;
    uint32_t bytes = (word ^ word >> 8) & 0x0000ff00u;
    return word ^ bytes ^ bytes << 8;
}

typedef uint16_t pack_halves __attribute__((vector_size(16)));

// Stores the low halves of four columns' words, then their high halves.
static inline void split_halves(const uint32_t *words, uint8_t *line) {
    pack_halves v;
    memcpy(&v, words, sizeof v);
    v = __builtin_shufflevector(v, v, 0, 2, 4, 6, 1, 3, 5, 7);
    memcpy(line, &v, sizeof v);
}

void PACK_TARGET(place_codes)(const struct place_args *args) {
    const uint32_t *restrict words = args->words;
    uint32_t *restrict lines = (uint32_t *)(void *)args->lines;
    if (args->bits == 8) {
        for (size_t i = 0; i < args->count * EXPERTD_KERNEL_PANEL; i += 4) {
            split_halves(words + i, args->lines + i * sizeof *words);
        }
        return;
    }
    for (size_t i = 0; i < args->count * EXPERTD_KERNEL_PANEL; i++) {
        lines[i] = split_nibbles(words[i]);
    }
}
