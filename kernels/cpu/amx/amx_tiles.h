// The shape of AMX's tiles, and permission to use them. Private to kernels/.
// A tile has 16 rows of 64 bytes. The right operand is read from a packed panel in place: a row of the tile is one 32-bit word (a
// pair of bf16, a quad of int8) of 16 columns, and the next row is the next word along K. A tile of x holds 16 rows of x, 16 words
// of each: one step of K.
#ifndef EXPERTD_KERNELS_CPU_AMX_AMX_TILES_H
#define EXPERTD_KERNELS_CPU_AMX_AMX_TILES_H

#include <stdbool.h>

enum {
    AMX_ROWS = 16,       // rows of a tile of x or of sums
    AMX_STEP_WORDS = 16, // 32-bit words of a step of K: 32 bf16 or 64 int8
    AMX_STEP_BYTES = 64,
    AMX_BF16_K = 32, // k of a step of bf16
};

// Whether this CPU has AMX-BF16 and AMX-INT8, and Linux (5.16 or later) permits this process to use them. The call requests the
// permission, which holds for the process and all its threads. Any thread.
bool amx_is_usable(void);

#endif
