#include "shard/membership/placement_target.h"

#include <string.h>

#include "base/arena.h"
#include "shard/catalogue/bits.h"

enum {
    NO_MEMBER = UINT32_MAX,
    EVICTIONS_MAX = 64 // in one call; the next call continues
};

struct work {
    const struct target_options *options;
    const struct catalogue *catalogue;
    struct target_member *members;
    uint32_t count;
    const struct target_scratch *s;
    struct target_outcome *outcome;
    uint64_t bytes_starved; // of experts without a copy that fit nowhere
};

// Places every array in `memory` and returns their size. With memory NULL it only computes the size.
static size_t place_arrays(struct target_scratch *s, char *memory, size_t cells, size_t members) {
    struct {
        void **array;
        size_t bytes;
    } arrays[] = {
        {(void **)&s->counted, cells * sizeof *s->counted},
        {(void **)&s->live, cells * sizeof *s->live},
        {(void **)&s->settled, cells * sizeof *s->settled},
        {(void **)&s->surplus, cells / 8},
        {(void **)&s->layer_load, members * sizeof *s->layer_load},
        {(void **)&s->total_load, members * sizeof *s->total_load},
        {(void **)&s->bytes_used, members * sizeof *s->bytes_used},
        {(void **)&s->bytes_target, members * sizeof *s->bytes_target},
        {(void **)&s->dropped, bits_words(members) * sizeof *s->dropped},
    };
    size_t used = 0;
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        *arrays[i].array = memory ? memory + used : NULL;
        used += arena_rounded(arrays[i].bytes);
    }
    return used;
}

size_t target_scratch_bytes(const struct catalogue *catalogue, uint32_t members) {
    struct target_scratch unused;
    return place_arrays(&unused, NULL, catalogue->cells, members);
}

void target_scratch_init(struct target_scratch *scratch, void *memory, const struct catalogue *catalogue, uint32_t members) {
    place_arrays(scratch, memory, catalogue->cells, members);
}

static bool counts(const struct target_member *member) {
    return member->role == TARGET_ABSENT || member->role == TARGET_FIXED || member->role == TARGET_NEW ||
           member->role == TARGET_SETTLED;
}

static bool is_live(const struct target_member *member) {
    return member->role >= TARGET_FIXED;
}

static bool accepts(const struct target_member *member) {
    return member->role >= TARGET_NEW;
}

static bool holds(const struct target_member *member, uint32_t cell) {
    return bits_test(member->ready, cell) || bits_test(member->loading, cell);
}

// What one copy of an expert adds to its member's load.
static uint64_t share(const struct work *w, uint32_t cell) {
    uint64_t each = w->options->weights[cell] / w->options->wanted[cell];
    return each > 0 ? each : 1;
}

static uint32_t layer_first(const struct work *w, uint32_t layer) {
    return layer * w->catalogue->stride;
}

static uint32_t layer_end(const struct work *w, uint32_t layer) {
    return layer_first(w, layer) + w->catalogue->layer_experts[layer];
}

static void count_copies(struct work *w) {
    memset(w->s->counted, 0, w->catalogue->cells * sizeof *w->s->counted);
    memset(w->s->live, 0, w->catalogue->cells * sizeof *w->s->live);
    memset(w->s->settled, 0, w->catalogue->cells * sizeof *w->s->settled);
    for (uint32_t m = 0; m < w->count; m++) {
        const struct target_member *member = &w->members[m];
        w->s->bytes_used[m] = member->bytes_used;
        w->s->bytes_target[m] = w->s->total_load[m] = 0;
        for (size_t word = 0; word < catalogue_words(w->catalogue); word++) {
            uint64_t held = member->ready[word] | member->loading[word];
            BITS_FOR_EACH(bit, &held, BITS_PER_WORD) {
                uint32_t cell = (uint32_t)word * BITS_PER_WORD + bit;
                w->s->counted[cell] += counts(member);
                w->s->live[cell] += is_live(member);
                w->s->settled[cell] += member->role == TARGET_SETTLED;
                w->s->bytes_target[m] += counts(member) ? catalogue_bytes(w->catalogue, cell) : 0;
                w->s->total_load[m] += share(w, cell);
            }
        }
    }
}

