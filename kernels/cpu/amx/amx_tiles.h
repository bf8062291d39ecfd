// The tile unit's shape, and the process's right to use it. Private to kernels/.
// A tile has 16 rows of 64 bytes. Packed pairs of bf16 and quads of int8 are its right operand as they lie: a row of 16 words (16
// columns), the next row a panel's row further. Of x, a tile takes 16 rows of 16 words, each a step of STEP words along K.
#ifndef EXPERTD_KERNELS_CPU_AMX_AMX_TILES_H
#define EXPERTD_KERNELS_CPU_AMX_AMX_TILES_H

#include <stdbool.h>

enum {
    AMX_ROWS = 16,       // of x or of sums
    AMX_STEP_WORDS = 16, // of 32 bits along K: 32 bf16 or 64 int8
    AMX_STEP_BYTES = 64,
    AMX_BF16_K = 32, // k of a step of bf16
};

// Does this CPU have AMX-BF16 and AMX-INT8, and has Linux (5.16 or later) given this process leave to use them? Asks it: the leave
// is the process's, threads inherit it. Any thread.
bool amx_is_usable(void);

#endif
