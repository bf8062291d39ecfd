// The arguments that slices_body.h passes to a microkernel of slice_tile_*.h. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_COMMON_SLICE_PASS_H
#define EXPERTD_KERNELS_CPU_COMMON_SLICE_PASS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    SLICE_VEC = 16, // columns of a line, one 32-bit word each
    WORD_BYTES = sizeof(uint32_t),
    SLICE_LINE = SLICE_VEC * WORD_BYTES,
};

// Weights are read in order up to `end`, then from `next` on. next = 0: unknown.
struct slice_stream {
    uintptr_t end, next;
};

// The lines of weights that a pass prefetches. Fields are written and read one by one, and the struct is never copied: one load of
// the bytes of several stores has to wait until the stores have reached the cache, behind a tile's sums (1.02 times as fast).
struct slice_ahead {
    uintptr_t at, again; // the next line, and the next line to be prefetched a second time
    uintptr_t until;     // the end of the lines that are due
    size_t step;         // bytes by which each word moves `until`; 0: nothing is prefetched
    uintptr_t end, next; // as in struct slice_stream
    size_t near;         // bytes ahead that lines of the pass are prefetched into L1; 0: they are there already
    bool far;            // into L2, else into L1
};

// At the end of the stream: continues with `next`, if it is known.
PANEL_INLINE void slice_prefetch_on(struct slice_ahead *ahead) {
    ahead->at = ahead->until = ahead->next + (ahead->at - ahead->end);
    ahead->step = ahead->next ? ahead->step : 0;
    ahead->end = UINTPTR_MAX;
}

// One tile of rows by a slice, over the whole of K or a part of it.
struct slice_pass {
    const char *slice; // [words][SLICE_VECS] lines
    const char *x;     // [words / SLICE_ROW_WORDS][rows] lines: interleaved rows
    size_t words;
    float *sums; // [rows], KERNEL_SUMS apart
    bool begins; // this is the first part of K: sums start at +0
    // For small m (slices_round_robin_body.h):
    size_t slice_bytes;       // from a slice to the next
    const char *each;         // lines to prefetch, one with each word; NULL: as `ahead` says
    struct slice_ahead ahead; // weights to prefetch
    struct rows_walk *rows;   // rows to prefetch
};

#endif
