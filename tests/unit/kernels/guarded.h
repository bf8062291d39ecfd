// Memory between two pages that fault, at one end or the other, so that the first byte read or written outside it ends the test.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_GUARDED_H
#define EXPERTD_TESTS_UNIT_KERNELS_GUARDED_H

#include <sys/mman.h>
#include <unistd.h>

#include "kernel_test.h"

struct guarded {
    void *data; // bytes long; aligned to what its length is a multiple of, or to a page
    void *map;
    size_t map_bytes;
};

// at_end: the last byte lies before the upper page; else the first one lies behind the lower.
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
