// The registry of memory regions shared with clients on this host.
//
// A region is a sealed memfd, so that no client can shrink it while the daemon reads it (which would raise SIGBUS). It is mapped
// once in the daemon and named by a random 64-bit id; every client that knows the id may use the region. States: *offered*, with a
// token that can be exchanged for its descriptor once, within REGION_OFFER_NS; then *owned* until its owner's connection ends
// (region_socket.h) or it is closed by its id. Closing takes the region off the list at once, so that no new request finds it. Its
// memory is freed when the last request that pinned it unpins it.
//
// Each peer has a bounded number of regions: those that it requested count until their memory is freed, even if another client
// owns them by then.
//
// A client may change the bytes at any time: two reads of one byte may differ.
//
// Threads: all functions may be called from any thread. One mutex, for walks over at most max_regions entries. No allocation,
// mapping or callback happens under it.
#ifndef EXPERTD_DAEMON_REGIONS_REGION_H
#define EXPERTD_DAEMON_REGIONS_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/err.h"

enum { REGION_TOKEN_BYTES = 16, REGION_ALIGN = 64, REGION_PEER_MAX = 80 };

#define REGION_OFFER_NS (INT64_C(10) * NS_PER_S)

struct region_registry;
struct region; // one mapping

struct region_limits {
    uint64_t max_bytes;        // of one region, > 0
    uint32_t max_regions;      // regions with memory, including closed ones in use
    uint32_t max_regions_each; // of them, requested by one peer
};

FALLIBLE region_registry_create(const struct region_limits *limits, struct region_registry **out);
// Frees every region; none may be pinned. NULL is legal.
void region_registry_destroy(struct region_registry *registry);

uint64_t region_max_bytes(const struct region_registry *registry);

// Sets the callback that runs after a region was offered, or closed by its id, on the thread that did so. It must not block. NULL:
// no callback. While no other thread offers or closes regions.
void region_registry_watch(struct region_registry *registry, void (*changed)(void *context), void *context);

struct region_offer {
    uint64_t id;
    uint8_t token[REGION_TOKEN_BYTES];
};

// Creates a region of zeros. peer: the name of the requesting connection, compared in its first REGION_PEER_MAX - 1 bytes.
// EXPERTD_ERR_TENSOR_BYTES (bytes is 0), EXPERTD_ERR_TOO_LARGE, EXPERTD_ERR_QUEUE_FULL (max_regions or max_regions_each),
// EXPERTD_ERR_NOMEM.
FALLIBLE region_offer(struct region_registry *registry, const char *peer, uint64_t bytes, int64_t now_ns, struct region_offer *out);
// Redeems a token: the region is owned from here, and the caller closes *fd. EXPERTD_ERR_PERMISSION: no such token, or it was used
// or has expired.
FALLIBLE region_redeem(struct region_registry *registry, const uint8_t token[REGION_TOKEN_BYTES], int64_t now_ns, uint64_t *id,
                       int *fd);
FALLIBLE region_close(struct region_registry *registry, uint64_t id); // EXPERTD_ERR_REGION_UNKNOWN
bool region_is_open(struct region_registry *registry, uint64_t id);
// Closes the offers that have expired. Returns when the next one expires; CLOCK_NEVER: there is none.
int64_t region_expire(struct region_registry *registry, int64_t now_ns);

// Pins the region until region_unpin. *data is [offset, offset + length) of it, aligned to REGION_ALIGN.
// EXPERTD_ERR_REGION_UNKNOWN, EXPERTD_ERR_TENSOR_BYTES (offset is not a multiple of REGION_ALIGN, or the range exceeds the region).
FALLIBLE region_pin(struct region_registry *registry, uint64_t id, uint64_t offset, uint64_t length, struct region **out,
                    uint8_t **data);
void region_unpin(struct region_registry *registry, struct region *region);

struct region_counts {
    uint32_t open, held; // held: including closed ones in use
    uint64_t bytes;      // of those held
};
struct region_counts region_counts(struct region_registry *registry);

#endif
