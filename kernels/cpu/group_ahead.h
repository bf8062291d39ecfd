// What the group kernels fetch while they multiply a block of K: the same panels' next block, and at the end of K the first
// block of the panels that the thread takes next. The fetches are spread evenly over the tiles and their inner loops: in one burst
// they would fill the line buffers that the multiplication's own loads need.
#ifndef EXPERTD_KERNELS_CPU_GROUP_AHEAD_H
#define EXPERTD_KERNELS_CPU_GROUP_AHEAD_H

#include <string.h>

#include "kernels/backend.h"

struct group_ahead_plan {
    const void *const *panels; // of the next block; NULL: there is none
    size_t offset, bytes;      // of the block in each panel
    size_t runs;               // of the inner loop, for each tile
    size_t run_bytes;          // fetched at each
};

// One tile's share of one panel's next block.
struct group_ahead {
    const char *at;
    size_t bytes; // at each run of the inner loop
};

// The block that begins at k = from, of at most `block` k.
static inline struct group_ahead_plan group_ahead_plan(const struct panel_group_args *args, size_t from, size_t block,
                                                       size_t element) {
    bool ends = from >= args->k;
    size_t first = ends ? 0 : from;
    size_t depth = args->k - first < block ? args->k - first : block;
    return (struct group_ahead_plan){
        .panels = ends ? args->next : args->panels,
        .offset = first * KERNEL_PANEL * element,
        .bytes = depth * KERNEL_PANEL * element,
    };
}

// Shares the fetches out over `tiles` tiles of `runs` inner loops each.
static inline void group_ahead_share(struct group_ahead_plan *plan, size_t runs, size_t tiles) {
    size_t all = runs * tiles;
    plan->runs = runs;
    plan->run_bytes = all ? (plan->bytes / 64 + all - 1) / all * 64 : 0;
}

static inline struct group_ahead group_ahead_at(const struct group_ahead_plan *plan, size_t panel, size_t tile) {
    size_t done = tile * plan->runs * plan->run_bytes;
    if (!plan->panels || done >= plan->bytes) {
        return (struct group_ahead){NULL, 0};
    }
    return (struct group_ahead){(const char *)plan->panels[panel] + plan->offset + done, plan->run_bytes};
}

// Sums begin at +0.
static inline void group_clear(const struct panel_group_args *args) {
    for (size_t r = 0; r < args->rows; r++) {
        memset(args->sums + r * KERNEL_SUMS, 0, args->count * KERNEL_PANEL * sizeof *args->sums);
    }
}

#endif
