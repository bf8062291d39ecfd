// How the kernels of quantised weights cut a panel along K. Private to cpu/quantised_*.
#ifndef EXPERTD_KERNELS_CPU_COMMON_QUANTISED_CHUNK_H
#define EXPERTD_KERNELS_CPU_COMMON_QUANTISED_CHUNK_H

#include <stdbool.h>
#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/backend.h"
#include "kernels/layout/quantised_layout.h"

typedef float panel_row[EXPERTD_KERNEL_PANEL] __attribute__((aligned(64)));

// A panel's sums of a group call, into rows of their own, +0 at first, and back.
static inline void panel_sums_load(const struct macrokernel_args *group, size_t panel, bool first, panel_row *sums) {
    for (size_t r = 0; r < group->rows; r++) {
        if (first) {
            memset(sums[r], 0, sizeof sums[r]);
        } else {
            memcpy(sums[r], group->sums + r * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL, sizeof sums[r]);
        }
    }
}
static inline void panel_sums_store(const struct macrokernel_args *group, size_t panel, panel_row *sums) {
    for (size_t r = 0; r < group->rows; r++) {
        memcpy(group->sums + r * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL, sums[r], sizeof sums[r]);
    }
}

// A piece of K: whole scales, or a part of one.
struct chunk {
    const struct panel_args *args;
    const struct expertd_quantised_format *format;
    struct quantised_layout layout;
    size_t k, depth;      // its first k, and how many
    size_t scale, scales; // its first scale, and how many
    bool starts, ends;    // a scale's first, a scale's last k lie in it
};

// The next chunk of at most `limit` k (a multiple of 8, so that it ends with a line of codes), or false at the end of K.
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

// k of its scale-th scale that lie in the chunk.
static inline size_t chunk_depth(const struct chunk *c, size_t scale) {
    size_t before = scale * c->layout.scale_k;
    return c->depth - before < c->layout.scale_k ? c->depth - before : c->layout.scale_k;
}

// From its first code to the next chunk's.
static inline size_t chunk_bytes(const struct chunk *c) {
    size_t before = (size_t)(chunk_codes(c, c->scales - 1) - chunk_codes(c, 0));
    size_t codes = quantised_code_bytes(&c->layout, chunk_depth(c, c->scales - 1));
    return before + codes + (c->ends ? c->layout.stride - c->layout.codes : 0);
}

// Codes of the same k in the panel after the `panel`-th, in which the chunk lies, or the next chunk's in the first, or the first
// that the thread takes next. NULL: it knows of none.
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
