// The memory that a process of a load shares with the daemon: one region with a slot for each call in flight. A slot has the call's
// tensors and its answer. The sending thread owns the region; the receiving thread reads the answers of calls that have ended.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_RUN_BENCH_REGION_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_RUN_BENCH_REGION_H

#include "client/c/region.h"
#include "client/expertctl/bench/load/bench_pool.h"

// Offsets of a slot's tensors. Each has space for tokens_max rows.
struct region_layout {
    uint64_t hidden, scales, ids, weights, output;
    uint64_t slot_bytes;
};

struct bench_region {
    struct client *client; // never destroyed: the process exits after the load
    struct client_region region;
    struct region_layout layout;
};

struct region_layout region_layout_of(const struct bench_pool *pool, uint32_t tokens_max);
// The most tokens that each of `slots` calls can have in a region of the largest size.
uint32_t region_max_tokens(const struct bench_target *target, const struct bench_pool *pool, uint32_t slots);
// EXPERTD_ERR_USAGE: the address is not a Unix socket, or the daemon does not share enough memory for the slots.
FALLIBLE region_check(const char *address, const struct bench_target *target, const struct bench_pool *pool, uint32_t tokens_max,
                      uint32_t slots);

// Errors as client_region_open.
FALLIBLE bench_region_open(const char *address, const struct bench_pool *pool, uint32_t tokens_max, uint32_t slots,
                           int64_t timeout_us, struct bench_region *out);
void bench_region_close(struct bench_region *region); // legal on a zeroed struct

// Copies the request's tensors into a slot and sets their extents in the request. `pieces` are its hidden states.
void bench_region_fill(const struct bench_region *region, uint32_t slot, const struct calls_piece *pieces, size_t num_pieces,
                       const struct bench_pool *pool, struct wire_request *request);
// The answer in the slot as a tensor. Not present if the reply's extent is another one.
struct wire_tensor bench_region_answer(const struct bench_region *region, uint32_t slot, const struct wire_tensor *output,
                                       const struct bench_pool *pool);

#endif
