// Reads lines of an operand (products/product.h) into the form that the kernels take: widened or decoded, and K-contiguous or
// packed in panels. Private to kernels/.
#ifndef EXPERTD_KERNELS_PLAIN_LINE_READER_H
#define EXPERTD_KERNELS_PLAIN_LINE_READER_H

#include "kernels/cpu/backend/backend.h"
#include "kernels/products/product.h"

struct line_reader {
    const struct kernel_backend *backend;
    enum expertd_dtype from, to; // to: F32 from F32, F16, BF16; BF16 from BF16, F8 and E2M1; I8 from I8
};

// Lines [first, first + count) of the operand, elements [k, k + depth); k is a multiple of 4. rows: the operand's line for each
// line number (gather), or NULL.
struct line_range {
    const struct product_operand *operand;
    const uint32_t *rows;
    size_t first, count;
    size_t k, depth;
};

// Writes the range to dst[count], dst_stride elements from line to line.
void lines_read(const struct line_reader *reader, const struct line_range *range, void *dst, size_t dst_stride);

// Packs the range, at most KERNEL_SUMS lines without `rows`, into panels as expertd_pack_weights writes them. A short last panel is
// padded with +0.
void lines_pack(const struct line_reader *reader, const struct line_range *range, void *panels, size_t panel_bytes);

// The memory of the range's elements, for prefetch. Empty where no stride is 1 or lines are gathered.
struct prefetch_range lines_to_prefetch(const struct line_reader *reader, const struct line_range *range);

#endif
