// The layout of a panel of quantised weights. Private to kernels/.
//
// A panel is 64 columns over the whole of K, one stream in the order of its use:
//   a header of 64 bytes: the global scale (f32); a byte that is 1 if a code of the panel is NaN or Inf, else 0; from byte 8 on the
//     bitmap of quantised_plain_shift; other bytes 0
//   with scales of I8, per EXPERTD_SUPER_K k: the super scales of the 64 columns, 128 bytes; with minima, the super scales of those
//   per scale group along K: its codes; the scales of the 64 columns (scale_of_panel: one scale, in 64 bytes); with zero points, 64
//     bytes of them; with minima, those of the 64 columns
// A line of codes is 64 bytes, of 16 columns. Four lines are 64 columns of 8 k of 4 bits, or of 4 k of 8 bits:
//   4 bits: a 32-bit word per column. k = 2i is nibble i of its low half, k = 2i + 1 nibble i of its high half, so that after one
//     shift both halves are indices for VPERMW, and the word is one for VPERMPS.
//   8 bits: 16 bytes for 4 columns: their pairs of k (0, 1), then their pairs of k (2, 3), which VPUNPCK separates.
// A short last scale group is padded to a full line of codes; the padding is never multiplied. Padding columns have codes of +0
// (IQ4, which has none: -127), scales and minima of +0.
#ifndef EXPERTD_KERNELS_LAYOUT_QUANTISED_LAYOUT_H
#define EXPERTD_KERNELS_LAYOUT_QUANTISED_LAYOUT_H

#include "expertd/kernels/quantised.h"
#include "expertd/kernels/weights.h"

enum {
    QUANTISED_LINE = 64,                        // bytes of a line of codes
    QUANTISED_COLUMNS = 16,                     // its columns
    QUANTISED_HEADER = 64,                      // bytes
    QUANTISED_SUPER = 2 * EXPERTD_KERNEL_PANEL, // bytes of the super scales of EXPERTD_SUPER_K k
    QUANTISED_SPECIAL_AT = 4,                   // offset of the NaN/Inf byte in the header
    QUANTISED_PLAIN_AT = 8,                     // offset of the bitmap
    QUANTISED_PLAIN_BITS = 8 * (QUANTISED_HEADER - QUANTISED_PLAIN_AT),
};

// Whether a code of the panel is NaN or Inf.
static inline bool quantised_has_special(const void *panel) {
    return ((const uint8_t *)panel)[QUANTISED_SPECIAL_AT] != 0;
}

// The header's bitmap of 8-bit floats: a bit is 1 if all codes of a span of K, over the panel's columns, are normal (not 0 and not
// subnormal). Such codes become f32 by a shift (quantised_float8_avx512.h). With E4M3 scales that map the largest of a Gaussian's
// weights to 448, one code in ten thousand is not normal. A span is 2^shift lines of k; bits after the last span are 1. Returns
// the shift.
static inline unsigned quantised_plain_shift(size_t k) {
    enum { LINE_K = 4 };
    unsigned shift = 0;
    while ((size_t)QUANTISED_PLAIN_BITS << shift < (k + LINE_K - 1) / LINE_K) {
        shift++;
    }
    return shift;
}

// Sets the header's NaN/Inf byte and its bitmap from the panel's codes over `k`.
void quantised_mark_special(const struct expertd_quantised_format *format, size_t k, void *panel);

struct quantised_layout {
    size_t scale_k;       // k of a scale group
    size_t scales;        // scale groups along K
    size_t line_k;        // k of a line of codes: 8 or 4
    size_t codes;         // bytes of a scale group's codes (all scale groups but the last)
    size_t stride;        // bytes from one scale group's codes to the next one's
    size_t scale_size;    // bytes of a scale group's scales, a multiple of 64
    size_t supers;        // bytes of all super scales
    size_t super_size;    // bytes of those of EXPERTD_SUPER_K k; 0: none
    unsigned super_shift; // log2 of the scale groups of EXPERTD_SUPER_K k
    size_t zeros_size;    // bytes of its zero points or minima, a multiple of 64; 0: none
};

