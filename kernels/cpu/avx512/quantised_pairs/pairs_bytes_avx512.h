// Shared by the decoders of 8-bit codes to bf16: VPERMI2B looks up the high and the low byte separately, VPUNPCK joins them.
// Implements a part of the interface that quantised_pairs_body.h and tile_codes_body.h list. Needs VBMI.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_PAIRS_BYTES_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_PAIRS_BYTES_AVX512_H

#include <immintrin.h>

#include <stddef.h>

#include "kernels/cpu/avx512/quantised/code_tables_avx512.h"

enum { PAIRS_LINE_K = 4 };

struct tables {
    __m512i high[2], low[2];
};

struct line {
    __m512i high, low;
};

static inline struct tables tables_of_bytes(const struct byte_table *table) {
    return (struct tables){{_mm512_loadu_si512(table->high), _mm512_loadu_si512(table->high + 64)},
                           {_mm512_loadu_si512(table->low), _mm512_loadu_si512(table->low + 64)}};
}

static inline __m512i line_pair(const struct line *line, const struct tables *t, size_t pair) {
    (void)t;
    return pair ? _mm512_unpackhi_epi8(line->low, line->high) : _mm512_unpacklo_epi8(line->low, line->high);
}

#endif
