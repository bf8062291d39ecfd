// For all product kernels: the rows and columns that a thread block multiplies, and loading rows into shared memory by cp.async.
#ifndef EXPERTD_KERNELS_CUDA_COMMON_ROW_TILES_CUH
#define EXPERTD_KERNELS_CUDA_COMMON_ROW_TILES_CUH

#include <ptx.cuh>

#include "kernels/cuda/common/launchers.h"

namespace {

struct product {
    const char *rows;
    size_t stride; // bytes
    const uint32_t *index;
    const expertd_device_tile *tiles;
    int tile_count, row_count, n, k;
};

__host__ __forceinline__ product product_of(const expertd_device_rows &rows, const expertd_device_matrix &matrix) {
    return {(const char *)rows.data, rows.stride,    rows.index,    rows.tiles,
            (int)rows.tile_count,    (int)rows.rows, (int)matrix.n, (int)matrix.k};
}

// One tile of rows times one tile of columns, which begins at `column`.
struct work {
    int group, row, rows, column;
};

__host__ __forceinline__ long work_of(const expertd_device_rows &rows, const expertd_device_matrix &matrix, int columns) {
    return (long)rows.tile_count * ((matrix.n + columns - 1) / columns);
}

// Finds work item number i; false past the last. Consecutive items are the row tiles of one span at the same columns, then at
// the next columns, so that blocks that run at the same time share weights and rows in L2. No search is needed: each tile
// stores its span.
__device__ __forceinline__ bool find_work(const product &p, int i, int columns, work *out) {
    const int column_tiles = (p.n + columns - 1) / columns;
    if (i >= p.tile_count * column_tiles) {
        return false;
    }
    const expertd_device_tile &in_span = p.tiles[i / column_tiles];
    const int first = in_span.span, span = in_span.span_tiles, left = p.tile_count - first, count = span < left ? span : left;
    const int inside = i - first * column_tiles;
    const expertd_device_tile &tile = p.tiles[first + inside % count];
    const int rows = tile.rows, rows_left = p.row_count - (int)tile.row;
    *out = {(int)tile.group, (int)tile.row, rows < rows_left ? rows : rows_left, inside / count * columns};
    return true;
}

// The address of row y of a tile, or NULL past its end.
__device__ __forceinline__ const char *row_at(const product &p, const work &w, int y) {
    if (y >= w.rows) {
        return nullptr;
    }
    const size_t row = p.index ? p.index[w.row + y] : w.row + y;
    return p.rows + row * p.stride;
}

// The byte offset of 16-byte piece `piece` of row y; a row has PIECES pieces. The swizzle puts the same piece of eight consecutive
// rows into different banks, since ldmatrix and 16-byte loads read them together.
template <int PIECES> __device__ __forceinline__ int swizzled_offset(int y, int piece) {
    return (y * PIECES + (piece ^ (PIECES == 8 ? y & 7 : y >> 1 & 3))) * 16;
}

// Loads ROWS rows of PIECES 16-byte pieces of elements E by 128 threads; consecutive lanes load consecutive pieces of a row. A
// thread keeps the addresses of its rows; NULL marks a row that does not exist and is filled with +0.
template <typename E, int ROWS, int PIECES> struct row_loader {
    static constexpr int ROWS_PER_PASS = 128 / PIECES, PASSES = (ROWS + ROWS_PER_PASS - 1) / ROWS_PER_PASS;
    const char *from[PASSES];

    template <typename Row> __device__ __forceinline__ void set(Row row) {
#pragma unroll
        for (int q = 0; q < PASSES; q++) {
            const int y = threadIdx.x / PIECES + q * ROWS_PER_PASS;
            from[q] = y < ROWS ? row(y) : nullptr;
        }
    }

    // Loads from byte `offset` of each row; `left` bytes of the row follow it, and the rest is filled with +0. aligned: rows begin
    // at multiples of 16 bytes and are loaded by cp.async; otherwise they are copied element by element. dummy: any valid address,
    // for copies of no bytes.
    __device__ __forceinline__ void load(unsigned char *to, int offset, int left, bool aligned, const void *dummy) const {
        const int piece = threadIdx.x % PIECES;
        left -= piece * 16;
        left = left < 0 ? 0 : left < 16 ? left : 16;
#pragma unroll
        for (int q = 0; q < PASSES; q++) {
            const int y = threadIdx.x / PIECES + q * ROWS_PER_PASS, bytes = from[q] ? left : 0;
            if (ROWS % ROWS_PER_PASS != 0 && y >= ROWS) {
                continue;
            }
            unsigned char *at = to + swizzled_offset<PIECES>(y, piece);
            const char *source = from[q] + offset + piece * 16;
            if (aligned) {
                ptx::copy_16(at, bytes > 0 ? source : dummy, bytes);
                continue;
            }
            for (int e = 0; e < 16; e += (int)sizeof(E)) {
                *(E *)(at + e) = e < bytes ? *(const E *)(source + e) : E{};
            }
        }
    }
};

} // namespace

#endif
