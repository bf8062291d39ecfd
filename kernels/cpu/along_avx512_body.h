// along.h's kernels by vectors of 16 words: 32 columns at a time, 64 words of each, turned into a block that stays in L1, where up
// to 12 rows at a time multiply it while the lines of the next block are fetched.
//
// A word is 4 bytes of a column as it lies in memory: an f32, a pair of 16 bits or a quad of int8. The including file defines
//   ALONG_X_SIZE                      bytes of an element of x
//   word_kept(dtype, turned)          a word of 16 columns as it is kept
//   word_multiply(dtype, sums, rows, x, k, count, words)   adds the products of its k, `count` of them, and of each x from k on
// before it includes this, and makes its functions by ALONG_FUNCTION. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_ALONG_AVX512_BODY_H
#define EXPERTD_KERNELS_CPU_ALONG_AVX512_BODY_H

#include <immintrin.h>

#include "kernels/along.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/turn_avx512.h"

enum {
    ALONG_COLUMNS = 2 * TURN_LINES,
    ALONG_WORDS = 64, // of a block: four lines of each column
    ALONG_LINE = 64,  // bytes
    ALONG_LINES = ALONG_WORDS * 4 / ALONG_LINE,
    ALONG_FEW = 2,   // rows: turning takes longer than multiplying, and lines are fetched meanwhile
    ALONG_ROWS = 12, // of a tile: 24 sums, of which a CPU that starts two products a cycle needs 12 at once
};
_Static_assert(ALONG_WORDS % TURN_WORDS == 0, "whole turns");

// Some words of some columns.
struct along_block {
    const struct along_args *args;
    const int32_t *begin;   // [rows] added to int8's sums at first; NULL: nothing
    size_t column, columns; // ALONG_COLUMNS, or what is left
    size_t k, depth;
    uint32_t words[ALONG_WORDS][ALONG_COLUMNS] __attribute__((aligned(64)));
    uintptr_t next; // the first column's line that is fetched next; 0: nothing is
};

// k of a word: a constant, where dtype is one.
PANEL_INLINE size_t along_word_k(enum dtype dtype) {
    return dtype == DTYPE_F32 ? 1 : dtype == DTYPE_I8 ? 4 : 2;
}

// The lines of the next block: the same columns' or the next columns' first.
static void along_find_next(struct along_block *b) {
    const struct along_args *a = b->args;
    size_t k = b->k + b->depth, column = b->column;
    if (k == a->k) {
        k = 0;
        column += ALONG_COLUMNS;
    }
    b->next = column < a->columns ? (uintptr_t)a->weights + column * a->stride + k * dtype_size(a->dtype) : 0;
}

// fetches: for each line that is turned, the next block's.
PANEL_INLINE void along_turn(struct along_block *b, bool fetches, enum dtype dtype) {
    const struct along_args *a = b->args;
    const bool far = fetch_as_zen4() || fetch_as_zen5();
    const size_t size = sizeof(uint32_t) / along_word_k(dtype), bytes = b->depth * size;
    const char *src = (const char *)a->weights + b->column * a->stride + b->k * size;
    for (size_t at = 0; at < bytes; at += TURN_WORDS * sizeof(uint32_t)) {
        size_t word = at / sizeof(uint32_t), left = bytes - at;
        for (size_t column = 0; column < ALONG_COLUMNS; column += TURN_LINES) {
            const char *from = src + column * a->stride + at;
            __m512i rows[4][4];
            PANEL_UNROLL_16 for (size_t l = 0; l < TURN_LINES && fetches; l++) {
                fetch_into((const void *)(b->next + (column + l) * a->stride + at), far);
            }
            if (b->columns == ALONG_COLUMNS && left >= TURN_WORDS * sizeof(uint32_t)) {
                turn_lines(from, a->stride, rows);
            } else {
                turn_some_lines(from, a->stride, b->columns < column ? 0 : b->columns - column, left, rows);
            }
            PANEL_UNROLL for (size_t j = 0; j < 4; j++) {
                __m512i turned[4];
                turn_rows(rows, j, turned);
                PANEL_UNROLL for (size_t i = 0; i < 4; i++) {
                    _mm512_store_si512(&b->words[word + j + 4 * i][column], word_kept(dtype, turned[i]));
                }
            }
        }
    }
}

// Two lines of the next block with each word: all of a column's before the next column's.
PANEL_INLINE void along_fetch_next(const struct along_block *b, size_t word, bool far) {
    PANEL_UNROLL for (size_t i = 0; i < 2; i++) {
        size_t line = 2 * word + i;
        fetch_into((const void *)(b->next + line / ALONG_LINES * b->args->stride + line % ALONG_LINES * ALONG_LINE), far);
    }
}
_Static_assert(2 * ALONG_WORDS == ALONG_COLUMNS * ALONG_LINES, "as many as there are");

// Of int8: 16 int32.
PANEL_INLINE __m512 along_add_i32(__m512 sums, int32_t more) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sums), _mm512_set1_epi32(more)));
}

