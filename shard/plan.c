#include "shard/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"

// Places every array of the plan and returns their size. With memory NULL it only computes the size.
static size_t place_arrays(struct plan *plan, char *memory, size_t choices, size_t experts, size_t ranks) {
    size_t counts[] = {experts, experts * ranks, ranks + 1, choices, choices, choices, experts};
    void **arrays[] = {(void **)&plan->expert_rows, (void **)&plan->group_sizes, (void **)&plan->rank_rows,
                       (void **)&plan->row_token,   (void **)&plan->row_choice,  (void **)&plan->choice_row,
                       (void **)&plan->next_holder};
    size_t used = 0;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        *arrays[i] = memory ? memory + used : NULL;
        used += arena_rounded(counts[i] * sizeof(uint32_t));
    }
    return used;
}

size_t plan_bytes(size_t max_tokens, size_t max_top_k, uint32_t num_experts, uint32_t ranks) {
    struct plan unused;
    return place_arrays(&unused, NULL, max_tokens * max_top_k, num_experts, ranks);
}

void plan_init(struct plan *plan, void *memory, size_t max_tokens, size_t max_top_k, uint32_t num_experts, uint32_t ranks) {
    *plan = (struct plan){0};
    place_arrays(plan, memory, max_tokens * max_top_k, num_experts, ranks);
}

// Counts the rows of each expert. The first id that is out of range is an error.
static FALLIBLE count_rows(struct plan *plan, const int32_t *ids, uint32_t num_experts, uint32_t num_zero_experts) {
    size_t choices = plan->tokens * plan->top_k;
    memset(plan->expert_rows, 0, num_experts * sizeof *plan->expert_rows);
    for (size_t i = 0; i < choices; i++) {
        int32_t id = ids[i];
        if (id < 0) {
            continue;
        }
        if ((uint32_t)id < num_experts) {
            plan->expert_rows[id]++;
        } else if ((uint32_t)id >= num_experts + num_zero_experts) {
            FAIL_FIELD(EXPERTD_ERR_EXPERT_OUT_OF_RANGE, "routes.ids",
                       "expert %d at token %zu, choice %zu: the layer has experts 0 to %u", id, i / plan->top_k, i % plan->top_k,
                       num_experts + num_zero_experts - 1);
        }
    }
    return OK;
}

// ---- live holders

static bool is_live(const bool *live, uint32_t rank) {
    return !live || live[rank];
}

// The index of the first live holder at or behind `at`, or the end of the expert's holders.
static uint32_t skip_dead(const struct placement *placement, const bool *live, uint32_t at, uint32_t end) {
    while (at < end && !is_live(live, placement->holders[at])) {
        at++;
    }
    return at;
}

static uint32_t count_live(const struct placement *placement, const bool *live, uint32_t expert) {
    uint32_t count = 0;
    for (uint32_t i = placement->holder_first[expert]; i < placement->holder_first[expert + 1]; i++) {
        count += is_live(live, placement->holders[i]);
    }
    return count;
}

static FALLIBLE refuse_lost(const struct placement *placement, uint32_t expert) {
    enum { NAMED_MAX = 8 };
    uint32_t first = placement->holder_first[expert], holders = placement->holder_first[expert + 1] - first;
    if (holders == 0) {
        FAIL(EXPERTD_ERR_SHARD_LOST, "expert %u is on no shard; it is computed again when a shard has loaded it", expert);
    }
    char text[NAMED_MAX * 12 + 24] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < holders && i < NAMED_MAX; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%u", i == 0 ? "" : ", ", placement->holders[first + i]);
    }
    if (holders > NAMED_MAX) {
        snprintf(text + used, sizeof text - used, " and %u more", holders - NAMED_MAX);
    }
    FAIL(EXPERTD_ERR_SHARD_LOST,
         "expert %u is only on shard%s %s, which %s lost; it is computed again when one of its shards is back", expert,
         holders == 1 ? "" : "s", text, holders == 1 ? "is" : "are");
}

// The number of live holders of the expert before the one that gets its first row.
static uint32_t offset_of(const struct plan_batch *batch, uint32_t expert, uint32_t holders) {
    return batch->rotates && holders > 0 ? (batch->rotation + expert) % holders : 0;
}

