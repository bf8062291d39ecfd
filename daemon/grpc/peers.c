#include "daemon/grpc/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { COUNT_FIRST = 64, NONE = -1 };

struct peer_slot {
    char name[RPC_PEER_MAX]; // "": none yet
    bool has_called;
    int next; // in its bucket
    dev_t device;
    ino_t inode; // of the socket: tells whether the number still belongs to it
};

void peers_init(struct peers *peers) {
    *peers = (struct peers){0};
    pthread_mutex_init(&peers->mutex, NULL);
}

void peers_deinit(struct peers *peers) {
    free(peers->slots);
    free(peers->buckets);
    pthread_mutex_destroy(&peers->mutex);
}

static int *bucket_of(struct peers *peers, const char *name) {
    uint64_t hash = 14695981039346656037u; // FNV-1a
    for (const char *at = name; *at; at++) {
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    }
    return &peers->buckets[(hash ^ hash >> 32) & (peers->count - 1)];
}

static void link_slot(struct peers *peers, int fd) {
    int *bucket = bucket_of(peers, peers->slots[fd].name);
    peers->slots[fd].next = *bucket;
    *bucket = fd;
}

static void unlink_slot(struct peers *peers, int fd) {
    int *at = bucket_of(peers, peers->slots[fd].name);
    while (*at != fd) {
        INVARIANT(*at != NONE);
        at = &peers->slots[*at].next;
    }
    *at = peers->slots[fd].next;
}

static void link_all(struct peers *peers, size_t count) {
    for (size_t i = 0; i < peers->count; i++) {
        peers->buckets[i] = NONE;
    }
    for (size_t i = 0; i < count; i++) {
        if (peers->slots[i].name[0]) {
            link_slot(peers, (int)i);
        }
    }
}

// Grows to the greatest descriptor number so far, which the process's descriptor limit bounds.
static FALLIBLE reserve(struct peers *peers, size_t fd) {
    size_t before = peers->count, count = before ? before : COUNT_FIRST;
    while (count <= fd) {
        count *= 2;
    }
    if (count == before) {
        return OK;
    }
    struct peer_slot *slots = realloc(peers->slots, count * sizeof *slots);
    peers->slots = slots ? slots : peers->slots;
    int *buckets = realloc(peers->buckets, count * sizeof *buckets);
    peers->buckets = buckets ? buckets : peers->buckets;
    if (!slots || !buckets) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the names of %zu peers", count);
    }
    memset(slots + before, 0, (count - before) * sizeof *slots);
    peers->count = count;
    link_all(peers, before);
    return OK;
}

FALLIBLE peers_set(struct peers *peers, int fd, const char *name) {
    INVARIANT(fd >= 0);
    struct stat st = {0};
    (void)fstat(fd, &st);
    pthread_mutex_lock(&peers->mutex);
    err_t e = reserve(peers, (size_t)fd);
    if (!err_is(e)) {
        struct peer_slot *slot = &peers->slots[fd];
        if (slot->name[0]) {
            unlink_slot(peers, fd);
        }
        *slot = (struct peer_slot){.device = st.st_dev, .inode = st.st_ino};
        snprintf(slot->name, sizeof slot->name, "%s", name);
        if (slot->name[0]) {
            link_slot(peers, fd);
        }
    }
    pthread_mutex_unlock(&peers->mutex);
    return e;
}

// Our form of gRPC's "ipv6:%5B::1%5D:40214". False: too long.
static bool decode(const char *uri, char out[RPC_PEER_MAX]) {
    size_t used = 0;
    for (const char *at = uri; *at; used++) {
        if (used + 1 >= RPC_PEER_MAX) {
            return false;
        }
        bool opens = strncmp(at, "%5B", 3) == 0, closes = strncmp(at, "%5D", 3) == 0;
        out[used] = opens ? '[' : closes ? ']' : *at;
        at += opens || closes ? 3 : 1;
    }
    out[used] = '\0';
    return used > 0;
}

static bool is_open(const struct peer_slot *slot, int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_dev == slot->device && st.st_ino == slot->inode;
}

// Names of closed connections stay until their number is reused. Only if a name occurs twice, the open connection is looked for.
static int find_name(struct peers *peers, const char *name) {
    int found = NONE, open = NONE;
    unsigned count = 0, count_open = 0;
    for (int fd = peers->count ? *bucket_of(peers, name) : NONE; fd != NONE; fd = peers->slots[fd].next) {
        if (strcmp(peers->slots[fd].name, name) != 0) {
            continue;
        }
        found = fd;
        count++;
    }
    for (int fd = count > 1 ? *bucket_of(peers, name) : NONE; fd != NONE; fd = peers->slots[fd].next) {
        if (strcmp(peers->slots[fd].name, name) == 0 && is_open(&peers->slots[fd], fd)) {
            open = fd;
            count_open++;
        }
    }
    return count <= 1 ? found : count_open == 1 ? open : NONE;
}

static int find(struct peers *peers, const char *grpc_name, char out[RPC_PEER_MAX]) {
    char *end = NULL;
    if (strncmp(grpc_name, "fd:", 3) == 0) {
        long fd = strtol(grpc_name + 3, &end, 10);
        bool known = *end == '\0' && end > grpc_name + 3 && fd >= 0 && (size_t)fd < peers->count && peers->slots[fd].name[0];
        snprintf(out, RPC_PEER_MAX, "%s", known ? peers->slots[fd].name : "unknown");
        return known ? (int)fd : NONE;
    }
    bool is_address = strncmp(grpc_name, "ipv4:", 5) == 0 || strncmp(grpc_name, "ipv6:", 5) == 0;
    if (!is_address || !decode(grpc_name, out)) {
        snprintf(out, RPC_PEER_MAX, "unknown");
        return NONE;
    }
    return find_name(peers, out);
}

int peers_find(struct peers *peers, const char *grpc_name, char out[RPC_PEER_MAX]) {
    pthread_mutex_lock(&peers->mutex);
    int fd = find(peers, grpc_name ? grpc_name : "", out);
    if (fd != NONE) {
        peers->slots[fd].has_called = true;
    }
    pthread_mutex_unlock(&peers->mutex);
    return fd;
}

bool peers_has_called(struct peers *peers, int fd) {
    pthread_mutex_lock(&peers->mutex);
    bool has_called = fd >= 0 && (size_t)fd < peers->count && peers->slots[fd].has_called;
    pthread_mutex_unlock(&peers->mutex);
    return has_called;
}
