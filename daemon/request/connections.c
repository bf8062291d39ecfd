#include "daemon/request/connections.h"

#include <stdlib.h>

FALLIBLE connections_init(struct connections *connections, size_t capacity) {
    size_t buckets = 16;
    while (buckets < capacity) {
        buckets *= 2;
    }
    *connections = (struct connections){.bucket_count = buckets};
    connections->all = calloc(capacity, sizeof *connections->all);
    connections->buckets = calloc(buckets, sizeof *connections->buckets);
    if (!connections->all || !connections->buckets) {
        connections_deinit(connections);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu connections: lower max_calls or max_queue", capacity);
    }
    for (size_t i = 0; i < capacity; i++) {
        connections->all[i].next = connections->unused;
        connections->unused = &connections->all[i];
    }
    return OK;
}

void connections_deinit(struct connections *connections) {
    free(connections->all);
    free(connections->buckets);
    *connections = (struct connections){0};
}

// FNV-1a, 64 bits. Two peers with one hash would have one share together. A peer that chooses its port for a collision limits
// itself.
static uint64_t hash_of(const char *peer) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *peer; peer++) {
        hash = (hash ^ (unsigned char)*peer) * 0x100000001b3u;
    }
    return hash;
}

static struct connection **bucket_of(struct connections *connections, uint64_t name) {
    return &connections->buckets[(name ^ name >> 32) & (connections->bucket_count - 1)];
}

struct connection *connections_open(struct connections *connections, const char *peer) {
    uint64_t name = hash_of(peer);
    struct connection **bucket = bucket_of(connections, name);
    for (struct connection *connection = *bucket; connection; connection = connection->next) {
        if (connection->name_hash == name) {
            connection->references++;
            return connection;
        }
    }
    struct connection *connection = connections->unused;
    if (!connection) {
        return NULL;
    }
    connections->unused = connection->next;
    *connection = (struct connection){.name_hash = name, .references = 1, .next = *bucket};
    *bucket = connection;
    return connection;
}

void connections_close(struct connections *connections, struct connection *connection) {
    INVARIANT(connection->references > 0);
    if (--connection->references > 0) {
        return;
    }
    struct connection **at = bucket_of(connections, connection->name_hash);
    while (*at != connection) {
        at = &(*at)->next;
    }
    *at = connection->next;
    connection->next = connections->unused;
    connections->unused = connection;
}
