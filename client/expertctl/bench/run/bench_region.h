// The memory that a process of a load shares with the daemon: one region, a room for each call in flight, with what it asks and
// its answer. Belongs to the sending thread; the taking one reads the answer of a call that has ended.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_RUN_BENCH_REGION_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_RUN_BENCH_REGION_H

#include "client/c/region.h"
#include "client/expertctl/bench/load/bench_pool.h"

// Where a room's parts begin; each has space for the most tokens.
struct region_layout {
    uint64_t hidden, scales, ids, weights, output;
    uint64_t room_bytes;
};

struct bench_region {
    struct client *client; // owned; goes with the process
    struct client_region region;
    struct region_layout layout;
};

struct region_layout region_layout_of(const struct bench_pool *pool, uint32_t tokens_max);
// Tokens that each of `rooms` calls can have in a region of the daemon's.
uint32_t region_tokens_most(const struct bench_target *target, const struct bench_pool *pool, uint32_t rooms);
// EXPERTD_ERR_USAGE where nothing is shared at that address, or so many rooms are more than the daemon shares.
FALLIBLE region_check(const char *address, const struct bench_target *target, const struct bench_pool *pool, uint32_t tokens_max,
                      uint32_t rooms);

// The client's own errors: EXPERTD_ERR_PERMISSION over TCP.
FALLIBLE bench_region_open(const char *address, const struct bench_pool *pool, uint32_t tokens_max, uint32_t rooms,
                           int64_t timeout_us, struct bench_region *out);
void bench_region_close(struct bench_region *region); // legal on a zeroed struct

// Copies what the request carries into a room, as an engine that computes it there would have it, and lets the request say where it
// lies. `pieces`: of its hidden states.
void bench_region_place(const struct bench_region *region, uint32_t room, const struct calls_piece *pieces, size_t num_pieces,
                        const struct bench_pool *pool, struct wire_request *request);
// The answer in the room, as if it had come with the reply. Not present where the reply names another place.
struct wire_tensor bench_region_answer(const struct bench_region *region, uint32_t room, const struct wire_tensor *output,
                                       const struct bench_pool *pool);

#endif
