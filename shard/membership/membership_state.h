// The state of a front's membership: its members, and the tables that say which of them hold which experts. Only shard/membership/
// writes it; others read it through membership.h.
#ifndef EXPERTD_SHARD_MEMBERSHIP_MEMBERSHIP_STATE_H
#define EXPERTD_SHARD_MEMBERSHIP_MEMBERSHIP_STATE_H

#include "shard/catalogue/bits.h"
#include "shard/catalogue/copies.h"
#include "shard/membership/health.h"
#include "shard/membership/placement_target.h"

enum {
    MEMBERS_MAX = 1024,
    MEMBER_ADDRESS_MAX = 288, // bytes with the NUL: a DNS name of 253 and a port, or the path of a Unix socket
    MEMBER_VALUE_MAX = 96,    // bytes with the NUL of a value that differs: a numerics_id, a digest
    MEMBERSHIP_LIST_MAX = 256 // experts in one action
};

enum member_state {
    MEMBER_FREE,     // the slot has no member
    MEMBER_JOINING,  // never connected yet
    MEMBER_LOADING,  // connected; its ready copies are used, others are loading
    MEMBER_READY,    // connected, and every assigned copy is ready
    MEMBER_SUSPECT,  // connected, but silent: no new batch uses it
    MEMBER_DRAINING, // connected and used; its copies move elsewhere
    MEMBER_DEAD,     // was connected, and is dialled again
    MEMBER_BACK, // connected again, and not used yet: a pause after too many absences, or tables that name copies it no longer has
    MEMBER_REFUSED, // another model, numerics or protocol; asked again after growing pauses
    MEMBER_STATES
};

// Why a member's state changed.
enum member_reason {
    MEMBER_ADDED,
    MEMBER_CONNECTED, // a new instance
    MEMBER_RETURNED,  // the same instance
    MEMBER_CONNECT_FAILED,
    MEMBER_CONNECT_TIMED_OUT, // no hello or no complete inventory in time
    MEMBER_DISCONNECTED,
    MEMBER_SILENT,          // heartbeats without an echo
    MEMBER_HEARD,           // an echo after silence: a false alarm
    MEMBER_SILENT_TOO_LONG, // the connection was closed
    MEMBER_PAUSE_ENDED,     // of a member that was absent too often
    MEMBER_NEEDED,          // the pause ended early: it has the only live copy of an expert
    MEMBER_COPIES_CHANGED,  // its copies became ready, or it was assigned others
    MEMBER_DRAIN_REQUESTED,
    MEMBER_DRAIN_CANCELLED,
    MEMBER_UNLISTED,       // the address list no longer has it
    MEMBER_OTHER_PROTOCOL, // refused from here on
    MEMBER_OTHER_NUMERICS,
    MEMBER_OTHER_DTYPE,
    MEMBER_OTHER_MODEL,
    MEMBER_OTHER_EXPERT,   // an expert's digest differs
    MEMBER_SAME_PROCESS,   // another address leads to the same instance
    MEMBER_REFUSES_US,     // the shard itself found a difference, and says which
    MEMBER_BROKEN_MESSAGE, // it names experts that do not exist, or one before it was lost
    MEMBER_REASONS
};

// What a member of the other side must agree on. Strings are borrowed; at most MEMBER_VALUE_MAX - 1 bytes are compared.
struct member_identity {
    uint32_t protocol; // version
    const char *numerics_id;
    const char *compute_dtype;
    uint8_t model_digest[16]; // of config, shapes and files
};

struct member_hello {
    struct member_identity identity;
    uint64_t instance;  // random, of the process; not 0
    uint64_t bytes_max; // memory for experts
    bool is_draining;
};

struct member_inventory {
    uint32_t sequence;      // 1, 2, ... in a connection. A repeated message is ignored; a gap ends the connection
    uint32_t commands_seen; // the shard has carried out the commands up to this number, and told what they changed
    bool is_complete;       // all that the shard holds has been told in this connection
    const struct copy_report *reports;
    size_t count;
};

// Why a member is refused, with both values as text.
struct member_refusal {
    enum member_reason reason;
    char theirs[MEMBER_VALUE_MAX], ours[MEMBER_VALUE_MAX];
    struct expert_id expert; // of MEMBER_OTHER_EXPERT
    uint16_t other; // of MEMBER_OTHER_EXPERT and MEMBER_SAME_PROCESS: the member that `ours` comes from, or STATED_BY_DEPARTED
};

enum member_link {
    LINK_NONE,    // a free slot, a member in this process, or an address that is not dialled any more
    LINK_WAITING, // to be dialled at timer_ns
    LINK_DIALLED, // until the hello, at most until timer_ns
    LINK_SYNCING, // until the inventory is complete, at most until timer_ns
    LINK_UP
};

enum member_lease { LEASE_UNKNOWN, LEASE_GRANTED, LEASE_DENIED };

// What an operator asked, until the member says that it does so.
enum member_asked { ASKED_NOTHING, ASKED_TO_DRAIN, ASKED_NOT_TO_DRAIN };

