// The plan of a batch: from its choices and a placement to each rank's rows, grouped by expert. A pure function, so that tests need
// only arrays. If n live ranks hold expert e, its i-th row in order of (token, choice) goes to the ((i + offset) mod n)-th of them,
// where offset is 0, or rotation + e; a rank's rows of one expert keep that order.
#ifndef EXPERTD_SHARD_PLAN_H
#define EXPERTD_SHARD_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "shard/placement.h"

enum { PLAN_NO_ROW = UINT32_MAX };

// The rows of all ranks share one index space [0, rows), ordered by rank, then expert, then (token, choice).
struct plan {
    const struct placement *placement; // borrowed
    size_t tokens, top_k;              // T, K
    size_t rows;                       // result rows: the choices of real experts (neither negative nor identity)
    uint32_t *expert_rows;             // [E] rows of each expert, over all of its holders
    int32_t *group_sizes;              // [copies] rows per slot of the placement
    uint32_t *rank_rows;               // [R + 1] first row of each rank; rank_rows[R] = rows
    uint32_t *row_token;               // [rows] token of each row
    uint32_t *row_choice;              // [rows] index into ids of each row: token * top_k + choice
    uint32_t *choice_row;              // [T * K] row of each choice; PLAN_NO_ROW for a dropped choice or an identity expert
    uint32_t *next_holder;             // [E] scratch: the holder of the expert's next row
};

// The choices of a batch, and the ranks that may compute them. All pointers are borrowed; the plan keeps the placement.
struct plan_batch {
    const struct placement *placement;
    const bool *live;          // [R] ranks that take rows; NULL: all
    const int32_t *ids;        // [T, K]
    size_t tokens, top_k;      // T, K
    uint32_t num_zero_experts; // identity experts
    // Differs from batch to batch, so that ranks share the single rows of small batches; rotates is false: offset 0.
    bool rotates;
    uint32_t rotation;
};

// One rank's rows, grouped by its experts.
struct plan_rank {
    const int32_t *group_sizes; // [num_actual_groups] of this rank's experts, ascending
    size_t num_actual_groups;   // the number of the rank's experts
    size_t first_row, rows;     // the rank's range of the plan's rows
};

// Bytes for a plan of up to max_tokens x max_top_k choices over num_experts and ranks, for any placement.
size_t plan_bytes(size_t max_tokens, size_t max_top_k, uint32_t num_experts, uint32_t ranks);

// Places the plan's arrays in `memory` (plan_bytes, 64-byte aligned, owned by the caller).
void plan_init(struct plan *plan, void *memory, size_t max_tokens, size_t max_top_k, uint32_t num_experts, uint32_t ranks);

// Computes the plan. A negative id is no expert; ids in [E, E + num_zero_experts) are identity experts, which no rank computes.
// EXPERTD_ERR_EXPERT_OUT_OF_RANGE: the message names the first other id with its token and choice.
// EXPERTD_ERR_SHARD_LOST: no live rank holds an expert of the batch. The message names the expert and the ranks that hold it.
FALLIBLE plan_make(struct plan *plan, const struct plan_batch *batch);

struct plan_rank plan_for_rank(const struct plan *plan, uint32_t rank);

#endif
