// Live re-placement: shows where experts lie, computes better placements from the load that was seen, and moves experts while the
// layer is served. One move at a time, on the thread of whoever applies it; serving goes on and no bit of an answer changes.
#ifndef EXPERTD_DAEMON_ADMIN_MOVER_H
#define EXPERTD_DAEMON_ADMIN_MOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/http/metrics.h"
#include "expert/layer/layer.h"
#include "expert/model/model.h"

struct mover;

struct mover_options {
    const struct model *model;  // borrowed
    struct metrics *metrics;    // borrowed; where the load is counted. NULL: none is seen
    uint64_t move_bytes_max;    // memory that a step may take beside the weights before or after the move, whichever are more
    uint64_t weights_bytes_max; // what the weights may grow to by replicas; 0: what the machine has available
    struct engine *engine;      // borrowed: where it is on devices, experts move there; NULL: they are in the host's memory
    struct block_copier copier; // {0}, but in tests
};

FALLIBLE mover_create(const struct mover_options *options, struct mover **out);
void mover_destroy(struct mover *mover); // no call of it is under way; NULL is legal

// A layer's placement as callers see it: holders[first[e] .. first[e + 1]) are the ranks that hold expert e, ascending.
struct mover_placement {
    uint32_t layer; // the checkpoint's decoder layer number
    uint64_t epoch; // of a shown placement; of a planned one: the epoch it was planned from
    uint32_t ranks, num_experts;
    uint32_t *first;   // [num_experts + 1]
    uint32_t *holders; // [first[num_experts]]
    uint64_t *rows;    // [num_experts] rows seen (or given) per expert
    double imbalance;  // greatest rank's rows over the mean, by `rows` and even spreading over replicas; 0 without rows
};
void mover_placement_deinit(struct mover_placement *placement); // legal on a zeroed struct

enum mover_policy { MOVER_CONTIGUOUS, MOVER_BALANCED };

struct mover_plan_options {
    uint32_t layer;
    enum mover_policy policy;
    uint32_t replicas;    // expert copies in all beyond one each (balanced only)
    const uint64_t *rows; // [num_experts] a caller's counts; NULL: those seen since start
    size_t num_rows;
};

// Any thread; each blocks for no longer than the arithmetic. EXPERTD_ERR_LAYER_UNKNOWN, EXPERTD_ERR_INVALID (names the option).
// *out is the caller's.
FALLIBLE mover_show(struct mover *mover, uint32_t layer, struct mover_placement *out);
FALLIBLE mover_plan(struct mover *mover, const struct mover_plan_options *options, struct mover_placement *out);

struct mover_progress {
    uint64_t moved_bytes, all_bytes;
    uint32_t moved_experts, all_experts;
};

// Puts a planned placement in force: copies experts in steps that stay within the configured memory, verifies each copy's digest,
// switches between two batches, frees what is no longer used. Every step is an epoch of its own; *new_epoch (may be NULL) is that
// in force at the end, also of a move that failed on its way. Blocks until it is in force or has failed; `progress` (may be NULL)
// is called on the calling thread after each step and may return false to stop. On any error the placement of the last completed
// step stays in force and nothing is lost. EXPERTD_ERR_INVALID: it does not fit the layer; EXPERTD_ERR_UNAVAILABLE: planned from
// another epoch, or another move is under way; EXPERTD_ERR_NOMEM: move_bytes_max, memory_max or what is available, on devices what
// was reserved at the start; EXPERTD_ERR_IO: a copy's digest differs; EXPERTD_ERR_CANCELLED: progress said no.
FALLIBLE mover_apply(struct mover *mover, const struct mover_placement *placement,
                     bool (*progress)(void *context, const struct mover_progress *), void *context, uint64_t *new_epoch);

#endif
