// A bump allocator for weights and scratch: reserves memory once, allocates from it in order and frees it as a whole. One owner
// allocates; any thread may use the allocated memory.
#ifndef EXPERTD_BASE_ARENA_H
#define EXPERTD_BASE_ARENA_H

#include <stddef.h>

#include "base/err.h"

enum { ARENA_ALIGN = 64 }; // alignment of every allocation: a cache line, and the widest vector register

struct arena {
    char *base; // mapped memory: zeroed by the kernel, populated on first access
    size_t bytes, used;
};

// Reserves `bytes` of address space, with huge pages if it is large enough. EXPERTD_ERR_NOMEM.
FALLIBLE arena_init(struct arena *arena, size_t bytes);
void arena_deinit(struct arena *arena); // legal on a zeroed struct

// Allocates `bytes`, ARENA_ALIGN-aligned. EXPERTD_ERR_NOMEM: the arena is full, so the caller computed its size wrongly.
FALLIBLE arena_take(struct arena *arena, size_t bytes, void **out);

// Bytes of the arena in pages that have no physical memory yet. Any thread.
size_t arena_untouched(const struct arena *arena);

// Bytes of the arena that arena_take uses for `bytes`.
static inline size_t arena_rounded(size_t bytes) {
    return (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

#endif
