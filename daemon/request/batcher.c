#include "daemon/request/batcher.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"

void batcher_init(struct batcher *batcher, const struct batcher_limits *limits, struct batcher_layer *layers, size_t num_layers) {
    INVARIANT(limits->max_piece_tokens > 0 && limits->max_piece_tokens <= limits->max_tokens);
    memset(layers, 0, num_layers * sizeof *layers);
    *batcher = (struct batcher){.limits = *limits, .layers = layers, .num_layers = num_layers};
}

static bool is_sooner(const struct batcher_entry *a, const struct batcher_entry *b) {
    if (a->priority != b->priority) {
        return a->priority < b->priority;
    }
    if (a->deadline_ns != b->deadline_ns) {
        return a->deadline_ns < b->deadline_ns;
    }
    return a->sequence < b->sequence;
}

static uint32_t left_of(const struct batcher_entry *entry) {
    return entry->tokens - entry->taken;
}

static bool is_split(const struct batcher *batcher, const struct batcher_entry *entry) {
    return entry->tokens > batcher->limits.max_piece_tokens || (size_t)entry->tokens * entry->choices > batcher->limits.max_choices;
}

static void link_entry(struct batcher *batcher, struct batcher_entry *entry) {
    struct batcher_layer *layer = &batcher->layers[entry->layer];
    entry->sequence = batcher->next_sequence++;
    entry->queued = true;
    struct batcher_entry **at = &layer->first; // admission bounds the queue, so the walk is short
    while (*at && !is_sooner(entry, *at)) {
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
    layer->passed_over = layer->count ? layer->passed_over : 0;
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

// When the layer's batch is due. At once if it is full, holds a request that is split, or one whose deadline is near.
static int64_t due_at(const struct batcher *batcher, const struct batcher_layer *layer, int64_t now_ns) {
    const struct batcher_limits *limits = &batcher->limits;
    if (limits->max_delay_ns == 0 || layer->tokens >= limits->max_tokens || layer->count >= BATCH_REQUESTS_MAX) {
        return now_ns;
    }
    int64_t due_ns = CLOCK_NEVER;
    for (const struct batcher_entry *entry = layer->first; entry; entry = entry->next) {
        int64_t until_ns = clock_add_ns(entry->arrived_ns, limits->max_delay_ns);
        if (is_split(batcher, entry) || entry->deadline_ns <= until_ns) {
            return now_ns;
        }
        due_ns = until_ns < due_ns ? until_ns : due_ns;
    }
    return due_ns;
}

// The best class among the due layers. False: no layer is due, and *again_ns is when the first one will be.
static bool best_class(const struct batcher *batcher, int64_t now_ns, int32_t *class, int64_t *again_ns) {
    bool found = false;
    *again_ns = CLOCK_NEVER;
    for (size_t i = 0; i < batcher->num_layers; i++) {
        const struct batcher_layer *layer = &batcher->layers[i];
        if (!layer->first) {
            continue;
        }
        int64_t due_ns = due_at(batcher, layer, now_ns);
        if (due_ns > now_ns) {
            *again_ns = due_ns < *again_ns ? due_ns : *again_ns;
        } else if (!found || layer->first->priority < *class) {
            found = true;
            *class = layer->first->priority;
        }
    }
    return found;
}

struct choice {
    struct batcher_layer *urgent, *passed_over; // the layer of the most urgent request; the layer passed over most often
    size_t waiting;                             // number of due layers of the class
};

static struct choice compare_layers(const struct batcher *batcher, int64_t now_ns, int32_t class) {
    struct choice choice = {0};
    for (size_t i = 0; i < batcher->num_layers; i++) {
        struct batcher_layer *layer = &batcher->layers[i];
        if (!layer->first || layer->first->priority != class || due_at(batcher, layer, now_ns) > now_ns) {
            continue;
        }
        choice.waiting++;
        if (!choice.urgent || is_sooner(layer->first, choice.urgent->first)) {
            choice.urgent = layer;
        }
        if (!choice.passed_over || layer->passed_over > choice.passed_over->passed_over) {
            choice.passed_over = layer;
        }
    }
    return choice;
}

// NULL: no layer is due.
static struct batcher_layer *pick_layer(const struct batcher *batcher, int64_t now_ns, int32_t *class, int64_t *again_ns) {
    if (!best_class(batcher, now_ns, class, again_ns)) {
        return NULL;
    }
    struct choice choice = compare_layers(batcher, now_ns, *class);
    INVARIANT(choice.urgent && choice.passed_over); // best_class found a due layer of it
    return choice.passed_over->passed_over >= choice.waiting ? choice.passed_over : choice.urgent;
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
        if (layer != next && layer->first && layer->first->priority == class && due_at(batcher, layer, now_ns) <= now_ns) {
            layer->passed_over++;
        }
    }
    next->passed_over = 0;
    return next;
}

// ---- forming the batch

struct filling {
    size_t tokens, choices, split_tokens;
    int32_t class; // of the first entry
};

// The entry's rows that still fit. False: an entry that must not be split does not fit, or a split one has no space.
static bool fits(const struct batcher *batcher, const struct filling *filling, const struct batcher_entry *entry,
                 uint32_t *tokens) {
    const struct batcher_limits *limits = &batcher->limits;
    size_t choices = entry->choices > filling->choices ? entry->choices : filling->choices;
    size_t space = limits->max_tokens - filling->tokens;
    if (choices > 0) {
        size_t by_choices = limits->max_choices / choices;
        size_t left = by_choices > filling->tokens ? by_choices - filling->tokens : 0;
        space = left < space ? left : space;
    }
    uint32_t left = left_of(entry);
    if (!is_split(batcher, entry)) {
        *tokens = left;
        return left <= space && filling->tokens * choices <= limits->max_choices;
    }
    size_t piece = limits->max_piece_tokens - filling->split_tokens;
    space = piece < space ? piece : space;
    *tokens = left < space ? left : (uint32_t)space;
    return *tokens > 0 && entry->priority == filling->class;
}

static void take(struct batcher *batcher, struct batcher_entry **at, struct filling *filling, uint32_t tokens) {
    struct batcher_entry *entry = *at;
    filling->tokens += tokens;
    filling->choices = entry->choices > filling->choices ? entry->choices : filling->choices;
    filling->split_tokens += is_split(batcher, entry) ? tokens : 0;
    unlink_at(batcher, at);
    entry->taken += tokens;
}

// The rest of a split request goes behind the requests of equal urgency.
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
    INVARIANT(count > 0); // an empty batch has space for the first entry
    relink(batcher, out, count);
    return count;
}
