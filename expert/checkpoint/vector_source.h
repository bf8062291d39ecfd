// A vector or a matrix in a mapped file. Private to expert/.
#ifndef EXPERTD_EXPERT_CHECKPOINT_VECTOR_SOURCE_H
#define EXPERTD_EXPERT_CHECKPOINT_VECTOR_SOURCE_H

#include <stddef.h>

#include "expertd/base/dtype.h"
#include "expertd/kernels/weights.h"

struct safetensors_entry;

struct vector_source {
    const void *data;                       // element 0, may be misaligned; NULL: there is no such vector
    enum expertd_dtype dtype;               // F32, F16 or BF16; NONE with `blocks`
    size_t stride;                          // elements from one to the next (2 in interleaved biases)
    const struct safetensors_entry *blocks; // of a GGUF file: the tensor, if its elements are codes in blocks; NULL: plain elements
};

struct matrix_source {
    struct expertd_weight_source plain; // with `blocks` only data is set
    const struct safetensors_entry *blocks;
};

#endif
