#include "shard/plan.h"

#include <string.h>

#include "base/arena.h"

size_t plan_bytes(size_t max_tokens, size_t max_top_k, uint32_t num_experts, uint32_t ranks) {
    size_t choices = max_tokens * max_top_k;
    return arena_rounded(num_experts * sizeof(int32_t)) + arena_rounded((ranks + 1) * sizeof(uint32_t)) +
           3 * arena_rounded(choices * sizeof(uint32_t));
}

void plan_init(struct plan *plan, void *memory, size_t max_tokens, size_t max_top_k, uint32_t num_experts, uint32_t ranks) {
    char *at = memory;
    size_t choices = max_tokens * max_top_k;
    *plan = (struct plan){0};
    plan->group_sizes = (int32_t *)at;
    at += arena_rounded(num_experts * sizeof(int32_t));
    plan->rank_rows = (uint32_t *)at;
    at += arena_rounded((ranks + 1) * sizeof(uint32_t));
    plan->row_token = (uint32_t *)at;
    at += arena_rounded(choices * sizeof(uint32_t));
    plan->row_choice = (uint32_t *)at;
    at += arena_rounded(choices * sizeof(uint32_t));
    plan->choice_row = (uint32_t *)at;
}

// Counts the rows of each expert; the id that fits no expert is the error.
static FALLIBLE count_rows(struct plan *plan, const int32_t *ids, uint32_t num_experts, uint32_t num_zero_experts) {
    size_t choices = plan->tokens * plan->top_k;
    for (size_t i = 0; i < choices; i++) {
        int32_t id = ids[i];
        if (id < 0) {
            continue;
        }
        if ((uint32_t)id < num_experts) {
            plan->group_sizes[id]++;
        } else if ((uint32_t)id >= num_experts + num_zero_experts) {
            FAIL_FIELD(ERR_EXPERT_OUT_OF_RANGE, "routes.ids", "expert %d at token %zu, choice %zu: the layer has experts 0 to %u",
                       id, i / plan->top_k, i % plan->top_k, num_experts + num_zero_experts - 1);
        }
    }
    return OK;
}

// Turns sizes into each expert's first row (in row_choice's place: next[] is group_sizes rebuilt by the placing pass).
static void first_rows(struct plan *plan) {
    const struct placement *placement = plan->placement;
    uint32_t row = 0;
    for (uint32_t rank = 0; rank < placement->ranks; rank++) {
        plan->rank_rows[rank] = row;
        for (uint32_t e = placement_first(placement, rank); e < placement_first(placement, rank + 1); e++) {
            uint32_t size = (uint32_t)plan->group_sizes[e];
            plan->group_sizes[e] = (int32_t)row; // for now the expert's next row
            row += size;
        }
    }
    plan->rank_rows[placement->ranks] = row;
    plan->rows = row;
}

FALLIBLE plan_make(struct plan *plan, const struct placement *placement, const int32_t *ids, size_t tokens, size_t top_k,
                   uint32_t num_zero_experts) {
    uint32_t num_experts = placement->num_experts;
    plan->placement = placement;
    plan->tokens = tokens;
    plan->top_k = top_k;
    memset(plan->group_sizes, 0, num_experts * sizeof *plan->group_sizes);
    TRY(count_rows(plan, ids, num_experts, num_zero_experts));
    first_rows(plan);
    for (size_t i = 0; i < tokens * top_k; i++) {
        int32_t id = ids[i];
        plan->choice_row[i] = PLAN_NO_ROW;
        if (id < 0 || (uint32_t)id >= num_experts) {
            continue;
        }
        uint32_t row = (uint32_t)plan->group_sizes[id]++;
        plan->choice_row[i] = row;
        plan->row_choice[row] = (uint32_t)i;
        plan->row_token[row] = (uint32_t)(i / top_k);
    }
    // Each next row is now the first one of the expert behind it: the differences are the sizes again.
    uint32_t begin = 0;
    for (uint32_t e = 0; e < num_experts; e++) {
        uint32_t end = (uint32_t)plan->group_sizes[e];
        plan->group_sizes[e] = (int32_t)(end - begin);
        begin = end;
    }
    return OK;
}

struct plan_rank plan_for_rank(const struct plan *plan, uint32_t rank) {
    uint32_t first = placement_first(plan->placement, rank);
    return (struct plan_rank){
        .group_sizes = plan->group_sizes + first,
        .group_offset = first,
        .num_actual_groups = placement_first(plan->placement, rank + 1) - first,
        .first_row = plan->rank_rows[rank],
        .rows = plan->rank_rows[rank + 1] - plan->rank_rows[rank],
    };
}
