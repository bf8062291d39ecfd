// A tile of up to 14 rows against a slice of 32 columns, for CPUs that start two products in each cycle and load two vectors in it.
// The including file defines
//   slice_broadcast(x)       the word at x in every lane
//   slice_product(s, w, b)   s + w by b
//
// A word is loaded once for two products: 16 loads for 28 of them, where words that come with their instruction would take both
// loads of each cycle. Lines are fetched at one pace over all tiles that take turns at a slice.
#include "base/err.h"
#include "kernels/cpu/avx512/slices/slice_pack_rows_avx512.h"
#include "kernels/cpu/common/slice_pass.h"

enum {
    SLICE_VECS = 2,  // of a slice
    SLICE_TILE = 14, // rows at once: sums in 28 of 32 registers
    SLICE_WORD = SLICE_VECS * SLICE_LINE,
    SLICE_TURN = 1024, // words that a tile takes before the next one does: 128 KiB, which stay in L2 with as much that comes next
    SLICE_PACKED_ROWS =
        SLICE_LINE,         // bytes of a row that are laid in one go: more would lie so far apart that they share sets of L1
    SLICE_FETCHES_ROWS = 1, // the rows that come next, line by line: in bursts they are dropped
};

#if defined(__clang__)
#define SLICE_UNROLL PANEL_UNROLL
#else
#define SLICE_UNROLL _Pragma("GCC unroll 14")
#endif

static size_t slice_tiles(size_t rows) {
    return (rows + SLICE_TILE - 1) / SLICE_TILE;
}

// One tile has its sums in registers over the whole of K, and reads each line once.
static size_t slice_turn(size_t rows, size_t words) {
    return slice_tiles(rows) > 1 && words > SLICE_TURN ? SLICE_TURN : words;
}

// Bytes ahead that lines are fetched, into L1 or L2, and that those of a turn are fetched from L2; 0: they are in L1.
struct slice_distance {
    size_t ahead, near;
    bool far;
};

// One tile's lines go into L1, the further ahead the longer each is multiplied. Those of several come a turn ahead and some. Two
// tiles need them as fast as memory gives them, and of those into L2 alone some would be dropped where that is slow: 16 rows .83 of
// the roof in place of .89. More tiles do not, and leave L1 to what they read (64 rows .95 → .96).
static struct slice_distance slice_distance(size_t rows) {
    const size_t tiles = slice_tiles(rows);
    if (tiles > 1) {
        return (struct slice_distance){SLICE_TURN * SLICE_WORD + 4096, tiles == 2 ? 8192 : 4096, tiles > 2};
    }
    return (struct slice_distance){rows < 5 ? 4096 : rows < 12 ? 8192 : 12288, 0, false};
}

PANEL_INLINE void slice_begin_fetches(struct slice_pass *pass, size_t rows, struct slice_stream stream) {
    const size_t tiles = slice_tiles(rows);
    const struct slice_distance distance = slice_distance(rows);
    INVARIANT(tiles > 0);
    pass->ahead.at = (uintptr_t)pass->slice + distance.ahead;
    pass->ahead.until = pass->ahead.at;
    pass->ahead.step = (SLICE_WORD + tiles - 1) / tiles;
    pass->ahead.near = distance.near;
    pass->ahead.far = distance.far;
    pass->ahead.end = stream.end;
    pass->ahead.next = stream.next;
}

// The lines that are due with a word.
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

// `rows` is a constant in each copy, so that the sums are registers.
PANEL_INLINE void slice_rows(struct slice_pass *pass, size_t rows) {
    struct slice_ahead ahead = {.at = pass->ahead.at,
                                .until = pass->ahead.until,
                                .step = pass->ahead.step,
                                .end = pass->ahead.end,
                                .next = pass->ahead.next,
                                .near = pass->ahead.near,
                                .far = pass->ahead.far};
    const char *slice = pass->slice, *x = pass->x, *end = slice + pass->words * SLICE_WORD;
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
        const char *line_end = end - slice < SLICE_ROW_WORDS * SLICE_WORD ? end : slice + SLICE_ROW_WORDS * SLICE_WORD;
        if (ahead.at >= ahead.end) {
            slice_prefetch_on(&ahead);
        }
        prefetch_rows_on(pass->rows);
        for (; slice < line_end; slice += SLICE_WORD, x += WORD_BYTES) {
            slice_prefetch(&ahead, slice);
            const __m512i w0 = _mm512_load_si512(slice), w1 = _mm512_load_si512(slice + SLICE_LINE);
            SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
                const __m512i b = slice_broadcast(x + r * SLICE_LINE);
                sums[r][0] = slice_product(sums[r][0], w0, b);
                sums[r][1] = slice_product(sums[r][1], w1, b);
            }
        }
        x += (rows - 1) * SLICE_LINE; // the line that it has passed was one of `rows`
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

#define SLICE_EACH(what)                                                                                                           \
    what(1) what(2) what(3) what(4) what(5) what(6) what(7) what(8) what(9) what(10) what(11) what(12) what(13) what(14)
