// A view of a dense, row-major, little-endian tensor in memory that somebody else owns.
#ifndef EXPERTD_BASE_TENSOR_H
#define EXPERTD_BASE_TENSOR_H

#include "base/dtype.h"
#include "base/err.h"

enum { TENSOR_RANK_MAX = 8 };

struct tensor_view {
    enum dtype dtype;
    uint32_t rank;
    uint64_t shape[TENSOR_RANK_MAX];
    const void *data; // may be misaligned; borrowed
    uint64_t bytes;
};

// Elements and bytes of a shape; ERR_SHAPE_MISMATCH where the product overflows 63 bits.
FALLIBLE tensor_elements(const uint64_t *shape, uint32_t rank, uint64_t *elements);
FALLIBLE tensor_bytes(enum dtype dtype, const uint64_t *shape, uint32_t rank, uint64_t *bytes);

enum { TENSOR_SHAPE_TEXT_MAX = 192 };

// "[32, 96]" into text, for messages; returns text.
const char *tensor_shape_text(const uint64_t *shape, uint32_t rank, char text[TENSOR_SHAPE_TEXT_MAX]);

#endif
