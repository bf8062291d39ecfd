// The blocks of GGUF files, which interleave codes and scales: the format that each type has in memory, and its conversion, exact
// and without a check, since every byte of a block is a code or a scale. Types with minima: a weight is code * scale - minimum.
// Constant data and pure functions; any thread. Source: ggml-common.h and ggml-quants.c of llama.cpp.
#ifndef EXPERTD_EXPERT_QUANTISED_GGML_BLOCKS_H
#define EXPERTD_EXPERT_QUANTISED_GGML_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "base/gguf/ggml_types.h"
#include "expertd/kernels/quantised.h"

// Where a block's parts go: one row each of codes (K-contiguous, the lower k in the low nibble), scales and minima.
struct ggml_parts {
    uint8_t *codes;
    uint8_t *scales, *minima;             // in format.scale, any alignment; minima NULL: none
    uint8_t *super_scales, *super_minima; // F16, one for EXPERTD_SUPER_K k, where format.scale is I8; super_minima NULL: none
};

struct ggml_format {
    uint32_t id; // of the ggml_type
    struct expertd_quantised_format format;
    void (*decode)(const uint8_t *block, const struct ggml_parts *out);
};

// NULL: blocks of this type are not served. "Q8_0, Q4_0, ...": the served ones, for messages.
const struct ggml_format *ggml_format_of(const struct ggml_type *type);
extern const char GGML_SERVED[];

// Bits of a code: 4 or 8.
unsigned ggml_code_bits(const struct ggml_format *format);

// Bytes of a row of k elements as stored. k is a multiple of the type's elements.
size_t ggml_row_bytes(const struct ggml_format *format, size_t k);

// Converts n rows of k elements. out: [n] rows each of ggml_code_bits * k / 8 bytes of codes, k / scale_k scales and minima, and
// k / EXPERTD_SUPER_K super scales and super minima.
void ggml_blocks_decode(const struct ggml_format *format, const void *blocks, size_t n, size_t k, const struct ggml_parts *out);

#endif
