// A world of 2 fronts and 3 shards for exhaustive exploration: the cores of membership.h and holder.h, joined by streams that keep
// their order until they break. Each step is one event: a message is delivered, a stream breaks, one side notices it, a load ends,
// a process restarts, time passes, a batch begins or ends. What the cores do in answer is carried out at once.
#ifndef EXPERTD_TESTS_UNIT_SHARD_MEMBERSHIP_SMALL_WORLD_H
#define EXPERTD_TESTS_UNIT_SHARD_MEMBERSHIP_SMALL_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/membership/holder.h"
#include "shard/membership/membership.h"

enum { FRONTS = 2, SHARDS = 3, EXPERTS = 2, QUEUE_MAX = 8, QUEUE_TO_FRONT = 3, STEP_TIME_UNITS = 2 };

enum message_kind {
    MESSAGE_FRONT_HELLO,
    MESSAGE_COMMAND_ASSIGN,
    MESSAGE_COMMAND_RETIRE,
    MESSAGE_RELEASED,
    MESSAGE_DRAIN,
    MESSAGE_HELLO,
    MESSAGE_OTHER
};

struct message {
    uint8_t kind;
    uint8_t experts; // set of experts; of an inventory: those reported
    uint8_t what;    // of MESSAGE_OTHER: enum holder_message_kind
    bool flag;       // is_complete, is_granted, drains
    uint8_t states[EXPERTS];
    uint32_t number; // command, commands_seen
    uint32_t sequence;
    uint64_t value; // version, owner, instance
};

struct queue {
    uint32_t count;
    struct message messages[QUEUE_MAX];
};

// The streams between one front and one shard.
struct link {
    bool is_open;        // the front has this connection
    bool is_broken;      // and does not know that it is lost
    bool shard_open;     // the shard has this session
    uint32_t connection; // of the front
    uint32_t session;    // of the shard
    uint32_t dials;
    uint32_t lost_session; // an earlier one that the shard believes in; 0: none
    struct queue to_shard, to_front;
};

// A batch uses every live holder that the caller's table names at its begin.
struct batch {
    bool is_open;
    bool is_old;                           // it has begun before the caller took up its table
    uint8_t experts[SHARDS];               // set of those that it uses on each shard
    uint32_t sessions[SHARDS];             //
    uint32_t generations[SHARDS][EXPERTS]; // of these copies
};

// How many more events of each kind may happen.
struct budget {
    uint8_t breaks, reconnects, silences, shard_restarts, shard_stops, front_restarts, repeats, failures, times, batches, drains,
        lists;
};

struct world {
    _Alignas(64) struct budget budget;
    int64_t now;
    uint32_t shard_starts[SHARDS], front_starts[FRONTS];
    uint64_t instances[SHARDS], front_ids[FRONTS]; // instance 0: the shard is stopped
    uint32_t generations[SHARDS][EXPERTS];         // number of the load of each copy
    struct link links[FRONTS][SHARDS];
    struct batch batches[FRONTS];
    // The caller of each front: the table that new batches use, and the epoch that was given out and is not in force yet; 0: none.
    uint64_t tables[FRONTS][SHARDS], given[FRONTS];
    bool is_taken_up[FRONTS]; // new batches use the table of that epoch
    uint32_t unlisted;        // 1 + the shard that is not listed; 0: none
    uint64_t actions;         // of all fronts
    struct membership fronts[FRONTS];
    struct holder shards[SHARDS];
};

struct world_options {
    uint32_t copies;
    bool both_own;         // both fronts ask for the lease
    uint64_t shard_memory; // experts that fit on a shard
    uint32_t absences_max;
    uint32_t first_shards; // that run at the start; the others are stopped
};

enum step_kind {
    STEP_DELIVER_TO_SHARD,
    STEP_DELIVER_TO_FRONT,
    STEP_REPEAT_TO_SHARD, // the message is delivered and stays in the stream
    STEP_REPEAT_TO_FRONT,
    STEP_BREAK, // the stream breaks, and what is on the way is lost
    STEP_FRONT_NOTICES,
    STEP_SHARD_NOTICES,
    STEP_RECONNECT, // it breaks, both sides notice, and the front connects again and hears all that the shard holds
    STEP_LOAD,      // a load succeeds
    STEP_LOAD_FAILS,
    STEP_RESTART_SHARD, // also one that was stopped
    STEP_RESTART_HEARD, // the same, and both fronts connect again at once
    STEP_STOP_SHARD,
    STEP_RESTART_FRONT,
    STEP_TIME,    // passes, and everyone hears everyone
    STEP_SILENCE, // it passes, and this front and this shard do not hear each other
    STEP_TAKE_UP, // the caller takes up the table that was given out
    STEP_BATCH_BEGINS,
    STEP_BATCH_ENDS,
    STEP_DRAIN,        // an operator drains the shard at this front
    STEP_CANCEL_DRAIN, // and thinks better of it
    STEP_UNLIST,       // the shard's address leaves the list of both fronts; one at a time
    STEP_LIST,         // it comes back
    STEP_KINDS
};

struct world_step {
    enum step_kind kind;
    uint32_t front, shard;
};

// There is one world at a time, at a fixed address, so that a copy of its bytes restores it.
struct world *world_create(const struct world_options *options);
void world_destroy(void);
struct world *world_current(void);
const struct world_options *world_options(void);
size_t world_bytes(void); // of a snapshot
void world_save(void *snapshot);
void world_restore(const void *snapshot);
uint64_t world_hash(void);

// Processes start, and a front gets its list of shards.
void world_start_front(uint32_t front);
void world_start_shard(uint32_t shard);
void world_list_shards(uint32_t front);

// Carries out a step. False: it is not possible now.
bool world_step(const struct world_step *step);
// Fails the test if an invariant is broken.
void world_check(void);
// A shard frees a copy: another shard holds the expert, unless one has lost it by a restart.
void world_check_free(uint32_t shard, uint32_t expert);
// A front releases copies: it has other holders of these experts.
void world_check_release(uint32_t front, uint32_t shard, uint8_t experts);
// A front has copies retired: it knows of others that are ready and live.
void world_check_retire(uint32_t front, uint32_t shard, uint8_t experts);
// Faults stop: everything is delivered, and time passes until nothing happens. Fails the test if that does not come, if it takes
// more actions than the changes justify, or if the rest is not as it should be.
void world_come_to_rest(uint32_t actions_max);

#endif