// Each member's load of one layer, from its target (or from its copies, before the targets are made).
static void load_layer(struct work *w, uint32_t layer, bool from_target) {
    for (uint32_t m = 0; m < w->count; m++) {
        const struct target_member *member = &w->members[m];
        w->s->layer_load[m] = 0;
        if (!accepts(member)) {
            continue;
        }
        size_t first = layer_first(w, layer);
        for (size_t word = first / BITS_PER_WORD; word < first / BITS_PER_WORD + catalogue_layer_words(w->catalogue); word++) {
            uint64_t cells = from_target ? member->target[word] : member->ready[word] | member->loading[word];
            BITS_FOR_EACH(bit, &cells, BITS_PER_WORD) {
                w->s->layer_load[m] += share(w, (uint32_t)word * BITS_PER_WORD + bit);
            }
        }
    }
}

static void add_copy(struct work *w, uint32_t m, uint32_t cell) {
    bits_set(w->members[m].target, cell);
    w->s->layer_load[m] += share(w, cell);
    w->s->total_load[m] += share(w, cell);
    w->s->bytes_target[m] += catalogue_bytes(w->catalogue, cell);
    w->s->counted[cell]++;
    w->s->live[cell]++;
}

static void count_out(struct work *w, uint32_t m, uint32_t cell) {
    w->s->layer_load[m] -= share(w, cell);
    w->s->total_load[m] -= share(w, cell);
    w->s->bytes_target[m] -= catalogue_bytes(w->catalogue, cell);
    w->s->counted[cell]--;
    w->s->live[cell]--;
}

static bool has_more_load(const struct work *w, uint32_t a, uint32_t b) {
    const struct target_scratch *s = w->s;
    return s->layer_load[a] != s->layer_load[b] ? s->layer_load[a] > s->layer_load[b] : s->total_load[a] > s->total_load[b];
}

// Of two holders of a surplus copy: is `a` to lose it? A copy that was to go already goes; then one that is not loaded yet; then
// the one on the member with more load.
static bool loses(const struct work *w, uint32_t a, uint32_t b, uint32_t cell) {
    bool a_stays = bits_test(w->members[a].target, cell), b_stays = bits_test(w->members[b].target, cell);
    bool a_ready = bits_test(w->members[a].ready, cell), b_ready = bits_test(w->members[b].ready, cell);
    if (a_stays != b_stays) {
        return !a_stays;
    }
    if (a_ready != b_ready) {
        return !a_ready;
    }
    return has_more_load(w, a, b);
}

// Drops the copies of one expert beyond the wanted ones. Only copies on settled members count and are dropped. Writes the cell's
// bit of every member's target.
static void drop_surplus_of(struct work *w, uint32_t cell) {
    memset(w->s->dropped, 0, bits_words(w->count) * sizeof *w->s->dropped);
    for (uint32_t surplus = w->s->settled[cell] - w->options->wanted[cell]; surplus > 0; surplus--) {
        uint32_t loser = NO_MEMBER;
        for (uint32_t m = 0; m < w->count; m++) {
            bool may = w->members[m].role == TARGET_SETTLED && holds(&w->members[m], cell) && !bits_test(w->s->dropped, m);
            if (may && (loser == NO_MEMBER || loses(w, m, loser, cell))) {
                loser = m;
            }
        }
        INVARIANT(loser != NO_MEMBER);
        bits_set(w->s->dropped, loser);
        count_out(w, loser, cell);
    }
    for (uint32_t m = 0; m < w->count; m++) {
        bool keeps = counts(&w->members[m]) && holds(&w->members[m], cell) && !bits_test(w->s->dropped, m);
        bits_put(w->members[m].target, cell, keeps);
    }
}

