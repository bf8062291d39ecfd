// The shard's side of the membership: which experts this process holds, for which fronts. Pure: calls with their time go in,
// actions come out; no I/O, clock, threads, and no allocation after creation. One thread at a time. After each call take every
// action by holder_next. membership.h is the front's side.
//
// A copy is assigned and given up by commands of the front with the placement lease. Nothing else removes one: fronts that go away
// leave all copies as they are. A copy that is given up is retiring: it still computes rows. It is freed when there is a front, and
// each connected front has released it. A release names the last inventory message that the front knows. It counts only if that
// message, or one before, said the last word about the copy: a front that learns later that the copy is there may use it again.
//
// The lease: among the connected fronts that ask for it, the one with the lowest id has it, so all shards agree on one front.
//
// Memory: 9.4 bytes per cell, and 4.25 more for each front. 60 layers of 256 experts and 8 fronts: 670 KB.
#ifndef EXPERTD_SHARD_MEMBERSHIP_HOLDER_H
#define EXPERTD_SHARD_MEMBERSHIP_HOLDER_H

#include "shard/catalogue/copies.h"

enum { HOLDER_FRONTS_MAX = 64, HOLDER_LIST_MAX = 256 };

struct holder_options {
    struct catalogue catalogue; // its arrays are borrowed for the holder's life
    uint64_t bytes_max;         // memory for experts
    uint32_t fronts_max;        // connected at a time
    int64_t front_after_ns;     // a front that is silent for so long is closed, so that it does not keep retired copies in memory
};

// What is in memory. What the fronts are told follows from it and from `assigned` (holder_state).
enum holder_cell {
    CELL_EMPTY,
    CELL_LOADING, // taken by holder_take_load
    CELL_LOADED,
    CELL_FREEING, // until holder_freed
    CELL_FAILED   // not assigned: it could not be loaded, or there is no memory for it. A further assignment tries again
};

// What a front was told last about the lease.
enum holder_lease { LEASE_UNTOLD, LEASE_TOLD_GRANTED, LEASE_TOLD_DENIED };

struct holder_front {
    bool is_used;
    bool asks_lease;
    bool has_inventory; // it has been told everything once
    bool is_due;        // a message is due even if no copy changed
    bool drain_is_due;
    enum holder_lease lease;
    uint32_t session; // the caller's number of its streams
    uint64_t id;
    uint64_t lease_told; // the owner that it was told
    int64_t heard_ns;
    uint32_t commands_done, commands_told;
    uint32_t messages;  // inventory messages so far
    uint32_t *told;     // [cells] the message that said the last word about each
    uint64_t *changed;  // set of the cells to tell
    uint64_t *released; // set of the retiring cells that it does not use
};

// A session to be closed.
struct holder_closing {
    uint32_t session;
    bool is_silent;
};

struct holder {
    struct holder_options options;
    struct holder_front *fronts; // [fronts_max]
    uint64_t owner;              // the front with the lease; 0: none
    bool is_draining;
    uint64_t bytes_used, bytes_assigned;
    uint8_t *cells;     // [cells] enum holder_cell
    uint64_t *digests;  // [cells] of those loaded
    uint64_t *assigned; // set of the cells that this shard should hold
    uint64_t *retiring; // set of those loaded and not assigned
    uint64_t *to_free;  // set of those whose HOLDER_FREE has not been taken
    uint64_t *front_sets;
    uint32_t *front_told;
    struct holder_closing *closing; // [fronts_max]
    uint32_t closing_count;
    struct copy_report *reports; // [HOLDER_LIST_MAX] of the last message
};

enum holder_action_kind {
    HOLDER_CLOSE, // close the session's streams; is_silent: it was not heard for front_after_ns, else the front has connected again
    HOLDER_FREE,  // free this copy when no batch computes with it; then holder_freed
};

struct holder_action {
    enum holder_action_kind kind;
    uint32_t session;
    bool is_silent;
    struct expert_id expert;
};

enum holder_message_kind { HOLDER_LEASE, HOLDER_DRAINS, HOLDER_INVENTORY };

struct holder_message {
    enum holder_message_kind kind;
    bool drains;
    bool is_granted;
    uint64_t owner;
    uint32_t sequence; // from here on as in struct member_inventory
    uint32_t commands_seen;
    bool is_complete;
    const struct copy_report *reports; // [count] valid until the next call
    size_t count;
};

// EXPERTD_ERR_CONFIG: fronts_max or front_after_ns makes no sense.
FALLIBLE holder_check(const struct holder_options *options);
size_t holder_bytes(const struct holder_options *options);
// memory: holder_bytes, aligned to 64, owned by the caller.
FALLIBLE holder_init(struct holder *holder, const struct holder_options *options, void *memory);

// A front has connected. session: not in use. front: its id, not 0; an earlier session of the same front is closed.
// EXPERTD_ERR_UNAVAILABLE: fronts_max fronts are connected.
FALLIBLE holder_connect(struct holder *holder, uint32_t session, uint64_t front, bool asks_lease, int64_t now_ns);
// Calls with a session that does not exist (any more) change nothing.
void holder_disconnected(struct holder *holder, uint32_t session);
void holder_heard(struct holder *holder, uint32_t session, int64_t now_ns);
// Closes fronts that are silent.
void holder_tick(struct holder *holder, int64_t now_ns);
// This shard is to give up its copies, or not any more: because its process is to end, or because a front sent it. Every front is
// told.
void holder_drain(struct holder *holder, bool drains);

// Messages from a front. A command of a front without the lease changes nothing, nor does one that came before.
// EXPERTD_ERR_INVALID: an expert that does not exist: the caller closes the session.
FALLIBLE holder_assign(struct holder *holder, uint32_t session, uint32_t number, const struct expert_id *experts, size_t count);
FALLIBLE holder_retire(struct holder *holder, uint32_t session, uint32_t number, const struct expert_id *experts, size_t count);
FALLIBLE holder_release(struct holder *holder, uint32_t session, uint32_t sequence, const struct expert_id *experts, size_t count);

// The next expert to load: there is memory for it. Then holder_loaded or holder_load_failed. Several may be loading.
bool holder_take_load(struct holder *holder, struct expert_id *expert);
void holder_loaded(struct holder *holder, struct expert_id expert, uint64_t digest);
void holder_load_failed(struct holder *holder, struct expert_id expert);
void holder_freed(struct holder *holder, struct expert_id expert);

bool holder_next(struct holder *holder, struct holder_action *action);
// The next message to a front, when its stream takes one.
bool holder_next_message(struct holder *holder, uint32_t session, struct holder_message *message);

// May rows of this session be computed with this expert now?
bool holder_serves(const struct holder *holder, uint32_t session, struct expert_id expert);
enum copy_state holder_state(const struct holder *holder, uint32_t cell);

#endif
