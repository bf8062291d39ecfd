// The kernels of unpacked_k_major.h with 16-word vectors. Blocks of 32 columns by 64 words are transposed into a buffer that stays
// in L1. While up to 12 rows multiply one block, the next block is transposed, since shuffles use ports that the products leave
// free, and the lines of the block after it are prefetched.
//
// A word is 4 consecutive bytes of a column: one f32, a pair of 16-bit elements or a quad of int8. The including file defines,
// before it includes this,
//   K_MAJOR_X_SIZE                      bytes of an element of x
//   word_multiply(dtype, sums, rows, x, k, count, words)   adds the products of a word's `count` k with each row's x
// and instantiates its functions with K_MAJOR_FUNCTION. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_UNPACKED_K_MAJOR_AVX512_BODY_H
#define EXPERTD_KERNELS_CPU_AVX512_UNPACKED_K_MAJOR_AVX512_BODY_H

#include <immintrin.h>

#include "base/err.h"
#include "kernels/cpu/avx512/transpose_avx512.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/backend/unpacked_k_major.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    K_MAJOR_COLUMNS = 2 * TRANSPOSE_LINES,
    K_MAJOR_WORDS = 64, // words of a block: four cache lines of each column
    K_MAJOR_LINE = 64,  // bytes of a cache line
    K_MAJOR_LINES = K_MAJOR_WORDS * 4 / K_MAJOR_LINE,
    K_MAJOR_RUN = 2 * TRANSPOSE_WORDS,                                                 // words of each column in a piece
    K_MAJOR_PIECES = K_MAJOR_WORDS * K_MAJOR_COLUMNS / (K_MAJOR_RUN * TRANSPOSE_HALF), // pieces that a block is transposed in
    K_MAJOR_PIECE_WORDS = K_MAJOR_WORDS / K_MAJOR_PIECES, // words that are multiplied between two pieces
    K_MAJOR_ROWS = 12, // rows of a tile at most: 24 sums; a CPU that starts two products a cycle needs 12 independent ones
};
_Static_assert(K_MAJOR_WORDS == 2 * K_MAJOR_RUN, "a column has two pieces");

// A rectangle of weights.
struct k_major_region {
    size_t column, columns; // at most K_MAJOR_COLUMNS; 0: empty, past the last column
    size_t k, depth;
};

typedef uint32_t k_major_words[K_MAJOR_WORDS][K_MAJOR_COLUMNS] __attribute__((aligned(64)));

struct k_major_block {
    const struct k_major_args *args;
    const int32_t *offsets; // [rows] initial values of int8's sums; NULL: 0
    struct k_major_region current, next;
    uint32_t (*words)[K_MAJOR_COLUMNS], (*next_words)[K_MAJOR_COLUMNS]; // transposed: of current, of next
    uintptr_t prefetch_line; // address of the first line of the block after `next`; 0: there is none
};

// k of a word: a constant if dtype is one.
PANEL_INLINE size_t k_major_word_k(enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_F32 ? 1 : dtype == EXPERTD_DTYPE_I8 ? 4 : 2;
}

PANEL_INLINE size_t k_major_element_size(enum expertd_dtype dtype) {
    return sizeof(uint32_t) / k_major_word_k(dtype);
}

static uintptr_t k_major_line_address(const struct k_major_args *a, const struct k_major_region *region, size_t size) {
    return region->columns ? (uintptr_t)a->weights + region->column * a->stride + region->k * size : 0;
}

// The region that begins at `column` and `k`.
static struct k_major_region k_major_region_at(const struct k_major_args *a, size_t column, size_t k, size_t depth_limit) {
    struct k_major_region region = {.column = column, .k = k};
    size_t columns = column < a->columns ? a->columns - column : 0;
    region.columns = columns < K_MAJOR_COLUMNS ? columns : K_MAJOR_COLUMNS;
    region.depth = a->k - k < depth_limit ? a->k - k : depth_limit;
    return region;
}

// The same columns' next k, or the first k of the next columns.
static struct k_major_region k_major_next_region(const struct k_major_args *a, const struct k_major_region *region,
                                                 size_t depth_limit) {
    size_t k = region->k + region->depth;
    return k < a->k ? k_major_region_at(a, region->column, k, depth_limit)
                    : k_major_region_at(a, region->column + K_MAJOR_COLUMNS, 0, depth_limit);
}