// Rule 3: every copy stays that is not surplus.
static void keep_copies(struct work *w) {
    memset(w->s->surplus, 0, catalogue_words(w->catalogue) * sizeof *w->s->surplus);
    for (uint32_t layer = 0; layer < w->catalogue->layers; layer++) {
        bool loaded = false;
        for (uint32_t cell = layer_first(w, layer); cell < layer_end(w, layer); cell++) {
            if (w->s->settled[cell] <= w->options->wanted[cell]) {
                continue;
            }
            if (!loaded) {
                load_layer(w, layer, false);
                loaded = true;
            }
            bits_set(w->s->surplus, cell);
            drop_surplus_of(w, cell);
        }
    }
    for (uint32_t m = 0; m < w->count; m++) {
        struct target_member *member = &w->members[m];
        for (size_t word = 0; word < catalogue_words(w->catalogue); word++) {
            uint64_t held = counts(member) ? member->ready[word] | member->loading[word] : 0;
            member->target[word] = (held & ~w->s->surplus[word]) | (member->target[word] & w->s->surplus[word]);
        }
    }
}

static bool is_reusable(const struct target_member *member, uint32_t cell) {
    return bits_test(member->retiring, cell) || bits_test(member->released, cell);
}

static bool has_memory(const struct work *w, uint32_t m, uint32_t cell) {
    return w->s->bytes_used[m] + catalogue_bytes(w->catalogue, cell) <= w->members[m].bytes_max;
}

static bool may_take(const struct work *w, uint32_t m, uint32_t cell) {
    const struct target_member *member = &w->members[m];
    return accepts(member) && !bits_test(member->target, cell) && !holds(member, cell) && !bits_test(member->failed, cell) &&
           (is_reusable(member, cell) || has_memory(w, m, cell));
}

// Gives one more copy to the member with the least load, or to one that has it still. False: there is no memory for it.
static bool place_copy(struct work *w, uint32_t cell) {
    uint32_t best = NO_MEMBER;
    bool best_reuses = false;
    for (uint32_t m = 0; m < w->count; m++) {
        if (!may_take(w, m, cell)) {
            continue;
        }
        bool reuses = is_reusable(&w->members[m], cell);
        if (best == NO_MEMBER || (reuses != best_reuses ? reuses : has_more_load(w, best, m))) {
            best = m;
            best_reuses = reuses;
        }
    }
    if (best == NO_MEMBER) {
        return false;
    }
    w->s->bytes_used[best] += best_reuses ? 0 : catalogue_bytes(w->catalogue, cell);
    add_copy(w, best, cell);
    return true;
}

// Rule 1.
static void place_first_copies(struct work *w) {
    for (uint32_t layer = 0; layer < w->catalogue->layers; layer++) {
        load_layer(w, layer, true);
        for (uint32_t cell = layer_first(w, layer); cell < layer_end(w, layer); cell++) {
            if (w->s->live[cell] == 0 && !place_copy(w, cell)) {
                w->outcome->without_copy++;
                w->bytes_starved += catalogue_bytes(w->catalogue, cell);
            }
        }
    }
}

// Rule 2. While an expert has no copy for lack of memory, further copies of others would take the memory that is being freed for
// it.
static void place_further_copies(struct work *w) {
    for (uint32_t layer = 0; layer < w->catalogue->layers; layer++) {
        bool loaded = false;
        for (uint32_t cell = layer_first(w, layer); cell < layer_end(w, layer); cell++) {
            while (w->s->live[cell] > 0 && w->s->counted[cell] < w->options->wanted[cell]) {
                if (!loaded) {
                    load_layer(w, layer, true);
                    loaded = true;
                }
                if (w->options->first_copies_alone || w->bytes_starved > 0 || !place_copy(w, cell)) {
                    w->outcome->short_of_copies++;
                    break;
                }
            }
        }
    }
}

