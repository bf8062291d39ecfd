// Two fronts and up to 1,000 shards in virtual time: the cores of membership.h and holder.h, joined by streams with delays, under
// faults. Front 0 places experts, front 1 follows.
#ifndef EXPERTD_TESTS_UNIT_SHARD_MEMBERSHIP_BIG_WORLD_H
#define EXPERTD_TESTS_UNIT_SHARD_MEMBERSHIP_BIG_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/membership/holder.h"
#include "shard/membership/membership.h"

enum { BIG_FRONTS = 2, BIG_LAYERS = 8 };

struct big_options {
    uint32_t shards;
    uint32_t experts;       // of each layer
    uint32_t copies;        //
    uint64_t shard_memory;  // experts that fit on a shard
    uint32_t failing_loads; // one load in so many fails; 0: none
    uint64_t seed;
};

struct big_counts {
    uint64_t actions;           // of both fronts, except dials: an address that does not answer is dialled for ever
    uint64_t assigned, retired; // copies, by front 0
    uint64_t loads;             // finished
    uint32_t *live_changes;     // [shards] of front 0's live mask
};

struct big_world;

struct big_world *big_create(const struct big_options *options);
void big_destroy(struct big_world *world);
int64_t big_now(const struct big_world *world);
struct big_counts *big_counts(struct big_world *world);
struct membership *big_front(struct big_world *world, uint32_t front);
uint64_t big_random(struct big_world *world);

void big_pass(struct big_world *world, int64_t ns);
// Time passes until both fronts have had no action but dials for `quiet_ns`. Fails the test if that takes longer than `ns`.
void big_come_to_rest(struct big_world *world, int64_t quiet_ns, int64_t ns);
// Fails the test if an invariant is broken.
void big_check(struct big_world *world);
// Fails the test if an expert does not have the wanted copies, or a front believes anything else than what the shards hold. All
// run.
void big_check_rest(struct big_world *world);
// The copies that a shard holds.
uint32_t big_copies(const struct big_world *world, uint32_t shard);

// Faults of one shard.
void big_kill(struct big_world *world, uint32_t shard);
bool big_runs(const struct big_world *world, uint32_t shard);
void big_start(struct big_world *world, uint32_t shard);
void big_break(struct big_world *world, uint32_t front, uint32_t shard); // the streams, which both sides notice
// A stopped process, or a network that loses everything between a front and a shard.
void big_stop(struct big_world *world, uint32_t shard, bool stop);
void big_cut(struct big_world *world, uint32_t front, uint32_t shard, bool cut);
void big_ask_drain(struct big_world *world, uint32_t shard, bool drains);
void big_list(struct big_world *world, uint32_t shard, bool listed);
void big_restart_front(struct big_world *world, uint32_t front);

#endif
