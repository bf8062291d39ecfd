// Which rows and columns a block of threads multiplies, and loading rows into shared memory by cp.async. What all kernels of
// products share.
#ifndef EXPERTD_KERNELS_CUDA_COMMON_ROW_TILES_CUH
#define EXPERTD_KERNELS_CUDA_COMMON_ROW_TILES_CUH

#include "kernels/cuda/common/launchers.h"
#include "kernels/cuda/common/ptx.cuh"

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

// One tile of rows against some columns.
struct work {
    int group, row, rows, column;
};

__host__ __forceinline__ long work_of(const expertd_device_rows &rows, const expertd_device_matrix &matrix, int columns) {
    return (long)rows.tile_count * ((matrix.n + columns - 1) / columns);
}

// Number i of all work. A span's tiles meet a column one after the other, then the next column: blocks that run together share
// weights and rows in L2. No search: every tile knows its span.
__device__ __forceinline__ bool find_work(const product &p, int i, int columns, work *out) {
    const int column_tiles = (p.n + columns - 1) / columns;
    if (i >= p.tile_count * column_tiles) {
        return false;
    }
    const expertd_device_tile &some = p.tiles[i / column_tiles];
    const int first = some.span, all = some.span_tiles, left = p.tile_count - first, count = all < left ? all : left;
    const int inside = i - first * column_tiles;
    const expertd_device_tile &tile = p.tiles[first + inside % count];
    const int rows = tile.rows, there = p.row_count - (int)tile.row;
    *out = {(int)tile.group, (int)tile.row, rows < there ? rows : there, inside / count * columns};
    return true;
}

// Row y of a tile, or NULL past its end.
__device__ __forceinline__ const char *row_at(const product &p, const work &w, int y) {
    if (y >= w.rows) {
        return nullptr;
    }
    const size_t row = p.index ? p.index[w.row + y] : w.row + y;
    return p.rows + row * p.stride;
}

// Where 16-byte piece `piece` of row y lies, of rows of PIECES pieces: swizzled, so that eight rows' pieces of one number, as
// ldmatrix and 16-byte loads take them, lie in different banks.
template <int PIECES> __device__ __forceinline__ int place(int y, int piece) {
    return (y * PIECES + (piece ^ (PIECES == 8 ? y & 7 : y >> 1 & 3))) * 16;
}

// ROWS rows of PIECES pieces of elements E, loaded by 128 threads, lane by lane the pieces of a row. A thread keeps the addresses
// of its rows; NULL: a row that is not there and is +0.
template <typename E, int ROWS, int PIECES> struct row_loader {
    static constexpr int AT_ONCE = 128 / PIECES, PASSES = (ROWS + AT_ONCE - 1) / AT_ONCE;
    const char *from[PASSES];

    template <typename Row> __device__ __forceinline__ void set(Row row) {
#pragma unroll
        for (int q = 0; q < PASSES; q++) {
            const int y = threadIdx.x / PIECES + q * AT_ONCE;
            from[q] = y < ROWS ? row(y) : nullptr;
        }
    }

    // From byte `offset` of each row on, of which `left` are there; what is past them is +0. aligned: rows begin at 16 bytes, so
    // that cp.async takes them; else they come element by element. anywhere: an address that may be named where nothing is read.
    __device__ __forceinline__ void load(unsigned char *to, int offset, int left, bool aligned, const void *anywhere) const {
        const int piece = threadIdx.x % PIECES;
        left -= piece * 16;
        left = left < 0 ? 0 : left < 16 ? left : 16;
#pragma unroll
        for (int q = 0; q < PASSES; q++) {
            const int y = threadIdx.x / PIECES + q * AT_ONCE, bytes = from[q] ? left : 0;
            if (ROWS % AT_ONCE != 0 && y >= ROWS) {
                continue;
            }
            unsigned char *at = to + place<PIECES>(y, piece);
            const char *source = from[q] + offset + piece * 16;
            if (aligned) {
                ptx::copy_16(at, bytes > 0 ? source : anywhere, bytes);
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
