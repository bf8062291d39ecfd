// The inside of the big world, for its own files.
#ifndef EXPERTD_TESTS_UNIT_SHARD_MEMBERSHIP_BIG_WORLD_STATE_H
#define EXPERTD_TESTS_UNIT_SHARD_MEMBERSHIP_BIG_WORLD_STATE_H

#include "base/clock.h"
#include "tests/unit/shard/membership/big_world.h"

#define MS ((int64_t)NS_PER_MS)

enum kind { TO_SHARD_HELLO, TO_SHARD_ASSIGN, TO_SHARD_RETIRE, TO_SHARD_RELEASE, TO_SHARD_DRAIN, TO_FRONT_HELLO, TO_FRONT_MESSAGE };

struct message {
    struct message *next;
    enum kind kind;
    int64_t at_ns; // of delivery, if nothing holds it up
    bool flag;
    uint32_t number;
    uint64_t value;
    struct holder_message holder;
    size_t count;
    union {
        struct expert_id experts[MEMBERSHIP_LIST_MAX];
        struct copy_report reports[HOLDER_LIST_MAX];
    };
};

// One direction of a connection.
struct stream {
    struct message *first, *last;
    bool is_scheduled;
};

struct connection {
    bool front_open, shard_open, is_cut;
    uint32_t number, session;
    struct stream to_shard, to_front;
};

struct shard {
    struct holder holder;
    void *memory;
    bool runs, is_stopped, is_loading;
    uint64_t instance;
    struct expert_id loading;
};

enum event_kind { EVENT_DELIVER, EVENT_FRONT_NOTICES, EVENT_SHARD_NOTICES, EVENT_LOADED, EVENT_TAKE_UP, EVENT_TICK };

struct event {
    int64_t at_ns;
    uint64_t order; // of events of the same time
    enum event_kind kind;
    uint32_t front, shard, number; // number: of the connection or session; of EVENT_LOADED the low part of the instance
    uint64_t value;
};

struct big_world {
    struct big_options options;
    uint32_t layer_experts[BIG_LAYERS];
    uint64_t expert_bytes[BIG_LAYERS];
    struct catalogue catalogue;
    int64_t now_ns;
    uint64_t random, next_order, next_id;
    struct event *heap;
    size_t heap_count, heap_max;
    struct membership fronts[BIG_FRONTS];
    void *front_memory[BIG_FRONTS];
    uint64_t front_ids[BIG_FRONTS], table_epochs[BIG_FRONTS][BIG_LAYERS];
    uint32_t next_session;
    struct shard *shards;
    struct connection *connections[BIG_FRONTS]; // [shards]
    int64_t action_ns;                          // of the last action
    struct big_counts counts;
};

static inline struct connection *big_connection(struct big_world *w, uint32_t f, uint32_t s) {
    return &w->connections[f][s];
}

// The streams end. Each side that has them open notices, unless nothing reaches it.
void big_end_streams(struct big_world *w, uint32_t f, uint32_t s);
// What waits in the streams is delivered now.
void big_schedule(struct big_world *w, uint32_t f, uint32_t s);
void big_feed(struct big_world *w, uint32_t f, struct membership_event event);
void big_take_actions(struct big_world *w, uint32_t f);
void big_init_front(struct big_world *w, uint32_t f);

#endif
