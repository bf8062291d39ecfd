// The element types of tensors in GGUF files (enum ggml_type of ggml.h): the elements and the bytes of a block. Types of plain
// elements have blocks of one element. Constant data; any thread.
#ifndef EXPERTD_BASE_GGML_TYPES_H
#define EXPERTD_BASE_GGML_TYPES_H

#include <stdint.h>

#include "expertd/base/dtype.h"

// The ids of types of blocks, which the file stores. Ids that are missing here were withdrawn, or name plain elements.
enum ggml_type_id {
    GGML_Q4_0 = 2,
    GGML_Q4_1 = 3,
    GGML_Q5_0 = 6,
    GGML_Q5_1 = 7,
    GGML_Q8_0 = 8,
    GGML_Q2_K = 10,
    GGML_Q3_K = 11,
    GGML_Q4_K = 12,
    GGML_Q5_K = 13,
    GGML_Q6_K = 14,
    GGML_IQ4_NL = 20,
    GGML_IQ4_XS = 23,
    GGML_MXFP4 = 39,
    GGML_NVFP4 = 40,
    GGML_TYPE_IDS = 64, // greater than every id
};

struct ggml_type {
    const char *name;         // "Q4_K"
    uint32_t id;              // its number in files
    uint32_t elements, bytes; // of a block
    enum expertd_dtype dtype; // of plain elements; EXPERTD_DTYPE_NONE: codes in blocks
};

// NULL: an unknown or withdrawn type.
const struct ggml_type *ggml_type_of(uint32_t id);

// A type that llama.cpp no longer has: its name, and the files to use in its place. NULL: it never was one.
struct ggml_withdrawn {
    const char *name, *instead;
};
const struct ggml_withdrawn *ggml_withdrawn_type(uint32_t id);

// The name of a type that ik_llama.cpp has and llama.cpp does not, "IQ4_KS"; "a type" for those that this table does not name.
// NULL: the id is not among the fork's.
const char *ggml_ik_type(uint32_t id);

#endif
