#include "shard/membership/holder.h"

#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "shard/catalogue/bits.h"

FALLIBLE holder_check(const struct holder_options *options) {
    if (options->fronts_max == 0 || options->fronts_max > HOLDER_FRONTS_MAX) {
        FAIL_FIELD(EXPERTD_ERR_CONFIG, "fronts_max", "%u fronts at a time: choose 1 to %d", options->fronts_max, HOLDER_FRONTS_MAX);
    }
    if (options->front_after_ns <= 0) {
        FAIL_FIELD(EXPERTD_ERR_CONFIG, "front_after_ns", "front_after_ns is %lld: it must be positive",
                   (long long)options->front_after_ns);
    }
    return OK;
}

static size_t arrays(struct holder *h, const struct holder_options *o, char *memory) {
    size_t cells = o->catalogue.cells, words = catalogue_words(&o->catalogue) * sizeof(uint64_t);
    struct {
        void *array;
        size_t bytes;
    } list[] = {
        {&h->fronts, o->fronts_max * sizeof *h->fronts},
        {&h->closing, o->fronts_max * sizeof *h->closing},
        {&h->cells, cells},
        {&h->digests, cells * sizeof *h->digests},
        {&h->assigned, words},
        {&h->retiring, words},
        {&h->to_free, words},
        {&h->front_sets, 2 * words * o->fronts_max},
        {&h->front_told, cells * sizeof *h->front_told * o->fronts_max},
        {&h->reports, HOLDER_LIST_MAX * sizeof *h->reports},
    };
    size_t used = 0;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        char *at = memory ? memory + used : NULL;
        memcpy(list[i].array, &at, sizeof at);
        used += arena_rounded(list[i].bytes);
    }
    return used;
}

size_t holder_bytes(const struct holder_options *options) {
    struct holder unused;
    return arrays(&unused, options, NULL);
}

FALLIBLE holder_init(struct holder *holder, const struct holder_options *options, void *memory) {
    TRY(holder_check(options));
    memset(memory, 0, holder_bytes(options));
    memset(holder, 0, sizeof *holder);
    holder->options = *options;
    arrays(holder, options, memory);
    size_t words = catalogue_words(&options->catalogue);
    for (uint32_t f = 0; f < options->fronts_max; f++) {
        holder->fronts[f].changed = holder->front_sets + 2 * f * words;
        holder->fronts[f].released = holder->fronts[f].changed + words;
        holder->fronts[f].told = holder->front_told + (size_t)f * options->catalogue.cells;
    }
    return OK;
}

static struct holder_front *find(struct holder *holder, uint32_t session) {
    for (uint32_t f = 0; f < holder->options.fronts_max; f++) {
        if (holder->fronts[f].is_used && holder->fronts[f].session == session) {
            return &holder->fronts[f];
        }
    }
    return NULL;
}

enum copy_state holder_state(const struct holder *holder, uint32_t cell) {
    bool assigned = bits_test(holder->assigned, cell);
    switch ((enum holder_cell)holder->cells[cell]) {
    case CELL_LOADED:
        return assigned ? COPY_READY : COPY_RETIRING;
    case CELL_FAILED:
        return COPY_FAILED;
    default: // what is being freed, or loaded without need, is as good as gone
        return assigned ? COPY_LOADING : COPY_NONE;
    }
}

static void tell(struct holder *holder, uint32_t cell) {
    for (uint32_t f = 0; f < holder->options.fronts_max; f++) {
        if (holder->fronts[f].is_used) {
            bits_set(holder->fronts[f].changed, cell);
        }
    }
}

static bool occupies_memory(enum holder_cell state) {
    return state == CELL_LOADING || state == CELL_LOADED || state == CELL_FREEING;
}

// Changes both facts of a cell. Fronts are told if it changes what they see.
static void set_cell(struct holder *holder, uint32_t cell, enum holder_cell state, bool assigned) {
    uint64_t bytes = catalogue_bytes(&holder->options.catalogue, cell);
    enum copy_state before = holder_state(holder, cell);
    holder->bytes_used -= occupies_memory(holder->cells[cell]) ? bytes : 0;
    holder->bytes_used += occupies_memory(state) ? bytes : 0;
    holder->bytes_assigned -= bits_test(holder->assigned, cell) ? bytes : 0;
    holder->bytes_assigned += assigned ? bytes : 0;
    holder->cells[cell] = (uint8_t)state;
    bits_put(holder->assigned, cell, assigned);
    bits_put(holder->retiring, cell, state == CELL_LOADED && !assigned);
    if (holder_state(holder, cell) != before) {
        tell(holder, cell);
    }
}

