#include "base/arena.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory_cause.h"

enum { HUGE_PAGE = 2 << 20, PAGES_PER_CALL = 1 << 12 };

FALLIBLE arena_init(struct arena *arena, size_t bytes) {
    *arena = (struct arena){0};
    if (bytes == 0) {
        return OK;
    }
    if (bytes > SIZE_MAX - HUGE_PAGE) {
        FAIL(EXPERTD_ERR_NOMEM, "cannot reserve %zu bytes: more than the address space", bytes);
    }
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        char cause[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_NOMEM, "cannot reserve %zu bytes: %s", bytes, memory_cause(errno, bytes, true, cause));
    }
    if (bytes >= HUGE_PAGE) {
        (void)madvise(base, bytes, MADV_HUGEPAGE); // optional: without it the kernel uses normal pages
    }
    arena->base = base;
    arena->bytes = bytes;
    return OK;
}

size_t arena_untouched(const struct arena *arena) {
    unsigned char resident[PAGES_PER_CALL];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), step = PAGES_PER_CALL * page; // aarch64 may have 64 KiB pages
    size_t touched = 0;
    for (size_t at = 0; at < arena->bytes; at += step) {
        size_t length = arena->bytes - at < step ? arena->bytes - at : step;
        size_t pages = (length + page - 1) / page;
        if (mincore(arena->base + at, length, resident) != 0) {
            continue; // unknown: count all of it as untouched
        }
        for (size_t i = 0; i < pages; i++) {
            size_t bytes = i + 1 < pages ? page : length - i * page;
            touched += resident[i] & 1 ? bytes : 0;
        }
    }
    return arena->bytes - touched;
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
        FAIL(EXPERTD_ERR_NOMEM, "cannot allocate %zu bytes: the arena of %zu bytes has %zu left", bytes, arena->bytes, left);
    }
    *out = arena->base + arena->used;
    arena->used += arena_rounded(bytes);
    return OK;
}
