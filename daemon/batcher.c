#include "daemon/batcher.h"

void batcher_init(struct batcher *batcher, const struct batcher_limits *limits) {
    *batcher = (struct batcher){.limits = *limits};
}

static bool sooner(const struct batcher_entry *a, const struct batcher_entry *b) {
    if (a->priority != b->priority) {
        return a->priority < b->priority;
    }
    if (a->deadline_ns != b->deadline_ns) {
        return a->deadline_ns < b->deadline_ns;
    }
    return a->arrival < b->arrival;
}

void batcher_push(struct batcher *batcher, struct batcher_entry *entry) {
    entry->arrival = batcher->arrivals++;
    entry->queued = true;
    struct batcher_entry **at = &batcher->first; // the queue is bounded by admission: a walk is short
    while (*at && !sooner(entry, *at)) {
        at = &(*at)->next;
    }
    entry->next = *at;
    *at = entry;
    batcher->count++;
}

static void unlink_at(struct batcher *batcher, struct batcher_entry **at) {
    struct batcher_entry *entry = *at;
    *at = entry->next;
    entry->next = NULL;
    entry->queued = false;
    batcher->count--;
}

bool batcher_remove(struct batcher *batcher, struct batcher_entry *entry) {
    if (!entry->queued) {
        return false;
    }
    struct batcher_entry **at = &batcher->first;
    while (*at != entry) {
        at = &(*at)->next;
    }
    unlink_at(batcher, at);
    return true;
}

size_t batcher_next(struct batcher *batcher, struct batcher_entry *out[BATCH_REQUESTS_MAX]) {
    struct batcher_entry *head = batcher->first;
    if (!head) {
        return 0;
    }
    size_t count = 0, tokens = 0, choices = 0, layer = head->layer;
    struct batcher_entry **at = &batcher->first;
    while (*at && count < BATCH_REQUESTS_MAX) {
        struct batcher_entry *entry = *at;
        size_t most = entry->choices > choices ? entry->choices : choices;
        bool fits =
            tokens + entry->tokens <= batcher->limits.max_tokens && (tokens + entry->tokens) * most <= batcher->limits.max_choices;
        if (entry->layer != layer || (count > 0 && !fits)) {
            at = &entry->next;
            continue;
        }
        unlink_at(batcher, at);
        out[count++] = entry;
        tokens += entry->tokens;
        choices = most;
    }
    return count;
}
