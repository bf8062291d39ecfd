// Re-placement while layers are served: shows where experts are, plans better placements from the observed load, and moves experts.
// One move runs at a time, on the thread that called mover_apply. Serving continues, and a move changes no bit of an answer.
#ifndef EXPERTD_DAEMON_ADMIN_MOVER_H
#define EXPERTD_DAEMON_ADMIN_MOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/metrics/metrics.h"
#include "expert/layer/layer.h"
#include "expert/model/model.h"

struct mover;

struct mover_options {
    const struct model *model;  // borrowed
    struct metrics *metrics;    // borrowed; source of the observed load. NULL: the load is 0
    uint64_t move_bytes_max;    // memory of a step, in addition to the weights before or after the move, whichever is larger
    uint64_t weights_bytes_max; // bound on the weights including replicas; 0: the available memory
    struct engine *engine;      // borrowed; if it computes on devices, experts move there. NULL: experts are in host memory
    bool is_read_only;          // experts are on shards in other processes, whose membership places them
    struct block_copier copier; // {0}, except in tests
};

FALLIBLE mover_create(const struct mover_options *options, struct mover **out);
void mover_destroy(struct mover *mover); // while no call is running; NULL is legal

// A layer's placement. holders[first[e] .. first[e + 1]) are the ranks that hold expert e, in ascending order.
struct mover_placement {
    uint32_t layer; // the checkpoint's decoder layer number
    uint64_t epoch; // the placement's epoch; of a planned one, the epoch from which it was planned
    uint32_t ranks, num_experts;
    uint32_t *first;   // [num_experts + 1]
    uint32_t *holders; // [first[num_experts]]
    uint64_t *rows;    // [num_experts] rows per expert, observed or given by the caller
    double imbalance;  // rows of the busiest rank over the mean, with rows split evenly over replicas; 0 without rows
};
void mover_placement_deinit(struct mover_placement *placement); // legal on a zeroed struct

enum mover_policy { MOVER_CONTIGUOUS, MOVER_BALANCED };

struct mover_plan_options {
    uint32_t layer;
    enum mover_policy policy;
    uint32_t replicas;    // expert copies in addition to one of each; balanced only
    const uint64_t *rows; // [num_experts] counts to plan with; NULL: those observed since the start
    size_t num_rows;
};

// Any thread; they compute and do not wait. The caller owns *out. EXPERTD_ERR_LAYER_UNKNOWN, EXPERTD_ERR_INVALID (names the
// option), of mover_plan also EXPERTD_ERR_UNIMPLEMENTED (the mover is read-only).
FALLIBLE mover_show(struct mover *mover, uint32_t layer, struct mover_placement *out);
FALLIBLE mover_plan(struct mover *mover, const struct mover_plan_options *options, struct mover_placement *out);

struct mover_progress {
    uint64_t moved_bytes, all_bytes;
    uint32_t moved_experts, all_experts;
};

// Puts a planned placement in force, in steps that stay within the configured memory. A step copies experts, verifies the digest of
// each copy, switches to the new placement between two batches, and frees the copies that are no longer used. Each step has an
// epoch of its own. *new_epoch (may be NULL) is the epoch in force at the end, also if the move failed. Blocks until the placement
// is in force or the move has failed. `progress` (may be NULL) is called on the calling thread after each step, and stops the move
// by returning false. After an error, the placement of the last completed step stays in force. Errors:
//   EXPERTD_ERR_UNIMPLEMENTED  the mover is read-only
//   EXPERTD_ERR_INVALID      the placement does not fit the layer
//   EXPERTD_ERR_UNAVAILABLE  it was planned from another epoch, or another move is running
//   EXPERTD_ERR_NOMEM        over move_bytes_max, memory_max or the available memory; on devices, over the reserved memory
//   EXPERTD_ERR_IO           the digest of a copy differs
//   EXPERTD_ERR_CANCELLED    `progress` returned false
FALLIBLE mover_apply(struct mover *mover, const struct mover_placement *placement,
                     bool (*progress)(void *context, const struct mover_progress *), void *context, uint64_t *new_epoch);

#endif
