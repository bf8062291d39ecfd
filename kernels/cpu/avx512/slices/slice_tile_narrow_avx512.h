// Tile of up to 24 rows by one slice (16 columns), for CPUs that start one 512-bit product a cycle (Zen 4). The including file
// defines
//   slice_multiply(s, w, x)  *s += w * (the word at x, broadcast)
//
// The row's word is a broadcast memory operand ({1to16}), so 24 products take 25 instructions. The first tile reads a slice from
// memory, later tiles read it from L2.
#include "kernels/cpu/avx512/slices/slice_pack_rows_avx512.h"
#include "kernels/cpu/common/slice_pass.h"

enum {
    SLICE_VECS = 1,  // vectors of columns
    SLICE_TILE = 24, // rows at most: their sums take 24 of 32 registers
    // Prefetch distances in bytes: into L2, the repeated prefetch into L2 (prefetch_distance.h), into L1.
    SLICE_L2_DISTANCE = 12288,
    SLICE_L2_REPEAT = 6144,
    SLICE_L1_DISTANCE = 2048,
    SLICE_PACKED_ROWS = 1 << 30, // bytes of a row that are packed before the next row: all of it
    SLICE_PREFETCHES_ROWS = 0,   // the next call's rows are prefetched between tiles, not inside one
};

#if defined(__clang__)
#define SLICE_UNROLL PANEL_UNROLL
#else
#define SLICE_UNROLL _Pragma("GCC unroll 24")
#endif

// Words of K that a tile passes over before the next tile does: all.
static size_t slice_burst(size_t rows, size_t words) {
    (void)rows;
    return words;
}

PANEL_INLINE void slice_begin_fetches(struct slice_pass *pass, size_t rows, struct slice_stream stream) {
    const uintptr_t at = (uintptr_t)pass->slice;
    (void)rows;
    pass->ahead.step = SLICE_LINE;
    pass->ahead.at = at + SLICE_L2_DISTANCE;
    pass->ahead.again = at + SLICE_L2_REPEAT;
    if (pass->ahead.at >= stream.end) {
        pass->ahead.at = stream.next ? stream.next + (pass->ahead.at - stream.end) : at;
        pass->ahead.again = pass->ahead.at;
    }
}

// `rows` is a constant in each copy, so that the sums stay in registers.
PANEL_INLINE void slice_rows(struct slice_pass *pass, size_t rows) {
    const size_t step = pass->ahead.step;
    const char *slice = pass->slice, *x = pass->x, *end = slice + pass->words * SLICE_LINE;
    uintptr_t far = pass->ahead.at, again = pass->ahead.again;
    __m512 sums[SLICE_TILE];
    SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
        sums[r] = _mm512_setzero_ps();
    }
    if (!pass->begins) {
        SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
            sums[r] = _mm512_load_ps(pass->sums + r * KERNEL_SUMS);
        }
    }
    while (slice < end) {
        const char *line_end = end - slice < SLICE_ROW_WORDS * SLICE_LINE ? end : slice + SLICE_ROW_WORDS * SLICE_LINE;
        for (; slice < line_end; slice += SLICE_LINE, x += WORD_BYTES, far += step, again += step) {
            prefetch_into((const void *)((uintptr_t)slice + SLICE_L1_DISTANCE), false);
            prefetch_into((const void *)far, true);
            prefetch_into((const void *)again, true);
            const __m512i w = _mm512_load_si512(slice);
            SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
                slice_multiply(&sums[r], w, x + r * SLICE_LINE);
            }
        }
        x += (rows - 1) * SLICE_LINE; // skip the other rows' lines
    }
    SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
        _mm512_store_ps(pass->sums + r * KERNEL_SUMS, sums[r]);
    }
    pass->ahead.at = pass->ahead.again = (uintptr_t)pass->slice;
    pass->ahead.step = 0;
}

#define SLICE_EACH(macro)                                                                                                          \
    macro(1) macro(2) macro(3) macro(4) macro(5) macro(6) macro(7) macro(8) macro(9) macro(10) macro(11) macro(12) macro(13)       \
        macro(14) macro(15) macro(16) macro(17) macro(18) macro(19) macro(20) macro(21) macro(22) macro(23) macro(24)
