#include "shard/membership/tables.h"

#include "shard/membership/liveness.h"

// The retiring copies of one word of cells that stay in use: no live member has a ready copy.
static uint64_t still_needed(const struct membership *membership, size_t word, uint64_t retiring) {
    uint64_t needed = 0;
    BITS_FOR_EACH(bit, &retiring, BITS_PER_WORD) {
        if (membership->live_ready[word * BITS_PER_WORD + bit] == 0) {
            bits_set(&needed, bit);
        }
    }
    return needed;
}

// The copies of an absent member stay in the tables, where the live mask hides them: on its return no table changes. A member that
// is no longer listed does not return.
static uint64_t wanted_word(const struct membership *membership, const struct member *member, size_t word) {
    if (member_is_up(member)) {
        const struct copies *copies = &member->copies;
        return copies->cells[COPY_READY][word] | still_needed(membership, word, copies->cells[COPY_RETIRING][word]);
    }
    return member->is_listed ? member->table[word] : 0;
}

static bool update_layer(struct membership *membership, uint32_t layer) {
    size_t words = catalogue_layer_words(&membership->options.catalogue);
    bool changed = false;
    for (uint32_t i = 0; i < membership->options.members_max; i++) {
        struct member *member = &membership->members[i];
        for (size_t word = layer * words; member->is_used && word < (layer + 1) * words; word++) {
            uint64_t wanted = wanted_word(membership, member, word);
            changed |= wanted != member->table[word];
            member->table[word] = wanted;
        }
    }
    return changed;
}

bool tables_next(struct membership *membership, uint32_t *layer) {
    for (size_t word = 0; word < CATALOGUE_LAYERS_MAX / BITS_PER_WORD; word++) {
        uint64_t ready = membership->dirty[word] & ~membership->awaiting[word];
        BITS_FOR_EACH(bit, &ready, BITS_PER_WORD) {
            uint32_t found = (uint32_t)word * BITS_PER_WORD + bit;
            bits_clear(membership->dirty, found);
            if (update_layer(membership, found)) {
                membership->epochs[found]++;
                bits_set(membership->awaiting, found);
                *layer = found;
                return true;
            }
            liveness_layer_replaced(membership, found);
        }
    }
    return false;
}

void tables_in_force(struct membership *membership, uint32_t layer, uint64_t epoch) {
    if (epoch == membership->epochs[layer] && bits_test(membership->awaiting, layer)) {
        bits_clear(membership->awaiting, layer);
        liveness_layer_replaced(membership, layer);
    }
}

size_t tables_release(struct membership *membership, uint32_t index) {
    const struct catalogue *catalogue = &membership->options.catalogue;
    struct member *member = &membership->members[index];
    size_t count = 0;
    for (uint32_t layer = 0; layer < catalogue->layers; layer++) {
        if (bits_test(membership->awaiting, layer)) {
            continue; // batches may still use the table before
        }
        uint32_t end = (layer + 1) * catalogue->stride;
        for (uint32_t cell = layer * catalogue->stride; count < MEMBERSHIP_LIST_MAX; cell++) {
            cell = bits_next(member->copies.cells[COPY_RETIRING], cell, end);
            if (cell == end) {
                break;
            }
            if (!bits_test(member->table, cell)) {
                liveness_set_copy(membership, index, cell, COPY_RELEASED);
                membership->list[count++] = catalogue_id(catalogue, cell);
            }
        }
    }
    return count;
}
