// Memory next to a page that faults, so that an access one byte past that end stops the test.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_GUARDED_H
#define EXPERTD_TESTS_UNIT_KERNELS_GUARDED_H

#include <sys/mman.h>
#include <unistd.h>

#include "kernel_test.h"

struct guarded {
    void *data; // at_end: aligned to the greatest power of two that divides its length; else to a page
    void *map;
    size_t map_bytes;
};

// at_end: the memory ends at the upper guard page; else it begins at the end of the lower one. guarded_free frees it.
static inline struct guarded guarded_take(size_t bytes, int at_end) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page - 1) / page * page;
    struct guarded g = {.map_bytes = inner + 2 * page};
    g.map = mmap(NULL, g.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    char *start = (char *)g.map + page;
    assert_int_equal(inner ? mprotect(start, inner, PROT_READ | PROT_WRITE) : 0, 0);
    g.data = at_end ? start + inner - bytes : start;
    return g;
}

static inline void guarded_free(struct guarded *g) {
    if (g->map) {
        assert_int_equal(munmap(g->map, g->map_bytes), 0);
    }
    g->map = NULL;
}

#endif
