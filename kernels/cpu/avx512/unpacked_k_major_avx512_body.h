// unpacked_k_major.h's kernels by vectors of 16 words: 32 columns at a time, 64 words of each, turned into a block that stays in
// L1. While up to 12 rows multiply it the next block is turned, and the lines of the one after that are fetched: turning's shuffles
// find the ports that products leave free.
//
// A word is 4 bytes of a column as it lies in memory: an f32, a pair of 16 bits or a quad of int8. The including file defines
//   K_MAJOR_X_SIZE                      bytes of an element of x
//   word_multiply(dtype, sums, rows, x, k, count, words)   adds the products of its k, `count` of them, and of each x from k on
// before it includes this, and makes its functions by K_MAJOR_FUNCTION. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_UNPACKED_K_MAJOR_AVX512_BODY_H
#define EXPERTD_KERNELS_CPU_AVX512_UNPACKED_K_MAJOR_AVX512_BODY_H

#include <immintrin.h>

#include "base/err.h"
#include "kernels/cpu/avx512/transpose_avx512.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/cpu/unpacked_k_major.h"

enum {
    K_MAJOR_COLUMNS = 2 * TRANSPOSE_LINES,
    K_MAJOR_WORDS = 64, // of a block: four lines of each column
    K_MAJOR_LINE = 64,  // bytes
    K_MAJOR_LINES = K_MAJOR_WORDS * 4 / K_MAJOR_LINE,
    K_MAJOR_RUN = 2 * TRANSPOSE_WORDS,                                                 // words of a piece's lines
    K_MAJOR_PIECES = K_MAJOR_WORDS * K_MAJOR_COLUMNS / (K_MAJOR_RUN * TRANSPOSE_HALF), // that a block is turned in
    K_MAJOR_PIECE_WORDS = K_MAJOR_WORDS / K_MAJOR_PIECES,                              // multiplied meanwhile
    K_MAJOR_ROWS = 12, // of a tile: 24 sums, of which a CPU that starts two products a cycle needs 12 at once
};
_Static_assert(K_MAJOR_WORDS == 2 * K_MAJOR_RUN, "pieces come in pairs");

// Some words of some columns.
struct k_major_place {
    size_t column, columns; // K_MAJOR_COLUMNS, or what is left; 0: there is nothing
    size_t k, depth;
};

typedef uint32_t k_major_words[K_MAJOR_WORDS][K_MAJOR_COLUMNS] __attribute__((aligned(64)));

struct k_major_block {
    const struct k_major_args *args;
    const int32_t *begin; // [rows] added to int8's sums at first; NULL: nothing
    struct k_major_place now, next;
    uint32_t (*words)[K_MAJOR_COLUMNS], (*transposed)[K_MAJOR_COLUMNS]; // of now, of next
    uintptr_t after;                                                    // the first line after the next's; 0: there is none
};

// k of a word: a constant, where dtype is one.
PANEL_INLINE size_t k_major_word_k(enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_F32 ? 1 : dtype == EXPERTD_DTYPE_I8 ? 4 : 2;
}

PANEL_INLINE size_t k_major_size(enum expertd_dtype dtype) {
    return sizeof(uint32_t) / k_major_word_k(dtype);
}

static uintptr_t k_major_line(const struct k_major_args *a, const struct k_major_place *place, size_t size) {
    return place->columns ? (uintptr_t)a->weights + place->column * a->stride + place->k * size : 0;
}

// From `column` and `k` on.
static struct k_major_place k_major_place_at(const struct k_major_args *a, size_t column, size_t k, size_t most) {
    struct k_major_place place = {.column = column, .k = k};
    size_t columns = column < a->columns ? a->columns - column : 0;
    place.columns = columns < K_MAJOR_COLUMNS ? columns : K_MAJOR_COLUMNS;
    place.depth = a->k - k < most ? a->k - k : most;
    return place;
}

// The same columns' next k, or the next columns' first.
static struct k_major_place k_major_after(const struct k_major_args *a, const struct k_major_place *place, size_t most) {
    size_t k = place->k + place->depth;
    return k < a->k ? k_major_place_at(a, place->column, k, most) : k_major_place_at(a, place->column + K_MAJOR_COLUMNS, 0, most);
}

