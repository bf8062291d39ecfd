// Pieces of one block of memory that somebody lends: first fit, neighbours that are free become one. The accounts lie beside the
// block, which is never written to here. Not for two threads at once.
#ifndef EXPERTD_DAEMON_GRPC_SLAB_H
#define EXPERTD_DAEMON_GRPC_SLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { SLAB_UNIT = 32 << 10 }; // bytes; a piece is so many of them

struct slab {
    char *memory; // NULL: nothing is lent
    size_t units;
    size_t *runs; // [units] at the first and the last unit of each run: 2 x its units, and 1 where it is taken
};

// memory: aligned to 64 bytes. EXPERTD_ERR_NOMEM: none for the accounts.
FALLIBLE slab_init(struct slab *slab, void *memory, size_t bytes);
void slab_deinit(struct slab *slab); // legal on a zeroed struct; every piece is back
// `bytes` > 0 and more, up to the next unit: *capacity. NULL: no room.
void *slab_take(struct slab *slab, size_t bytes, size_t *capacity);
void slab_give(struct slab *slab, void *piece);

#endif
