// Decides which rows are computed together. Pure: the time comes with the calls. daemon/request/worker.c guards it and owns the
// memory of its layers. The requests of one layer that wait while the engine is busy form one batch, up to the limits.
//
// Next layer: among the layers where the best priority class waits, the layer of the most urgent request (earliest deadline, then
// longest wait). But a layer that was passed over by as many batches as there are waiting layers goes first, so no layer of a class
// waits for more than twice as many batches as there are waiting layers. Classes are strict: a lower class waits while a higher one
// has work.
//
// Within a batch: the layer's requests in order of urgency. A request with more tokens than a piece is split. It adds at most one
// piece to a batch, and all split requests together add at most one piece, so that a small request never waits for a batch that
// holds a complete prefill. After each piece the request goes behind the requests of equal urgency. Requests of lower classes may
// join the batch, but only completely, not in pieces.
#ifndef EXPERTD_DAEMON_REQUEST_BATCHER_H
#define EXPERTD_DAEMON_REQUEST_BATCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BATCH_REQUESTS_MAX = 64 };

// Embedded in a request, which owns it. The batcher links it into its layer's list.
struct batcher_entry {
    size_t layer;     // index in the model
    uint32_t tokens;  // of the complete request
    uint32_t choices; // per token
    int32_t priority; // lower is sooner
    int64_t deadline_ns;
    // set by the batcher
    uint32_t taken;     // tokens already given to batches
    uint64_t sequence;  // order of arrival, for equal deadlines
    int64_t arrived_ns; // when it was pushed
    bool queued;        // some tokens are not in a batch yet
    struct batcher_entry *next;
};

// Rows [first, first + tokens) of a request.
struct batcher_piece {
    struct batcher_entry *entry;
    uint32_t first, tokens;
};

struct batcher_limits {
    size_t max_tokens;       // of a batch
    size_t max_choices;      // tokens × greatest number of choices per token in a batch; at least one token's choices
    size_t max_piece_tokens; // at most max_tokens
    int64_t max_delay_ns;    // a batch that is not full may wait this long for more requests
};

struct batcher_layer {
    struct batcher_entry *first; // sorted, the most urgent first
    size_t count;
    uint64_t tokens;      // not in a batch yet
    uint32_t passed_over; // batches of other layers since this one could have been chosen
};

struct batcher {
    struct batcher_limits limits;
    struct batcher_layer *layers; // [num_layers], borrowed, zeroed by batcher_init
    size_t num_layers;
    size_t count; // entries queued
    uint64_t next_sequence;
};

void batcher_init(struct batcher *batcher, const struct batcher_limits *limits, struct batcher_layer *layers, size_t num_layers);
void batcher_push(struct batcher *batcher, struct batcher_entry *entry, int64_t now_ns);
// Removes the tokens that are not in a batch yet. False: there are none.
bool batcher_remove(struct batcher *batcher, struct batcher_entry *entry);

// Removes the next batch: pieces of one layer, at most one per entry. Returns their number; 0: no batch is due, and *again_ns is
// when to call again (CLOCK_NEVER: after the next push).
size_t batcher_next(struct batcher *batcher, int64_t now_ns, struct batcher_piece out[BATCH_REQUESTS_MAX], int64_t *again_ns);

// Whether the next batch has at least a piece's rows. Such a batch may be formed before the previous one ends: it gains little from
// waiting, and its copies to the device then overlap with the computation. Changes nothing.
bool batcher_next_is_large(const struct batcher *batcher, int64_t now_ns);

#endif
