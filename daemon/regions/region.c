#include "daemon/regions/region.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

// A peer that requested regions.
struct holder {
    char peer[REGION_PEER_MAX];
    uint32_t held; // 0: the entry is free
};

struct region {
    uint64_t id;           // never 0
    struct holder *holder; // in registry->holders
    uint64_t bytes;
    uint8_t *data;
    // guarded by the registry's mutex
    uint8_t token[REGION_TOKEN_BYTES];
    int fd;             // while offered; -1 once the token was redeemed
    int64_t expires_ns; // while offered
    unsigned pins;
    bool open;
};

struct region_registry {
    struct region_limits limits;
    void (*changed)(void *context);
    void *context;
    // Guards everything below, and the fields of regions marked above. Taken with no other lock held.
    pthread_mutex_t mutex;
    struct region **open; // [num_open], allocated for max_regions
    uint32_t num_open, held;
    uint64_t held_bytes;
    struct holder *holders; // [max_regions]
};

FALLIBLE region_registry_create(const struct region_limits *limits, struct region_registry **out) {
    *out = NULL;
    struct region_registry *registry = calloc(1, sizeof *registry);
    struct region **open = calloc(limits->max_regions, sizeof *open);
    struct holder *holders = calloc(limits->max_regions, sizeof *holders);
    if (!registry || !open || !holders) {
        free(registry);
        free(open);
        free(holders);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a registry of %u regions", limits->max_regions);
    }
    registry->limits = *limits;
    registry->open = open;
    registry->holders = holders;
    pthread_mutex_init(&registry->mutex, NULL);
    *out = registry;
    return OK;
}

void region_registry_watch(struct region_registry *registry, void (*changed)(void *context), void *context) {
    registry->changed = changed;
    registry->context = context;
}

uint64_t region_max_bytes(const struct region_registry *registry) {
    return registry->limits.max_bytes;
}

static void notify_watcher(const struct region_registry *registry) {
    if (registry->changed) {
        registry->changed(registry->context);
    }
}

// ---- the memory of one region

static void region_free(struct region *region) {
    if (!region) {
        return;
    }
    if (region->data) {
        munmap(region->data, region->bytes);
    }
    if (region->fd >= 0) {
        close(region->fd);
    }
    free(region);
}

// A memory file of `bytes` bytes that can no longer shrink, grow, or be sealed further.
static FALLIBLE make_file(uint64_t bytes, int *out) {
    int fd = memfd_create("expertd-region", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        *out = fd;
        return OK;
    }
    int cause = errno;
    if (fd >= 0) {
        close(fd);
    }
    FAIL(EXPERTD_ERR_NOMEM, "cannot make a region of %" PRIu64 " bytes: %s", bytes, strerror(cause));
}

static FALLIBLE random_bytes(void *out, size_t bytes) {
    if (getrandom(out, bytes, 0) != (ssize_t)bytes) { // never short for up to 256 bytes
        FAIL(EXPERTD_ERR_IO, "cannot read random numbers: %s", strerror(errno));
    }
    return OK;
}

static FALLIBLE fill_region(struct region *region, uint64_t bytes) {
    while (region->id == 0) {
        TRY(random_bytes(&region->id, sizeof region->id));
    }
    TRY(random_bytes(region->token, sizeof region->token));
    TRY(make_file(bytes, &region->fd));
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, 0);
    if (data == MAP_FAILED) {
        FAIL(EXPERTD_ERR_NOMEM, "cannot map a region of %" PRIu64 " bytes: %s", bytes, strerror(errno));
    }
    region->data = data;
    region->bytes = bytes;
    return OK;
}

static FALLIBLE make_region(uint64_t bytes, struct region **out) {
    struct region *region = calloc(1, sizeof *region);
    *out = NULL;
    if (!region) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a region");
    }
    region->fd = -1;
    err_t e = fill_region(region, bytes);
    if (err_is(e)) {
        region_free(region);
        return e;
    }
    *out = region;
    return OK;
}

// ---- the list of open regions: under the mutex

// The index of an open region; num_open: not found.
static uint32_t index_of(const struct region_registry *registry, uint64_t id) {
    uint32_t i = 0;
    while (i < registry->num_open && registry->open[i]->id != id) {
        i++;
    }
    return i;
}

static struct region *find(const struct region_registry *registry, uint64_t id) {
    uint32_t index = index_of(registry, id);
    return index < registry->num_open ? registry->open[index] : NULL;
}

// Takes the region off the list. Returns it if it is not pinned: the caller reclaims it. NULL: the last unpin does.
static struct region *unlist(struct region_registry *registry, uint32_t index) {
    struct region *region = registry->open[index];
    registry->open[index] = registry->open[--registry->num_open];
    region->open = false;
    return region->pins == 0 ? region : NULL;
}

