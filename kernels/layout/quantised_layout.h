// Where things lie in a panel of quantised weights. Private to kernels/.
//
// A panel is 64 columns over the whole of K, one stream in the order of its use:
//   64 bytes: the global scale (f32), a byte that is 1 where a code of the panel is no number (NaN, Inf) and else 0, from byte 8 on
//     the bits of quantised_plain_shift, the rest 0
//   for each scale along K: the codes of its k, the 64 columns' scales (scale_of_panel: one, in 64 bytes), 64 bytes of zero points
// Codes lie in lines of 64 bytes, each of 16 columns, four lines (64 columns) for 8 k of 4 bits or 4 k of 8 bits:
//   4 bits: a 32-bit word per column; k = 2i is nibble i of its low half, k = 2i + 1 nibble i of the high half. A half is thus an
//           index for VPERMW and a word one for VPERMPS after a single shift for both.
//   8 bits: 16 bytes for 4 columns: their pairs of k (0, 1), then their pairs (2, 3), which is what VPUNPCK takes apart.
// A short last scale ends with a whole line of codes; what pads it is never multiplied. Padding columns are codes of +0.
#ifndef EXPERTD_KERNELS_LAYOUT_QUANTISED_LAYOUT_H
#define EXPERTD_KERNELS_LAYOUT_QUANTISED_LAYOUT_H

#include "expertd/kernels/quantised.h"
#include "expertd/kernels/weights.h"

enum {
    QUANTISED_LINE = 64,
    QUANTISED_COLUMNS = 16,
    QUANTISED_HEADER = 64,
    QUANTISED_SPECIAL_AT = 4,
    QUANTISED_PLAIN_AT = 8,
    QUANTISED_PLAIN_BITS = 8 * (QUANTISED_HEADER - QUANTISED_PLAIN_AT),
};

static inline bool quantised_has_special(const void *panel) {
    return ((const uint8_t *)panel)[QUANTISED_SPECIAL_AT] != 0;
}

// Of floats of 8 bits the bits say which spans of K, over the panel, have normal codes alone: neither 0 nor what is below the least
// normal. Those become f32 by a shift (quantised_float8_avx512.h). One code in ten thousand is none where E4M3's scales bring
// the greatest of a Gaussian's weights to 448. 2^shift lines of k share a bit, 1 where they are so; bits behind the last span
// are 1.
static inline unsigned quantised_plain_shift(size_t k) {
    enum { LINE_K = 4 };
    unsigned shift = 0;
    while ((size_t)QUANTISED_PLAIN_BITS << shift < (k + LINE_K - 1) / LINE_K) {
        shift++;
    }
    return shift;
}

// Sets that byte and those bits, by the panel's codes over `k`.
void quantised_mark_special(const struct expertd_quantised_format *format, size_t k, void *panel);

struct quantised_layout {
    size_t scale_k;    // k of a scale
    size_t scales;     // along K
    size_t line_k;     // k of a line of codes: 8 or 4
    size_t codes;      // bytes of a scale's codes but the last one's
    size_t stride;     // bytes from one scale's codes to the next one's
    size_t scale_size; // bytes of its scales, a multiple of 64
};

static inline bool code_has_4_bits(enum expertd_weight_code code) {
    return code == EXPERTD_CODE_E2M1 || code == EXPERTD_CODE_INT4;
}

// Bytes of `depth` k of codes over the panel.
static inline size_t quantised_code_bytes(const struct quantised_layout *layout, size_t depth) {
    return (depth + layout->line_k - 1) / layout->line_k * (EXPERTD_KERNEL_PANEL / QUANTISED_COLUMNS) * QUANTISED_LINE;
}

// Bytes of one scale's scales.
static inline size_t quantised_scale_bytes(const struct expertd_quantised_format *format) {
    return format->scale_of_panel ? QUANTISED_LINE : EXPERTD_KERNEL_PANEL * expertd_dtype_size(format->scale);
}

static inline struct quantised_layout quantised_layout(const struct expertd_quantised_format *format, size_t k) {
    struct quantised_layout layout = {.scale_k = format->scale_k ? format->scale_k : k,
                                      .line_k = code_has_4_bits(format->code) ? 8 : 4};
    layout.scales = layout.scale_k ? k / layout.scale_k + (k % layout.scale_k != 0) : 0;
    layout.codes = quantised_code_bytes(&layout, layout.scale_k);
    layout.scale_size = quantised_scale_bytes(format);
    layout.stride = layout.codes + layout.scale_size + (format->zero_points ? EXPERTD_KERNEL_PANEL : 0);
    return layout;
}

// k of scale g.
static inline size_t quantised_depth(const struct quantised_layout *layout, size_t g, size_t k) {
    size_t left = k - g * layout->scale_k;
    return left < layout->scale_k ? left : layout->scale_k;
}

// The k that ARITHMETIC_CPU_AMX adds to each other first, from a scale's first on; the last of a scale may be fewer.
static inline size_t quantised_tile_k(const struct expertd_quantised_format *format) {
    return format->scale_k % 32 == 0 ? 32 : 16;
}

// From the panel's start.
static inline size_t quantised_codes_at(const struct quantised_layout *layout, size_t g) {
    return QUANTISED_HEADER + g * layout->stride;
}

static inline size_t quantised_scales_at(const struct quantised_layout *layout, size_t g, size_t k) {
    return quantised_codes_at(layout, g) + quantised_code_bytes(layout, quantised_depth(layout, g, k));
}

static inline size_t quantised_zeros_at(const struct quantised_layout *layout, size_t g, size_t k) {
    return quantised_scales_at(layout, g, k) + layout->scale_size;
}

// The byte of code (k, column) from its scale's codes; of 4-bit codes also the bits to its right.
static inline size_t quantised_code_at(size_t line_k, size_t k, size_t column, unsigned *shift) {
    size_t line = (k / line_k * (EXPERTD_KERNEL_PANEL / QUANTISED_COLUMNS) + column / QUANTISED_COLUMNS) * QUANTISED_LINE;
    size_t c = column % QUANTISED_COLUMNS, i = k % line_k;
    if (line_k == 8) {
        *shift = i / 2 % 2 * 4;
        return line + c * 4 + i % 2 * 2 + i / 4;
    }
    *shift = 0;
    return line + c / 4 * 16 + i / 2 * 8 + c % 4 * 2 + i % 2;
}

#endif