static bool is_assigned(const struct holder *holder, uint32_t cell) {
    return bits_test(holder->assigned, cell);
}

// Frees each retiring copy that all fronts have released.
static void free_released(struct holder *holder) {
    for (size_t word = 0; word < catalogue_words(&holder->options.catalogue); word++) {
        uint64_t unused = holder->retiring[word];
        bool any_front = false;
        for (uint32_t f = 0; unused && f < holder->options.fronts_max; f++) {
            if (holder->fronts[f].is_used) {
                any_front = true;
                unused &= holder->fronts[f].released[word];
            }
        }
        if (!any_front) {
            continue;
        }
        BITS_FOR_EACH(bit, &unused, BITS_PER_WORD) {
            uint32_t cell = (uint32_t)word * BITS_PER_WORD + bit;
            set_cell(holder, cell, CELL_FREEING, false);
            bits_set(holder->to_free, cell);
        }
    }
}

static void choose_owner(struct holder *holder) {
    holder->owner = 0;
    for (uint32_t f = 0; f < holder->options.fronts_max; f++) {
        const struct holder_front *front = &holder->fronts[f];
        bool asks = front->is_used && front->asks_lease;
        holder->owner = asks && (holder->owner == 0 || front->id < holder->owner) ? front->id : holder->owner;
    }
}

static void remove_front(struct holder *holder, struct holder_front *front) {
    front->is_used = false;
    choose_owner(holder);
    free_released(holder);
}

static void close_front(struct holder *holder, struct holder_front *front, bool is_silent) {
    INVARIANT(holder->closing_count < holder->options.fronts_max); // the caller takes every action
    holder->closing[holder->closing_count++] = (struct holder_closing){front->session, is_silent};
    remove_front(holder, front);
}

FALLIBLE holder_connect(struct holder *holder, uint32_t session, uint64_t id, bool asks_lease, int64_t now_ns) {
    struct holder_front *unused = NULL;
    for (uint32_t f = 0; f < holder->options.fronts_max; f++) {
        struct holder_front *front = &holder->fronts[f];
        if (front->is_used && front->id == id) {
            close_front(holder, front, false);
        }
        unused = !front->is_used && !unused ? front : unused;
    }
    if (!unused) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "%u fronts are connected, the most that this shard serves: stop one, or raise the limit",
             holder->options.fronts_max);
    }
    *unused = (struct holder_front){.is_used = true,
                                    .asks_lease = asks_lease,
                                    .is_due = true,
                                    .drain_is_due = holder->is_draining,
                                    .session = session,
                                    .id = id,
                                    .heard_ns = now_ns,
                                    .changed = unused->changed,
                                    .released = unused->released,
                                    .told = unused->told};
    size_t words = catalogue_words(&holder->options.catalogue);
    memset(unused->released, 0, words * sizeof *unused->released);
    memset(unused->changed, 0, words * sizeof *unused->changed);
    memset(unused->told, 0, holder->options.catalogue.cells * sizeof *unused->told);
    for (uint32_t cell = 0; cell < holder->options.catalogue.cells; cell++) {
        if (holder_state(holder, cell) != COPY_NONE) {
            bits_set(unused->changed, cell);
        }
    }
    choose_owner(holder);
    return OK;
}

void holder_disconnected(struct holder *holder, uint32_t session) {
    struct holder_front *front = find(holder, session);
    if (front) {
        remove_front(holder, front);
    }
}

void holder_heard(struct holder *holder, uint32_t session, int64_t now_ns) {
    struct holder_front *front = find(holder, session);
    if (front) {
        front->heard_ns = now_ns;
    }
}

void holder_tick(struct holder *holder, int64_t now_ns) {
    for (uint32_t f = 0; f < holder->options.fronts_max; f++) {
        struct holder_front *front = &holder->fronts[f];
        if (front->is_used && now_ns >= clock_add_ns(front->heard_ns, holder->options.front_after_ns)) {
            close_front(holder, front, true);
        }
    }
}

