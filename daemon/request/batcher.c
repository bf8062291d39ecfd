#include "daemon/request/batcher.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"

void batcher_init(struct batcher *batcher, const struct batcher_limits *limits, struct batcher_layer *layers, size_t num_layers) {
    INVARIANT(limits->max_piece_tokens > 0 && limits->max_piece_tokens <= limits->max_tokens);
    memset(layers, 0, num_layers * sizeof *layers);
    *batcher = (struct batcher){.limits = *limits, .layers = layers, .num_layers = num_layers};
}

static bool sooner(const struct batcher_entry *a, const struct batcher_entry *b) {
    if (a->priority != b->priority) {
        return a->priority < b->priority;
    }
    if (a->deadline_ns != b->deadline_ns) {
        return a->deadline_ns < b->deadline_ns;
    }
    return a->turn < b->turn;
}

static uint32_t left_of(const struct batcher_entry *entry) {
    return entry->tokens - entry->taken;
}

static bool is_cut(const struct batcher *batcher, const struct batcher_entry *entry) {
    return entry->tokens > batcher->limits.max_piece_tokens || (size_t)entry->tokens * entry->choices > batcher->limits.max_choices;
}

static void link_entry(struct batcher *batcher, struct batcher_entry *entry) {
    struct batcher_layer *layer = &batcher->layers[entry->layer];
    entry->turn = batcher->turns++;
    entry->queued = true;
    struct batcher_entry **at = &layer->first; // the queue is bounded by admission: a walk is short
    while (*at && !sooner(entry, *at)) {
        at = &(*at)->next;
    }
    entry->next = *at;
    *at = entry;
    layer->count++;
    layer->tokens += left_of(entry);
    batcher->count++;
}

static void unlink_at(struct batcher *batcher, struct batcher_entry **at) {
    struct batcher_entry *entry = *at;
    struct batcher_layer *layer = &batcher->layers[entry->layer];
    *at = entry->next;
    entry->next = NULL;
    entry->queued = false;
    layer->count--;
    layer->tokens -= left_of(entry);
    layer->passed = layer->count ? layer->passed : 0;
    batcher->count--;
}

void batcher_push(struct batcher *batcher, struct batcher_entry *entry, int64_t now_ns) {
    INVARIANT(entry->layer < batcher->num_layers && !entry->queued);
    entry->taken = 0;
    entry->arrived_ns = now_ns;
    link_entry(batcher, entry);
}

bool batcher_remove(struct batcher *batcher, struct batcher_entry *entry) {
    if (!entry->queued) {
        return false;
    }
    struct batcher_entry **at = &batcher->layers[entry->layer].first;
    while (*at != entry) {
        at = &(*at)->next;
    }
    unlink_at(batcher, at);
    return true;
}

// ---- which layer

// When the layer's batch may leave: at once where it is full, holds a request that is cut, or one that cannot wait as long.
static int64_t ripe_at(const struct batcher *batcher, const struct batcher_layer *layer, int64_t now_ns) {
    const struct batcher_limits *limits = &batcher->limits;
    if (limits->max_delay_ns == 0 || layer->tokens >= limits->max_tokens || layer->count >= BATCH_REQUESTS_MAX) {
        return now_ns;
    }
    int64_t ripe_ns = CLOCK_NEVER;
    for (const struct batcher_entry *entry = layer->first; entry; entry = entry->next) {
        int64_t until_ns = clock_add_ns(entry->arrived_ns, limits->max_delay_ns);
        if (is_cut(batcher, entry) || entry->deadline_ns <= until_ns) {
            return now_ns;
        }
        ripe_ns = until_ns < ripe_ns ? until_ns : ripe_ns;
    }
    return ripe_ns;
}

// The best class among what may leave now; false: nothing may, *again_ns says when.
static bool best_class(const struct batcher *batcher, int64_t now_ns, int32_t *class, int64_t *again_ns) {
    bool found = false;
    *again_ns = CLOCK_NEVER;
    for (size_t i = 0; i < batcher->num_layers; i++) {
        const struct batcher_layer *layer = &batcher->layers[i];
        if (!layer->first) {
            continue;
        }
        int64_t ripe_ns = ripe_at(batcher, layer, now_ns);
        if (ripe_ns > now_ns) {
            *again_ns = ripe_ns < *again_ns ? ripe_ns : *again_ns;
        } else if (!found || layer->first->priority < *class) {
            found = true;
            *class = layer->first->priority;
        }
    }
    return found;
}

struct choice {
    struct batcher_layer *urgent, *passed; // the most urgent, the most passed over
    size_t waiting;                        // layers
};