// The heaviest expert of at most `share_max` that can move from one member to another, or UINT32_MAX.
static uint32_t movable(const struct work *w, uint32_t layer, uint32_t from, uint32_t to, uint64_t share_max) {
    uint32_t best = UINT32_MAX;
    for (uint32_t cell = bits_next(w->members[from].target, layer_first(w, layer), layer_end(w, layer)); cell < layer_end(w, layer);
         cell = bits_next(w->members[from].target, cell + 1, layer_end(w, layer))) {
        bool loads_now = bits_test(w->members[from].loading, cell); // moves later, if it still matters
        bool fits = !loads_now && may_take(w, to, cell) && share(w, cell) <= share_max;
        if (fits && (best == UINT32_MAX || share(w, cell) > share(w, best))) {
            best = cell;
        }
    }
    return best;
}

static void move_copy(struct work *w, uint32_t from, uint32_t to, uint32_t cell) {
    uint64_t bytes = catalogue_bytes(w->catalogue, cell);
    bool exists = holds(&w->members[from], cell); // else it was placed just now, and is placed better
    bits_clear(w->members[from].target, cell);
    count_out(w, from, cell);
    w->s->bytes_used[from] -= exists || is_reusable(&w->members[from], cell) ? 0 : bytes;
    w->s->bytes_used[to] += is_reusable(&w->members[to], cell) ? 0 : bytes;
    add_copy(w, to, cell);
    w->outcome->moves += exists;
}

struct balance {
    uint32_t receiver, donor; // the settled members with the least and the most load of the layer; NO_MEMBER
    uint64_t load, total;     // the sums of the settled members' loads, of this layer and of all
    uint64_t settled;         // their number
};

static bool may_receive(const struct work *w, uint32_t m, uint32_t layer) {
    const struct target_member *member = &w->members[m];
    return member->role == TARGET_SETTLED && !bits_any(member->failed, catalogue_words(w->catalogue)) &&
           has_memory(w, m, layer_first(w, layer));
}

static struct balance extremes(const struct work *w, uint32_t layer) {
    struct balance found = {.receiver = NO_MEMBER, .donor = NO_MEMBER};
    for (uint32_t m = 0; m < w->count; m++) {
        if (w->members[m].role != TARGET_SETTLED) {
            continue;
        }
        found.settled++;
        found.load += w->s->layer_load[m];
        found.total += w->s->total_load[m];
        if (found.donor == NO_MEMBER || has_more_load(w, m, found.donor)) {
            found.donor = m;
        }
        if ((found.receiver == NO_MEMBER || has_more_load(w, found.receiver, m)) && may_receive(w, m, layer)) {
            found.receiver = m;
        }
    }
    return found;
}

// A move that makes the layer's loads more even, if one exceeds the mean by more than `percent`.
static bool even_out_layer(struct work *w, uint32_t layer, const struct balance *found, uint32_t percent) {
    uint64_t most = w->s->layer_load[found->donor], least = w->s->layer_load[found->receiver];
    if (most * found->settled * 100 <= found->load * (100 + percent) || most < least + 2) {
        return false;
    }
    uint32_t cell = movable(w, layer, found->donor, found->receiver, (most - least) / 2);
    if (cell == UINT32_MAX) {
        return false;
    }
    move_copy(w, found->donor, found->receiver, cell);
    return true;
}

// A move that leaves the layer's loads as even as they are and makes the loads over all layers more even. It matters where a layer
// has fewer copies than there are members.
static bool even_out_total(struct work *w, uint32_t layer, const struct balance *found) {
    const uint64_t *layer_load = w->s->layer_load, *total_load = w->s->total_load;
    uint32_t receiver = found->receiver, donor = NO_MEMBER;
    for (uint32_t m = 0; m < w->count; m++) {
        bool may = w->members[m].role == TARGET_SETTLED && layer_load[m] > layer_load[receiver];
        if (may && (donor == NO_MEMBER || total_load[m] > total_load[donor])) {
            donor = m;
        }
    }
    if (donor == NO_MEMBER || total_load[donor] < total_load[receiver] + 2 ||
        total_load[donor] * found->settled * 100 <= found->total * (100 + w->options->slack_percent)) {
        return false;
    }
    uint64_t layer_gap = layer_load[donor] - layer_load[receiver], half_gap = (total_load[donor] - total_load[receiver]) / 2;
    uint32_t cell = movable(w, layer, donor, receiver, layer_gap < half_gap ? layer_gap : half_gap);
    if (cell == UINT32_MAX) {
        return false;
    }
    move_copy(w, donor, receiver, cell);
    return true;
}

