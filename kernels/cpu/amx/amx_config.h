// Configures AMX's tiles. Private to kernels/cpu, for files that are compiled for AMX.
#ifndef EXPERTD_KERNELS_CPU_AMX_AMX_CONFIG_H
#define EXPERTD_KERNELS_CPU_AMX_AMX_CONFIG_H

#include <immintrin.h>

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/amx/amx_tiles.h"

// A compiler barrier: gcc's tile intrinsics do not declare that they read and write memory.
#define TILES_MEMORY_BARRIER atomic_signal_fence(memory_order_seq_cst)

enum { AMX_TILES = 8 };

// The first m_tiles tiles have `rows` rows: sums, and as the last of them x. The other tiles hold weights. `words`: 32-bit words of
// K in a step, at most 16. The contents of all tiles are lost. Takes 50 ns.
static inline void amx_configure(size_t m_tiles, size_t rows, size_t words) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64))) = {.palette = 1};
    for (size_t i = 0; i < AMX_TILES; i++) {
        config.row_bytes[i] = i + 1 == m_tiles ? (uint16_t)(words * sizeof(uint32_t)) : AMX_STEP_BYTES;
        config.rows[i] = (uint8_t)(i < m_tiles ? rows : words);
    }
    TILES_MEMORY_BARRIER;
    _tile_loadconfig(&config);
}

#endif
