// The connections that have calls or requests, found by the peer's name, and the share of admission's budgets that each one holds.
// Not thread-safe: daemon/serve/serve_budget.c guards it. All memory is reserved at the start.
#ifndef EXPERTD_DAEMON_REQUEST_CONNECTIONS_H
#define EXPERTD_DAEMON_REQUEST_CONNECTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/request/admission.h"

struct connection {
    struct admission_share share;
    uint64_t name_hash; // hash of the peer's name
    uint32_t references;
    struct connection *next; // in its bucket, or in the list of unused ones
};

struct connections {
    struct connection *all, *unused;
    struct connection **buckets;
    size_t bucket_count; // a power of two
};

FALLIBLE connections_init(struct connections *connections, size_t capacity);
void connections_deinit(struct connections *connections); // legal on a zeroed struct

// The peer's connection, with one more reference. NULL: `capacity` connections are in use.
struct connection *connections_open(struct connections *connections, const char *peer);
void connections_close(struct connections *connections, struct connection *connection);

#endif
