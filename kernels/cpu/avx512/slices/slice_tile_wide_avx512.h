// Tile of up to 14 rows by one wide slice (32 columns), for CPUs that start two 512-bit products and two vector loads a cycle (Zen
// 5). The including file defines
//   slice_broadcast(x)       the word at x in every lane
//   slice_product(s, w, b)   s + w * b
//
// A row's word is loaded once for two products: 28 products take 16 loads. Broadcast memory operands would take both loads of every
// cycle. Lines of weights are prefetched at an even rate over all tiles that multiply the same SLICE_BURST_WORDS words.
#include "base/err.h"
#include "kernels/cpu/avx512/slices/slice_pack_rows_avx512.h"
#include "kernels/cpu/common/slice_pass.h"

enum {
    SLICE_VECS = 2,  // vectors of columns
    SLICE_TILE = 14, // rows at most: their sums take 28 of 32 registers
    SLICE_WORD_BYTES = SLICE_VECS * SLICE_LINE,
    SLICE_BURST_WORDS = 1024, // words of K that a tile multiplies before the next tile does: 128 KiB of a slice, which stay in L2
                              // together with the next 128 KiB
    SLICE_PACKED_ROWS = SLICE_LINE, // bytes of a row that are packed before the next row; more would fill few sets of L1
    SLICE_PREFETCHES_ROWS = 1,      // the next call's rows are prefetched inside the tile, line by line: the CPU drops bursts
};

#if defined(__clang__)
#define SLICE_UNROLL PANEL_UNROLL
#else
#define SLICE_UNROLL _Pragma("GCC unroll 14")
#endif

static size_t slice_tiles(size_t rows) {
    return (rows + SLICE_TILE - 1) / SLICE_TILE;
}

// Words of K that a tile passes over before the next tile does. A single tile keeps its sums in registers over all of K and reads
// each line once.
static size_t slice_burst(size_t rows, size_t words) {
    return slice_tiles(rows) > 1 && words > SLICE_BURST_WORDS ? SLICE_BURST_WORDS : words;
}

// Prefetch distances in bytes. ahead: of the stream, into L2 if `far`, else into L1. near: from L2 into L1, for lines of the
// current burst; 0: they are in L1 already.
struct slice_distance {
    size_t ahead, near;
    bool far;
};

// One tile prefetches into L1, the further ahead the more rows multiply each line. Several tiles prefetch a burst ahead. With two
// tiles memory limits the speed: some prefetches into L2 alone are dropped where memory is slow (16 rows .83 of the roof instead of
// .89). With more tiles they are not, and L1 is left to the current burst (64 rows .95 → .96).
static struct slice_distance slice_distance(size_t rows) {
    const size_t tiles = slice_tiles(rows);
    if (tiles > 1) {
        return (struct slice_distance){SLICE_BURST_WORDS * SLICE_WORD_BYTES + 4096, tiles == 2 ? 8192 : 4096, tiles > 2};
    }
    return (struct slice_distance){rows < 5 ? 4096 : rows < 12 ? 8192 : 12288, 0, false};
}

PANEL_INLINE void slice_begin_fetches(struct slice_pass *pass, size_t rows, struct slice_stream stream) {
    const size_t tiles = slice_tiles(rows);
    const struct slice_distance distance = slice_distance(rows);
    INVARIANT(tiles > 0);
    pass->ahead.at = (uintptr_t)pass->slice + distance.ahead;
    pass->ahead.until = pass->ahead.at;
    pass->ahead.step = (SLICE_WORD_BYTES + tiles - 1) / tiles;
    pass->ahead.near = distance.near;
    pass->ahead.far = distance.far;
    pass->ahead.end = stream.end;
    pass->ahead.next = stream.next;
}

// Prefetches the lines that are due with one word of K.
PANEL_INLINE void slice_prefetch(struct slice_ahead *ahead, const char *slice) {
    ahead->until += ahead->step;
    for (; ahead->at < ahead->until; ahead->at += SLICE_LINE) {
        prefetch_into((const void *)ahead->at, ahead->far);
    }
    if (ahead->near) {
        prefetch_into((const void *)((uintptr_t)slice + ahead->near), false);
        prefetch_into((const void *)((uintptr_t)slice + ahead->near + SLICE_LINE), false);
    }
}

// `rows` is a constant in each copy, so that the sums stay in registers.
PANEL_INLINE void slice_rows(struct slice_pass *pass, size_t rows) {
    struct slice_ahead ahead = {.at = pass->ahead.at,
                                .until = pass->ahead.until,
                                .step = pass->ahead.step,
                                .end = pass->ahead.end,
                                .next = pass->ahead.next,
                                .near = pass->ahead.near,
                                .far = pass->ahead.far};
    const char *slice = pass->slice, *x = pass->x, *end = slice + pass->words * SLICE_WORD_BYTES;
    __m512 sums[SLICE_TILE][SLICE_VECS];
    SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
        sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    }
    if (!pass->begins) {
        SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
            sums[r][0] = _mm512_load_ps(pass->sums + r * KERNEL_SUMS);
            sums[r][1] = _mm512_load_ps(pass->sums + r * KERNEL_SUMS + SLICE_VEC);
        }
    }
    while (slice < end) {
        const char *line_end = end - slice < SLICE_ROW_WORDS * SLICE_WORD_BYTES ? end : slice + SLICE_ROW_WORDS * SLICE_WORD_BYTES;
        if (ahead.at >= ahead.end) {
            slice_prefetch_on(&ahead);
        }
        prefetch_rows_on(pass->rows);
        for (; slice < line_end; slice += SLICE_WORD_BYTES, x += WORD_BYTES) {
            slice_prefetch(&ahead, slice);
            const __m512i w0 = _mm512_load_si512(slice), w1 = _mm512_load_si512(slice + SLICE_LINE);
            SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
                const __m512i b = slice_broadcast(x + r * SLICE_LINE);
                sums[r][0] = slice_product(sums[r][0], w0, b);
                sums[r][1] = slice_product(sums[r][1], w1, b);
            }
        }
        x += (rows - 1) * SLICE_LINE; // skip the other rows' lines
    }
    SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
        _mm512_store_ps(pass->sums + r * KERNEL_SUMS, sums[r][0]);
        _mm512_store_ps(pass->sums + r * KERNEL_SUMS + SLICE_VEC, sums[r][1]);
    }
    pass->ahead.at = ahead.at;
    pass->ahead.until = ahead.until;
    pass->ahead.step = ahead.step;
    pass->ahead.end = ahead.end;
}

#define SLICE_EACH(macro)                                                                                                          \
    macro(1) macro(2) macro(3) macro(4) macro(5) macro(6) macro(7) macro(8) macro(9) macro(10) macro(11) macro(12) macro(13)       \
        macro(14)
