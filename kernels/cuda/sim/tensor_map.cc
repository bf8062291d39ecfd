#include "kernels/cuda/sim/tensor_map.h"

#include <array>
#include <cstring>

#include "kernels/cuda/sim/block.h"

namespace sim {

namespace {

constexpr uint32_t TILE_ALIGN = 1024; // the period of the swizzle in shared memory

using coordinates = std::array<int, MAP_RANK_MAX>;

// The address of an element of the box in the tensor, or NULL if it is outside.
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

// Calls each(element in the tensor or NULL, its address in shared memory). Returns the bytes of the box.
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
            mark_async_write(address);
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
            mark_async_write(shared + at);
        }
        barrier_complete(barrier, bytes);
    });
}

void tile_store(const tensor_map *map, uint32_t shared, const int *at) {
    check_tile(shared);
    queue_add(QUEUE_STORE, [map, shared, first = coordinates_of(*map, at), fenced = fence_time()] {
        walk(*map, shared, first, [map, fenced](char *element, uint32_t address) {
            if (is_unfenced(address, fenced)) {
                fault("thread %u: the copy engine reads shared memory that was written without fence.proxy.async", thread_number());
            }
            if (element) {
                memcpy(element, shared_pointer(address), map->element_bytes);
            }
        });
    });
}

} // namespace sim
