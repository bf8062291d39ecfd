// Reads lines of an operand into the form that the panel kernels take: widened, decoded and with K contiguous. Private to kernels/.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_LINES_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_LINES_H

#include "kernels/cpu/backend.h"
#include "kernels/plain/product.h"

struct line_reader {
    const struct kernel_backend *backend;
    enum expertd_dtype from, to; // to: F32 from F32, F16, BF16; BF16 from BF16, F8 and E2M1; I8 from I8
};

// Lines [first, first + count) of the operand, elements [k, k + depth), k a multiple of 4. rows: which line stands for each number,
// or NULL.
struct line_range {
    const struct product_operand *operand;
    const uint32_t *rows;
    size_t first, count;
    size_t k, depth;
};

// To dst[count] of dst_stride elements each.
void lines_read(const struct line_reader *reader, const struct line_range *range, void *dst, size_t dst_stride);

// Up to KERNEL_SUMS lines, whose rows are NULL, to panels as expertd_pack_weights lays them, over these k. A short last one is
// padded.
void lines_pack(const struct line_reader *reader, const struct line_range *range, void *panels, size_t panel_bytes);

// Where the range's elements lie, to be fetched: none where they are strewn.
struct memory_ahead lines_memory(const struct line_reader *reader, const struct line_range *range);

// Scale number `index` as fp32.
float scale_read(enum expertd_dtype dtype, const void *scales, size_t index);

#endif
