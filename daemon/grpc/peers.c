#include "daemon/grpc/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_FIRST = 64 };

void peers_init(struct peers *peers) {
    *peers = (struct peers){0};
    pthread_mutex_init(&peers->mutex, NULL);
}

void peers_deinit(struct peers *peers) {
    free(peers->names);
    pthread_mutex_destroy(&peers->mutex);
}

// Grows to the greatest descriptor number so far, which the process's descriptor limit bounds.
static FALLIBLE reserve(struct peers *peers, size_t fd) {
    size_t count = peers->count ? peers->count : COUNT_FIRST;
    while (count <= fd) {
        count *= 2;
    }
    if (count == peers->count) {
        return OK;
    }
    char(*names)[RPC_PEER_MAX] = realloc(peers->names, count * sizeof *names);
    if (!names) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the names of %zu peers", count);
    }
    peers->names = names;
    peers->count = count;
    return OK;
}

FALLIBLE peers_set(struct peers *peers, int fd, const char *name) {
    INVARIANT(fd >= 0);
    pthread_mutex_lock(&peers->mutex);
    err_t e = reserve(peers, (size_t)fd);
    if (!err_is(e)) {
        snprintf(peers->names[fd], RPC_PEER_MAX, "%s", name);
    }
    pthread_mutex_unlock(&peers->mutex);
    return e;
}

int peers_find(struct peers *peers, const char *grpc_name, char out[RPC_PEER_MAX]) {
    char *end = NULL;
    long fd = grpc_name && strncmp(grpc_name, "fd:", 3) == 0 ? strtol(grpc_name + 3, &end, 10) : -1;
    pthread_mutex_lock(&peers->mutex);
    bool known = end && *end == '\0' && fd >= 0 && (size_t)fd < peers->count;
    memcpy(out, known ? peers->names[fd] : "unknown", known ? RPC_PEER_MAX : sizeof "unknown");
    pthread_mutex_unlock(&peers->mutex);
    return known ? (int)fd : -1;
}
