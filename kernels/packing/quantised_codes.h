// Reads codes from a file's order into words of consecutive k, 32 bits at a time where the file has rows or words. Private to
// kernels/.
#ifndef EXPERTD_KERNELS_PACKING_QUANTISED_CODES_H
#define EXPERTD_KERNELS_PACKING_QUANTISED_CODES_H

#include "expertd/kernels/quantised.h"
#include "kernels/cpu/backend/backend.h"

// Columns [n, n + columns) and k [k, k + depth) of a source.
struct codes_block {
    const struct expertd_code_words *codes;
    const uint32_t *k_order; // [all k] or NULL: as in struct expertd_quantised_source
    size_t n, columns;       // columns: at most EXPERTD_KERNEL_PANEL
    size_t k, depth;         // k: a multiple of 8
};

// Codes in a 32-bit word: 8 or 4.
static inline size_t codes_per_word(unsigned bits) {
    return 32 / bits;
}

// Reads a block to words[ceil(depth / codes_per_word)][EXPERTD_KERNEL_PANEL]. A word has consecutive codes of a column, after flip
// and add, the lowest k in the lowest bits; a short last word is padded with codes of 0. Columns past `columns` are unspecified.
void codes_to_words(const struct codes_block *block, uint32_t *words);

#endif
