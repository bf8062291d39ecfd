#include "base/arena.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };

FALLIBLE arena_init(struct arena *arena, size_t bytes) {
    *arena = (struct arena){0};
    if (bytes == 0) {
        return OK;
    }
    if (bytes > SIZE_MAX - HUGE_PAGE) {
        FAIL(ERR_NOMEM, "cannot reserve %zu bytes: more than an address space", bytes);
    }
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        FAIL(ERR_NOMEM, "cannot reserve %zu bytes: %s", bytes, strerror(errno));
    }
    if (bytes >= HUGE_PAGE) {
        (void)madvise(base, bytes, MADV_HUGEPAGE); // advice: where it is refused, 4 KiB pages serve
    }
    arena->base = base;
    arena->bytes = bytes;
    return OK;
}

void arena_deinit(struct arena *arena) {
    if (arena->base) {
        munmap(arena->base, arena->bytes);
    }
    *arena = (struct arena){0};
}

FALLIBLE arena_take(struct arena *arena, size_t bytes, void **out) {
    size_t left = arena->bytes - arena->used;
    if (bytes > left || arena_rounded(bytes) > left) {
        FAIL(ERR_NOMEM, "an arena of %zu bytes has %zu left, %zu wanted", arena->bytes, left, bytes);
    }
    *out = arena->base + arena->used;
    arena->used += arena_rounded(bytes);
    return OK;
}
