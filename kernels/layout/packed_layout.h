// Index arithmetic of the packed layouts of F32 and BF16 weights, in 32-bit words: an f32 element, or a pair of bf16. Private to
// kernels/.
#ifndef EXPERTD_KERNELS_LAYOUT_PACKED_LAYOUT_H
#define EXPERTD_KERNELS_LAYOUT_PACKED_LAYOUT_H

#include <stddef.h>

#include "expertd/kernels/weights.h"

// Columns of a panel or slice: the words from one word of a column to its next one.
static inline size_t packed_columns(enum expertd_packed_layout layout) {
    return layout == EXPERTD_PACKED_SLICES ? 16 : layout == EXPERTD_PACKED_WIDE_SLICES ? 32 : (size_t)EXPERTD_KERNEL_PANEL;
}

// The offset of word `word` of column n from the group's beginning, in words. `words`: words of a column over the whole of K.
static inline size_t packed_word_at(enum expertd_packed_layout layout, size_t words, size_t word, size_t n) {
    const size_t columns = packed_columns(layout);
    return (n / columns * words + word) * columns + n % columns;
}

#endif
