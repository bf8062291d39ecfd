// Top-k selection, with groups of experts where the model has them.
#include "base/sizes.h"
#include "kernels/routing/routing_internal.h"

static size_t groups_of(const struct expertd_routing *routing) {
    return routing->num_groups > 1 ? routing->num_groups : 1;
}

static size_t ranks_of(const struct expertd_routing *routing) {
    size_t groups = groups_of(routing);
    return routing->top_k > groups ? routing->top_k : groups;
}

size_t expertd_routing_scratch_bytes(const struct expertd_routing *routing) {
    size_t experts = routing->num_experts, groups = groups_of(routing);
    return 2 * aligned(experts * sizeof(float)) + aligned(ranks_of(routing) * sizeof(uint32_t)) + aligned(groups * sizeof(float)) +
           aligned(groups * sizeof(int32_t)) + aligned(groups * sizeof(bool)) +
           aligned(routing->softcap > 0 ? experts * sizeof(float) : 0);
}

static void *take(char **at, size_t bytes) {
    void *piece = *at;
    *at += aligned(bytes);
    return piece;
}

void routing_divide_scratch(const struct expertd_routing *routing, void *memory, struct routing_scratch *out) {
    size_t experts = routing->num_experts, groups = groups_of(routing);
    char *at = memory;
    out->scores = take(&at, experts * sizeof(float));
    out->selecting = take(&at, experts * sizeof(float));
    out->chosen_rank = take(&at, ranks_of(routing) * sizeof(uint32_t));
    out->group_scores = take(&at, groups * sizeof(float));
    out->groups = take(&at, groups * sizeof(int32_t));
    out->group_is_selected = take(&at, groups * sizeof(bool));
    out->logits = take(&at, routing->softcap > 0 ? experts * sizeof(float) : 0);
}

// Inserts a candidate into a descending list of `held` entries, after equal ones, which have lower ids. A full list drops its last
// entry.
static size_t insert(uint32_t *ranks, int32_t *ids, size_t held, size_t want, uint32_t rank, int32_t id) {
    size_t at = held < want ? held : want - 1;
    for (; at > 0 && ranks[at - 1] < rank; at--) {
        ranks[at] = ranks[at - 1];
        ids[at] = ids[at - 1];
    }
    ranks[at] = rank;
    ids[at] = id;
    return held < want ? held + 1 : want;
}

void routing_choose(const struct routing_choice *choice, uint32_t *ranks, int32_t *ids) {
    size_t held = 0;
    for (size_t i = 0; i < choice->count; i++) {
        if (choice->allowed && !choice->allowed[i / choice->run_length]) {
            continue;
        }
        uint32_t rank = routing_rank(choice->values[i]);
        if (held < choice->want || rank > ranks[held - 1]) {
            held = insert(ranks, ids, held, choice->want, rank, (int32_t)i);
        }
    }
}

// A group's greatest value, or the sum of its two greatest, in the selection order.
static float score_group(const struct expertd_routing *routing, const float *values, size_t count) {
    size_t want = routing->group_score == EXPERTD_GROUP_TOP2_SUM ? 2 : 1;
    uint32_t ranks[2] = {0};
    int32_t ids[2] = {0};
    routing_choose(&(struct routing_choice){.values = values, .count = count, .want = want}, ranks, ids);
    return want == 2 ? values[ids[0]] + values[ids[1]] : values[ids[0]];
}

static void select_groups(const struct expertd_routing *routing, const struct routing_scratch *scratch) {
    size_t length = routing->num_experts / routing->num_groups;
    for (size_t g = 0; g < routing->num_groups; g++) {
        scratch->group_scores[g] = score_group(routing, scratch->selecting + g * length, length);
        scratch->group_is_selected[g] = false;
    }
    struct routing_choice choice = {.values = scratch->group_scores, .count = routing->num_groups, .want = routing->top_groups};
    routing_choose(&choice, scratch->chosen_rank, scratch->groups);
    for (size_t i = 0; i < routing->top_groups; i++) {
        scratch->group_is_selected[scratch->groups[i]] = true;
    }
}

static void zero_masked_groups(const struct expertd_routing *routing, const struct routing_scratch *scratch) {
    size_t length = routing->num_experts / routing->num_groups;
    for (size_t e = 0; e < routing->num_experts; e++) {
        scratch->selecting[e] = scratch->group_is_selected[e / length] ? scratch->selecting[e] : 0.0f;
    }
}

void routing_select(const struct expertd_routing *routing, const struct routing_scratch *scratch, int32_t *ids) {
    struct routing_choice choice = {.values = scratch->selecting, .count = routing->num_experts, .want = routing->top_k};
    if (routing->num_groups > 1) {
        select_groups(routing, scratch);
    }
    if (routing->num_groups > 1 && routing->masked_groups_are_zero) {
        zero_masked_groups(routing, scratch);
    } else if (routing->num_groups > 1) {
        choice.allowed = scratch->group_is_selected;
        choice.run_length = routing->num_experts / routing->num_groups;
    }
    routing_choose(&choice, scratch->chosen_rank, ids);
}