static inline bool code_has_4_bits(enum expertd_weight_code code) {
    return code == EXPERTD_CODE_E2M1 || code == EXPERTD_CODE_INT4 || code == EXPERTD_CODE_UINT4 || code == EXPERTD_CODE_IQ4;
}

// Bytes of the codes of `depth` k, over the panel.
static inline size_t quantised_code_bytes(const struct quantised_layout *layout, size_t depth) {
    return (depth + layout->line_k - 1) / layout->line_k * (EXPERTD_KERNEL_PANEL / QUANTISED_COLUMNS) * QUANTISED_LINE;
}

// Bytes of one scale group's scales.
static inline size_t quantised_scale_bytes(const struct expertd_quantised_format *format) {
    return format->scale_of_panel ? QUANTISED_LINE : EXPERTD_KERNEL_PANEL * expertd_dtype_size(format->scale);
}

static inline struct quantised_layout quantised_layout(const struct expertd_quantised_format *format, size_t k) {
    struct quantised_layout layout = {.scale_k = format->scale_k ? format->scale_k : k,
                                      .line_k = code_has_4_bits(format->code) ? 8 : 4};
    layout.scales = layout.scale_k ? k / layout.scale_k + (k % layout.scale_k != 0) : 0;
    layout.codes = quantised_code_bytes(&layout, layout.scale_k);
    layout.scale_size = quantised_scale_bytes(format);
    layout.zeros_size = format->minima ? layout.scale_size : format->zero_points ? EXPERTD_KERNEL_PANEL : 0;
    layout.stride = layout.codes + layout.scale_size + layout.zeros_size;
    if (format->scale == EXPERTD_DTYPE_I8 && format->scale_k > 0) {
        layout.super_size = format->minima ? 2 * QUANTISED_SUPER : QUANTISED_SUPER;
        layout.super_shift = (unsigned)__builtin_ctzll(EXPERTD_SUPER_K / format->scale_k);
        layout.supers = (k + EXPERTD_SUPER_K - 1) / EXPERTD_SUPER_K * layout.super_size;
    }
    return layout;
}

// k of scale group g.
static inline size_t quantised_depth(const struct quantised_layout *layout, size_t g, size_t k) {
    size_t left = k - g * layout->scale_k;
    return left < layout->scale_k ? left : layout->scale_k;
}

// k of a step of ARITHMETIC_CPU_AMX, whose products are summed before they are added to the partial sum. Steps start at a scale
// group's first k; its last step may be shorter.
static inline size_t quantised_tile_k(const struct expertd_quantised_format *format) {
    return format->scale_k % 32 == 0 ? 32 : 16;
}

// Byte offsets of scale group g's codes, scales, and zero points or minima from the panel's start.
static inline size_t quantised_codes_at(const struct quantised_layout *layout, size_t g) {
    return QUANTISED_HEADER + layout->supers + g * layout->stride;
}

// The byte offset of the super scales of scale group g, from the panel's start; those of minima follow. The layout has super
// scales.
static inline size_t quantised_supers_at(const struct quantised_layout *layout, size_t g) {
    return QUANTISED_HEADER + (g >> layout->super_shift) * layout->super_size;
}

static inline size_t quantised_scales_at(const struct quantised_layout *layout, size_t g, size_t k) {
    return quantised_codes_at(layout, g) + quantised_code_bytes(layout, quantised_depth(layout, g, k));
}

static inline size_t quantised_zeros_at(const struct quantised_layout *layout, size_t g, size_t k) {
    return quantised_scales_at(layout, g, k) + layout->scale_size;
}

// The byte offset of code (k, column) from its scale group's first code, k counted within the scale group. *shift: the code's
// lowest bit in that byte.
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
