// A vector in a mapped file. Private to expert/.
#ifndef EXPERTD_EXPERT_CHECKPOINT_VECTOR_SOURCE_H
#define EXPERTD_EXPERT_CHECKPOINT_VECTOR_SOURCE_H

#include <stddef.h>

#include "expertd/base/dtype.h"

struct vector_source {
    const void *data;         // element 0, may be misaligned; NULL: there is no such vector
    enum expertd_dtype dtype; // F32, F16 or BF16
    size_t stride;            // elements from one to the next (2 in interleaved biases)
};

#endif
