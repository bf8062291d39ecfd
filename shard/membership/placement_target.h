// Decides which members should hold which experts: a pure function from the members' memory and copies to each member's target. The
// placement owner loads and retires copies until the members hold their targets (review.h).
//
// Rules, the stronger first:
// 1. An expert has a copy that is live, wherever memory allows. If memory is short, further copies of other experts make room.
// 2. An expert has as many copies as wanted.
// 3. What lies well stays: a copy leaves its member only if the member drains, the expert has more copies than wanted, room is made
// for
//    an expert without any, or the move evens out the load.
// 4. Each layer's load is even over the members: layers are computed one after the other. Then the load of all layers together.
// New copies are placed only where there is memory now, so no step of a change waits for another member to free memory.
#ifndef EXPERTD_SHARD_MEMBERSHIP_PLACEMENT_TARGET_H
#define EXPERTD_SHARD_MEMBERSHIP_PLACEMENT_TARGET_H

#include "shard/catalogue/catalogue.h"

enum target_role {
    TARGET_GONE,     // its copies do not count
    TARGET_ABSENT,   // lost a short while ago: its copies count as copies, but not as live ones
    TARGET_FIXED,    // its copies count, but nothing is assigned to it or retired from it: suspect, or another front's
    TARGET_DRAINING, // its copies are live but do not count; they move elsewhere
    TARGET_NEW,      // takes copies that are missing. It has not been here for long, so nothing is moved or retired on its account
    TARGET_SETTLED,  // takes copies, and copies are moved to it and from it
};

struct target_member {
    enum target_role role;
    uint64_t bytes_max;
    uint64_t bytes_used; // by all copies on the member now, also those that are being freed
    // Sets of cells, borrowed.
    const uint64_t *ready; // of TARGET_ABSENT: those that it had
    const uint64_t *loading;
    const uint64_t *retiring; // a copy that comes back into use needs no load
    const uint64_t *released;
    const uint64_t *failed; // not to be placed here
    uint64_t *target;       // in: the previous target, so that moves under way go on; out: the new one
};

struct target_options {
    const struct catalogue *catalogue;
    const uint16_t *wanted;  // [cells] copies of each expert
    const uint32_t *weights; // [cells] load of each expert, at least 1
    bool first_copies_alone; // nothing else is placed or moved now: members are expected that may hold copies
    uint32_t slack_percent;  // a member's load in a layer may exceed the mean by so much before copies move
};

// Scratch, owned by the caller.
struct target_scratch {
    uint16_t *counted, *live, *settled;  // [cells] copies that count, that are live, that are on settled members
    uint64_t *surplus;                   // set of cells with more copies than wanted
    uint64_t *layer_load, *total_load;   // [members]
    uint64_t *bytes_used, *bytes_target; // [members]
    uint64_t *dropped;                   // set of members that lose their copy of one expert
};

struct target_outcome {
    uint32_t without_copy;    // experts for which there is no memory
    uint32_t short_of_copies; // experts with a copy, but fewer than wanted
    uint32_t moves;           // copies moved to even out the load
};

size_t target_scratch_bytes(const struct catalogue *catalogue, uint32_t members);
void target_scratch_init(struct target_scratch *scratch, void *memory, const struct catalogue *catalogue, uint32_t members);

// Computes every member's target. Deterministic: ties go to the lowest number.
void placement_target(const struct target_options *options, struct target_member *members, uint32_t count,
                      const struct target_scratch *scratch, struct target_outcome *outcome);

// wanted[e] = copies, and one more for each of `replicas` turns for the expert with the greatest load per copy, for the experts of
// one layer. members_max: the most copies of an expert.
void target_wanted(const uint32_t *weights, uint32_t experts, uint32_t copies, uint32_t replicas, uint32_t members_max,
                   uint16_t *wanted);

#endif
