// What is done with elements before they are multiplied, in each instruction set's copy: decoding, and the packing of panels, once
// at load or on the fly. Exact, all of it. Private to kernels/.
#ifndef EXPERTD_KERNELS_LAYOUT_PACK_H
#define EXPERTD_KERNELS_LAYOUT_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"

// Neighbouring codes to BF16: F8_E4M3, F8_E5M2 or U8 (E2M1, two a byte, the low nibble first).
struct decode_args {
    enum expertd_dtype dtype;
    const void *src;
    size_t count;
    uint16_t *dst;
};

// Lines (columns of the product) into panels of 32-bit words: [ceil(k * element / 4)][64], a column's `4 / element` neighbouring k
// in one word, a short last one padded with 0. Columns that are not there are left alone.
struct pack_args {
    const void *src; // the first line's first k; any alignment, as tensors of files have it
    size_t stride;   // bytes: pack_k_major, whose k are neighbours, from line to line; pack_n_major, whose lines are, from k to k
    size_t element;  // bytes: 1, 2 or 4
    size_t lines, k;
    void *panels; // 64-byte aligned
    size_t panel_bytes;
};

// Each column's offset: -128 times the sum of its elements, wrapping.
struct offsets_args {
    const void *quads; // [count][64] words
    size_t count;
    int32_t *offsets; // [64]
};

// Words of neighbouring codes, as codes_to_words gives them, to lines of a panel of quantised weights (quantised_layout.h).
struct place_args {
    const uint32_t *words; // [count][64]
    size_t count;
    unsigned bits;  // 4 or 8
    uint8_t *lines; // [count] of 256 bytes, 64-byte aligned
};

#endif
