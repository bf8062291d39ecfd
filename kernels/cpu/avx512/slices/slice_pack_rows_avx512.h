// The packed form of rows for tiles that load 32-bit words unchanged: one line holds 16 words of a row. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_SLICES_SLICE_PACK_ROWS_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_SLICES_SLICE_PACK_ROWS_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/common/slice_pass.h"

enum {
    SLICE_ROW_LINE = SLICE_LINE,                   // bytes of a packed line
    SLICE_ROW_WORDS = SLICE_ROW_LINE / WORD_BYTES, // words of a row in a packed line
    SLICE_ROW_BYTES = SLICE_ROW_LINE,              // bytes of the unpacked row that a packed line takes
};

PANEL_INLINE void slice_pack_rows(const char *from, char *to) {
    _mm512_store_si512(to, _mm512_loadu_si512(from));
}

// The last `bytes` bytes of a row, fewer than a line; the rest of the line becomes 0.
PANEL_INLINE void slice_pack_rows_part(const char *from, size_t bytes, char *to) {
    _mm512_store_si512(to, _mm512_maskz_loadu_epi8(((__mmask64)1 << bytes) - 1, from));
}

#endif
