// What slices_body.h tells a tile's kernel, slice_tile_….h's. Private to cpu/.
#ifndef EXPERTD_KERNELS_CPU_COMMON_SLICE_PASS_H
#define EXPERTD_KERNELS_CPU_COMMON_SLICE_PASS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    SLICE_VEC = 16, // columns of a line
    WORD_BYTES = sizeof(uint32_t),
    SLICE_LINE = SLICE_VEC * WORD_BYTES,
};

// Memory that is read in one go, and what is read after it; 0: nothing, or nobody knows.
struct slice_stream {
    uintptr_t end, next;
};

// The lines of weights that a pass fetches. Fields are written and read one by one, never copied together: a load that takes the
// bytes of several stores waits until they have left for the cache, behind a tile's sums (1.02 times as fast).
struct slice_ahead {
    uintptr_t at, again; // the next one, and the one that is asked for once more
    uintptr_t until;     // where those that are due end,
    size_t step;         // to which each word adds so many bytes; 0: nothing is fetched
    uintptr_t end, next; // slice_stream's
    size_t near;         // bytes ahead that lines of the pass are fetched into L1; 0: they are there
    bool far;            // into L2, else into L1
};

// Behind the stream's end comes what is read after it, where that is known.
PANEL_INLINE void slice_prefetch_on(struct slice_ahead *ahead) {
    ahead->at = ahead->until = ahead->next + (ahead->at - ahead->end);
    ahead->step = ahead->next ? ahead->step : 0;
    ahead->end = UINTPTR_MAX;
}

// A tile of rows against a slice, or a part of K of it.
struct slice_pass {
    const char *slice; // [words][SLICE_VECS] lines
    const char *x;     // [words / SLICE_ROW_WORDS][rows] lines
    size_t words;
    float *sums; // [rows], KERNEL_SUMS apart
    bool begins; // K: sums begin at +0
    // Of few rows that take slices in turns:
    size_t slice_bytes; // from a slice to the next
    const char *each;   // lines that are fetched one with each word; NULL: as `ahead` says
    struct slice_ahead ahead;
    struct rows_walk *rows; // that are fetched too
};

#endif