static void uncount(struct region_registry *registry, struct holder *holder, uint64_t bytes) {
    pthread_mutex_lock(&registry->mutex);
    holder->held--;
    registry->held--;
    registry->held_bytes -= bytes;
    pthread_mutex_unlock(&registry->mutex);
}

// The caller does not hold the mutex, since unmapping takes time. The region counts against the limits until its memory is freed.
static void reclaim(struct region_registry *registry, struct region *region) {
    if (!region) {
        return;
    }
    uint64_t bytes = region->bytes;
    struct holder *holder = region->holder;
    region_free(region);
    uncount(registry, holder, bytes);
}

void region_registry_destroy(struct region_registry *registry) {
    if (!registry) {
        return;
    }
    while (registry->num_open > 0) {
        struct region *region = unlist(registry, 0);
        INVARIANT(region); // not pinned
        reclaim(registry, region);
    }
    INVARIANT(registry->held == 0);
    pthread_mutex_destroy(&registry->mutex);
    free(registry->open);
    free(registry->holders);
    free(registry);
}

// ---- offers, owners, closing

// The peer's entry, or a free one. One exists: fewer than max_regions regions are held, and each needs at most one entry.
static struct holder *holder_of(const struct region_registry *registry, const char *peer) {
    struct holder *free_one = NULL;
    for (uint32_t i = 0; i < registry->limits.max_regions; i++) {
        struct holder *holder = &registry->holders[i];
        if (holder->held > 0 && strncmp(holder->peer, peer, sizeof holder->peer - 1) == 0) {
            return holder;
        }
        free_one = holder->held == 0 ? holder : free_one;
    }
    INVARIANT(free_one);
    snprintf(free_one->peer, sizeof free_one->peer, "%s", peer);
    return free_one;
}

// Counts a region of `bytes` bytes against the limits; *holder is its peer's entry. The caller holds the mutex.
static FALLIBLE count_locked(struct region_registry *registry, const char *peer, uint64_t bytes, struct holder **holder) {
    const struct region_limits *limits = &registry->limits;
    if (registry->held >= limits->max_regions) {
        FAIL(EXPERTD_ERR_QUEUE_FULL, "%u regions are in use, the most that this server has: close one, or raise --max-regions",
             limits->max_regions);
    }
    struct holder *entry = holder_of(registry, peer);
    if (entry->held >= limits->max_regions_each) {
        FAIL(EXPERTD_ERR_QUEUE_FULL,
             "this connection holds %u regions, its full share (max_connection_share of max_regions, %u): close one, or raise "
             "--max-regions",
             entry->held, limits->max_regions);
    }
    entry->held++;
    registry->held++;
    registry->held_bytes += bytes;
    *holder = entry;
    return OK;
}

static FALLIBLE reserve(struct region_registry *registry, const char *peer, uint64_t bytes, struct holder **holder) {
    const struct region_limits *limits = &registry->limits;
    if (bytes == 0) {
        FAIL_FIELD(EXPERTD_ERR_TENSOR_BYTES, "bytes", "bytes: a region has at least one");
    }
    if (bytes > limits->max_bytes) {
        FAIL_FIELD(EXPERTD_ERR_TOO_LARGE, "bytes",
                   "bytes: %" PRIu64 ", at most %" PRIu64 " in one region (limits.max_region_bytes)", bytes, limits->max_bytes);
    }
    pthread_mutex_lock(&registry->mutex);
    err_t e = count_locked(registry, peer, bytes, holder);
    pthread_mutex_unlock(&registry->mutex);
    return e;
}

FALLIBLE region_offer(struct region_registry *registry, const char *peer, uint64_t bytes, int64_t now_ns,
                      struct region_offer *out) {
    struct region *region;
    struct holder *holder;
    TRY(reserve(registry, peer, bytes, &holder));
    err_t e = make_region(bytes, &region);
    if (err_is(e)) {
        uncount(registry, holder, bytes);
        return e;
    }
    region->holder = holder;
    region->expires_ns = clock_add_ns(now_ns, REGION_OFFER_NS);
    region->open = true;
    out->id = region->id;
    memcpy(out->token, region->token, sizeof out->token);
    pthread_mutex_lock(&registry->mutex);
    registry->open[registry->num_open++] = region; // num_open <= held <= max_regions
    pthread_mutex_unlock(&registry->mutex);
    notify_watcher(registry);
    return OK;
}

// In constant time, which does not reveal how many bytes of a guess were right.
static bool same_token(const uint8_t *a, const uint8_t *b) {
    unsigned differ = 0;
    for (size_t i = 0; i < REGION_TOKEN_BYTES; i++) {
        differ |= (unsigned)(a[i] ^ b[i]);
    }
    return differ == 0;
}

