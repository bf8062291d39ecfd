// Which requests leave together: a pure decider. Requests of one layer that wait while the engine is busy form one batch, up to the
// limits; the most urgent request (priority, then deadline, then arrival) decides which layer is next. daemon/worker.c guards it.
#ifndef EXPERTD_DAEMON_BATCHER_H
#define EXPERTD_DAEMON_BATCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BATCH_REQUESTS_MAX = 64 };

// Embedded in a request; owned by it. The batcher only links it.
struct batcher_entry {
    size_t layer;     // index in the model
    uint32_t tokens;  // T
    uint32_t choices; // per token
    int32_t priority; // lower is sooner
    int64_t deadline_ns;
    uint64_t arrival; // set by batcher_push
    bool queued;
    struct batcher_entry *next;
};

struct batcher_limits {
    size_t max_tokens;  // of a batch
    size_t max_choices; // tokens x the greatest number of choices of a batch
};

struct batcher {
    struct batcher_limits limits;
    struct batcher_entry *first; // sorted, the most urgent first
    size_t count;
    uint64_t arrivals;
};

void batcher_init(struct batcher *batcher, const struct batcher_limits *limits);
void batcher_push(struct batcher *batcher, struct batcher_entry *entry);
bool batcher_remove(struct batcher *batcher, struct batcher_entry *entry); // false: it is not queued any more

// Takes the next batch: out[0] is the most urgent entry. Returns how many, 0 when nothing waits.
size_t batcher_next(struct batcher *batcher, struct batcher_entry *out[BATCH_REQUESTS_MAX]);

#endif
