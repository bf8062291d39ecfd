#include "tests/unit/shard/membership/small_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEGMENTS_MAX = 1 + FRONTS + SHARDS };

static const uint32_t LAYER_EXPERTS[1] = {EXPERTS};
static const uint64_t EXPERT_BYTES[1] = {1};

static struct {
    struct world world;
    struct world_options options;
    void *front_memory[FRONTS], *shard_memory[SHARDS];
    struct {
        void *bytes;
        size_t count;
    } segments[SEGMENTS_MAX];
} G;

static struct world *const W = &G.world;

void world_start_front(uint32_t f) {
    struct membership_options options = membership_defaults();
    assert_false(err_is(catalogue_init(&options.catalogue, 1, LAYER_EXPERTS, EXPERT_BYTES)));
    options.identity = (struct member_identity){1, "1/bf16/cpu", "bf16", {1}};
    options.members_max = SHARDS;
    options.copies = G.options.copies;
    options.is_owner = f == 0 || G.options.both_own;
    options.health = (struct health_options){.interval_ns = 1,
                                             .missed_max = STEP_TIME_UNITS,
                                             .dead_after_ns = STEP_TIME_UNITS + 1,
                                             .absences_max = G.options.absences_max,
                                             .window_ns = 40,
                                             .flap = {3, 12}};
    options.connect_timeout_ns = 4;
    options.dial = options.refusal = options.load = (struct pause_range){1, 1};
    options.rereplicate_after_ns = 4;
    options.settle_after_ns = 2;
    options.gather_ns = 4;
    options.review_interval_ns = 0;
    if (!G.front_memory[f]) {
        G.front_memory[f] = aligned_alloc(64, membership_bytes(&options));
    }
    assert_false(err_is(membership_init(&W->fronts[f], &options, G.front_memory[f], W->now)));
    W->front_ids[f] = 100 * (FRONTS - f) + W->front_starts[f]++; // the second front is preferred if both ask for the lease
    W->batches[f] = (struct batch){0};
    memset(W->tables[f], 0, sizeof W->tables[f]);
    W->given[f] = 0;
    W->is_taken_up[f] = false;
}

void world_start_shard(uint32_t s) {
    struct holder_options options = {.bytes_max = G.options.shard_memory, .fronts_max = 6, .front_after_ns = 3};
    assert_false(err_is(catalogue_init(&options.catalogue, 1, LAYER_EXPERTS, EXPERT_BYTES)));
    if (!G.shard_memory[s]) {
        G.shard_memory[s] = aligned_alloc(64, holder_bytes(&options));
    }
    assert_false(err_is(holder_init(&W->shards[s], &options, G.shard_memory[s])));
    W->instances[s] = 1000 * (s + 1) + W->shard_starts[s]++;
}

// -- snapshots
// ----------------------------------------------------------------------------------------------------------------------

static void add_segment(size_t i, void *bytes, size_t count) {
    G.segments[i].bytes = bytes;
    G.segments[i].count = count;
}

struct world *world_create(const struct world_options *options) {
    memset(&G, 0, sizeof G);
    G.options = *options;
    for (uint32_t s = 0; s < SHARDS; s++) {
        world_start_shard(s);
        W->instances[s] = s < options->first_shards ? W->instances[s] : 0;
        add_segment(1 + FRONTS + s, G.shard_memory[s],
                    (size_t)((char *)W->shards[s].reports - (char *)G.shard_memory[s])); // without scratch
    }
    for (uint32_t f = 0; f < FRONTS; f++) {
        world_start_front(f);
        add_segment(1 + f, G.front_memory[f], W->fronts[f].state_bytes);
        world_list_shards(f);
    }
    add_segment(0, W, sizeof *W);
    return W;
}

struct world *world_current(void) {
    return W;
}

const struct world_options *world_options(void) {
    return &G.options;
}

void world_destroy(void) {
    for (uint32_t i = 0; i < FRONTS; i++) {
        free(G.front_memory[i]);
    }
    for (uint32_t i = 0; i < SHARDS; i++) {
        free(G.shard_memory[i]);
    }
}

size_t world_bytes(void) {
    size_t bytes = 0;
    for (size_t i = 0; i < SEGMENTS_MAX; i++) {
        bytes += G.segments[i].count;
    }
    return bytes;
}

void world_save(void *snapshot) {
    char *to = snapshot;
    for (size_t i = 0; i < SEGMENTS_MAX; i++) {
        memcpy(to, G.segments[i].bytes, G.segments[i].count);
        to += G.segments[i].count;
    }
}

void world_restore(const void *snapshot) {
    const char *from = snapshot;
    for (size_t i = 0; i < SEGMENTS_MAX; i++) {
        memcpy(G.segments[i].bytes, from, G.segments[i].count);
        from += G.segments[i].count;
    }
}

// Eight lanes, so that the multiplications overlap. Every segment is a multiple of 64 bytes.
uint64_t world_hash(void) {
    uint64_t lanes[8] = {1, 2, 3, 4, 5, 6, 7, 8}, actions = W->actions, hash = 0;
    W->actions = 0; // a statistic
    for (size_t i = 0; i < SEGMENTS_MAX; i++) {
        const uint64_t *words = G.segments[i].bytes;
        for (size_t at = 0; at < G.segments[i].count / sizeof *words; at += 8) {
            for (size_t lane = 0; lane < 8; lane++) {
                lanes[lane] = (lanes[lane] ^ words[at + lane]) * 0x9e3779b97f4a7c15u;
                lanes[lane] ^= lanes[lane] >> 32;
            }
        }
    }
    W->actions = actions;
    for (size_t lane = 0; lane < 8; lane++) {
        hash = (hash ^ lanes[lane]) * 0xd6e8feb86659fd93u;
        hash ^= hash >> 32;
    }
    return hash;
}
