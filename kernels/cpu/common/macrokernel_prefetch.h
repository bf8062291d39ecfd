// What the group kernels fetch while they multiply a block of K of a panel: the block that they come to next. The fetches are
// spread evenly over the inner loops of all tiles: bursts fill the buffers that the multiplication's own misses need, and an uneven
// spread leaves memory idle for part of the block (16 rows of bf16: .57 of the roof in bursts over 16 pairs, .83 spread).
#ifndef EXPERTD_KERNELS_CPU_COMMON_MACROKERNEL_PREFETCH_H
#define EXPERTD_KERNELS_CPU_COMMON_MACROKERNEL_PREFETCH_H

#include <string.h>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/common/prefetch_distance.h"

// A stretch of memory, or several, fetched by `step` bytes at each run of an inner loop.
struct macrokernel_prefetch {
    uintptr_t at, until; // the next line, and where the runs so far end
    size_t step;
    uintptr_t end;       // of the stretch,
    size_t skip, length; // whence to the next one's beginning, and its bytes
    bool far;            // into L2 alone (prefetch_distance.h)
    size_t again;        // bytes behind which a line is asked for once more; 0: once is enough
};

// `bytes` from `from` on, over `runs` runs; from NULL: nothing.
static inline struct macrokernel_prefetch macrokernel_prefetch_over(const void *from, size_t bytes, size_t runs) {
    struct macrokernel_prefetch ahead = {.at = (uintptr_t)from, .until = (uintptr_t)from, .end = UINTPTR_MAX};
    if (from && runs > 0) {
        ahead.step = (bytes + runs - 1) / runs;
    }
    return ahead;
}

// Memory that lies in several stretches, over `runs` runs: into L2, since it is as much as is multiplied meanwhile.
static inline struct macrokernel_prefetch macrokernel_prefetch_of(const struct memory_ahead *memory, size_t runs, bool again) {
    bool in_lines = ((uintptr_t)memory->from | memory->stride) % 64 == 0;
    size_t length = (memory->bytes + 63) / 64 * 64 + (in_lines ? 0 : 64);
    struct macrokernel_prefetch ahead = macrokernel_prefetch_over(memory->from, memory->runs * length, runs);
    ahead.end = ahead.at + length;
    ahead.skip = memory->stride - length; // may be less than nothing, modulo 2^64
    ahead.length = length;
    ahead.far = true;
    if (again) {
        ahead.again = length < PREFETCH_AGAIN ? PREFETCH_AGAIN / length * memory->stride : PREFETCH_AGAIN;
    }
    return ahead;
}

// The lines that are due with a run.
static inline __attribute__((always_inline)) void macro_prefetch(struct macrokernel_prefetch *ahead) {
    ahead->until += ahead->step;
    for (; ahead->at < ahead->until; ahead->at += 64) {
        prefetch_into((const void *)ahead->at, ahead->far);
        if (ahead->again) {
            prefetch_into((const void *)(ahead->at - ahead->again), ahead->far);
        }
        if (ahead->at + 64 == ahead->end) {
            ahead->at += ahead->skip;
            ahead->until += ahead->skip;
            ahead->end += ahead->skip + ahead->length;
        }
    }
}

// Sums begin at +0, or where those of the k before ended.
static inline void group_clear(const struct macrokernel_args *args) {
    for (size_t r = 0; !args->goes_on && r < args->rows; r++) {
        memset(args->sums + r * KERNEL_SUMS, 0, args->count * EXPERTD_KERNEL_PANEL * sizeof *args->sums);
    }
}

#endif
