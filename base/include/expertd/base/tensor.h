// A view of a dense, row-major, little-endian tensor in borrowed memory.
#ifndef EXPERTD_BASE_TENSOR_H
#define EXPERTD_BASE_TENSOR_H

#include "expertd/base/dtype.h"
#include "expertd/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EXPERTD_TENSOR_RANK_MAX = 8 };

struct expertd_tensor_view {
    enum expertd_dtype dtype;
    uint32_t rank;
    uint64_t shape[EXPERTD_TENSOR_RANK_MAX];
    const void *data; // may be misaligned; borrowed
    uint64_t bytes;
};

// Elements and bytes of a shape. EXPERTD_ERR_SHAPE_MISMATCH where the product overflows 63 bits.
EXPERTD_FALLIBLE expertd_tensor_elements(const uint64_t *shape, uint32_t rank, uint64_t *elements);
EXPERTD_FALLIBLE expertd_tensor_bytes(enum expertd_dtype dtype, const uint64_t *shape, uint32_t rank, uint64_t *bytes);

enum { EXPERTD_TENSOR_SHAPE_TEXT_MAX = 192 };

// Writes a shape such as "[32, 96]" to `text`, for messages. Returns `text`.
const char *expertd_tensor_shape_text(const uint64_t *shape, uint32_t rank, char text[EXPERTD_TENSOR_SHAPE_TEXT_MAX]);

#ifdef __cplusplus
}
#endif

#endif
