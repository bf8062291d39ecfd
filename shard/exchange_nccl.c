// The exchange over NCCL between the devices of this process: exact counts, nothing padded. The first device is the front. Its own
// ranks read hidden rows where they lie and write results where they are combined; another device gets each token's row once,
// however many of its experts the token chose, gathered into one message, and sends its result rows back as one. What has no rows
// is left out alike on both sides, for both are made from the plan. Everything is put into the devices' streams; links.c watches
// over it.
#include <stdlib.h>

#include "base/arena.h"
#include "shard/exchange_engine.h"
#include "shard/links.h"

enum { PIECE_ALIGN = 256 };

// One device's memory.
struct member {
    void *memory;
    char *results; // [max_rows]; the front's of all ranks
    // not the front's, which reads its rows by their tokens
    uint32_t *hidden_rows; // [max_rows] where each of its rows' hidden row lies, by its own rows
    char *inbox;           // hidden rows from the front
    // the front's only
    char *outbox;          // gathered rows, device after device
    uint32_t *send_tokens; // [sends] the token of each
};

struct over_nccl {
    struct exchange base;
    struct exchange_over_nccl over;
    struct links *links;
    struct member members[EXPERTD_DEVICES_MAX];
    struct arena pinned;
    uint32_t *hidden_rows, *send_tokens; // what is uploaded
    uint64_t *seen;                      // [max_tokens] the stamp of the device that has the token, in this batch
    uint32_t *place;                     // [max_tokens] its row in that device's inbox
    uint64_t stamp;
    bool is_pinned;
    struct device_transfer outgoing[EXPERTD_DEVICES_MAX], incoming[EXPERTD_DEVICES_MAX]; // the front's, and each other device's one
};

static struct over_nccl *own(struct exchange *exchange) {
    return (struct over_nccl *)exchange;
}

// Rows that an inbox may get: a token's row once, or, where inputs are weighed, a row per choice.
static size_t inbox_rows(const struct exchange_options *options) {
    return options->expanded && options->max_rows > options->max_tokens ? options->max_rows : options->max_tokens;
}

static size_t sends(const struct exchange_options *options, const struct exchange_over_nccl *over) {
    size_t all = options->max_tokens * (over->devices->count - 1);
    return all < options->max_rows ? all : options->max_rows;
}

static void *piece(char *memory, size_t *used, size_t bytes) {
    void *at = memory ? memory + *used : NULL;
    *used += (bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    return at;
}

// Twice: without memory the bytes are only counted.
static size_t lay_out(const struct exchange_options *options, const struct exchange_over_nccl *over, uint32_t device,
                      struct member *m) {
    size_t used = 0, row = arena_rounded(options->row_bytes_max);
    m->results = piece(m->memory, &used, options->max_rows * row);
    if (device > 0) {
        m->hidden_rows = piece(m->memory, &used, options->max_rows * sizeof *m->hidden_rows);
        m->inbox = piece(m->memory, &used, inbox_rows(options) * row);
    } else {
        m->outbox = piece(m->memory, &used, sends(options, over) * row);
        m->send_tokens = piece(m->memory, &used, sends(options, over) * sizeof *m->send_tokens);
    }
    return used;
}

size_t exchange_nccl_bytes(const struct exchange_options *options, const struct exchange_over_nccl *over, uint32_t device) {
    struct member unused = {0};
    return lay_out(options, over, device, &unused);
}

static FALLIBLE check(const struct over_nccl *x, uint32_t device, enum expertd_device_code code,
                      const struct expertd_device_error *error) {
    return expertd_devices_check(x->over.devices, device, code, error);
}

static FALLIBLE upload(const struct over_nccl *x, uint32_t device, void *to, const void *from, size_t bytes) {
    struct expertd_device_error error;
    const struct expertd_devices *devices = x->over.devices;
    return check(x, device, devices->table->copy(devices->all[device], EXPERTD_DEVICE_UPLOAD, to, from, bytes, &error), &error);
}

// ---- which rows go where

// A device's rows: those of its ranks, which follow each other.
struct span {
    size_t first, rows;
};

static struct span rows_of(const struct over_nccl *x, uint32_t device) {
    const struct plan *plan = x->base.batch.plan;
    uint32_t ranks = x->base.options.ranks, first = ranks, last = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (expertd_device_of_rank(x->over.devices, ranks, rank) == device) {
            first = rank < first ? rank : first;
            last = rank + 1;
        }
    }
    return first < last ? (struct span){plan->rank_rows[first], plan->rank_rows[last] - plan->rank_rows[first]} : (struct span){0};
}

// Gives each token that the device's rows are of a place in its inbox, in the order in which they come up. Returns how many.
static size_t place_tokens(struct over_nccl *x, struct span rows, uint32_t *tokens) {
    const uint32_t *row_token = x->base.batch.plan->row_token;
    size_t count = 0;
    x->stamp++;
    for (size_t row = rows.first; row < rows.first + rows.rows; row++) {
        uint32_t token = row_token[row];
        if (x->seen[token] != x->stamp) {
            x->seen[token] = x->stamp;
            x->place[token] = (uint32_t)count;
            tokens[count++] = token;
        }
        x->hidden_rows[row] = x->place[token];
    }
    return count;
}

