#include "kernels/cuda/sim/tensor_map.h"

#include <array>
#include <cstring>

#include "kernels/cuda/common/tensor_map.cuh"
#include "kernels/cuda/sim/block.h"

namespace sim {

namespace {

constexpr uint32_t TILE_ALIGN = 1024; // of a tile in shared memory: the swizzle's period

using coordinates = std::array<int, MAP_RANK_MAX>;

// The element's place in the tensor, or NULL outside.
char *element_at(const tensor_map &map, const coordinates &first, const coordinates &offset) {
    char *at = map.data;
    for (int d = 0; d < map.rank; d++) {
        int64_t index = static_cast<int64_t>(first[d]) + offset[d];
        if (index < 0 || index >= map.sizes[d]) {
            return nullptr;
        }
        at += index * map.strides[d];
    }
    return at;
}

bool step(const tensor_map &map, coordinates &offset) {
    for (int d = 0; d < map.rank; d++) {
        if (++offset[d] < map.box[d]) {
            return true;
        }
        offset[d] = 0;
    }
    return false;
}

// Calls each(element in the tensor or NULL, its address in shared memory); returns the box's bytes.
template <class Each> uint32_t walk(const tensor_map &map, uint32_t shared, const coordinates &first, Each each) {
    coordinates offset = {};
    uint32_t done = 0;
    do {
        each(element_at(map, first, offset), swizzled_128(shared + done));
        done += static_cast<uint32_t>(map.element_bytes);
    } while (step(map, offset));
    return done;
}

coordinates coordinates_of(const tensor_map &map, const int *at) {
    coordinates first = {};
    for (int d = 0; d < map.rank; d++) {
        first[d] = at[d];
    }
    return first;
}

void check_tile(uint32_t shared) {
    if (shared % TILE_ALIGN != 0) {
        fault("thread %u: a tile at shared address %u, which is no multiple of %u", thread_number(), shared, TILE_ALIGN);
    }
}

} // namespace

void tile_load(const tensor_map *map, uint32_t shared, const void *barrier, const int *at) {
    check_tile(shared);
    copy_later([map = *map, shared, barrier, first = coordinates_of(*map, at)] {
        uint32_t bytes = walk(map, shared, first, [&map](const char *element, uint32_t address) {
            if (element) {
                memcpy(shared_pointer(address), element, map.element_bytes);
            } else {
                memset(shared_pointer(address), 0, map.element_bytes);
            }
            mark_unwritten(address);
        });
        barrier_complete(barrier, bytes);
    });
}

void bytes_load(uint32_t shared, const void *from, uint32_t bytes, const void *barrier) {
    if (shared % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0 || bytes == 0) {
        fault("thread %u: the copy engine is given %u bytes that are not aligned to 16", thread_number(), bytes);
    }
    copy_later([=] {
        memcpy(shared_pointer(shared), from, bytes);
        for (uint32_t at = 0; at < bytes; at += 4) {
            mark_unwritten(shared + at);
        }
        barrier_complete(barrier, bytes);
    });
}

void tile_store(const tensor_map *map, uint32_t shared, const int *at) {
    check_tile(shared);
    queue_add(QUEUE_STORE, [map, shared, first = coordinates_of(*map, at), until = fenced_until()] {
        walk(*map, shared, first, [map, until](char *element, uint32_t address) {
            if (is_written(address, until)) {
                fault("thread %u: the copy engine reads what was written without fence.proxy.async", thread_number());
            }
            if (element) {
                memcpy(element, shared_pointer(address), map->element_bytes);
            }
        });
    });
}

} // namespace sim

bool tensor_map_bf16(CUtensorMap *out, const void *data, int rank, const uint64_t sizes[3], uint32_t box_rows) {
    bool takes = (rank == 2 || rank == 3) && reinterpret_cast<uintptr_t>(data) % 16 == 0 && sizes[0] % 8 == 0 && box_rows <= 256;
    *out = {};
    out->rank = rank;
    out->element_bytes = 2;
    out->data = static_cast<char *>(const_cast<void *>(data));
    int64_t stride = 2;
    for (int d = 0; d < rank; d++) {
        out->sizes[d] = static_cast<int64_t>(sizes[d]);
        out->strides[d] = stride;
        out->box[d] = d == 0 ? 64 : d == 1 ? static_cast<int>(box_rows) : 1;
        stride *= out->sizes[d];
        takes = takes && sizes[d] > 0;
    }
    return takes;
}

bool tensor_map_bytes(CUtensorMap *out, const void *data, int rank, const uint64_t sizes[3], uint32_t box_rows) {
    bool takes = (rank == 2 || rank == 3) && reinterpret_cast<uintptr_t>(data) % 16 == 0 && sizes[0] % 16 == 0 && box_rows <= 256;
    *out = {};
    out->rank = rank;
    out->element_bytes = 1;
    out->data = static_cast<char *>(const_cast<void *>(data));
    int64_t stride = 1;
    for (int d = 0; d < rank; d++) {
        out->sizes[d] = static_cast<int64_t>(sizes[d]);
        out->strides[d] = stride;
        out->box[d] = d == 0 ? 128 : d == 1 ? static_cast<int>(box_rows) : 1;
        stride *= out->sizes[d];
        takes = takes && sizes[d] > 0;
    }
    return takes;
}