void holder_drain(struct holder *holder, bool drains) {
    holder->is_draining = drains;
    for (uint32_t f = 0; f < holder->options.fronts_max; f++) {
        holder->fronts[f].drain_is_due = holder->fronts[f].is_used;
    }
}

static FALLIBLE check_experts(const struct holder *holder, const struct expert_id *experts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!catalogue_has(&holder->options.catalogue, experts[i])) {
            FAIL(EXPERTD_ERR_INVALID, "a front names expert %u of layer %u, which this model does not have", experts[i].expert,
                 experts[i].layer);
        }
    }
    return OK;
}

// The command counts: it is new, and its front has the lease. In any case the front is told the state of the experts that it names.
static bool take_command(const struct holder *holder, struct holder_front *front, uint32_t number, const struct expert_id *experts,
                         size_t count) {
    if (!front) {
        return false;
    }
    front->is_due = true;
    for (size_t i = 0; i < count; i++) {
        bits_set(front->changed, catalogue_cell(&holder->options.catalogue, experts[i]));
    }
    if ((int32_t)(number - front->commands_done) <= 0) {
        return false;
    }
    front->commands_done = number;
    return front->id == holder->owner;
}

static void assign(struct holder *holder, uint32_t cell) {
    enum holder_cell state = holder->cells[cell];
    if (is_assigned(holder, cell)) {
        return;
    }
    for (uint32_t f = 0; f < holder->options.fronts_max; f++) {
        bits_clear(holder->fronts[f].released, cell);
    }
    uint64_t bytes = catalogue_bytes(&holder->options.catalogue, cell);
    if (state != CELL_LOADED && holder->bytes_assigned + bytes > holder->options.bytes_max) {
        set_cell(holder, cell, state == CELL_EMPTY ? CELL_FAILED : state, false);
        return;
    }
    set_cell(holder, cell, state == CELL_FAILED ? CELL_EMPTY : state, true);
}

static void retire(struct holder *holder, uint32_t cell) {
    if (is_assigned(holder, cell)) {
        set_cell(holder, cell, holder->cells[cell], false);
    }
}

FALLIBLE holder_assign(struct holder *holder, uint32_t session, uint32_t number, const struct expert_id *experts, size_t count) {
    TRY(check_experts(holder, experts, count));
    if (take_command(holder, find(holder, session), number, experts, count)) {
        for (size_t i = 0; i < count; i++) {
            assign(holder, catalogue_cell(&holder->options.catalogue, experts[i]));
        }
    }
    return OK;
}

FALLIBLE holder_retire(struct holder *holder, uint32_t session, uint32_t number, const struct expert_id *experts, size_t count) {
    TRY(check_experts(holder, experts, count));
    if (take_command(holder, find(holder, session), number, experts, count)) {
        for (size_t i = 0; i < count; i++) {
            retire(holder, catalogue_cell(&holder->options.catalogue, experts[i]));
        }
    }
    return OK;
}

FALLIBLE holder_release(struct holder *holder, uint32_t session, uint32_t sequence, const struct expert_id *experts, size_t count) {
    TRY(check_experts(holder, experts, count));
    struct holder_front *front = find(holder, session);
    for (size_t i = 0; front && i < count; i++) {
        uint32_t cell = catalogue_cell(&holder->options.catalogue, experts[i]);
        bool knows = !bits_test(front->changed, cell) && (int32_t)(sequence - front->told[cell]) >= 0;
        if (bits_test(holder->retiring, cell) && knows) {
            bits_set(front->released, cell);
        }
    }
    free_released(holder);
    return OK;
}

bool holder_take_load(struct holder *holder, struct expert_id *expert) {
    const struct catalogue *catalogue = &holder->options.catalogue;
    BITS_FOR_EACH(cell, holder->assigned, catalogue->cells) {
        bool fits = holder->bytes_used + catalogue_bytes(catalogue, cell) <= holder->options.bytes_max;
        if (holder->cells[cell] == CELL_EMPTY && fits) {
            set_cell(holder, cell, CELL_LOADING, true);
            *expert = catalogue_id(catalogue, cell);
            return true;
        }
    }
    return false;
}

void holder_loaded(struct holder *holder, struct expert_id expert, uint64_t digest) {
    uint32_t cell = catalogue_cell(&holder->options.catalogue, expert);
    INVARIANT(holder->cells[cell] == CELL_LOADING);
    holder->digests[cell] = digest;
    bool needed = is_assigned(holder, cell); // else it was given up meanwhile, and no front has heard that it is ready
    set_cell(holder, cell, needed ? CELL_LOADED : CELL_FREEING, needed);
    bits_put(holder->to_free, cell, !needed);
}

