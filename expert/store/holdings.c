#include "expert/store/holdings.h"

#include <pthread.h>
#include <stdlib.h>

struct held {
    struct expert_block *block; // NULL: not held
    uint64_t digest;
};

struct holdings {
    const struct model *model;
    pthread_mutex_t mutex; // guards the fields below; held for a few instructions, with no other lock
    struct held *held;     // [first[num_layers]]
    size_t *first;         // [num_layers] index of each layer's expert 0
    struct holdings_figures figures;
};

FALLIBLE holdings_create(const struct model *model, struct holdings **out) {
    *out = NULL;
    size_t experts = 0;
    struct holdings *holdings = calloc(1, sizeof *holdings);
    size_t *first = calloc(model->num_layers + 1, sizeof *first);
    for (size_t i = 0; first && i < model->num_layers; i++) {
        first[i] = experts;
        experts += model->layers[i].params.num_experts;
    }
    struct held *held = calloc(experts + 1, sizeof *held);
    if (!holdings || !first || !held) {
        free(held);
        free(first);
        free(holdings);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the table of %zu experts", experts);
    }
    *holdings = (struct holdings){.model = model, .held = held, .first = first};
    first[model->num_layers] = experts;
    pthread_mutex_init(&holdings->mutex, NULL);
    *out = holdings;
    return OK;
}

void holdings_destroy(struct holdings *holdings) {
    if (!holdings) {
        return;
    }
    for (size_t i = 0; i < holdings->first[holdings->model->num_layers]; i++) {
        expert_block_drop(holdings->held[i].block);
    }
    pthread_mutex_destroy(&holdings->mutex);
    free(holdings->held);
    free(holdings->first);
    free(holdings);
}

static struct held *find(struct holdings *holdings, size_t layer, uint32_t expert) {
    INVARIANT(layer < holdings->model->num_layers && expert < holdings->model->layers[layer].params.num_experts);
    return &holdings->held[holdings->first[layer] + expert];
}

// Returns the block that was there.
static struct expert_block *replace(struct holdings *holdings, struct held *held, struct held with) {
    struct expert_block *old = held->block;
    holdings->figures.experts += (with.block != NULL) - (uint64_t)(old != NULL);
    holdings->figures.bytes += (with.block ? with.block->bytes : 0) - (old ? old->bytes : 0);
    *held = with;
    return old;
}

void holdings_put(struct holdings *holdings, size_t layer, uint32_t expert, struct expert_block *block, uint64_t digest) {
    pthread_mutex_lock(&holdings->mutex);
    struct expert_block *old = replace(holdings, find(holdings, layer, expert), (struct held){.block = block, .digest = digest});
    pthread_mutex_unlock(&holdings->mutex);
    expert_block_drop(old); // may unmap memory
}

void holdings_remove(struct holdings *holdings, size_t layer, uint32_t expert) {
    holdings_put(holdings, layer, expert, NULL, 0);
}

struct expert_block *holdings_take(struct holdings *holdings, size_t layer, uint32_t expert) {
    struct expert_block *block;
    uint32_t missing;
    return holdings_take_all(holdings, layer, &expert, 1, &block, &missing) ? block : NULL;
}

bool holdings_take_all(struct holdings *holdings, size_t layer, const uint32_t *experts, size_t count, struct expert_block **blocks,
                       uint32_t *missing) {
    size_t taken = 0;
    pthread_mutex_lock(&holdings->mutex);
    for (; taken < count; taken++) {
        struct expert_block *block = find(holdings, layer, experts[taken])->block;
        if (!block) {
            break;
        }
        blocks[taken] = expert_block_share(block);
    }
    pthread_mutex_unlock(&holdings->mutex);
    if (taken == count) {
        return true;
    }
    *missing = experts[taken];
    while (taken > 0) {
        expert_block_drop(blocks[--taken]);
    }
    return false;
}

bool holdings_digest(struct holdings *holdings, size_t layer, uint32_t expert, uint64_t *digest) {
    pthread_mutex_lock(&holdings->mutex);
    const struct held held = *find(holdings, layer, expert);
    pthread_mutex_unlock(&holdings->mutex);
    *digest = held.digest;
    return held.block != NULL;
}

struct holdings_figures holdings_figures(struct holdings *holdings) {
    pthread_mutex_lock(&holdings->mutex);
    const struct holdings_figures figures = holdings->figures;
    pthread_mutex_unlock(&holdings->mutex);
    return figures;
}
