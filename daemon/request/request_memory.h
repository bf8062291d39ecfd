// Pinned host memory for large messages, which a device can read without another copy. Pinned at the start, as many bytes as
// waiting requests may hold (max_queue_bytes). A message that does not fit is gathered in ordinary memory.
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

// EXPERTD_ERR_NOMEM, and EXPERTD_ERR_SHARD_LOST if the driver does not pin the memory. Both name the bytes and the option.
FALLIBLE request_memory_pin(const struct expertd_devices *devices, size_t bytes, struct request_memory *out);
void request_memory_unpin(struct request_memory *memory); // legal on a zeroed struct

#endif
