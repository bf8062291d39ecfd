// How kernels configure the tile unit. Private to cpu/, for files that are compiled for it.
#ifndef EXPERTD_KERNELS_CPU_AMX_AMX_CONFIG_H
#define EXPERTD_KERNELS_CPU_AMX_AMX_CONFIG_H

#include <immintrin.h>

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/amx/amx_tiles.h"

// gcc's tile intrinsics do not say that they read and write memory.
#define TILES_SEE_MEMORY atomic_signal_fence(memory_order_seq_cst)

enum { AMX_TILES = 8 };

// The first `left` tiles have `rows` rows: those of sums, and the last of them of x. The others are of weights. `words` of 32 bits
// along K, 16 at most. What tiles held is lost. (50 ns.)
static inline void amx_configure(size_t left, size_t rows, size_t words) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64))) = {.palette = 1};
    for (size_t i = 0; i < AMX_TILES; i++) {
        config.row_bytes[i] = i + 1 == left ? (uint16_t)(words * sizeof(uint32_t)) : AMX_STEP_BYTES;
        config.rows[i] = (uint8_t)(i < left ? rows : words);
    }
    TILES_SEE_MEMORY;
    _tile_loadconfig(&config);
}

#endif