// `rows` and `dtype` are constants in each copy. fetches: the first tile's words fetch for all.
PANEL_INLINE void along_multiply_rows(const struct along_block *b, size_t row, bool fetches, enum dtype dtype, size_t rows) {
    const struct along_args *a = b->args;
    const bool far = fetch_as_zen4() || fetch_as_zen5(), begins = b->k == 0;
    const uint32_t taken = b->columns < ALONG_COLUMNS ? (1u << b->columns) - 1 : ~0u;
    const __mmask16 low = (__mmask16)taken, high = (__mmask16)(taken >> TURN_LINES);
    const size_t word_k = along_word_k(dtype), whole = b->depth / word_k;
    const char *x[ALONG_ROWS];
    __m512 sums[ALONG_ROWS][2];
    PANEL_UNROLL_16 for (size_t r = 0; r < rows; r++) {
        const float *from = a->sums + (row + r) * a->sums_stride + b->column;
        x[r] = (const char *)a->x[row + r] + b->k * ALONG_X_SIZE;
        sums[r][0] = begins && !a->goes_on ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(low, from);
        sums[r][1] = begins && !a->goes_on ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(high, from + TURN_LINES);
        if (begins && b->begin) {
            sums[r][0] = along_add_i32(sums[r][0], b->begin[row + r]);
            sums[r][1] = along_add_i32(sums[r][1], b->begin[row + r]);
        }
    }
    for (size_t word = 0; word < whole; word++) {
        if (fetches) {
            along_fetch_next(b, word, far);
        }
        word_multiply(dtype, sums, rows, x, word * word_k, word_k, b->words[word]);
    }
    if (b->depth > whole * word_k) {
        word_multiply(dtype, sums, rows, x, whole * word_k, b->depth - whole * word_k, b->words[whole]);
    }
    PANEL_UNROLL_16 for (size_t r = 0; r < rows; r++) {
        float *to = a->sums + (row + r) * a->sums_stride + b->column;
        _mm512_mask_storeu_ps(to, low, sums[r][0]);
        _mm512_mask_storeu_ps(to + TURN_LINES, high, sums[r][1]);
    }
}

// Rows of the tile that begins at `row`: tiles are as even as can be. Of six there are products enough under way for Zen 4, which
// is .91 (b2048) to .96 (eight rows) as fast by more, but where words are widened for each tile (F16 1.05).
PANEL_INLINE size_t along_tile_rows(size_t rows, size_t row, bool widened) {
    size_t most = fetch_as_zen4() && !widened ? PANEL_TILE : ALONG_ROWS;
    size_t left = rows - row, tiles = (left + most - 1) / most;
    return (left + tiles - 1) / tiles;
}

typedef void along_tile(const struct along_block *b, size_t row, bool fetches);

PANEL_INLINE void along_blocks(const struct along_args *args, const int32_t *begin, enum dtype dtype, along_tile *const *tiles) {
    struct along_block block = {.args = args, .begin = begin};
    const size_t most = ALONG_WORDS * along_word_k(dtype);
    const bool few = args->rows <= ALONG_FEW, widened = ALONG_X_SIZE > sizeof(uint32_t) / along_word_k(dtype);
    for (; block.column < args->columns; block.column += ALONG_COLUMNS) {
        block.columns = args->columns - block.column < ALONG_COLUMNS ? args->columns - block.column : ALONG_COLUMNS;
        for (block.k = 0; block.k < args->k; block.k += block.depth) {
            block.depth = args->k - block.k < most ? args->k - block.k : most;
            along_find_next(&block);
            along_turn(&block, few && block.next, dtype);
            for (size_t row = 0, rows; row < args->rows; row += rows) {
                rows = along_tile_rows(args->rows, row, widened);
                INVARIANT(rows >= 1 && rows <= ALONG_ROWS);
                tiles[rows - 1](&block, row, row == 0 && !few && block.next);
            }
        }
    }
}

#define ALONG_TILE(name, dtype, rows)                                                                                              \
    static void name##_tile_##rows(const struct along_block *b, size_t row, bool fetches) {                                        \
        along_multiply_rows(b, row, fetches, dtype, rows);                                                                         \
    }

// static void name(const struct along_args *args, const int32_t *begin): weights of `dtype`.
#define ALONG_FUNCTION(name, dtype)                                                                                                \
    ALONG_TILE(name, dtype, 1)                                                                                                     \
    ALONG_TILE(name, dtype, 2)                                                                                                     \
    ALONG_TILE(name, dtype, 3)                                                                                                     \
    ALONG_TILE(name, dtype, 4)                                                                                                     \
    ALONG_TILE(name, dtype, 5)                                                                                                     \
    ALONG_TILE(name, dtype, 6)                                                                                                     \
    ALONG_TILE(name, dtype, 7)                                                                                                     \
    ALONG_TILE(name, dtype, 8)                                                                                                     \
    ALONG_TILE(name, dtype, 9)                                                                                                     \
    ALONG_TILE(name, dtype, 10)                                                                                                    \
    ALONG_TILE(name, dtype, 11)                                                                                                    \
    ALONG_TILE(name, dtype, 12)                                                                                                    \
    static void name(const struct along_args *args, const int32_t *begin) {                                                        \
        static along_tile *const TILES[ALONG_ROWS] = {                                                                             \
            name##_tile_1, name##_tile_2, name##_tile_3, name##_tile_4,  name##_tile_5,  name##_tile_6,                            \
            name##_tile_7, name##_tile_8, name##_tile_9, name##_tile_10, name##_tile_11, name##_tile_12,                           \
        };                                                                                                                         \
        along_blocks(args, begin, dtype, TILES);                                                                                   \
    }

#endif