static FALLIBLE gather(struct over_nccl *x, size_t count) {
    const struct expertd_devices *devices = x->over.devices;
    const struct exchange_batch *batch = &x->base.batch;
    const struct member *front = &x->members[0];
    struct expertd_device_error error;
    struct expertd_device_weigh rows = {
        .dtype = EXPERTD_DTYPE_F32, // words of any kind: they are not looked at
        .hidden = batch->hidden,
        .stride = batch->hidden_stride,
        .width = (uint32_t)(x->base.row_bytes / sizeof(float)),
        .rows = (uint32_t)count,
        .token = front->send_tokens,
        .out = front->outbox,
    };
    TRY(upload(x, 0, front->send_tokens, x->send_tokens, count * sizeof *x->send_tokens));
    return count > 0 ? check(x, 0, devices->table->weigh(devices->all[0], &rows, &error), &error) : OK;
}

// What the front sends each device, in x->outgoing and x->incoming; bytes 0: nothing.
static FALLIBLE plan_sends(struct over_nccl *x) {
    const struct exchange_batch *batch = &x->base.batch;
    size_t sent = 0;
    for (uint32_t d = 1; d < x->over.devices->count; d++) {
        struct span rows = rows_of(x, d);
        const char *from = (const char *)batch->hidden + rows.first * batch->hidden_stride;
        size_t count = rows.rows;
        if (!batch->expanded) {
            from = x->members[0].outbox + sent * batch->hidden_stride;
            count = place_tokens(x, rows, x->send_tokens + sent);
            sent += count;
        }
        size_t bytes = count * batch->hidden_stride;
        x->outgoing[d] = (struct device_transfer){.memory = (void *)from, .bytes = bytes, .peer = d};
        x->incoming[d] = (struct device_transfer){.memory = x->members[d].inbox, .bytes = bytes, .peer = 0, .incoming = 1};
    }
    return gather(x, sent);
}

static FALLIBLE upload_rows(const struct over_nccl *x) {
    for (uint32_t d = 1; d < x->over.devices->count && !x->base.batch.expanded; d++) {
        struct span rows = rows_of(x, d);
        TRY(upload(x, d, x->members[d].hidden_rows, x->hidden_rows + rows.first, rows.rows * sizeof *x->hidden_rows));
    }
    return OK;
}

size_t exchange_nccl_margin(const struct expertd_devices *devices, uint32_t device) {
    return links_bytes(devices, device);
}

// One group: the front's list, and one transfer of every other device that has rows.
static FALLIBLE transfer(struct over_nccl *x, err_t (*put)(struct links *, const struct link_transfers *)) {
    struct device_transfer front[EXPERTD_DEVICES_MAX];
    struct link_transfers all[EXPERTD_DEVICES_MAX] = {{.all = front}};
    for (uint32_t d = 1; d < x->over.devices->count; d++) {
        bool any = x->outgoing[d].bytes > 0;
        all[d] = (struct link_transfers){.all = &x->incoming[d], .count = any};
        if (any) {
            front[all[0].count++] = x->outgoing[d];
        }
    }
    return put(x->links, all);
}

// A byte each way between the front and every other device, of what is no row yet: NCCL connects two ranks, and takes memory of
// both, when they first have something for each other. That is to fail at start, not under a batch.
static FALLIBLE try_links(struct over_nccl *x) {
    for (int back = 0; back < 2; back++) {
        for (uint32_t d = 1; d < x->over.devices->count; d++) {
            char *there = x->members[d].results, *here = x->members[0].results + d;
            x->outgoing[d] = (struct device_transfer){.memory = here, .bytes = 1, .peer = d, .incoming = back};
            x->incoming[d] = (struct device_transfer){.memory = there, .bytes = 1, .peer = 0, .incoming = !back};
        }
        TRY(transfer(x, links_try));
    }
    return OK;
}

// ---- the engine

static err_t dispatch(struct exchange *exchange) {
    struct over_nccl *x = own(exchange);
    INVARIANT(exchange->batch.plan->tokens <= exchange->options.max_tokens);
    INVARIANT(exchange->batch.hidden_stride <= exchange->options.row_bytes_max);
    TRY(links_ready(x->links));
    TRY(plan_sends(x));
    TRY(upload_rows(x));
    return transfer(x, links_transfer);
}

static err_t inbox(struct exchange *exchange, uint32_t rank, struct exchange_work *out) {
    const struct over_nccl *x = own(exchange);
    const struct exchange_batch *batch = &exchange->batch;
    uint32_t device = expertd_device_of_rank(x->over.devices, exchange->options.ranks, rank);
    const struct member *m = &x->members[device];
    struct plan_rank plan = plan_for_rank(batch->plan, rank);
    size_t row = plan.first_row - rows_of(x, device).first; // of the device's own
    const char *hidden = device > 0 ? m->inbox : batch->hidden;
    const uint32_t *hidden_rows = device > 0 ? m->hidden_rows : batch->row_token; // the front's own rows are the first ones
    *out = (struct exchange_work){
        .plan = plan,
        .hidden = batch->expanded ? hidden + row * batch->hidden_stride : hidden,
        .hidden_stride = batch->hidden_stride,
        .hidden_rows = batch->expanded ? NULL : hidden_rows + row,
        .results = m->results + row * exchange->row_bytes,
        .results_stride = exchange->row_bytes,
    };
    return OK;
}

