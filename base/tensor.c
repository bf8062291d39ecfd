#include "base/tensor.h"

#include <inttypes.h>
#include <stdio.h>

FALLIBLE tensor_elements(const uint64_t *shape, uint32_t rank, uint64_t *elements) {
    uint64_t product = 1;
    for (uint32_t i = 0; i < rank; i++) {
        if (__builtin_mul_overflow(product, shape[i], &product) || product > INT64_MAX) {
            char text[TENSOR_SHAPE_TEXT_MAX];
            FAIL(ERR_SHAPE_MISMATCH, "the product of shape %s overflows", tensor_shape_text(shape, rank, text));
        }
    }
    *elements = product;
    return OK;
}

FALLIBLE tensor_bytes(enum dtype dtype, const uint64_t *shape, uint32_t rank, uint64_t *bytes) {
    uint64_t elements;
    TRY(tensor_elements(shape, rank, &elements));
    if (__builtin_mul_overflow(elements, (uint64_t)dtype_size(dtype), bytes) || *bytes > INT64_MAX) {
        char text[TENSOR_SHAPE_TEXT_MAX];
        FAIL(ERR_SHAPE_MISMATCH, "the bytes of %s%s overflow", dtype_name(dtype), tensor_shape_text(shape, rank, text));
    }
    return OK;
}

const char *tensor_shape_text(const uint64_t *shape, uint32_t rank, char text[TENSOR_SHAPE_TEXT_MAX]) {
    if (rank > TENSOR_RANK_MAX) {
        snprintf(text, TENSOR_SHAPE_TEXT_MAX, "[%" PRIu32 " dimensions]", rank);
        return text;
    }
    size_t used = (size_t)snprintf(text, TENSOR_SHAPE_TEXT_MAX, "[");
    for (uint32_t i = 0; i < rank && used < TENSOR_SHAPE_TEXT_MAX - 24; i++) {
        used += (size_t)snprintf(text + used, TENSOR_SHAPE_TEXT_MAX - used, "%s%" PRIu64, i ? ", " : "", shape[i]);
    }
    snprintf(text + used, TENSOR_SHAPE_TEXT_MAX - used, "]");
    return text;
}
