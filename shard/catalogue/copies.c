#include "shard/catalogue/copies.h"

#include <string.h>

#include "shard/catalogue/bits.h"

uint64_t *copies_init(struct copies *copies, const struct catalogue *catalogue, uint64_t *words) {
    *copies = (struct copies){0};
    for (int state = COPY_NONE + 1; state < COPY_STATES; state++) {
        copies->cells[state] = words;
        words += catalogue_words(catalogue);
    }
    return words;
}

enum copy_state copies_get(const struct copies *copies, uint32_t cell) {
    for (int state = COPY_NONE + 1; state < COPY_STATES; state++) {
        if (bits_test(copies->cells[state], cell)) {
            return (enum copy_state)state;
        }
    }
    return COPY_NONE;
}

static bool occupies_memory(enum copy_state state) {
    return state != COPY_NONE && state != COPY_FAILED;
}

void copies_set(struct copies *copies, const struct catalogue *catalogue, uint32_t cell, enum copy_state state) {
    enum copy_state old = copies_get(copies, cell);
    if (old != COPY_NONE) {
        bits_clear(copies->cells[old], cell);
        copies->count[old]--;
    }
    if (state != COPY_NONE) {
        bits_set(copies->cells[state], cell);
        copies->count[state]++;
    }
    uint64_t bytes = catalogue_bytes(catalogue, cell);
    copies->bytes += (occupies_memory(state) ? bytes : 0);
    copies->bytes -= (occupies_memory(old) ? bytes : 0);
}

void copies_clear(struct copies *copies, const struct catalogue *catalogue) {
    for (int state = COPY_NONE + 1; state < COPY_STATES; state++) {
        memset(copies->cells[state], 0, catalogue_words(catalogue) * sizeof(uint64_t));
        copies->count[state] = 0;
    }
    copies->bytes = 0;
}