struct member {
    enum member_state state;   // as last derived from the fields below
    enum member_state logged;  // as last reported by MEMBERSHIP_LOG
    enum member_reason reason; // of the last change
    bool is_used;              // false: a free slot
    bool is_local;
    bool is_listed;
    bool is_refused;
    bool is_draining;  // as it says
    bool is_drained;   // draining, and nothing is left on it
    bool was_up;       // has been LINK_UP in its life
    bool is_live;      // its bit of the live mask
    bool is_expired;   // lost for rereplicate_after_ns: its copies do not count any more
    bool is_settled;   // live for settle_after_ns
    bool has_answered; // connected or failed once; the first assignment waits for it
    enum member_asked asked;
    enum member_link link;
    int64_t timer_ns;
    uint32_t connection; // number of the last dial; events of others are dropped
    uint32_t closing;    // number of a connection that the caller is to close; 0: none
    uint64_t instance;   // of the last hello; 0: none
    int64_t up_ns;       // when the last connection was complete
    int64_t live_ns;     // since when it is live
    int64_t lost_ns;     // when it went out of use
    struct growing_pause dial_pause, refusal_pause, load_pause;
    int64_t retry_ns; // when failed loads are tried again
    struct health health;
    struct member_refusal refusal;
    enum member_lease lease;
    uint64_t lease_owner; // the front with the lease, if LEASE_DENIED
    uint32_t commands_sent, commands_seen;
    uint32_t last_assign, last_retire; // numbers of the last commands
    uint32_t inventory_sequence;       // of the last inventory message
    uint64_t bytes_max;
    struct copies copies;
    uint64_t *table;  // set of the cells that this front's tables name on it
    uint64_t *target; // set of the cells that it should hold; of the placement owner only
    // Set of layers whose table in force may name copies that it does not have; it is not live until they are replaced.
    uint64_t stale_layers[CATALOGUE_LAYERS_MAX / BITS_PER_WORD];
    char address[MEMBER_ADDRESS_MAX];
};

struct membership_options {
    struct catalogue catalogue;      // its arrays are borrowed for the membership's life
    struct member_identity identity; // copied
    uint32_t members_max;            // slots, local ones included
    uint32_t local_members;          // members [0, local_members) are ranks of this process
    const uint64_t *local_bytes_max; // [local_members] memory for experts
    uint32_t copies;                 // wanted of each expert, at least 1
    uint32_t replicas;               // further copies in each layer, for the experts with the most load
    bool is_owner;                   // asks for the placement lease
    struct health_options health;
    int64_t connect_timeout_ns;       // for the hello, and again for the inventory
    struct pause_range dial, refusal; // pauses before the next dial
    int64_t rereplicate_after_ns;     // a lost copy of an expert that has a live one is made again after this time
    int64_t settle_after_ns;          // a member that is live for so long takes part in balancing
    int64_t gather_ns;                // at the start the owner waits so long at most for members that have not answered
    int64_t review_interval_ns;       // between two decisions of the owner
    struct pause_range load;          // pauses before failed loads are tried again
    uint32_t loads_max;               // copies that a member loads at a time
    uint32_t slack_percent;           // of measured loads: see placement_target.h
};

// Sets of members with something for the caller.
enum member_pending {
    PENDING_LOG,
    PENDING_CLOSE,
    PENDING_DIAL,
    PENDING_DRAIN,
    PENDING_RETIRE,
    PENDING_ASSIGN,
    PENDING_DRAINED,
    PENDING_COUNT
};

// In membership.stated_by.
enum { STATED_BY_NONE = UINT16_MAX, STATED_BY_DEPARTED = UINT16_MAX - 1 };

struct membership {
    struct membership_options options;
    char numerics_id[MEMBER_VALUE_MAX], compute_dtype[MEMBER_VALUE_MAX];
    int64_t start_ns, now_ns, tick_ns; // of creation, of the last event, of the last tick
    uint64_t stalls;                   // late ticks: this process did not run
    struct member *members;            // [members_max]
    uint64_t *live;                    // set of members: the live mask
    uint64_t *pending[PENDING_COUNT];  // sets of members
    uint64_t *touched;                 // set of members whose facts an event changed
    uint64_t *retiring;                // set of members with a COPY_RETIRING
    bool live_changed, pauses_changed, lease_changed, owner_changed;
    // Layers.
    uint64_t *epochs; // [L] of the table that was last given to the caller
    uint64_t dirty[CATALOGUE_LAYERS_MAX / BITS_PER_WORD], awaiting[CATALOGUE_LAYERS_MAX / BITS_PER_WORD]; // sets of layers
    // Cells.
    uint64_t *digests;    // [cells] as first stated; see `stated_by`
    uint16_t *stated_by;  // [cells] the member, STATED_BY_NONE, or STATED_BY_DEPARTED: a member that has left its slot
    uint16_t *live_ready; // [cells] live members with a ready copy
    uint32_t *weights;    // [cells]
    uint16_t *wanted;     // [cells]
    uint64_t *cell_sets;  // of the members' copies, tables and targets
    // The owner's.
    bool is_acting; // holds the lease, and has gathered
    bool has_gathered;
    bool expects_members; // some that are listed have not been connected yet since the start
    bool target_is_old, review_is_due;
    int64_t review_ns;  // of the last review
    uint64_t *replaced; // set of cells whose copies outside the target are not needed
    struct target_outcome outcome;
    // Scratch: holds nothing between two calls.
    struct target_scratch target_scratch;
    void *target_memory;
    struct target_member *target_members;
    uint64_t *no_cells;                    // an empty set
    uint16_t *in_target, *ready_in_target; // [cells]
    struct expert_id *list;                // [MEMBERSHIP_LIST_MAX] of the last action
    size_t state_bytes;                    // the state comes first in the caller's memory; the rest is scratch
};

static inline bool member_is_up(const struct member *member) {
    return member->is_local || member->link == LINK_UP;
}

// Connected and heard.
static inline bool member_answers(const struct member *member) {
    return member_is_up(member) && !member->is_refused && !member->health.suspect;
}

static inline void membership_touch(struct membership *membership, uint32_t member) {
    bits_set(membership->touched, member);
}

static inline void membership_mark_layer(struct membership *membership, uint32_t cell) {
    bits_set(membership->dirty, cell / membership->options.catalogue.stride);
}

#endif