// Computes the number of rows of each slot. An expert's rows are assigned to its live holders in turn, so those that come first may
// get one more.
static FALLIBLE size_slots(struct plan *plan, const struct plan_batch *batch) {
    const struct placement *placement = plan->placement;
    const bool *live = batch->live;
    for (uint32_t e = 0; e < placement->num_experts; e++) {
        uint32_t first = placement->holder_first[e], end = placement->holder_first[e + 1];
        uint32_t holders = live ? count_live(placement, live, e) : end - first, taken = 0;
        if (holders == 0 && plan->expert_rows[e] > 0) {
            return refuse_lost(placement, e);
        }
        uint32_t each = holders > 0 ? plan->expert_rows[e] / holders : 0, more = holders > 0 ? plan->expert_rows[e] % holders : 0;
        uint32_t offset = offset_of(batch, e, holders);
        plan->next_holder[e] = end;
        for (uint32_t h = first; h < end; h++) {
            bool takes = is_live(live, placement->holders[h]);
            uint32_t turn = taken >= offset ? taken - offset : taken + holders - offset;
            plan->group_sizes[placement->holder_slots[h]] = takes ? (int32_t)(each + (turn < more)) : 0;
            plan->next_holder[e] = takes && turn == 0 ? h : plan->next_holder[e];
            taken += takes;
        }
    }
    return OK;
}

// Replaces each slot's size in group_sizes by its first row. place_rows restores the sizes.
static void first_rows(struct plan *plan) {
    const struct placement *placement = plan->placement;
    uint32_t row = 0;
    for (uint32_t rank = 0; rank < placement->ranks; rank++) {
        plan->rank_rows[rank] = row;
        for (uint32_t s = placement->rank_first[rank]; s < placement->rank_first[rank + 1]; s++) {
            uint32_t size = (uint32_t)plan->group_sizes[s];
            plan->group_sizes[s] = (int32_t)row; // until place_rows: the slot's next row
            row += size;
        }
    }
    plan->rank_rows[placement->ranks] = row;
    plan->rows = row;
}

// The slot that gets the expert's next row; advances to the next live holder. The expert has one.
static uint32_t next_slot(struct plan *plan, const bool *live, uint32_t expert) {
    const struct placement *placement = plan->placement;
    uint32_t at = plan->next_holder[expert], end = placement->holder_first[expert + 1];
    uint32_t next = skip_dead(placement, live, at + 1, end);
    plan->next_holder[expert] = next < end ? next : skip_dead(placement, live, placement->holder_first[expert], end);
    return placement->holder_slots[at];
}

static void place_rows(struct plan *plan, const struct plan_batch *batch) {
    const int32_t *ids = batch->ids;
    for (size_t i = 0; i < plan->tokens * plan->top_k; i++) {
        int32_t id = ids[i];
        plan->choice_row[i] = PLAN_NO_ROW;
        if (id < 0 || (uint32_t)id >= plan->placement->num_experts) {
            continue;
        }
        uint32_t row = (uint32_t)plan->group_sizes[next_slot(plan, batch->live, (uint32_t)id)]++;
        plan->choice_row[i] = row;
        plan->row_choice[row] = (uint32_t)i;
        plan->row_token[row] = (uint32_t)(i / plan->top_k);
    }
    // Each slot's next row is now the first row of the following slot, so the differences are the sizes.
    uint32_t begin = 0;
    for (uint32_t s = 0; s < plan->placement->copies; s++) {
        uint32_t end = (uint32_t)plan->group_sizes[s];
        plan->group_sizes[s] = (int32_t)(end - begin);
        begin = end;
    }
}

FALLIBLE plan_make(struct plan *plan, const struct plan_batch *batch) {
    plan->placement = batch->placement;
    plan->tokens = batch->tokens;
    plan->top_k = batch->top_k;
    TRY(count_rows(plan, batch->ids, batch->placement->num_experts, batch->num_zero_experts));
    TRY(size_slots(plan, batch));
    first_rows(plan);
    place_rows(plan, batch);
    return OK;
}

struct plan_rank plan_for_rank(const struct plan *plan, uint32_t rank) {
    const struct placement *placement = plan->placement;
    uint32_t first = placement->rank_first[rank], groups = placement->rank_first[rank + 1] - first;
    return (struct plan_rank){
        .group_sizes = plan->group_sizes + first,
        .num_actual_groups = groups,
        .first_row = plan->rank_rows[rank],
        .rows = plan->rank_rows[rank + 1] - plan->rank_rows[rank],
    };
}
