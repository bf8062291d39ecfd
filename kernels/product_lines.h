// Reads lines of an operand into the form that the panel kernels take: widened, decoded and with K contiguous. Private to kernels/.
#ifndef EXPERTD_KERNELS_PRODUCT_LINES_H
#define EXPERTD_KERNELS_PRODUCT_LINES_H

#include "kernels/product.h"

enum { LINE_CODES = 256 };

// The bf16 value of every code of a dtype of 4 or 8 bits (exact): F8_E4M3, F8_E5M2; of U8 (E2M1) the first 16.
void line_codes_fill(enum dtype dtype, uint16_t codes[LINE_CODES]);

struct line_reader {
    enum dtype from, to;   // to: F32 from F32, F16, BF16; BF16 from BF16, F8 and E2M1; I8 from I8
    const uint16_t *codes; // of `from`, where it has any
};

// Lines [first, first + count) of the operand, elements [k, k + depth), to dst[count] of dst_stride elements each. rows: which line
// stands for each number, or NULL.
struct line_range {
    const struct product_operand *operand;
    const uint32_t *rows;
    size_t first, count;
    size_t k, depth;
};
void lines_read(const struct line_reader *reader, const struct line_range *range, void *dst, size_t dst_stride);

// A panel of up to KERNEL_PANEL lines over the whole of K as pack_weights lays it.
void lines_pack(const struct line_reader *reader, const struct line_range *range, void *panel);

// Scale number `index` as fp32.
float scale_read(enum dtype dtype, const void *scales, size_t index);

#endif
