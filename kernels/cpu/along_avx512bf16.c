// along.h's kernel of bf16 by VDPBF16PS: 32 columns at a time, 64 pairs of k, turned into 8 KiB that stay in L1, where up to 12
// rows at a time multiply them while the lines of the next block are fetched.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/along.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/pair_avx512bf16.h"
#include "kernels/cpu/turn_avx512.h"

enum {
    LANES = 16,
    COLUMNS = 2 * LANES,
    WORDS = 64, // pairs of a block: four lines of each column
    LINE = 64,  // bytes
    LINES = WORDS * 4 / LINE,
    ROWS = 12, // of a tile: 24 sums, of which a CPU that starts two products a cycle needs 12 at once
};

// More than PANEL_UNROLL unrolls.
#if defined(__clang__)
#define ROWS_UNROLL PANEL_UNROLL
#else
#define ROWS_UNROLL _Pragma("GCC unroll 12")
#endif
_Static_assert(COLUMNS == 2 * TURN_LINES && WORDS % TURN_WORDS == 0, "whole turns");

// Some pairs of some columns.
struct block {
    const struct along_args *args;
    size_t column, columns; // COLUMNS, or what is left
    size_t k, depth;
    uint32_t words[WORDS][COLUMNS] __attribute__((aligned(64)));
    uintptr_t next; // the first column's line that is fetched next; 0: nothing is
};

// The lines of the next block: the same columns' or the next columns' first.
static void find_next(struct block *b) {
    const struct along_args *a = b->args;
    size_t k = b->k + b->depth, column = b->column;
    if (k == a->k) {
        k = 0;
        column += COLUMNS;
    }
    b->next = column < a->columns ? (uintptr_t)a->weights + column * a->stride + k * sizeof(uint16_t) : 0;
}

static void turn(struct block *b) {
    const struct along_args *a = b->args;
    const char *src = (const char *)a->weights + b->column * a->stride + b->k * sizeof(uint16_t);
    const size_t words = (b->depth + 1) / 2;
    for (size_t word = 0; word < words; word += TURN_WORDS) {
        size_t left = b->depth - 2 * word, elements = left < 2 * TURN_WORDS ? left : 2 * TURN_WORDS;
        for (size_t column = 0; column < COLUMNS; column += TURN_LINES) {
            const char *from = src + column * a->stride + word * sizeof(uint32_t);
            if (b->columns == COLUMNS && elements == 2 * TURN_WORDS) {
                turn_words_to(from, a->stride, &b->words[word][column], COLUMNS);
            } else {
                size_t lines = b->columns < column ? 0 : b->columns - column;
                turn_some_to(from, a->stride, lines, elements, &b->words[word][column], COLUMNS);
            }
        }
    }
}

// Two lines of the next block with each word: all of a column's before the next column's.
PANEL_INLINE void fetch_next(const struct block *b, size_t word, bool far) {
    PANEL_UNROLL for (size_t i = 0; i < 2; i++) {
        size_t line = 2 * word + i;
        fetch_into((const void *)(b->next + line / LINES * b->args->stride + line % LINES * LINE), far);
    }
}
_Static_assert(2 * WORDS == COLUMNS * LINES, "as many as there are");

// last: an odd one.
PANEL_INLINE void multiply_word(__m512 sums[][2], size_t rows, const uint16_t *const *x, size_t k, bool last,
                                const uint32_t *words) {
    __m512bh low = (__m512bh)_mm512_load_si512(words), high = (__m512bh)_mm512_load_si512(words + LANES);
    ROWS_UNROLL for (size_t r = 0; r < rows; r++) {
        __m512bh value = last ? pair_broadcast_last(x[r] + k) : pair_broadcast(x[r] + k);
        sums[r][0] = _mm512_dpbf16_ps(sums[r][0], value, low);
        sums[r][1] = _mm512_dpbf16_ps(sums[r][1], value, high);
    }
}

// `rows` is a constant in each copy. fetches: the first tile's words fetch for all.
PANEL_INLINE void multiply_rows(const struct block *b, size_t row, size_t rows, bool fetches) {
    const struct along_args *a = b->args;
    const bool far = fetch_as_zen4() || fetch_as_zen5(), begins = b->k == 0 && !a->goes_on;
    const uint32_t taken = b->columns < COLUMNS ? (1u << b->columns) - 1 : ~0u;
    const __mmask16 low = (__mmask16)taken, high = (__mmask16)(taken >> LANES);
    const uint16_t *x[ROWS];
    __m512 sums[ROWS][2];
    ROWS_UNROLL for (size_t r = 0; r < rows; r++) {
        const float *from = a->sums + (row + r) * a->sums_stride + b->column;
        x[r] = (const uint16_t *)a->x[row + r] + b->k;
        sums[r][0] = begins ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(low, from);
        sums[r][1] = begins ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(high, from + LANES);
    }
    for (size_t word = 0; word < b->depth / 2; word++) {
        if (fetches) {
            fetch_next(b, word, far);
        }
        multiply_word(sums, rows, x, 2 * word, false, b->words[word]);
    }
    if (b->depth % 2) {
        multiply_word(sums, rows, x, b->depth - 1, true, b->words[b->depth / 2]);
    }
    ROWS_UNROLL for (size_t r = 0; r < rows; r++) {
        float *to = a->sums + (row + r) * a->sums_stride + b->column;
        _mm512_mask_storeu_ps(to, low, sums[r][0]);
        _mm512_mask_storeu_ps(to + LANES, high, sums[r][1]);
    }
}

#define MULTIPLY(rows)                                                                                                             \
    static void multiply_##rows(const struct block *b, size_t row, bool fetches) {                                                 \
        multiply_rows(b, row, rows, fetches);                                                                                      \
    }

MULTIPLY(1)
MULTIPLY(2)
MULTIPLY(3)
MULTIPLY(4)
MULTIPLY(5)
MULTIPLY(6)
MULTIPLY(7)
MULTIPLY(8)
MULTIPLY(9)
MULTIPLY(10)
MULTIPLY(11)
MULTIPLY(12)

static void multiply_tile(const struct block *b, size_t row, size_t rows, bool fetches) {
    static void (*const TILES[ROWS])(const struct block *, size_t, bool) = {
        multiply_1, multiply_2, multiply_3, multiply_4,  multiply_5,  multiply_6,
        multiply_7, multiply_8, multiply_9, multiply_10, multiply_11, multiply_12,
    };
    INVARIANT(rows >= 1 && rows <= ROWS);
    TILES[rows - 1](b, row, fetches);
}

// Rows of the tile that begins at `row`: tiles are as even as can be. Of six there are products enough under way for Zen 4, which
// is .91 (b2048) to .96 (eight rows) as fast by more.
static size_t tile_rows(size_t rows, size_t row) {
    size_t most = fetch_as_zen4() ? PANEL_TILE : ROWS;
    size_t left = rows - row, tiles = (left + most - 1) / most;
    return (left + tiles - 1) / tiles;
}

void avx512bf16_along_bf16(const struct along_args *args) {
    struct block block = {.args = args};
    for (; block.column < args->columns; block.column += COLUMNS) {
        block.columns = args->columns - block.column < COLUMNS ? args->columns - block.column : COLUMNS;
        for (block.k = 0; block.k < args->k; block.k += block.depth) {
            block.depth = args->k - block.k < 2 * WORDS ? args->k - block.k : 2 * WORDS;
            find_next(&block);
            turn(&block);
            for (size_t row = 0, rows; row < args->rows; row += rows) {
                rows = tile_rows(args->rows, row);
                multiply_tile(&block, row, rows, row == 0 && block.next);
            }
        }
    }
}
#endif
