// The routed experts that this process holds: the blocks that an expert_store loaded, by layer and expert. Loading threads put
// them, the thread that computes takes references, and the thread that answers questions about the inventory reads it. Any thread
// may call any function.
#ifndef EXPERTD_EXPERT_STORE_HOLDINGS_H
#define EXPERTD_EXPERT_STORE_HOLDINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/model/model.h"

struct holdings;

// For the layers and experts of the model, which is borrowed. EXPERTD_ERR_NOMEM.
FALLIBLE holdings_create(const struct model *model, struct holdings **out);
void holdings_destroy(struct holdings *holdings); // drops the references. NULL is legal

// Takes ownership of one reference; replaces an earlier block of that expert.
void holdings_put(struct holdings *holdings, size_t layer, uint32_t expert, struct expert_block *block, uint64_t digest);
void holdings_remove(struct holdings *holdings, size_t layer, uint32_t expert); // users of references keep the block
// A new reference, for expert_block_drop; NULL: not held.
struct expert_block *holdings_take(struct holdings *holdings, size_t layer, uint32_t expert);
// Takes references to `count` experts of one layer. False: one is not held, *missing; no reference is taken then.
bool holdings_take_all(struct holdings *holdings, size_t layer, const uint32_t *experts, size_t count, struct expert_block **blocks,
                       uint32_t *missing);

bool holdings_digest(struct holdings *holdings, size_t layer, uint32_t expert, uint64_t *digest); // false: not held

struct holdings_figures {
    uint64_t experts, bytes; // of blocks in memory
};
struct holdings_figures holdings_figures(struct holdings *holdings);

#endif