// Transposes one piece of a region: K_MAJOR_RUN words of TRANSPOSE_HALF columns.
PANEL_INLINE void k_major_transpose(const struct k_major_args *a, const struct k_major_region *region, size_t piece,
                                    uint32_t (*to)[K_MAJOR_COLUMNS], enum expertd_dtype dtype) {
    const size_t column = piece / 2 * TRANSPOSE_HALF, word = piece % 2 * K_MAJOR_RUN, size = k_major_element_size(dtype);
    const size_t at = word * sizeof(uint32_t), bytes = region->columns ? region->depth * size : 0;
    const char *from = (const char *)a->weights + (region->column + column) * a->stride + region->k * size + at;
    if (region->columns == K_MAJOR_COLUMNS && bytes >= at + K_MAJOR_RUN * sizeof(uint32_t)) {
        transpose_runs_to(from, a->stride, &to[word][column], K_MAJOR_COLUMNS);
        return;
    }
    for (size_t w = word, begin = at; w < word + K_MAJOR_RUN && begin < bytes; w += TRANSPOSE_WORDS, begin = w * sizeof(uint32_t)) {
        size_t columns = region->columns < column ? 0 : region->columns - column;
        transpose_partial_to(from + begin - at, a->stride, columns, bytes - begin, &to[w][column], K_MAJOR_COLUMNS);
    }
}

// Each word of the current block prefetches two lines, so that two words prefetch one column's four.
struct k_major_prefetch {
    uintptr_t line;
    size_t step, stride; // bytes to the next word's lines; bytes from column to column
    bool far;
};
_Static_assert(2 * K_MAJOR_WORDS == K_MAJOR_COLUMNS * K_MAJOR_LINES && K_MAJOR_LINES == 4,
               "a block prefetches as many lines as it has");

// With nothing to prefetch, it touches a line that is in L1 anyway.
static struct k_major_prefetch k_major_prefetch_begin(const struct k_major_block *b) {
    return (struct k_major_prefetch){.line = b->prefetch_line ? b->prefetch_line : (uintptr_t)b->words,
                                     .step = 2 * K_MAJOR_LINE,
                                     .stride = b->prefetch_line ? b->args->stride : 0,
                                     .far = prefetch_as_zen4() || prefetch_as_zen5()};
}

PANEL_INLINE void k_major_prefetch_two(struct k_major_prefetch *prefetch) {
    prefetch_into((const void *)prefetch->line, prefetch->far);
    prefetch_into((const void *)(prefetch->line + K_MAJOR_LINE), prefetch->far);
    prefetch->line += prefetch->step;
    prefetch->step = prefetch->stride - prefetch->step;
}

// Adds to the 16 int32 that int8's sums are.
PANEL_INLINE __m512 k_major_add_i32(__m512 sums, int32_t more) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sums), _mm512_set1_epi32(more)));
}

