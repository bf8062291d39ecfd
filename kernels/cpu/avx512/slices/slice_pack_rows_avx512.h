// How rows are laid for tiles that take words as they are: 16 of a row in a line. Private to cpu/.
#ifndef EXPERTD_KERNELS_CPU_AVX512_SLICES_SLICE_PACK_ROWS_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_SLICES_SLICE_PACK_ROWS_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/common/slice_pass.h"

enum {
    SLICE_ROW_LINE = SLICE_LINE,                   // bytes of a line that is laid
    SLICE_ROW_WORDS = SLICE_ROW_LINE / WORD_BYTES, // of a row in it
    SLICE_ROW_BYTES = SLICE_ROW_LINE,              // of a row where they come from
};

PANEL_INLINE void slice_pack_rows(const char *from, char *to) {
    _mm512_store_si512(to, _mm512_loadu_si512(from));
}

// `bytes` of them, fewer than a line; 0 follow.
PANEL_INLINE void slice_pack_rows_part(const char *from, size_t bytes, char *to) {
    _mm512_store_si512(to, _mm512_maskz_loadu_epi8(((__mmask64)1 << bytes) - 1, from));
}

#endif