// A piece of a place: K_MAJOR_RUN words of TRANSPOSE_HALF columns.
PANEL_INLINE void k_major_transpose(const struct k_major_args *a, const struct k_major_place *place, size_t piece,
                                    uint32_t (*to)[K_MAJOR_COLUMNS], enum expertd_dtype dtype) {
    const size_t column = piece / 2 * TRANSPOSE_HALF, word = piece % 2 * K_MAJOR_RUN, size = k_major_size(dtype);
    const size_t at = word * sizeof(uint32_t), bytes = place->columns ? place->depth * size : 0;
    const char *from = (const char *)a->weights + (place->column + column) * a->stride + place->k * size + at;
    if (place->columns == K_MAJOR_COLUMNS && bytes >= at + K_MAJOR_RUN * sizeof(uint32_t)) {
        transpose_runs_to(from, a->stride, &to[word][column], K_MAJOR_COLUMNS);
        return;
    }
    for (size_t w = word, begin = at; w < word + K_MAJOR_RUN && begin < bytes; w += TRANSPOSE_WORDS, begin = w * sizeof(uint32_t)) {
        size_t columns = place->columns < column ? 0 : place->columns - column;
        transpose_some_to(from + begin - at, a->stride, columns, bytes - begin, &to[w][column], K_MAJOR_COLUMNS);
    }
}

// The lines that are fetched with each word: two, so that two words fetch a column's.
struct k_major_prefetch {
    uintptr_t line;
    size_t step, stride; // to the next word's, from column to column
    bool far;
};
_Static_assert(2 * K_MAJOR_WORDS == K_MAJOR_COLUMNS * K_MAJOR_LINES && K_MAJOR_LINES == 4, "as many as there are");

// Where there is nothing to fetch, what is in L1 anyway.
static struct k_major_prefetch k_major_prefetch_begin(const struct k_major_block *b) {
    return (struct k_major_prefetch){.line = b->after ? b->after : (uintptr_t)b->words,
                                     .step = 2 * K_MAJOR_LINE,
                                     .stride = b->after ? b->args->stride : 0,
                                     .far = prefetch_as_zen4() || prefetch_as_zen5()};
}

PANEL_INLINE void k_major_prefetch_two(struct k_major_prefetch *prefetch) {
    prefetch_into((const void *)prefetch->line, prefetch->far);
    prefetch_into((const void *)(prefetch->line + K_MAJOR_LINE), prefetch->far);
    prefetch->line += prefetch->step;
    prefetch->step = prefetch->stride - prefetch->step;
}

// Of int8: 16 int32.
PANEL_INLINE __m512 k_major_add_i32(__m512 sums, int32_t more) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sums), _mm512_set1_epi32(more)));
}

