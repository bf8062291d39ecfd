// The copy engine (TMA): copies boxes of a tensor of up to five dimensions to and from shared memory with the 128-byte swizzle.
#ifndef EXPERTD_KERNELS_CUDA_SIM_TENSOR_MAP_H
#define EXPERTD_KERNELS_CUDA_SIM_TENSOR_MAP_H

#include <cstdint>

namespace sim {

enum { MAP_RANK_MAX = 5 };

struct tensor_map {
    int rank, element_bytes;
    int64_t sizes[MAP_RANK_MAX], strides[MAP_RANK_MAX]; // sizes in elements, strides in bytes
    int box[MAP_RANK_MAX];
    char *data;
};

// The 128-byte swizzle: XORs bits 4 to 6 of a shared address with bits 7 to 9.
inline uint32_t swizzled_128(uint32_t address) {
    return address ^ ((address >> 7 & 7u) << 4);
}

// Elements outside the tensor are 0, and their bytes count. Takes effect late, and then completes the box's bytes at `barrier`.
void tile_load(const tensor_map *map, uint32_t shared, const void *barrier, const int *at);
// The same for contiguous bytes: a multiple of 16, both addresses 16-byte aligned.
void bytes_load(uint32_t shared, const void *from, uint32_t bytes, const void *barrier);
// Adds a store to the thread's uncommitted group. It reads shared memory and *map when it is waited for. Elements outside the
// tensor are skipped.
void tile_store(const tensor_map *map, uint32_t shared, const int *at);

} // namespace sim

#endif
