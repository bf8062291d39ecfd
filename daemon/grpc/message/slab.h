// A first-fit allocator over one borrowed block of memory. Free neighbours are merged. Its records are outside the block, which it
// never writes to. Not thread-safe.
#ifndef EXPERTD_DAEMON_GRPC_MESSAGE_SLAB_H
#define EXPERTD_DAEMON_GRPC_MESSAGE_SLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { SLAB_UNIT = 32 << 10 }; // bytes; the granularity of pieces

struct slab {
    char *memory; // NULL: nothing is borrowed
    size_t units;
    size_t *runs; // [units] entries of the first and the last unit of each run: 2 × its units, plus 1 if it is taken
};

// memory: aligned to 64 bytes. EXPERTD_ERR_NOMEM: no memory for the records.
FALLIBLE slab_init(struct slab *slab, void *memory, size_t bytes);
void slab_deinit(struct slab *slab); // legal on a zeroed struct; after every piece was given back
// A piece of bytes > 0, rounded up to *capacity, a multiple of SLAB_UNIT. NULL: no free run is large enough.
void *slab_take(struct slab *slab, size_t bytes, size_t *capacity);
void slab_give(struct slab *slab, void *piece);

#endif
