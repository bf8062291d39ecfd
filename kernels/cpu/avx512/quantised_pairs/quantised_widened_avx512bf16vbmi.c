// The "decoder" of codes that were already decoded to bf16 in memory, once for all tiles.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs.h"
#include "kernels/cpu/backend/backends.h"

enum { PAIRS_LINE_K = 2, PAIRS_WORKING = 5, PAIRS_POWERS = 0, LANES = 16, LINES_BYTES = sizeof(pairs_row) };

struct tables {
    char none;
};

struct line {
    __m512i pair;
};

static inline struct tables tables_load(const struct expertd_quantised_format *format) {
    (void)format;
    return (struct tables){0};
}

static inline __m512i zeros_load(const uint8_t *zeros) {
    (void)zeros;
    return _mm512_setzero_si512();
}

static inline struct line line_open(const uint8_t *codes, const struct tables *t, __m512i zero) {
    (void)t, (void)zero;
    return (struct line){_mm512_load_si512(codes)};
}

static inline __m512i line_pair(const struct line *line, const struct tables *t, size_t pair) {
    (void)t, (void)pair;
    return line->pair;
}

#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs_tile_body.h"

const struct pairs_decoder pairs_widened = {.line_k = PAIRS_LINE_K, .tile = PAIRS_TILES};
#endif