// `rows` and `dtype` are constants in each copy. first: the first tile of the block, which also transposes the next block and
// prefetches.
PANEL_INLINE void k_major_multiply_rows(const struct k_major_block *b, size_t row, bool first, enum expertd_dtype dtype,
                                        size_t rows) {
    const struct k_major_args *a = b->args;
    const struct k_major_region current = b->current;
    const bool begins = current.k == 0;
    const uint32_t mask = current.columns < K_MAJOR_COLUMNS ? (1u << current.columns) - 1 : ~0u;
    const __mmask16 low = (__mmask16)mask, high = (__mmask16)(mask >> TRANSPOSE_LINES);
    const size_t word_k = k_major_word_k(dtype), full_words = current.depth / word_k;
    const char *x[K_MAJOR_ROWS];
    __m512 sums[K_MAJOR_ROWS][2];
    PANEL_UNROLL_16 for (size_t r = 0; r < rows; r++) {
        const float *from = a->sums + (row + r) * a->sums_stride + current.column;
        x[r] = (const char *)a->x[row + r] + current.k * K_MAJOR_X_SIZE;
        sums[r][0] = begins && !a->accumulate ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(low, from);
        sums[r][1] = begins && !a->accumulate ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(high, from + TRANSPOSE_LINES);
        if (begins && b->offsets) {
            sums[r][0] = k_major_add_i32(sums[r][0], b->offsets[row + r]);
            sums[r][1] = k_major_add_i32(sums[r][1], b->offsets[row + r]);
        }
    }
    struct k_major_prefetch prefetch = k_major_prefetch_begin(b);
    size_t word = 0;
    for (size_t piece = 0; first && piece < K_MAJOR_PIECES; piece++) {
        k_major_transpose(a, &b->next, piece, b->next_words, dtype);
        for (size_t end = word + K_MAJOR_PIECE_WORDS; word < end && word < full_words; word++) {
            k_major_prefetch_two(&prefetch);
            word_multiply(dtype, sums, rows, x, word * word_k, word_k, b->words[word]);
        }
    }
    for (; word < full_words; word++) {
        word_multiply(dtype, sums, rows, x, word * word_k, word_k, b->words[word]);
    }
    if (current.depth > full_words * word_k) {
        word_multiply(dtype, sums, rows, x, full_words * word_k, current.depth - full_words * word_k, b->words[full_words]);
    }
    PANEL_UNROLL_16 for (size_t r = 0; r < rows; r++) {
        float *to = a->sums + (row + r) * a->sums_stride + current.column;
        _mm512_mask_storeu_ps(to, low, sums[r][0]);
        _mm512_mask_storeu_ps(to + TRANSPOSE_LINES, high, sums[r][1]);
    }
}

// Rows of the tile that begins at `row`. Tiles are as even as possible.
static size_t k_major_tile_rows(size_t rows, size_t row) {
    size_t left = rows - row, tiles = (left + K_MAJOR_ROWS - 1) / K_MAJOR_ROWS;
    return (left + tiles - 1) / tiles;
}

typedef void k_major_tile(const struct k_major_block *b, size_t row, bool first);

PANEL_INLINE void k_major_blocks(const struct k_major_args *args, const int32_t *offsets, enum expertd_dtype dtype,
                                 k_major_tile *const *tiles) {
    k_major_words memory[2];
    const size_t depth_limit = K_MAJOR_WORDS * k_major_word_k(dtype);
    struct k_major_block b = {.args = args, .offsets = offsets, .words = memory[0], .next_words = memory[1]};
    b.current = k_major_region_at(args, 0, 0, depth_limit);
    for (size_t piece = 0; piece < K_MAJOR_PIECES; piece++) {
        k_major_transpose(args, &b.current, piece, b.words, dtype);
    }
    while (b.current.columns) {
        b.next = k_major_next_region(args, &b.current, depth_limit);
        struct k_major_region prefetch_line = k_major_next_region(args, &b.next, depth_limit);
        b.prefetch_line = k_major_line_address(args, &prefetch_line, k_major_element_size(dtype));
        for (size_t row = 0, rows; row < args->rows; row += rows) {
            rows = k_major_tile_rows(args->rows, row);
            INVARIANT(rows >= 1 && rows <= K_MAJOR_ROWS);
            tiles[rows - 1](&b, row, row == 0);
        }
        uint32_t(*words)[K_MAJOR_COLUMNS] = b.words;
        b.words = b.next_words, b.next_words = words;
        b.current = b.next;
    }
}

#define K_MAJOR_TILE(name, dtype, rows)                                                                                            \
    static void name##_tile_##rows(const struct k_major_block *b, size_t row, bool first) {                                        \
        k_major_multiply_rows(b, row, first, dtype, rows);                                                                         \
    }

// Defines static void name(const struct k_major_args *args, const int32_t *offsets) for weights of `dtype`.
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
    static void name(const struct k_major_args *args, const int32_t *offsets) {                                                    \
        static k_major_tile *const TILES[K_MAJOR_ROWS] = {                                                                         \
            name##_tile_1, name##_tile_2, name##_tile_3, name##_tile_4,  name##_tile_5,  name##_tile_6,                            \
            name##_tile_7, name##_tile_8, name##_tile_9, name##_tile_10, name##_tile_11, name##_tile_12,                           \
        };                                                                                                                         \
        k_major_blocks(args, offsets, dtype, TILES);                                                                               \
    }

#endif
