#include "expert/checkpoint/gathered_rows.h"

#include <stdint.h>
#include <string.h>

#include "base/err.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

// 64 rows of two-byte elements are two full cache lines of each column. The transpose goes through a tile of 32 columns in L1: rows
// whose length is a power of two map to one cache set. Writing 64 such rows element by element would evict each line before the
// next element of its row is written. The next tile's columns, each in a page of its own, are prefetched meanwhile.
enum { TILE_ROWS = 64, TILE_COLUMNS = 32, LINE_BYTES = 64, PREFETCH_BYTES_MAX = 8 * LINE_BYTES };

struct tile {
    unsigned char bytes[TILE_COLUMNS][TILE_ROWS * sizeof(float)];
    size_t columns, rows; // in use
};

typedef uint16_t vector_u16 __attribute__((vector_size(16)));
typedef uint32_t vector_u32 __attribute__((vector_size(16)));

size_t gathered_rows_at_once(size_t n) {
    return n < TILE_ROWS ? n : TILE_ROWS;
}

// ---- transposes of one vector-sized square: b[j][i] = a[i][j]; strides in bytes. Each of the log2(SIDE) steps interleaves the
// lower half of the lines with the upper half.

static void transpose_u16(const unsigned char *a, size_t a_stride, unsigned char *b, size_t b_stride) {
    enum { SIDE = 8, STEPS = 3 };
    vector_u16 v[SIDE], w[SIDE];
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

static void transpose_u32(const unsigned char *a, size_t a_stride, unsigned char *b, size_t b_stride) {
    enum { SIDE = 4, STEPS = 2 };
    vector_u32 v[SIDE], w[SIDE];
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

// ---- tiles. `size`, of an element, is a constant at each call, so that the compiler turns copies into moves.

#define INLINED static inline __attribute__((always_inline))

// Reads the tile's columns. Strides in bytes: k_stride from column to column, n_stride from row to row.
INLINED void tile_read(struct tile *tile, const unsigned char *column, size_t k_stride, size_t n_stride, size_t size) {
    const size_t span = tile->rows * n_stride;
    for (size_t c = 0; c < tile->columns; c++, column += k_stride) {
        for (size_t line = 0; line < span && span <= PREFETCH_BYTES_MAX; line += LINE_BYTES) {
            __builtin_prefetch((const void *)((uintptr_t)column + TILE_COLUMNS * k_stride + line));
        }
        if (n_stride == size) {
            memcpy(tile->bytes[c], column, tile->rows * size);
            continue;
        }
        for (size_t r = 0; r < tile->rows; r++) {
            memcpy(&tile->bytes[c][r * size], column + r * n_stride, size);
        }
    }
}

// Writes the tile's rows, `stride` bytes apart.
INLINED void tile_write(const struct tile *tile, unsigned char *dst, size_t stride, size_t size) {
    const size_t side = sizeof(vector_u32) / size, rows = tile->rows / side * side, columns = tile->columns / side * side;
    for (size_t r = 0; r < rows; r += side) {
        for (size_t c = 0; c < columns; c += side) {
            (size == sizeof(uint16_t) ? transpose_u16 : transpose_u32)(&tile->bytes[c][r * size], sizeof *tile->bytes,
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
    const size_t n_stride = source->n_stride * size, k_stride = source->k_stride * size;
    const unsigned char *src = (const unsigned char *)source->data + first * n_stride;
    struct tile tile;
    tile.rows = rows;
    for (size_t c = 0; c < k; c += tile.columns) {
        tile.columns = k - c < TILE_COLUMNS ? k - c : TILE_COLUMNS;
        tile_read(&tile, src + c * k_stride, k_stride, n_stride, size);
        tile_write(&tile, dst + c * size, k * size, size);
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
