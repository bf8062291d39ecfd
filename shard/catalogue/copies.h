// The copies of experts on one member, as a front knows them. Each cell has one state; a set of cells for each state makes scans
// cheap.
#ifndef EXPERTD_SHARD_CATALOGUE_COPIES_H
#define EXPERTD_SHARD_CATALOGUE_COPIES_H

#include "shard/catalogue/catalogue.h"

// The states up to COPY_FAILED are those that a shard reports.
enum copy_state {
    COPY_NONE,     // not held
    COPY_LOADING,  // assigned and not ready yet
    COPY_READY,    // computes rows
    COPY_RETIRING, // still computes rows; freed as soon as no front uses it
    COPY_FAILED,   // the load failed, or there was no memory for it
    COPY_RELEASED, // only in a front: it told the shard that it does not use the retiring copy; the shard may have freed it
    COPY_STATES
};

// One entry of an inventory message.
struct copy_report {
    struct expert_id id;
    enum copy_state state; // not COPY_RELEASED
    uint64_t digest;       // of READY and RETIRING: XXH3-64 of the expert's tensors, as in expert/model/model.h
};

struct copies {
    uint64_t *cells[COPY_STATES]; // the cells in each state; [COPY_NONE] is not kept
    uint32_t count[COPY_STATES];
    uint64_t bytes; // of the cells that occupy memory: all but FAILED ones
};

// The words that the sets need. copies_init places them at `words`, which must be zero, and returns the end.
static inline size_t copies_words(const struct catalogue *catalogue) {
    return (COPY_STATES - 1) * catalogue_words(catalogue);
}
uint64_t *copies_init(struct copies *copies, const struct catalogue *catalogue, uint64_t *words);

enum copy_state copies_get(const struct copies *copies, uint32_t cell);
void copies_set(struct copies *copies, const struct catalogue *catalogue, uint32_t cell, enum copy_state state);
void copies_clear(struct copies *copies, const struct catalogue *catalogue);

#endif