// Rule 4. Each move lowers the sum of squares of the layer's loads, or leaves it and lowers that of the total loads, so the loop
// ends. Once loads are evened out, they come well below the slack, so that small changes of measured loads move nothing.
static void balance_layer(struct work *w, uint32_t layer) {
    load_layer(w, layer, true);
    uint32_t percent = w->options->slack_percent;
    for (;;) {
        struct balance found = extremes(w, layer);
        if (found.receiver == NO_MEMBER) {
            return;
        }
        if (even_out_layer(w, layer, &found, percent)) {
            percent = w->options->slack_percent / 2;
        } else if (!even_out_total(w, layer, &found)) {
            return;
        }
    }
}

// Memory of members that take copies which is used now and not by their targets.
static uint64_t bytes_being_freed(const struct work *w) {
    uint64_t bytes = 0;
    for (uint32_t m = 0; m < w->count; m++) {
        if (accepts(&w->members[m]) && w->s->bytes_used[m] > w->s->bytes_target[m]) {
            bytes += w->s->bytes_used[m] - w->s->bytes_target[m];
        }
    }
    return bytes;
}

// Rule 1: drops further copies, until what is freed suffices for the experts without a copy.
static void make_memory(struct work *w) {
    uint64_t bytes = bytes_being_freed(w);
    uint32_t evictions = 0;
    for (uint32_t m = 0; m < w->count; m++) {
        struct target_member *member = &w->members[m];
        for (uint32_t cell = 0; accepts(member) && cell < w->catalogue->cells; cell++) {
            if (bytes >= w->bytes_starved || evictions == EVICTIONS_MAX) {
                return;
            }
            if (bits_test(member->target, cell) && w->s->counted[cell] >= 2 && w->s->live[cell] >= 2) {
                bits_clear(member->target, cell);
                count_out(w, m, cell);
                bytes += catalogue_bytes(w->catalogue, cell);
                evictions++;
            }
        }
    }
}

void placement_target(const struct target_options *options, struct target_member *members, uint32_t count,
                      const struct target_scratch *scratch, struct target_outcome *outcome) {
    *outcome = (struct target_outcome){0};
    struct work w = {
        .options = options, .catalogue = options->catalogue, .members = members, .count = count, .s = scratch, .outcome = outcome};
    count_copies(&w);
    keep_copies(&w);
    place_first_copies(&w);
    place_further_copies(&w);
    if (w.bytes_starved > 0) {
        make_memory(&w);
        return;
    }
    for (uint32_t layer = 0; !options->first_copies_alone && layer < w.catalogue->layers; layer++) {
        balance_layer(&w, layer);
    }
}

void target_wanted(const uint32_t *weights, uint32_t experts, uint32_t copies, uint32_t replicas, uint32_t members_max,
                   uint16_t *wanted) {
    for (uint32_t e = 0; e < experts; e++) {
        wanted[e] = (uint16_t)copies;
    }
    for (uint32_t i = 0; i < replicas; i++) {
        uint32_t hottest = UINT32_MAX;
        for (uint32_t e = 0; e < experts; e++) {
            // Compares weights[e] / wanted[e] without a division.
            bool hotter = hottest == UINT32_MAX || (uint64_t)weights[e] * wanted[hottest] > (uint64_t)weights[hottest] * wanted[e];
            if (wanted[e] < members_max && hotter) {
                hottest = e;
            }
        }
        if (hottest == UINT32_MAX) {
            return;
        }
        wanted[hottest]++;
    }
}
