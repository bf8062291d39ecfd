// Memory reserved once and handed out in order: weights, scratch. Freed all together, never piece by piece.
// Not thread-safe: one owner fills it; what it handed out may then be read anywhere.
#ifndef EXPERTD_BASE_ARENA_H
#define EXPERTD_BASE_ARENA_H

#include <stddef.h>

#include "base/err.h"

enum { ARENA_ALIGN = 64 }; // of every piece: a cache line and the widest vector

struct arena {
    char *base; // mapped memory, zeroed by the kernel, populated on first touch
    size_t bytes, used;
};

// Reserves `bytes` of address space with huge pages advised where that pays; EXPERTD_ERR_NOMEM names the figure.
FALLIBLE arena_init(struct arena *arena, size_t bytes);
void arena_deinit(struct arena *arena); // legal on a zeroed struct

// ARENA_ALIGN-aligned; EXPERTD_ERR_NOMEM where the arena is full (its size was computed by the caller: a bug or a lying count).
FALLIBLE arena_take(struct arena *arena, size_t bytes, void **out);

// Bytes of it that no memory stands behind yet, by whole pages: what its use will still take of the machine. Any thread.
size_t arena_untouched(const struct arena *arena);

// What arena_take will use of the arena for a piece of `bytes`.
static inline size_t arena_rounded(size_t bytes) {
    return (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

#endif
