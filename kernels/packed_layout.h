// Where a packed group's words lie: 32 bits, an f32 element or a pair of bf16. Private to kernels/.
#ifndef EXPERTD_KERNELS_PACKED_LAYOUT_H
#define EXPERTD_KERNELS_PACKED_LAYOUT_H

#include <stddef.h>

#include "kernels/weights.h"

// That lie side by side: words from a column's word to its next one.
static inline size_t packed_columns(enum packed_layout layout) {
    return layout == PACKED_SLICES ? 16 : layout == PACKED_WIDE_SLICES ? 32 : (size_t)KERNEL_PANEL;
}

// Where column n's word lies, in words from the group's beginning. `words`: over the whole of K.
static inline size_t packed_word_at(enum packed_layout layout, size_t words, size_t word, size_t n) {
    const size_t together = packed_columns(layout);
    return (n / together * words + word) * together + n % together;
}

#endif
