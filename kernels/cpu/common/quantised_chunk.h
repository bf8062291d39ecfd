// How the kernels for quantised weights cut a panel along K into chunks. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_COMMON_QUANTISED_CHUNK_H
#define EXPERTD_KERNELS_CPU_COMMON_QUANTISED_CHUNK_H

#include <stdbool.h>
#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/backend/backend.h"
#include "kernels/layout/quantised_layout.h"

typedef float panel_row[EXPERTD_KERNEL_PANEL] __attribute__((aligned(64)));

// Copy one panel's sums of a macrokernel call to contiguous rows (first: +0 instead), and back.
static inline void panel_sums_load(const struct macrokernel_args *macro, size_t panel, bool first, panel_row *sums) {
    for (size_t r = 0; r < macro->rows; r++) {
        if (first) {
            memset(sums[r], 0, sizeof sums[r]);
        } else {
            memcpy(sums[r], macro->sums + r * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL, sizeof sums[r]);
        }
    }
}
static inline void panel_sums_store(const struct macrokernel_args *macro, size_t panel, panel_row *sums) {
    for (size_t r = 0; r < macro->rows; r++) {
        memcpy(macro->sums + r * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL, sums[r], sizeof sums[r]);
    }
}

// A chunk of K: one or more complete scale groups, or a part of one.
struct chunk {
    const struct panel_args *args;
    const struct expertd_quantised_format *format;
    struct quantised_layout layout;
    size_t k, depth;      // first k, and number of k
    size_t scale, scales; // first scale, and number of scales
    bool starts, ends;    // the chunk contains the first k, the last k of a scale group
};

// Moves to the next chunk of at most `limit` k, a multiple of 8, so that chunks end with a line of codes. False at the end of K. A
// chunk whose `depth` is 0 moves to the first one.
static inline bool chunk_next(struct chunk *c, size_t limit) {
    size_t total = c->args->k, scale_k = c->layout.scale_k;
    c->k += c->depth;
    if (c->k >= total) {
        return false;
    }
    c->scale = c->k / scale_k;
    if (scale_k <= limit) {
        c->scales = limit / scale_k;
        size_t left = total - c->k;
        c->depth = left < c->scales * scale_k ? left : c->scales * scale_k;
        c->scales = (c->depth + scale_k - 1) / scale_k;
        c->starts = c->ends = true;
        return true;
    }
    size_t within = c->k - c->scale * scale_k;
    size_t left = quantised_depth(&c->layout, c->scale, total) - within;
    c->scales = 1;
    c->depth = left < limit ? left : limit;
    c->starts = within == 0;
    c->ends = c->depth == left;
    return true;
}

static inline const uint8_t *chunk_codes(const struct chunk *c, size_t scale) {
    size_t within = scale ? 0 : c->k - c->scale * c->layout.scale_k;
    return (const uint8_t *)c->args->panel + quantised_codes_at(&c->layout, c->scale + scale) +
           quantised_code_bytes(&c->layout, within);
}

static inline const uint8_t *chunk_zeros(const struct chunk *c, size_t scale) {
    return c->format->zero_points ? (const uint8_t *)c->args->panel + quantised_zeros_at(&c->layout, c->scale + scale, c->args->k)
                                  : NULL;
}

static inline const uint8_t *chunk_minima(const struct chunk *c, size_t scale) {
    return c->format->minima ? (const uint8_t *)c->args->panel + quantised_zeros_at(&c->layout, c->scale + scale, c->args->k)
                             : NULL;
}

// The super scales of the chunk's scale-th scale group, followed by those of minima; NULL if there are none.
static inline const uint8_t *chunk_supers(const struct chunk *c, size_t scale) {
    return c->layout.super_size ? (const uint8_t *)c->args->panel + quantised_supers_at(&c->layout, c->scale + scale) : NULL;
}

// How many k of the chunk's scale-th scale group are in the chunk.
static inline size_t chunk_depth(const struct chunk *c, size_t scale) {
    size_t before = scale * c->layout.scale_k;
    return c->depth - before < c->layout.scale_k ? c->depth - before : c->layout.scale_k;
}

// Bytes from the chunk's first code to the next chunk's.
static inline size_t chunk_bytes(const struct chunk *c) {
    size_t before = (size_t)(chunk_codes(c, c->scales - 1) - chunk_codes(c, 0));
    size_t codes = quantised_code_bytes(&c->layout, chunk_depth(c, c->scales - 1));
    return before + codes + (c->ends ? c->layout.stride - c->layout.codes : 0);
}

// The codes to prefetch while the chunk is multiplied in panel `panel`: the same chunk of the next panel, after the last panel the
// next chunk of the first one, after the last chunk the next call's first panel. NULL: unknown.
static inline const uint8_t *chunk_next_codes(const struct chunk *c, const void *const *panels, size_t count, size_t panel,
                                              const void *const *next) {
    size_t at = (size_t)(chunk_codes(c, 0) - (const uint8_t *)panels[panel]);
    if (panel + 1 < count) {
        return (const uint8_t *)panels[panel + 1] + at;
    }
    if (c->k + c->depth < c->args->k) {
        return (const uint8_t *)panels[0] + at + chunk_bytes(c);
    }
    return next ? next[0] : NULL;
}

#endif
