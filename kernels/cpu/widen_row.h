// A row of bf16 as the group kernels multiply it: [pairs / LANES][2][LANES] floats, of each pair the odd k first, as it is added.
// The including file has vec, LANES, vec_store, vec_odd and vec_even.
#ifndef EXPERTD_KERNELS_CPU_WIDEN_ROW_H
#define EXPERTD_KERNELS_CPU_WIDEN_ROW_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { WIDEN_RUN = 2 * LANES }; // k of a vector of pairs

// `depth` of k; wide has room for whole runs: an odd tail and what is missing of the last vector is +0.
static void widen_row(const uint16_t *x, size_t depth, float *wide) {
    for (size_t i = 0; i < depth; i += WIDEN_RUN) {
        uint16_t tail[WIDEN_RUN] = {0};
        const uint16_t *pairs = x + i;
        if (depth - i < WIDEN_RUN) {
            memcpy(tail, pairs, (depth - i) * sizeof *tail);
            pairs = tail;
        }
        vec_store(wide + i, vec_odd(pairs));
        vec_store(wide + i + LANES, vec_even(pairs));
    }
}

#endif
