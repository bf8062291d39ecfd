#include "expertd/base/tensor.h"

#include "base/err.h"

#include <inttypes.h>
#include <stdio.h>

FALLIBLE expertd_tensor_elements(const uint64_t *shape, uint32_t rank, uint64_t *elements) {
    uint64_t product = 1;
    for (uint32_t i = 0; i < rank; i++) {
        if (__builtin_mul_overflow(product, shape[i], &product) || product > INT64_MAX) {
            char text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
            FAIL(EXPERTD_ERR_SHAPE_MISMATCH, "the product of shape %s overflows", expertd_tensor_shape_text(shape, rank, text));
        }
    }
    *elements = product;
    return OK;
}

FALLIBLE expertd_tensor_bytes(enum expertd_dtype dtype, const uint64_t *shape, uint32_t rank, uint64_t *bytes) {
    uint64_t elements;
    TRY(expertd_tensor_elements(shape, rank, &elements));
    if (__builtin_mul_overflow(elements, (uint64_t)expertd_dtype_size(dtype), bytes) || *bytes > INT64_MAX) {
        char text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_SHAPE_MISMATCH, "the size of %s%s overflows", expertd_dtype_name(dtype),
             expertd_tensor_shape_text(shape, rank, text));
    }
    return OK;
}

const char *expertd_tensor_shape_text(const uint64_t *shape, uint32_t rank, char text[EXPERTD_TENSOR_SHAPE_TEXT_MAX]) {
    if (rank > EXPERTD_TENSOR_RANK_MAX) {
        snprintf(text, EXPERTD_TENSOR_SHAPE_TEXT_MAX, "[%" PRIu32 " dimensions]", rank);
        return text;
    }
    size_t used = (size_t)snprintf(text, EXPERTD_TENSOR_SHAPE_TEXT_MAX, "[");
    for (uint32_t i = 0; i < rank && used < EXPERTD_TENSOR_SHAPE_TEXT_MAX - 24; i++) {
        used += (size_t)snprintf(text + used, EXPERTD_TENSOR_SHAPE_TEXT_MAX - used, "%s%" PRIu64, i ? ", " : "", shape[i]);
    }
    snprintf(text + used, EXPERTD_TENSOR_SHAPE_TEXT_MAX - used, "]");
    return text;
}
