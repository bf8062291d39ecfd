// Codes out of whichever order a file keeps them in, 32 bits of neighbouring codes at a time where they lie in words or rows.
// Private to kernels/.
#ifndef EXPERTD_KERNELS_PACKING_QUANTISED_CODES_H
#define EXPERTD_KERNELS_PACKING_QUANTISED_CODES_H

#include "expertd/kernels/quantised.h"
#include "kernels/cpu/backend.h"

// Columns (of n) and k of a source.
struct codes_block {
    const struct expertd_code_words *codes;
    const uint32_t *k_order; // [all k] or NULL: as struct expertd_quantised_source's
    size_t n, columns;       // the first; at most EXPERTD_KERNEL_PANEL
    size_t k, depth;         // the first, a multiple of 8
};

// Codes of a 32-bit word: 8 or 4.
static inline size_t codes_of_word(unsigned bits) {
    return 32 / bits;
}

// words[ceil(depth / codes_of_word)][EXPERTD_KERNEL_PANEL]: a column's neighbouring codes, the least k lowest, after flip and add;
// a short last one is padded with codes of 0. Columns past `columns` hold anything.
void codes_to_words(const struct codes_block *block, uint32_t *words);

#endif
