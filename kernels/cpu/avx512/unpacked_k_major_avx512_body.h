// unpacked_k_major.h's kernels by vectors of 16 words: 32 columns at a time, 64 words of each, turned into a block that stays in
// L1. While up to 12 rows multiply it the next block is turned, and the lines of the one after that are fetched: turning's shuffles
// find the ports that products leave free.
//
// A word is 4 bytes of a column as it lies in memory: an f32, a pair of 16 bits or a quad of int8. The including file defines
//   ALONG_X_SIZE                      bytes of an element of x
//   word_multiply(dtype, sums, rows, x, k, count, words)   adds the products of its k, `count` of them, and of each x from k on
// before it includes this, and makes its functions by ALONG_FUNCTION. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_UNPACKED_K_MAJOR_AVX512_BODY_H
#define EXPERTD_KERNELS_CPU_AVX512_UNPACKED_K_MAJOR_AVX512_BODY_H

#include <immintrin.h>

#include "base/err.h"
#include "kernels/cpu/avx512/transpose_avx512.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/cpu/unpacked_k_major.h"

enum {
    ALONG_COLUMNS = 2 * TURN_LINES,
    ALONG_WORDS = 64, // of a block: four lines of each column
    ALONG_LINE = 64,  // bytes
    ALONG_LINES = ALONG_WORDS * 4 / ALONG_LINE,
    ALONG_RUN = 2 * TURN_WORDS,                                           // words of a piece's lines
    ALONG_PIECES = ALONG_WORDS * ALONG_COLUMNS / (ALONG_RUN * TURN_HALF), // that a block is turned in
    ALONG_PIECE_WORDS = ALONG_WORDS / ALONG_PIECES,                       // multiplied meanwhile
    ALONG_ROWS = 12, // of a tile: 24 sums, of which a CPU that starts two products a cycle needs 12 at once
};
_Static_assert(ALONG_WORDS == 2 * ALONG_RUN, "pieces come in pairs");

// Some words of some columns.
struct along_place {
    size_t column, columns; // ALONG_COLUMNS, or what is left; 0: there is nothing
    size_t k, depth;
};

typedef uint32_t along_words[ALONG_WORDS][ALONG_COLUMNS] __attribute__((aligned(64)));

struct along_block {
    const struct along_args *args;
    const int32_t *begin; // [rows] added to int8's sums at first; NULL: nothing
    struct along_place now, next;
    uint32_t (*words)[ALONG_COLUMNS], (*turned)[ALONG_COLUMNS]; // of now, of next
    uintptr_t after;                                            // the first line after the next's; 0: there is none
};

// k of a word: a constant, where dtype is one.
PANEL_INLINE size_t along_word_k(enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_F32 ? 1 : dtype == EXPERTD_DTYPE_I8 ? 4 : 2;
}

PANEL_INLINE size_t along_size(enum expertd_dtype dtype) {
    return sizeof(uint32_t) / along_word_k(dtype);
}

static uintptr_t along_line(const struct along_args *a, const struct along_place *place, size_t size) {
    return place->columns ? (uintptr_t)a->weights + place->column * a->stride + place->k * size : 0;
}

// From `column` and `k` on.
static struct along_place along_place_at(const struct along_args *a, size_t column, size_t k, size_t most) {
    struct along_place place = {.column = column, .k = k};
    size_t columns = column < a->columns ? a->columns - column : 0;
    place.columns = columns < ALONG_COLUMNS ? columns : ALONG_COLUMNS;
    place.depth = a->k - k < most ? a->k - k : most;
    return place;
}

// The same columns' next k, or the next columns' first.
static struct along_place along_after(const struct along_args *a, const struct along_place *place, size_t most) {
    size_t k = place->k + place->depth;
    return k < a->k ? along_place_at(a, place->column, k, most) : along_place_at(a, place->column + ALONG_COLUMNS, 0, most);
}

// A piece of a place: ALONG_RUN words of TURN_HALF columns.
PANEL_INLINE void along_turn(const struct along_args *a, const struct along_place *place, size_t piece,
                             uint32_t (*to)[ALONG_COLUMNS], enum expertd_dtype dtype) {
    const size_t column = piece / 2 * TURN_HALF, word = piece % 2 * ALONG_RUN, size = along_size(dtype);
    const size_t at = word * sizeof(uint32_t), bytes = place->columns ? place->depth * size : 0;
    const char *from = (const char *)a->weights + (place->column + column) * a->stride + place->k * size + at;
    if (place->columns == ALONG_COLUMNS && bytes >= at + ALONG_RUN * sizeof(uint32_t)) {
        turn_runs_to(from, a->stride, &to[word][column], ALONG_COLUMNS);
        return;
    }
    for (size_t w = word, begin = at; w < word + ALONG_RUN && begin < bytes; w += TURN_WORDS, begin = w * sizeof(uint32_t)) {
        size_t columns = place->columns < column ? 0 : place->columns - column;
        turn_some_to(from + begin - at, a->stride, columns, bytes - begin, &to[w][column], ALONG_COLUMNS);
    }
}

// The lines that are fetched with each word: two, so that two words fetch a column's.
struct along_fetch {
    uintptr_t line;
    size_t step, stride; // to the next word's, from column to column
    bool far;
};
_Static_assert(2 * ALONG_WORDS == ALONG_COLUMNS * ALONG_LINES && ALONG_LINES == 4, "as many as there are");

