// Where a packed group's words lie: 32 bits, an f32 element or a pair of bf16. Private to kernels/.
#ifndef EXPERTD_KERNELS_LAYOUT_PACKED_LAYOUT_H
#define EXPERTD_KERNELS_LAYOUT_PACKED_LAYOUT_H

#include <stddef.h>

#include "expertd/kernels/weights.h"

// That lie side by side: words from a column's word to its next one.
static inline size_t packed_columns(enum expertd_packed_layout layout) {
    return layout == EXPERTD_PACKED_SLICES ? 16 : layout == EXPERTD_PACKED_WIDE_SLICES ? 32 : (size_t)EXPERTD_KERNEL_PANEL;
}

// Where column n's word lies, in words from the group's beginning. `words`: over the whole of K.
static inline size_t packed_word_at(enum expertd_packed_layout layout, size_t words, size_t word, size_t n) {
    const size_t together = packed_columns(layout);
    return (n / together * words + word) * together + n % together;
}

#endif
