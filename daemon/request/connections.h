// What each connection holds of the daemon: its share of admission's budgets, found by the peer's name and kept while a call or
// request of it is there. No threads: daemon/serve/serve.c guards it. Everything is reserved at start.
#ifndef EXPERTD_DAEMON_REQUEST_CONNECTIONS_H
#define EXPERTD_DAEMON_REQUEST_CONNECTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/request/admission.h"

struct connection {
    struct admission_share share;
    uint64_t name; // a hash of the peer's
    uint32_t references;
    struct connection *next; // of its bucket, or of the unused ones
};

struct connections {
    struct connection *all, *unused;
    struct connection **buckets;
    size_t bucket_count; // a power of two
};

FALLIBLE connections_init(struct connections *connections, size_t capacity);
void connections_deinit(struct connections *connections); // legal on a zeroed struct

// The peer's connection, with one reference more; NULL where `capacity` others are there.
struct connection *connections_open(struct connections *connections, const char *peer);
void connections_close(struct connections *connections, struct connection *connection);

#endif