static struct choice look_at_layers(const struct batcher *batcher, int64_t now_ns, int32_t class) {
    struct choice choice = {0};
    for (size_t i = 0; i < batcher->num_layers; i++) {
        struct batcher_layer *layer = &batcher->layers[i];
        if (!layer->first || layer->first->priority != class || ripe_at(batcher, layer, now_ns) > now_ns) {
            continue;
        }
        choice.waiting++;
        if (!choice.urgent || sooner(layer->first, choice.urgent->first)) {
            choice.urgent = layer;
        }
        if (!choice.passed || layer->passed > choice.passed->passed) {
            choice.passed = layer;
        }
    }
    return choice;
}

// NULL: none may leave now.
static struct batcher_layer *pick_layer(const struct batcher *batcher, int64_t now_ns, int32_t *class, int64_t *again_ns) {
    if (!best_class(batcher, now_ns, class, again_ns)) {
        return NULL;
    }
    struct choice choice = look_at_layers(batcher, now_ns, *class);
    INVARIANT(choice.urgent && choice.passed); // the class was found among them
    return choice.passed->passed >= choice.waiting ? choice.passed : choice.urgent;
}

bool batcher_next_is_large(const struct batcher *batcher, int64_t now_ns) {
    int32_t class = 0;
    int64_t again_ns;
    const struct batcher_layer *next = pick_layer(batcher, now_ns, &class, &again_ns);
    return next && next->tokens >= batcher->limits.max_piece_tokens;
}

static struct batcher_layer *next_layer(struct batcher *batcher, int64_t now_ns, int64_t *again_ns) {
    int32_t class = 0;
    struct batcher_layer *next = pick_layer(batcher, now_ns, &class, again_ns);
    if (!next) {
        return NULL;
    }
    for (size_t i = 0; i < batcher->num_layers; i++) {
        struct batcher_layer *layer = &batcher->layers[i];
        if (layer != next && layer->first && layer->first->priority == class && ripe_at(batcher, layer, now_ns) <= now_ns) {
            layer->passed++;
        }
    }
    next->passed = 0;
    return next;
}

// ---- what leaves

struct filling {
    size_t tokens, choices, cut_tokens;
    int32_t class; // of the head
};

// Rows of the entry that still fit; false: not even what must go at once.
static bool fits(const struct batcher *batcher, const struct filling *filling, const struct batcher_entry *entry,
                 uint32_t *tokens) {
    const struct batcher_limits *limits = &batcher->limits;
    size_t choices = entry->choices > filling->choices ? entry->choices : filling->choices;
    size_t room = limits->max_tokens - filling->tokens;
    if (choices > 0) {
        size_t by_choices = limits->max_choices / choices;
        size_t left = by_choices > filling->tokens ? by_choices - filling->tokens : 0;
        room = left < room ? left : room;
    }
    uint32_t left = left_of(entry);
    if (!is_cut(batcher, entry)) {
        *tokens = left;
        return left <= room && filling->tokens * choices <= limits->max_choices;
    }
    size_t piece = limits->max_piece_tokens - filling->cut_tokens;
    room = piece < room ? piece : room;
    *tokens = left < room ? left : (uint32_t)room;
    return *tokens > 0 && entry->priority == filling->class;
}

static void take(struct batcher *batcher, struct batcher_entry **at, struct filling *filling, uint32_t tokens) {
    struct batcher_entry *entry = *at;
    filling->tokens += tokens;
    filling->choices = entry->choices > filling->choices ? entry->choices : filling->choices;
    filling->cut_tokens += is_cut(batcher, entry) ? tokens : 0;
    unlink_at(batcher, at);
    entry->taken += tokens;
}

// What is left of the requests that were cut goes behind its equals, for their turn.
static void relink(struct batcher *batcher, const struct batcher_piece *pieces, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (left_of(pieces[i].entry) > 0) {
            link_entry(batcher, pieces[i].entry);
        }
    }
}

size_t batcher_next(struct batcher *batcher, int64_t now_ns, struct batcher_piece out[BATCH_REQUESTS_MAX], int64_t *again_ns) {
    struct batcher_layer *layer = next_layer(batcher, now_ns, again_ns);
    if (!layer) {
        return 0;
    }
    struct filling filling = {.class = layer->first->priority};
    struct batcher_entry **at = &layer->first;
    size_t count = 0;
    while (*at && count < BATCH_REQUESTS_MAX) {
        struct batcher_entry *entry = *at;
        uint32_t tokens;
        if (!fits(batcher, &filling, entry, &tokens)) {
            at = &entry->next;
            continue;
        }
        out[count++] = (struct batcher_piece){.entry = entry, .first = entry->taken, .tokens = tokens};
        take(batcher, at, &filling, tokens);
    }
    INVARIANT(count > 0); // the head of an empty batch always fits
    relink(batcher, out, count);
    return count;
}
