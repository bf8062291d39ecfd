// The membership of a front: which shards there are, which of them may be used, which experts they hold, and which they should
// hold. Pure: events with their time go in, actions come out; no I/O, clock, threads, and no allocation after creation. The caller
// dials, sends, waits and computes. One thread at a time; the caller copies the live mask and the tables for its other threads.
//
// Use: create the state in memory of membership_bytes. After each event (membership_add, membership_step, membership_set_load) take
// every action by membership_next and carry it out before the next event. Actions are derived from the state, in a fixed order
// (enum membership_action_kind). So none is lost and no queue can overflow: an action that is taken late is taken in its latest
// form.
//
// Call membership_step with MEMBERSHIP_TICK once per heartbeat interval, after the echoes that have arrived. Ticks that are more
// than two intervals apart mean that this process did not run: the silence of others in that time does not count.
//
// A front and a shard talk over one stream in each direction, which keeps its order until it breaks. From the shard: a hello, the
// complete inventory, then its changes. From the front: commands (assign, retire) and releases. Messages that are repeated, late or
// of an earlier connection change nothing. holder.h is the shard's side.
//
// The shard's inventory is the truth: tables name what shards say they hold. Only the front with the placement lease assigns and
// retires; the others follow, and no placement changes while no front has it. A copy is retired in two phases: the shard announces
// it; each front takes it out of its table, and releases it when no batch uses the table before; then the shard frees it. A front
// keeps using a retiring copy while no live member has another one.
//
// Ranks of this process are members too: always connected, without a lease, commanded by the same actions; the caller runs a holder
// for each. Where several fronts use the same shards, give them no ranks of their own: an expert that lies only there is missing at
// the others.
//
// Memory: for M members and C cells (layers times the most experts of a layer, rounded up to 64), 7 C / 8 + 1,220 bytes per member
// and 29 bytes per cell. 64 members, 60 layers of 256 experts: 1.4 MB; at every limit (1,024 members, 128 layers, 1,024 experts):
// 122 MB.
#ifndef EXPERTD_SHARD_MEMBERSHIP_MEMBERSHIP_H
#define EXPERTD_SHARD_MEMBERSHIP_MEMBERSHIP_H

#include "shard/membership/membership_state.h"

enum membership_event_kind {
    // About a connection: `member` and `connection` are those of MEMBERSHIP_DIAL. Those of an earlier connection are ignored.
    MEMBERSHIP_HELLO,
    MEMBERSHIP_CONNECT_FAILED,
    MEMBERSHIP_NOT_ACCEPTED, // the shard has ended the connection with a difference of its own finding: asked again after growing
                             // pauses
    MEMBERSHIP_DISCONNECTED,
    MEMBERSHIP_ECHO, // of a heartbeat
    MEMBERSHIP_LEASE,
    MEMBERSHIP_SHARD_DRAINS, // the shard gives up its copies, or does not any more; also of a member of this process
    MEMBERSHIP_INVENTORY,    // also of a member of this process, with connection 0
    // About a member
    MEMBERSHIP_ASK_DRAIN, // the operator wants the shard to drain, or not to; the shard is told, and tells every front
    MEMBERSHIP_UNLIST,    // the address is no longer listed. While it is connected it serves on; it is not dialled again
    // About this front
    MEMBERSHIP_IN_FORCE, // the table of `layer` and `epoch` is used, and no batch uses an older one
    MEMBERSHIP_TICK
};

struct membership_event {
    enum membership_event_kind kind;
    int64_t now_ns; // never decreases
    uint32_t member, connection;
    union {
        struct member_hello hello;
        int64_t round_trip_ns;
        bool drains; // of SHARD_DRAINS and ASK_DRAIN
        struct member_inventory inventory;
        struct {
            bool is_granted;
            uint64_t owner; // the front that has it
        } lease;
        struct {
            uint32_t layer;
            uint64_t epoch;
        } in_force;
    };
};

// In the order in which they are returned.
enum membership_action_kind {
    MEMBERSHIP_SET_LIVE, // copy membership->live; batches planned from now on use it
    MEMBERSHIP_OWNER,    // for the log: whether this front places experts has changed
    MEMBERSHIP_LOG,      // the member's state was `from` and is `to`, for `reason`
    MEMBERSHIP_CLOSE,    // close the connection: both of its streams, and what waits for answers on them
    MEMBERSHIP_DIAL,     // connect to the member's address, and report under this connection number
    MEMBERSHIP_USE,     // give `layer` the table membership_table with `epoch`; then MEMBERSHIP_IN_FORCE. A batch counts as using a
                        // table from the moment it reads it, before it reads the live mask
    MEMBERSHIP_DRAIN,   // send: drain, or do not drain any more, by `drains`
    MEMBERSHIP_RELEASE, // send: no batch of this front uses these copies; it knows the inventory message `number`
    MEMBERSHIP_RETIRE,  // send command `number`: give these copies up, unless a front needs them
    MEMBERSHIP_ASSIGN,  // send command `number`: load these experts, or go on holding them
    MEMBERSHIP_DRAINED, // for the log and for who asked: nothing is left on the member
};

struct membership_action {
    enum membership_action_kind kind;
    uint32_t member, connection;
    enum member_state from, to;
    enum member_reason reason;
    uint32_t layer;
    uint64_t epoch;
    uint32_t number;
    bool drains;
    const struct expert_id *experts; // [count] valid until the next call
    size_t count;
};

struct membership_options membership_defaults(void);

// EXPERTD_ERR_CONFIG: a limit or a time that makes no sense, by name. membership_bytes: for options that pass this check.
FALLIBLE membership_check(const struct membership_options *options);
size_t membership_bytes(const struct membership_options *options);
// memory: membership_bytes, aligned to 64, owned by the caller. Local members are there and hold nothing.
FALLIBLE membership_init(struct membership *membership, const struct membership_options *options, void *memory, int64_t now_ns);

// Lists an address, new or not. A caller whose name service fails or answers with no address reports no change.
// EXPERTD_ERR_CONFIG: an address that is empty or too long, or no slot is free.
FALLIBLE membership_add(struct membership *membership, const char *address, int64_t now_ns, uint32_t *member);
void membership_step(struct membership *membership, const struct membership_event *event);
bool membership_next(struct membership *membership, struct membership_action *action);

// Measured load of each expert of a layer, [E of the layer]: the owner balances by it. Rows of the same time span for all layers.
void membership_set_load(struct membership *membership, uint32_t layer, const uint64_t *rows, int64_t now_ns);

#endif