FALLIBLE region_redeem(struct region_registry *registry, const uint8_t token[REGION_TOKEN_BYTES], int64_t now_ns, uint64_t *id,
                       int *fd) {
    *fd = -1;
    *id = 0;
    pthread_mutex_lock(&registry->mutex);
    for (uint32_t i = 0; i < registry->num_open; i++) {
        struct region *region = registry->open[i];
        if (region->fd >= 0 && now_ns < region->expires_ns && same_token(region->token, token)) {
            *fd = region->fd;
            *id = region->id;
            region->fd = -1;
        }
    }
    pthread_mutex_unlock(&registry->mutex);
    if (*fd < 0) {
        FAIL(EXPERTD_ERR_PERMISSION, "no region is offered for this token: it is wrong, was used, or came too late");
    }
    return OK;
}

static FALLIBLE unknown(uint64_t id) {
    FAIL(EXPERTD_ERR_REGION_UNKNOWN, "region %" PRIu64 " is not open: it never was, or was closed, or its owner's connection ended",
         id);
}

FALLIBLE region_close(struct region_registry *registry, uint64_t id) {
    pthread_mutex_lock(&registry->mutex);
    uint32_t index = index_of(registry, id);
    bool found = index < registry->num_open;
    struct region *unused = found ? unlist(registry, index) : NULL;
    pthread_mutex_unlock(&registry->mutex);
    if (!found) {
        return unknown(id);
    }
    reclaim(registry, unused);
    notify_watcher(registry);
    return OK;
}

bool region_is_open(struct region_registry *registry, uint64_t id) {
    pthread_mutex_lock(&registry->mutex);
    bool open = find(registry, id) != NULL;
    pthread_mutex_unlock(&registry->mutex);
    return open;
}

// Takes one expired offer off the list; *unused is the result of unlist. False: no offer has expired, and *next_ns is when the next
// one will.
static bool expire_one(struct region_registry *registry, int64_t now_ns, int64_t *next_ns, struct region **unused) {
    *next_ns = CLOCK_NEVER;
    for (uint32_t i = 0; i < registry->num_open; i++) {
        const struct region *region = registry->open[i];
        if (region->fd >= 0 && region->expires_ns <= now_ns) {
            *unused = unlist(registry, i);
            return true;
        }
        if (region->fd >= 0 && region->expires_ns < *next_ns) {
            *next_ns = region->expires_ns;
        }
    }
    return false;
}

int64_t region_expire(struct region_registry *registry, int64_t now_ns) {
    for (;;) { // terminates: each iteration but the last removes an offer, and new offers expire after now_ns
        int64_t next_ns;
        struct region *unused = NULL;
        pthread_mutex_lock(&registry->mutex);
        bool expired = expire_one(registry, now_ns, &next_ns, &unused);
        pthread_mutex_unlock(&registry->mutex);
        reclaim(registry, unused);
        if (!expired) {
            return next_ns;
        }
    }
}

// ---- pins

FALLIBLE region_pin(struct region_registry *registry, uint64_t id, uint64_t offset, uint64_t length, struct region **out,
                    uint8_t **data) {
    *out = NULL;
    *data = NULL;
    if (offset % REGION_ALIGN != 0) {
        FAIL(EXPERTD_ERR_TENSOR_BYTES, "offset %" PRIu64 " is not a multiple of %d", offset, REGION_ALIGN);
    }
    pthread_mutex_lock(&registry->mutex);
    struct region *region = find(registry, id);
    uint64_t bytes = region ? region->bytes : 0;
    bool fits = region && offset <= bytes && length <= bytes - offset;
    if (fits) {
        region->pins++;
    }
    pthread_mutex_unlock(&registry->mutex);
    if (!region) {
        return unknown(id);
    }
    if (!fits) {
        FAIL(EXPERTD_ERR_TENSOR_BYTES,
             "%" PRIu64 " bytes at offset %" PRIu64 " pass the end of region %" PRIu64 ", which has %" PRIu64, length, offset, id,
             bytes);
    }
    *out = region;
    *data = region->data + offset;
    return OK;
}

void region_unpin(struct region_registry *registry, struct region *region) {
    pthread_mutex_lock(&registry->mutex);
    INVARIANT(region->pins > 0);
    bool last = --region->pins == 0 && !region->open;
    pthread_mutex_unlock(&registry->mutex);
    reclaim(registry, last ? region : NULL);
}

struct region_counts region_counts(struct region_registry *registry) {
    pthread_mutex_lock(&registry->mutex);
    struct region_counts counts = {.open = registry->num_open, .held = registry->held, .bytes = registry->held_bytes};
    pthread_mutex_unlock(&registry->mutex);
    return counts;
}