// Where there is nothing to fetch, what is in L1 anyway.
static struct along_fetch along_fetch_begin(const struct along_block *b) {
    return (struct along_fetch){.line = b->after ? b->after : (uintptr_t)b->words,
                                .step = 2 * ALONG_LINE,
                                .stride = b->after ? b->args->stride : 0,
                                .far = fetch_as_zen4() || fetch_as_zen5()};
}

PANEL_INLINE void along_fetch_two(struct along_fetch *fetch) {
    fetch_into((const void *)fetch->line, fetch->far);
    fetch_into((const void *)(fetch->line + ALONG_LINE), fetch->far);
    fetch->line += fetch->step;
    fetch->step = fetch->stride - fetch->step;
}

// Of int8: 16 int32.
PANEL_INLINE __m512 along_add_i32(__m512 sums, int32_t more) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sums), _mm512_set1_epi32(more)));
}

// `rows` and `dtype` are constants in each copy. first: the tile that turns and fetches for all.
PANEL_INLINE void along_multiply_rows(const struct along_block *b, size_t row, bool first, enum expertd_dtype dtype, size_t rows) {
    const struct along_args *a = b->args;
    const struct along_place now = b->now;
    const bool begins = now.k == 0;
    const uint32_t taken = now.columns < ALONG_COLUMNS ? (1u << now.columns) - 1 : ~0u;
    const __mmask16 low = (__mmask16)taken, high = (__mmask16)(taken >> TURN_LINES);
    const size_t word_k = along_word_k(dtype), whole = now.depth / word_k;
    const char *x[ALONG_ROWS];
    __m512 sums[ALONG_ROWS][2];
    PANEL_UNROLL_16 for (size_t r = 0; r < rows; r++) {
        const float *from = a->sums + (row + r) * a->sums_stride + now.column;
        x[r] = (const char *)a->x[row + r] + now.k * ALONG_X_SIZE;
        sums[r][0] = begins && !a->goes_on ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(low, from);
        sums[r][1] = begins && !a->goes_on ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(high, from + TURN_LINES);
        if (begins && b->begin) {
            sums[r][0] = along_add_i32(sums[r][0], b->begin[row + r]);
            sums[r][1] = along_add_i32(sums[r][1], b->begin[row + r]);
        }
    }
    struct along_fetch fetch = along_fetch_begin(b);
    size_t word = 0;
    for (size_t piece = 0; first && piece < ALONG_PIECES; piece++) {
        along_turn(a, &b->next, piece, b->turned, dtype);
        for (size_t end = word + ALONG_PIECE_WORDS; word < end && word < whole; word++) {
            along_fetch_two(&fetch);
            word_multiply(dtype, sums, rows, x, word * word_k, word_k, b->words[word]);
        }
    }
    for (; word < whole; word++) {
        word_multiply(dtype, sums, rows, x, word * word_k, word_k, b->words[word]);
    }
    if (now.depth > whole * word_k) {
        word_multiply(dtype, sums, rows, x, whole * word_k, now.depth - whole * word_k, b->words[whole]);
    }
    PANEL_UNROLL_16 for (size_t r = 0; r < rows; r++) {
        float *to = a->sums + (row + r) * a->sums_stride + now.column;
        _mm512_mask_storeu_ps(to, low, sums[r][0]);
        _mm512_mask_storeu_ps(to + TURN_LINES, high, sums[r][1]);
    }
}

// Rows of the tile that begins at `row`: tiles are as even as can be.
static size_t along_tile_rows(size_t rows, size_t row) {
    size_t left = rows - row, tiles = (left + ALONG_ROWS - 1) / ALONG_ROWS;
    return (left + tiles - 1) / tiles;
}

typedef void along_tile(const struct along_block *b, size_t row, bool first);

PANEL_INLINE void along_blocks(const struct along_args *args, const int32_t *begin, enum expertd_dtype dtype,
                               along_tile *const *tiles) {
    along_words memory[2];
    const size_t most = ALONG_WORDS * along_word_k(dtype);
    struct along_block b = {.args = args, .begin = begin, .words = memory[0], .turned = memory[1]};
    b.now = along_place_at(args, 0, 0, most);
    for (size_t piece = 0; piece < ALONG_PIECES; piece++) {
        along_turn(args, &b.now, piece, b.words, dtype);
    }
    while (b.now.columns) {
        b.next = along_after(args, &b.now, most);
        struct along_place after = along_after(args, &b.next, most);
        b.after = along_line(args, &after, along_size(dtype));
        for (size_t row = 0, rows; row < args->rows; row += rows) {
            rows = along_tile_rows(args->rows, row);
            INVARIANT(rows >= 1 && rows <= ALONG_ROWS);
            tiles[rows - 1](&b, row, row == 0);
        }
        uint32_t(*words)[ALONG_COLUMNS] = b.words;
        b.words = b.turned, b.turned = words;
        b.now = b.next;
    }
}

#define ALONG_TILE(name, dtype, rows)                                                                                              \
    static void name##_tile_##rows(const struct along_block *b, size_t row, bool first) {                                          \
        along_multiply_rows(b, row, first, dtype, rows);                                                                           \
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
