// Prefetching in macrokernels: while they multiply one block of K, they prefetch the next block. The prefetches are spread evenly
// over the inner loops of all tiles. Bursts would fill the buffers that the multiplication's own misses need, and leave memory idle
// for the rest of the block (16 rows of bf16: .57 of the roof in bursts over 16 pairs, .83 evenly spread).
#ifndef EXPERTD_KERNELS_CPU_COMMON_MACROKERNEL_PREFETCH_H
#define EXPERTD_KERNELS_CPU_COMMON_MACROKERNEL_PREFETCH_H

#include <string.h>

#include "kernels/cpu/backend/backend.h"
#include "kernels/cpu/common/prefetch_distance.h"

// One range of memory, or several of equal length, of which each run of an inner loop prefetches `step` bytes.
struct macrokernel_prefetch {
    uintptr_t at, until; // the next line, and the end of the bytes that are due
    size_t step;         // bytes per run; 0: nothing to prefetch
    uintptr_t end;       // of the current range
    size_t skip, length; // bytes from `end` to the next range, and the length of a range
    bool far;            // into L2 only (prefetch_distance.h)
    size_t again;        // each line is prefetched a second time, this many bytes later; 0: once
};

// Prefetches `bytes` bytes at `from` during `runs` runs; from NULL: nothing.
static inline struct macrokernel_prefetch macrokernel_prefetch_over(const void *from, size_t bytes, size_t runs) {
    struct macrokernel_prefetch prefetch = {.at = (uintptr_t)from, .until = (uintptr_t)from, .end = UINTPTR_MAX};
    if (from && runs > 0) {
        prefetch.step = (bytes + runs - 1) / runs;
    }
    return prefetch;
}

// Prefetches several ranges during `runs` runs. They go into L2, because they are as large as the weights that are multiplied
// meanwhile.
static inline struct macrokernel_prefetch macrokernel_prefetch_of(const struct prefetch_range *memory, size_t runs, bool again) {
    bool in_lines = ((uintptr_t)memory->from | memory->stride) % 64 == 0;
    size_t length = (memory->bytes + 63) / 64 * 64 + (in_lines ? 0 : 64);
    struct macrokernel_prefetch prefetch = macrokernel_prefetch_over(memory->from, memory->runs * length, runs);
    prefetch.end = prefetch.at + length;
    prefetch.skip = memory->stride - length; // may wrap: a negative skip modulo 2^64
    prefetch.length = length;
    prefetch.far = true;
    if (again) {
        prefetch.again = length < PREFETCH_AGAIN ? PREFETCH_AGAIN / length * memory->stride : PREFETCH_AGAIN;
    }
    return prefetch;
}

// Prefetches the lines of one run.
static inline __attribute__((always_inline)) void macro_prefetch(struct macrokernel_prefetch *prefetch) {
    prefetch->until += prefetch->step;
    for (; prefetch->at < prefetch->until; prefetch->at += 64) {
        prefetch_into((const void *)prefetch->at, prefetch->far);
        if (prefetch->again) {
            prefetch_into((const void *)(prefetch->at - prefetch->again), prefetch->far);
        }
        if (prefetch->at + 64 == prefetch->end) {
            prefetch->at += prefetch->skip;
            prefetch->until += prefetch->skip;
            prefetch->end += prefetch->skip + prefetch->length;
        }
    }
}

// Sets the call's sums to +0, unless they continue (accumulate).
static inline void clear_sums(const struct macrokernel_args *args) {
    for (size_t r = 0; !args->accumulate && r < args->rows; r++) {
        memset(args->sums + r * KERNEL_SUMS, 0, args->count * EXPERTD_KERNEL_PANEL * sizeof *args->sums);
    }
}

#endif
