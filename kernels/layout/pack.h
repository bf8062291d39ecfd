// Arguments of the backends' functions that decode and pack elements, at load or on the fly. All of them are exact. Private to
// kernels/.
#ifndef EXPERTD_KERNELS_LAYOUT_PACK_H
#define EXPERTD_KERNELS_LAYOUT_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"

// Decodes consecutive codes to BF16: F8_E4M3, F8_E5M2 or U8 (E2M1, two a byte, the low nibble first).
struct decode_args {
    enum expertd_dtype dtype;
    const void *src;
    size_t count;
    uint16_t *dst;
};

// Packs lines (columns of the product) into panels of 32-bit words, [ceil(k * element / 4)][64]. A word holds 4 / element
// consecutive k of a column; a short last word is padded with 0. Columns past `lines` in the last panel are not written.
struct pack_args {
    const void *src; // the first k of the first line; any alignment, since tensors in files have any
    size_t stride;   // bytes from line to line (pack_k_major: [n,k]), or from k to k (pack_n_major: [k,n])
    size_t element;  // bytes: 1, 2 or 4
    size_t lines, k;
    void *panels; // 64-byte aligned
    size_t panel_bytes;
};

// Computes each column's offset: -128 times the sum of its elements, in wrapping int32.
struct offsets_args {
    const void *quads; // [count][64] words
    size_t count;
    int32_t *offsets; // [64]
};

// Converts words of consecutive codes, as codes_to_words gives them, to lines of a panel of quantised weights (quantised_layout.h).
struct place_args {
    const uint32_t *words; // [count][64]
    size_t count;
    unsigned bits;  // 4 or 8
    uint8_t *lines; // [count] of 256 bytes, 64-byte aligned
};

#endif
