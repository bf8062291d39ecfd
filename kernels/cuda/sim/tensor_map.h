// The copy engine's tiles (TMA): boxes of a tensor of up to five dimensions to and from shared memory, swizzled by 128 bytes.
#ifndef EXPERTD_KERNELS_CUDA_SIM_TENSOR_MAP_H
#define EXPERTD_KERNELS_CUDA_SIM_TENSOR_MAP_H

#include <cstdint>

namespace sim {

enum { MAP_RANK_MAX = 5 };

struct tensor_map {
    int rank, element_bytes;
    int64_t sizes[MAP_RANK_MAX], strides[MAP_RANK_MAX]; // elements; bytes, of dimension 0 the element
    int box[MAP_RANK_MAX];
    char *data;
};

// Bits 4 to 6 of a shared address, xored with bits 7 to 9.
inline uint32_t swizzled_128(uint32_t address) {
    return address ^ ((address >> 7 & 7u) << 4);
}

// Elements outside the tensor are read as 0 and counted; announces the box's bytes to `barrier` when it lands, late.
void tile_load(const tensor_map *map, uint32_t shared, const void *barrier, const int *at);
// The same of bytes as they lie in memory: a multiple of 16, both sides 16-byte aligned.
void bytes_load(uint32_t shared, const void *from, uint32_t bytes, const void *barrier);
// Joins the thread's open group of stores; reads shared memory, and *map again, when it is waited for. Elements outside are left
// out.
void tile_store(const tensor_map *map, uint32_t shared, const int *at);

} // namespace sim

#endif
