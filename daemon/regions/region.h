// Memory shared with callers of this host: which regions there are, whose they are, and who is using them.
//
// A region is a sealed memfd, so that nobody can shrink it under us (no SIGBUS), mapped here once and named by a random 64-bit id:
// whoever knows the id may use the region. It is *offered* with a token that buys its descriptor once, within REGION_OFFER_NS;
// *owned* from then until its owner's connection ends (region_socket.h), or until it is closed by its id. Closing unlists it at
// once: no new request finds it. Its memory goes when the last request that had pinned it lets go.
//
// No connection takes all regions: those that it asked for count for it until their memory goes, whoever owns them then.
//
// The bytes are the caller's and may change at any moment: whoever reads them twice may read two different things.
//
// Threads: all functions may be called from any thread. One mutex, for walks over at most max_regions entries; nothing is
// allocated, mapped or called back under it.
#ifndef EXPERTD_DAEMON_REGIONS_REGION_H
#define EXPERTD_DAEMON_REGIONS_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/err.h"

enum { REGION_TOKEN_BYTES = 16, REGION_ALIGN = 64 };

#define REGION_OFFER_NS (INT64_C(10) * NS_PER_S)

struct region_registry;
struct region; // one mapping

struct region_limits {
    uint64_t max_bytes;        // of one region, > 0
    uint32_t max_regions;      // whose memory is held, closed ones in use included
    uint32_t max_regions_each; // of them those that one peer asked for
};

FALLIBLE region_registry_create(const struct region_limits *limits, struct region_registry **out);
// Every region goes; none may be pinned. NULL is legal.
void region_registry_destroy(struct region_registry *registry);

uint64_t region_max_bytes(const struct region_registry *registry);

// From here `changed` is called, on the thread and after the fact, when a region was offered or closed by its id. It must not
// block. NULL: nobody is told any more. While no other thread offers or closes regions.
void region_registry_watch(struct region_registry *registry, void (*changed)(void *context), void *context);

struct region_offer {
    uint64_t id;
    uint8_t token[REGION_TOKEN_BYTES];
};

// Makes a region of zeros. peer: the name of the connection that asks, of which the first RPC_PEER_MAX - 1 bytes count.
// EXPERTD_ERR_TENSOR_BYTES (no bytes), EXPERTD_ERR_TOO_LARGE, EXPERTD_ERR_QUEUE_FULL (as many as there may be, or as one peer may
// have), EXPERTD_ERR_NOMEM.
FALLIBLE region_offer(struct region_registry *registry, const char *peer, uint64_t bytes, int64_t now_ns, struct region_offer *out);
// What the token buys: the region is owned now, and *fd is the caller's to close. EXPERTD_ERR_PERMISSION: no such token, used, or
// too late.
FALLIBLE region_redeem(struct region_registry *registry, const uint8_t token[REGION_TOKEN_BYTES], int64_t now_ns, uint64_t *id,
                       int *fd);
FALLIBLE region_close(struct region_registry *registry, uint64_t id); // EXPERTD_ERR_REGION_UNKNOWN
bool region_is_open(struct region_registry *registry, uint64_t id);
// Closes offers that nobody took in time. Returns when the next one ends, CLOCK_NEVER where there is none.
int64_t region_expire(struct region_registry *registry, int64_t now_ns);

// A use of [offset, offset + length) until region_unpin. *data has that many bytes, aligned to REGION_ALIGN.
// EXPERTD_ERR_REGION_UNKNOWN, EXPERTD_ERR_TENSOR_BYTES (offset is no multiple of REGION_ALIGN, or past the region's end).
FALLIBLE region_pin(struct region_registry *registry, uint64_t id, uint64_t offset, uint64_t length, struct region **out,
                    uint8_t **data);
void region_unpin(struct region_registry *registry, struct region *region);

struct region_counts {
    uint32_t open, held; // held: closed ones in use too
    uint64_t bytes;      // of those held
};
struct region_counts region_counts(struct region_registry *registry);

#endif