// `rows` and `dtype` are constants in each copy. first: the tile that turns and fetches for all.
PANEL_INLINE void k_major_multiply_rows(const struct k_major_block *b, size_t row, bool first, enum expertd_dtype dtype,
                                        size_t rows) {
    const struct k_major_args *a = b->args;
    const struct k_major_place now = b->now;
    const bool begins = now.k == 0;
    const uint32_t taken = now.columns < K_MAJOR_COLUMNS ? (1u << now.columns) - 1 : ~0u;
    const __mmask16 low = (__mmask16)taken, high = (__mmask16)(taken >> TRANSPOSE_LINES);
    const size_t word_k = k_major_word_k(dtype), whole = now.depth / word_k;
    const char *x[K_MAJOR_ROWS];
    __m512 sums[K_MAJOR_ROWS][2];
    PANEL_UNROLL_16 for (size_t r = 0; r < rows; r++) {
        const float *from = a->sums + (row + r) * a->sums_stride + now.column;
        x[r] = (const char *)a->x[row + r] + now.k * K_MAJOR_X_SIZE;
        sums[r][0] = begins && !a->goes_on ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(low, from);
        sums[r][1] = begins && !a->goes_on ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(high, from + TRANSPOSE_LINES);
        if (begins && b->begin) {
            sums[r][0] = k_major_add_i32(sums[r][0], b->begin[row + r]);
            sums[r][1] = k_major_add_i32(sums[r][1], b->begin[row + r]);
        }
    }
    struct k_major_prefetch prefetch = k_major_prefetch_begin(b);
    size_t word = 0;
    for (size_t piece = 0; first && piece < K_MAJOR_PIECES; piece++) {
        k_major_transpose(a, &b->next, piece, b->transposed, dtype);
        for (size_t end = word + K_MAJOR_PIECE_WORDS; word < end && word < whole; word++) {
            k_major_prefetch_two(&prefetch);
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
        _mm512_mask_storeu_ps(to + TRANSPOSE_LINES, high, sums[r][1]);
    }
}

// Rows of the tile that begins at `row`: tiles are as even as can be.
static size_t k_major_tile_rows(size_t rows, size_t row) {
    size_t left = rows - row, tiles = (left + K_MAJOR_ROWS - 1) / K_MAJOR_ROWS;
    return (left + tiles - 1) / tiles;
}

typedef void k_major_tile(const struct k_major_block *b, size_t row, bool first);

PANEL_INLINE void k_major_blocks(const struct k_major_args *args, const int32_t *begin, enum expertd_dtype dtype,
                                 k_major_tile *const *tiles) {
    k_major_words memory[2];
    const size_t most = K_MAJOR_WORDS * k_major_word_k(dtype);
    struct k_major_block b = {.args = args, .begin = begin, .words = memory[0], .transposed = memory[1]};
    b.now = k_major_place_at(args, 0, 0, most);
    for (size_t piece = 0; piece < K_MAJOR_PIECES; piece++) {
        k_major_transpose(args, &b.now, piece, b.words, dtype);
    }
    while (b.now.columns) {
        b.next = k_major_after(args, &b.now, most);
        struct k_major_place after = k_major_after(args, &b.next, most);
        b.after = k_major_line(args, &after, k_major_size(dtype));
        for (size_t row = 0, rows; row < args->rows; row += rows) {
            rows = k_major_tile_rows(args->rows, row);
            INVARIANT(rows >= 1 && rows <= K_MAJOR_ROWS);
            tiles[rows - 1](&b, row, row == 0);
        }
        uint32_t(*words)[K_MAJOR_COLUMNS] = b.words;
        b.words = b.transposed, b.transposed = words;
        b.now = b.next;
    }
}

#define K_MAJOR_TILE(name, dtype, rows)                                                                                            \
    static void name##_tile_##rows(const struct k_major_block *b, size_t row, bool first) {                                        \
        k_major_multiply_rows(b, row, first, dtype, rows);                                                                         \
    }

// static void name(const struct k_major_args *args, const int32_t *begin): weights of `dtype`.
#define K_MAJOR_FUNCTION(name, dtype)                                                                                              \
    K_MAJOR_TILE(name, dtype, 1)                                                                                                   \
    K_MAJOR_TILE(name, dtype, 2)                                                                                                   \
    K_MAJOR_TILE(name, dtype, 3)                                                                                                   \
    K_MAJOR_TILE(name, dtype, 4)                                                                                                   \
    K_MAJOR_TILE(name, dtype, 5)                                                                                                   \
    K_MAJOR_TILE(name, dtype, 6)                                                                                                   \
    K_MAJOR_TILE(name, dtype, 7)                                                                                                   \
    K_MAJOR_TILE(name, dtype, 8)                                                                                                   \
    K_MAJOR_TILE(name, dtype, 9)                                                                                                   \
    K_MAJOR_TILE(name, dtype, 10)                                                                                                  \
    K_MAJOR_TILE(name, dtype, 11)                                                                                                  \
    K_MAJOR_TILE(name, dtype, 12)                                                                                                  \
    static void name(const struct k_major_args *args, const int32_t *begin) {                                                      \
        static k_major_tile *const TILES[K_MAJOR_ROWS] = {                                                                         \
            name##_tile_1, name##_tile_2, name##_tile_3, name##_tile_4,  name##_tile_5,  name##_tile_6,                            \
            name##_tile_7, name##_tile_8, name##_tile_9, name##_tile_10, name##_tile_11, name##_tile_12,                           \
        };                                                                                                                         \
        k_major_blocks(args, begin, dtype, TILES);                                                                                 \
    }

#endif