void holder_load_failed(struct holder *holder, struct expert_id expert) {
    uint32_t cell = catalogue_cell(&holder->options.catalogue, expert);
    INVARIANT(holder->cells[cell] == CELL_LOADING);
    set_cell(holder, cell, is_assigned(holder, cell) ? CELL_FAILED : CELL_EMPTY, false);
}

void holder_freed(struct holder *holder, struct expert_id expert) {
    uint32_t cell = catalogue_cell(&holder->options.catalogue, expert);
    INVARIANT(holder->cells[cell] == CELL_FREEING);
    set_cell(holder, cell, CELL_EMPTY, is_assigned(holder, cell));
}

bool holder_next(struct holder *holder, struct holder_action *action) {
    *action = (struct holder_action){0};
    if (holder->closing_count > 0) {
        struct holder_closing closing = holder->closing[--holder->closing_count];
        *action = (struct holder_action){.kind = HOLDER_CLOSE, .session = closing.session, .is_silent = closing.is_silent};
        return true;
    }
    uint32_t cells = holder->options.catalogue.cells, cell = bits_next(holder->to_free, 0, cells);
    if (cell == cells) {
        return false;
    }
    bits_clear(holder->to_free, cell);
    *action = (struct holder_action){.kind = HOLDER_FREE, .expert = catalogue_id(&holder->options.catalogue, cell)};
    return true;
}

static bool next_lease(const struct holder *holder, struct holder_front *front, struct holder_message *message) {
    bool granted = front->id == holder->owner;
    enum holder_lease lease = granted ? LEASE_TOLD_GRANTED : LEASE_TOLD_DENIED;
    if (!front->asks_lease || (front->lease == lease && front->lease_told == holder->owner)) {
        return false;
    }
    front->lease = lease;
    front->lease_told = holder->owner;
    *message = (struct holder_message){.kind = HOLDER_LEASE, .is_granted = granted, .owner = holder->owner};
    return true;
}

static bool next_inventory(struct holder *holder, struct holder_front *front, struct holder_message *message) {
    const struct catalogue *catalogue = &holder->options.catalogue;
    uint32_t sequence = front->messages + 1;
    size_t count = 0;
    bool more = false;
    BITS_FOR_EACH(cell, front->changed, catalogue->cells) {
        if (count == HOLDER_LIST_MAX) {
            more = true;
            break;
        }
        bits_clear(front->changed, cell);
        front->told[cell] = sequence;
        holder->reports[count++] = (struct copy_report){
            .id = catalogue_id(catalogue, cell), .state = holder_state(holder, cell), .digest = holder->digests[cell]};
    }
    if (count == 0 && !front->is_due) {
        return false;
    }
    if (!more) {
        front->commands_told = front->commands_done;
        front->has_inventory = true;
        front->is_due = false;
    }
    *message = (struct holder_message){.kind = HOLDER_INVENTORY,
                                       .sequence = front->messages = sequence,
                                       .commands_seen = front->commands_told,
                                       .is_complete = front->has_inventory,
                                       .reports = holder->reports,
                                       .count = count};
    return true;
}

bool holder_next_message(struct holder *holder, uint32_t session, struct holder_message *message) {
    struct holder_front *front = find(holder, session);
    if (!front) {
        return false;
    }
    if (next_lease(holder, front, message)) {
        return true;
    }
    if (front->drain_is_due) {
        front->drain_is_due = false;
        *message = (struct holder_message){.kind = HOLDER_DRAINS, .drains = holder->is_draining};
        return true;
    }
    return next_inventory(holder, front, message);
}

bool holder_serves(const struct holder *holder, uint32_t session, struct expert_id expert) {
    if (!catalogue_has(&holder->options.catalogue, expert)) {
        return false;
    }
    bool loaded = holder->cells[catalogue_cell(&holder->options.catalogue, expert)] == CELL_LOADED;
    for (uint32_t f = 0; loaded && f < holder->options.fronts_max; f++) {
        if (holder->fronts[f].is_used && holder->fronts[f].session == session) {
            return true;
        }
    }
    return false;
}
