#include "daemon/grpc/message/slab.h"

#include <stdlib.h>

enum { TAKEN = 1 };

static void mark(struct slab *slab, size_t first, size_t units, size_t taken) {
    slab->runs[first] = slab->runs[first + units - 1] = 2 * units + taken;
}

FALLIBLE slab_init(struct slab *slab, void *memory, size_t bytes) {
    *slab = (struct slab){.memory = memory, .units = bytes / SLAB_UNIT};
    if (slab->units == 0) {
        return OK;
    }
    slab->runs = calloc(slab->units, sizeof *slab->runs);
    if (!slab->runs) {
        *slab = (struct slab){0};
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the records of %zu bytes of borrowed memory", bytes);
    }
    mark(slab, 0, slab->units, 0);
    return OK;
}

void slab_deinit(struct slab *slab) {
    INVARIANT(slab->units == 0 || slab->runs[0] == 2 * slab->units);
    free(slab->runs);
    *slab = (struct slab){0};
}

void *slab_take(struct slab *slab, size_t bytes, size_t *capacity) {
    size_t wanted = bytes / SLAB_UNIT + (bytes % SLAB_UNIT != 0);
    for (size_t first = 0; first < slab->units; first += slab->runs[first] / 2) {
        size_t units = slab->runs[first] / 2;
        if (slab->runs[first] & TAKEN || units < wanted) {
            continue;
        }
        if (units > wanted) {
            mark(slab, first + wanted, units - wanted, 0);
        }
        mark(slab, first, wanted, TAKEN);
        *capacity = wanted * SLAB_UNIT;
        return slab->memory + first * SLAB_UNIT;
    }
    return NULL;
}

void slab_give(struct slab *slab, void *piece) {
    size_t first = (size_t)((char *)piece - slab->memory) / SLAB_UNIT;
    INVARIANT(slab->runs[first] & TAKEN);
    size_t units = slab->runs[first] / 2;
    if (first + units < slab->units && !(slab->runs[first + units] & TAKEN)) {
        units += slab->runs[first + units] / 2;
    }
    if (first > 0 && !(slab->runs[first - 1] & TAKEN)) {
        size_t before = slab->runs[first - 1] / 2;
        first -= before;
        units += before;
    }
    mark(slab, first, units, 0);
}
