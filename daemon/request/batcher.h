// Which rows leave together: a pure decider. Requests of one layer that wait while the engine is busy form one batch, up to the
// limits. The time comes with the calls; daemon/request/worker.c guards it and owns the memory of its layers.
//
// Which layer is next: of the layers where the best priority class waits, that of the most urgent request (earliest deadline, then
// longest waiting), but a layer that as many batches have passed over as layers wait goes first. So no layer of a class waits for
// more than twice as many batches as layers wait. Classes are strict: a lower one waits while a higher one has work.
//
// Within a batch: the layer's requests in the order of urgency. A request of more tokens than a piece has is cut: it gives at most
// a piece to a batch, and all such requests together give no more than that, so that the batch which a small call waits for never
// grows to a whole prefill. Between two pieces a request goes behind its equals. Lower classes ride along whole, never cut.
#ifndef EXPERTD_DAEMON_REQUEST_BATCHER_H
#define EXPERTD_DAEMON_REQUEST_BATCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BATCH_REQUESTS_MAX = 64 };

// Embedded in a request; owned by it. The batcher only links it.
struct batcher_entry {
    size_t layer;     // index in the model
    uint32_t tokens;  // T, of the whole request
    uint32_t choices; // per token
    int32_t priority; // lower is sooner
    int64_t deadline_ns;
    // the batcher's own
    uint32_t taken;     // tokens that have left in pieces
    uint64_t turn;      // orders those of one deadline
    int64_t arrived_ns; // when it was pushed
    bool queued;        // has tokens that have not left
    struct batcher_entry *next;
};

// Rows [first, first + tokens) of a request.
struct batcher_piece {
    struct batcher_entry *entry;
    uint32_t first, tokens;
};

struct batcher_limits {
    size_t max_tokens;       // of a batch
    size_t max_choices;      // tokens x the greatest number of choices of a batch; at least one token's
    size_t max_piece_tokens; // at most max_tokens
    int64_t max_delay_ns;    // a batch that is not full may wait that long for company
};

struct batcher_layer {
    struct batcher_entry *first; // sorted, the most urgent first
    size_t count;
    uint64_t tokens; // not left yet
    uint32_t passed; // batches of other layers that left while this one was among the best class
};

struct batcher {
    struct batcher_limits limits;
    struct batcher_layer *layers; // [num_layers], borrowed, zeroed by batcher_init
    size_t num_layers;
    size_t count; // entries queued
    uint64_t turns;
};

void batcher_init(struct batcher *batcher, const struct batcher_limits *limits, struct batcher_layer *layers, size_t num_layers);
void batcher_push(struct batcher *batcher, struct batcher_entry *entry, int64_t now_ns);
// Takes back what has not left yet; false: nothing of it is queued any more.
bool batcher_remove(struct batcher *batcher, struct batcher_entry *entry);

// Takes the next batch: pieces of one layer, at most one of an entry. Returns how many; 0: none is to leave now, and *again_ns is
// when to ask again (CLOCK_NEVER: after the next push).
size_t batcher_next(struct batcher *batcher, int64_t now_ns, struct batcher_piece out[BATCH_REQUESTS_MAX], int64_t *again_ns);

// Would the next batch be of a piece's rows and more? Such a one loses nothing when it leaves early: its copies are worth
// overlapping with the batch before it. Changes nothing.
bool batcher_next_is_large(const struct batcher *batcher, int64_t now_ns);

#endif