// Mirrors the dispatch: the same devices, the other way.
static err_t collect(struct exchange *exchange) {
    struct over_nccl *x = own(exchange);
    for (uint32_t d = 1; d < x->over.devices->count; d++) {
        struct span rows = rows_of(x, d);
        size_t bytes = rows.rows * exchange->row_bytes;
        char *to = exchange->results + rows.first * exchange->row_bytes;
        x->outgoing[d] = (struct device_transfer){.memory = to, .bytes = bytes, .peer = d, .incoming = 1};
        x->incoming[d] = (struct device_transfer){.memory = x->members[d].results, .bytes = bytes, .peer = 0};
    }
    return transfer(x, links_transfer);
}

static err_t wait_for_all(struct exchange *exchange) {
    return links_wait(own(exchange)->links);
}

static void settle(struct exchange *exchange) {
    links_settle(own(exchange)->links);
}

static void state(const struct exchange *exchange, struct exchange_state *out) {
    struct links_state links;
    links_state(((const struct over_nccl *)exchange)->links, &links);
    *out = (struct exchange_state){.rebuilds = links.rebuilds, .lost = links.lost};
}

static void destroy(struct exchange *exchange) {
    struct over_nccl *x = own(exchange);
    const struct expertd_devices *devices = x->over.devices;
    links_destroy(x->links);
    for (uint32_t d = 0; d < devices->count; d++) {
        expertd_devices_release(devices, d, x->members[d].memory);
    }
    if (x->is_pinned) {
        expertd_devices_unpin(devices, x->pinned.base);
    }
    arena_deinit(&x->pinned);
    free(x->seen);
    free(x->place);
    exchange_end(exchange);
    free(x);
}

static err_t alive(struct exchange *exchange) {
    return links_alive(own(exchange)->links);
}

static err_t ready(struct exchange *exchange) {
    return links_ready(own(exchange)->links);
}

static const struct exchange_engine OVER_NCCL = {.alive = alive,
                                                 .ready = ready,
                                                 .dispatch = dispatch,
                                                 .inbox = inbox,
                                                 .collect = collect,
                                                 .wait = wait_for_all,
                                                 .settle = settle,
                                                 .state = state,
                                                 .destroy = destroy};

static FALLIBLE reserve(struct over_nccl *x) {
    const struct expertd_devices *devices = x->over.devices;
    const struct exchange_options *options = &x->base.options;
    struct expertd_device_error error;
    size_t rows = options->max_rows, most_sends = sends(options, &x->over);
    TRY(arena_init(&x->pinned, arena_rounded((rows + most_sends + 1) * sizeof(uint32_t))));
    x->hidden_rows = (uint32_t *)(void *)x->pinned.base;
    x->send_tokens = x->hidden_rows + rows;
    TRY(check(x, 0, devices->table->pin(devices->all[0], x->pinned.base, x->pinned.bytes, &error), &error));
    x->is_pinned = true;
    for (uint32_t d = 0; d < devices->count; d++) {
        struct member *m = &x->members[d];
        size_t bytes = lay_out(options, &x->over, d, m);
        TRY(check(x, d, devices->table->reserve(devices->all[d], bytes, &m->memory, &error), &error));
        lay_out(options, &x->over, d, m);
    }
    x->base.results = x->members[0].results;
    return OK;
}

FALLIBLE exchange_create_nccl(const struct exchange_options *options, const struct exchange_over_nccl *over,
                              struct exchange **out) {
    *out = NULL;
    struct over_nccl *x = calloc(1, sizeof *x);
    if (!x) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for an exchange");
    }
    x->over = *over;
    over->devices->timeout_ns = over->timeout_ns; // of every wait while serving
    struct links_options links = {
        .devices = over->devices, .timeout_ns = over->timeout_ns, .join_timeout_ns = over->join_timeout_ns};
    err_t e;
    TRY_OUT(e, exchange_begin(&x->base, &OVER_NCCL, options));
    x->seen = calloc(options->max_tokens + 1, sizeof *x->seen);
    x->place = calloc(options->max_tokens + 1, sizeof *x->place);
    if (!x->seen || !x->place) {
        e = err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for the tokens of the exchange");
        goto out;
    }
    TRY_OUT(e, reserve(x));
    TRY_OUT(e, links_create(&links, &x->links));
    e = try_links(x);
    if (err_is(e)) { // as where they do not find each other
        e = err_context((err_t){EXPERTD_ERR_UNAVAILABLE}, "the first transfer between %u devices", over->devices->count);
        goto out;
    }
    *out = &x->base;
    return OK;
out:
    destroy(&x->base);
    return e;
}
