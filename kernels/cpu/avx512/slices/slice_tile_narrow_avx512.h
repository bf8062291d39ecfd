// A tile of up to 24 rows against a slice of 16 columns, for CPUs that start one product in each cycle. The including file defines
//   slice_multiply(s, w, x)  *s += the word at x by each of w
//
// A word comes with its instruction ({1to16}): 25 instructions for 24 products. The first tile reads a slice from memory, those
// after it from L2.
#include "kernels/cpu/avx512/slices/slice_pack_rows_avx512.h"
#include "kernels/cpu/common/slice_pass.h"

enum {
    SLICE_VECS = 1,  // of a slice
    SLICE_TILE = 24, // rows at once: sums in 24 of 32 registers
    // Bytes ahead that lines are fetched: into L2, asked for again in between (prefetch_distance.h), then into L1.
    SLICE_FAR = 12288,
    SLICE_AGAIN = 6144,
    SLICE_NEAR = 2048,
    SLICE_PACKED_ROWS = 1 << 30, // bytes of a row that are laid in one go: all
    SLICE_FETCHES_ROWS = 0,      // the rows that come next are fetched between tiles
};

#if defined(__clang__)
#define SLICE_UNROLL PANEL_UNROLL
#else
#define SLICE_UNROLL _Pragma("GCC unroll 24")
#endif

// All tiles take all words there are, one after another.
static size_t slice_turn(size_t rows, size_t words) {
    (void)rows;
    return words;
}

PANEL_INLINE void slice_begin_fetches(struct slice_pass *pass, size_t rows, struct slice_stream stream) {
    const uintptr_t at = (uintptr_t)pass->slice;
    (void)rows;
    pass->ahead.step = SLICE_LINE;
    pass->ahead.at = at + SLICE_FAR;
    pass->ahead.again = at + SLICE_AGAIN;
    if (pass->ahead.at >= stream.end) {
        pass->ahead.at = stream.next ? stream.next + (pass->ahead.at - stream.end) : at;
        pass->ahead.again = pass->ahead.at;
    }
}

// `rows` is a constant in each copy, so that the sums are registers.
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
            prefetch_into((const void *)((uintptr_t)slice + SLICE_NEAR), false);
            prefetch_into((const void *)far, true);
            prefetch_into((const void *)again, true);
            const __m512i w = _mm512_load_si512(slice);
            SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
                slice_multiply(&sums[r], w, x + r * SLICE_LINE);
            }
        }
        x += (rows - 1) * SLICE_LINE; // the line that it has passed was one of `rows`
    }
    SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
        _mm512_store_ps(pass->sums + r * KERNEL_SUMS, sums[r]);
    }
    pass->ahead.at = pass->ahead.again = (uintptr_t)pass->slice;
    pass->ahead.step = 0;
}

#define SLICE_EACH(what)                                                                                                           \
    what(1) what(2) what(3) what(4) what(5) what(6) what(7) what(8) what(9) what(10) what(11) what(12) what(13) what(14) what(15)  \
        what(16) what(17) what(18) what(19) what(20) what(21) what(22) what(23) what(24)
