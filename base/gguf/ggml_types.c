#include "base/gguf/ggml_types.h"

#include <stddef.h>

#define PLAIN(ID, NAME, BYTES, DTYPE) [ID] = {NAME, ID, 1, BYTES, DTYPE}
#define BLOCKS(ID, NAME, ELEMENTS, BYTES) [ID] = {NAME, ID, ELEMENTS, BYTES, EXPERTD_DTYPE_NONE}

// Sizes of blocks: ggml-common.h.
static const struct ggml_type TYPES[GGML_TYPE_IDS] = {
    PLAIN(0, "F32", 4, EXPERTD_DTYPE_F32),
    PLAIN(1, "F16", 2, EXPERTD_DTYPE_F16),
    BLOCKS(GGML_Q4_0, "Q4_0", 32, 18),
    BLOCKS(GGML_Q4_1, "Q4_1", 32, 20),
    BLOCKS(GGML_Q5_0, "Q5_0", 32, 22),
    BLOCKS(GGML_Q5_1, "Q5_1", 32, 24),
    BLOCKS(GGML_Q8_0, "Q8_0", 32, 34),
    BLOCKS(9, "Q8_1", 32, 36),
    BLOCKS(GGML_Q2_K, "Q2_K", 256, 84),
    BLOCKS(GGML_Q3_K, "Q3_K", 256, 110),
    BLOCKS(GGML_Q4_K, "Q4_K", 256, 144),
    BLOCKS(GGML_Q5_K, "Q5_K", 256, 176),
    BLOCKS(GGML_Q6_K, "Q6_K", 256, 210),
    BLOCKS(15, "Q8_K", 256, 292),
    BLOCKS(16, "IQ2_XXS", 256, 66),
    BLOCKS(17, "IQ2_XS", 256, 74),
    BLOCKS(18, "IQ3_XXS", 256, 98),
    BLOCKS(19, "IQ1_S", 256, 50),
    BLOCKS(GGML_IQ4_NL, "IQ4_NL", 32, 18),
    BLOCKS(21, "IQ3_S", 256, 110),
    BLOCKS(22, "IQ2_S", 256, 82),
    BLOCKS(GGML_IQ4_XS, "IQ4_XS", 256, 136),
    PLAIN(24, "I8", 1, EXPERTD_DTYPE_I8),
    PLAIN(25, "I16", 2, EXPERTD_DTYPE_I16),
    PLAIN(26, "I32", 4, EXPERTD_DTYPE_I32),
    PLAIN(27, "I64", 8, EXPERTD_DTYPE_I64),
    PLAIN(28, "F64", 8, EXPERTD_DTYPE_F64),
    BLOCKS(29, "IQ1_M", 256, 56),
    PLAIN(30, "BF16", 2, EXPERTD_DTYPE_BF16),
    BLOCKS(34, "TQ1_0", 256, 54),
    BLOCKS(35, "TQ2_0", 256, 66),
    BLOCKS(GGML_MXFP4, "MXFP4", 32, 17),
    BLOCKS(GGML_NVFP4, "NVFP4", 64, 36),
    BLOCKS(41, "Q1_0", 128, 18),
};

const struct ggml_type *ggml_type_of(uint32_t id) {
    return id < GGML_TYPE_IDS && TYPES[id].name ? &TYPES[id] : NULL;
}

// Ollama's first files of gpt-oss have MXFP4 under the number of Q4_2, with the codes of a block in another order than llama.cpp's.
static const struct ggml_withdrawn WITHDRAWN[GGML_TYPE_IDS] = {
    [4] = {"Q4_2", "Q4_0 file, or, of Ollama's gpt-oss, which has its own MXFP4 under this number, llama.cpp's MXFP4"},
    [5] = {"Q4_3", "Q4_1"},
    [31] = {"Q4_0_4_4", "Q4_0"},
    [32] = {"Q4_0_4_8", "Q4_0"},
    [33] = {"Q4_0_8_8", "Q4_0"},
    [36] = {"IQ4_NL_4_4", "IQ4_NL"},
    [37] = {"IQ4_NL_4_8", "IQ4_NL"},
    [38] = {"IQ4_NL_8_8", "IQ4_NL"},
};

const struct ggml_withdrawn *ggml_withdrawn_type(uint32_t id) {
    return id < GGML_TYPE_IDS && WITHDRAWN[id].name ? &WITHDRAWN[id] : NULL;
}

// The fork's ids: from 97 those with interleaved activations, from 133 these, from 202 to 399 those with interleaved rows (..._R4).
enum { IK_FIRST = 97, IK_NAMED = 133, IK_LAST = 399 };
static const char *const IK_NAMES[] = {
    [133 - IK_NAMED] = "Q6_0",    [137 - IK_NAMED] = "IQ2_K",  [138 - IK_NAMED] = "IQ3_K",  [139 - IK_NAMED] = "IQ4_K",
    [140 - IK_NAMED] = "IQ5_K",   [141 - IK_NAMED] = "IQ6_K",  [144 - IK_NAMED] = "IQ4_KS", [145 - IK_NAMED] = "IQ2_KS",
    [146 - IK_NAMED] = "IQ4_KSS", [152 - IK_NAMED] = "IQ5_KS", [153 - IK_NAMED] = "IQ2_KT", [154 - IK_NAMED] = "IQ3_KT",
    [155 - IK_NAMED] = "IQ4_KT",  [156 - IK_NAMED] = "IQ3_KS", [157 - IK_NAMED] = "IQ2_KL", [158 - IK_NAMED] = "IQ1_KT",
};

const char *ggml_ik_type(uint32_t id) {
    const size_t count = sizeof IK_NAMES / sizeof *IK_NAMES;
    if (id < IK_FIRST || id > IK_LAST) {
        return NULL;
    }
    return id >= IK_NAMED && id - IK_NAMED < count && IK_NAMES[id - IK_NAMED] ? IK_NAMES[id - IK_NAMED] : "a type";
}
