// Divides one block of memory into pieces. With memory NULL it only counts the bytes, so one function both sizes and lays out.
#ifndef EXPERTD_EXPERT_LAYER_SCRATCH_LAYOUT_H
#define EXPERTD_EXPERT_LAYER_SCRATCH_LAYOUT_H

#include <stddef.h>

#include "base/arena.h"

struct scratch_layout {
    char *memory;
    size_t used;
};

static inline void *scratch_piece(struct scratch_layout *layout, size_t bytes) {
    void *at = layout->memory ? layout->memory + layout->used : NULL;
    layout->used += arena_rounded(bytes);
    return at;
}

#endif
