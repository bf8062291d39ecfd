#include "expert/checkpoint/gathered_rows.h"

#include <stdint.h>
#include <string.h>

#include "base/err.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

// 64 rows of two-byte elements are two whole cache lines of each column. Columns go through a tile in L1, 32 at a time: rows of a
// power of two bytes lie in one cache set, and writing 64 of them element by element would evict each line before the next element
// of its row. The next tile's columns, each in a page of its own, are fetched meanwhile.
enum { TILE_ROWS = 64, TILE_COLUMNS = 32, LINE_BYTES = 64, FETCHED_BYTES = 8 * LINE_BYTES };

struct tile {
    unsigned char bytes[TILE_COLUMNS][TILE_ROWS * sizeof(float)];
    size_t columns, rows; // that are there
};

typedef uint16_t halves __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(16)));

size_t gathered_rows_at_once(size_t n) {
    return n < TILE_ROWS ? n : TILE_ROWS;
}

// ---- squares of as many lines as a vector has elements: b[j][i] = a[i][j], lines so many bytes apart. Each step lays the lower
// and the upper half of the lines between each other; after log2 of them the square is turned.

static void turn_halves(const unsigned char *a, size_t a_stride, unsigned char *b, size_t b_stride) {
    enum { SIDE = 8, STEPS = 3 };
    halves v[SIDE], w[SIDE];
    UNROLL for (size_t i = 0; i < SIDE; i++) {
        memcpy(&v[i], a + i * a_stride, sizeof *v);
    }
    UNROLL for (size_t step = 0; step < STEPS; step++) {
        UNROLL for (size_t i = 0; i < SIDE / 2; i++) {
            w[2 * i] = __builtin_shufflevector(v[i], v[i + SIDE / 2], 0, 8, 1, 9, 2, 10, 3, 11);
            w[2 * i + 1] = __builtin_shufflevector(v[i], v[i + SIDE / 2], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        UNROLL for (size_t i = 0; i < SIDE; i++) {
            v[i] = w[i];
        }
    }
    UNROLL for (size_t i = 0; i < SIDE; i++) {
        memcpy(b + i * b_stride, &v[i], sizeof *v);
    }
}

static void transpose_words(const unsigned char *a, size_t a_stride, unsigned char *b, size_t b_stride) {
    enum { SIDE = 4, STEPS = 2 };
    words v[SIDE], w[SIDE];
    UNROLL for (size_t i = 0; i < SIDE; i++) {
        memcpy(&v[i], a + i * a_stride, sizeof *v);
    }
    UNROLL for (size_t step = 0; step < STEPS; step++) {
        UNROLL for (size_t i = 0; i < SIDE / 2; i++) {
            w[2 * i] = __builtin_shufflevector(v[i], v[i + SIDE / 2], 0, 4, 1, 5);
            w[2 * i + 1] = __builtin_shufflevector(v[i], v[i + SIDE / 2], 2, 6, 3, 7);
        }
        UNROLL for (size_t i = 0; i < SIDE; i++) {
            v[i] = w[i];
        }
    }
    UNROLL for (size_t i = 0; i < SIDE; i++) {
        memcpy(b + i * b_stride, &v[i], sizeof *v);
    }
}

// ---- tiles. `size` is a constant at each call, so that the copies are moves.

#define INLINED static inline __attribute__((always_inline))

// The columns from `column` on, `stride` bytes apart; a column's elements lie `apart` bytes apart.
INLINED void tile_read(struct tile *tile, const unsigned char *column, size_t stride, size_t apart, size_t size) {
    const size_t span = tile->rows * apart;
    for (size_t c = 0; c < tile->columns; c++, column += stride) {
        for (size_t line = 0; line < span && span <= FETCHED_BYTES; line += LINE_BYTES) {
            __builtin_prefetch((const void *)((uintptr_t)column + TILE_COLUMNS * stride + line));
        }
        if (apart == size) {
            memcpy(tile->bytes[c], column, tile->rows * size);
            continue;
        }
        for (size_t r = 0; r < tile->rows; r++) {
            memcpy(&tile->bytes[c][r * size], column + r * apart, size);
        }
    }
}

// Its rows, `stride` bytes apart.
INLINED void tile_turn(const struct tile *tile, unsigned char *dst, size_t stride, size_t size) {
    const size_t side = sizeof(words) / size, rows = tile->rows / side * side, columns = tile->columns / side * side;
    for (size_t r = 0; r < rows; r += side) {
        for (size_t c = 0; c < columns; c += side) {
            (size == sizeof(uint16_t) ? turn_halves : transpose_words)(&tile->bytes[c][r * size], sizeof *tile->bytes,
                                                                       dst + r * stride + c * size, stride);
        }
    }
    for (size_t r = 0; r < tile->rows; r++) {
        for (size_t c = r < rows ? columns : 0; c < tile->columns; c++) {
            memcpy(dst + r * stride + c * size, &tile->bytes[c][r * size], size);
        }
    }
}

INLINED void gather_sized(const struct expertd_weight_source *source, size_t first, size_t rows, size_t k, unsigned char *dst,
                          size_t size) {
    const size_t apart = source->n_stride * size, stride = source->k_stride * size;
    const unsigned char *src = (const unsigned char *)source->data + first * apart;
    struct tile tile;
    tile.rows = rows;
    for (size_t c = 0; c < k; c += tile.columns) {
        tile.columns = k - c < TILE_COLUMNS ? k - c : TILE_COLUMNS;
        tile_read(&tile, src + c * stride, stride, apart, size);
        tile_turn(&tile, dst + c * size, k * size, size);
    }
}

void gather_rows(const struct expertd_weight_source *source, size_t first, size_t rows, size_t k, void *dst) {
    const size_t size = expertd_dtype_size(source->dtype);
    INVARIANT((size == sizeof(uint16_t) || size == sizeof(float)) && rows <= TILE_ROWS);
    if (size == sizeof(uint16_t)) {
        gather_sized(source, first, rows, k, dst, sizeof(uint16_t));
    } else {
        gather_sized(source, first, rows, k, dst, sizeof(float));
    }
}
