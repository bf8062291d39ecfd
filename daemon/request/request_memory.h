// Host memory that devices read: large messages are gathered there, so that their rows leave for a device without another copy.
// Pinned at the start, as much as requests may hold while they wait; what does not fit lies in ordinary memory.
#ifndef EXPERTD_DAEMON_REQUEST_REQUEST_MEMORY_H
#define EXPERTD_DAEMON_REQUEST_REQUEST_MEMORY_H

#include <stddef.h>

#include "base/err.h"

struct expertd_devices;

struct request_memory {
    const struct expertd_devices *devices;
    void *memory; // page-aligned
    size_t bytes;
};

// EXPERTD_ERR_NOMEM, and EXPERTD_ERR_SHARD_LOST where the driver does not pin it, name the bytes and the option that asks for them.
FALLIBLE request_memory_pin(const struct expertd_devices *devices, size_t bytes, struct request_memory *out);
void request_memory_unpin(struct request_memory *memory); // legal on a zeroed struct

#endif
