// The exchange between the devices of this process, over NCCL, with exact counts and no padding. The first device is the front. Its
// ranks read hidden rows in place and write results where they are combined. Every other device gets the row of a token once, even
// if the token chose several of its experts. Its rows are gathered into one message, and its result rows come back as one message.
// Sends and receives are derived from the same plan, so both sides omit messages without rows. All work goes into the devices'
// streams; links.c watches it.
#include <stdlib.h>

#include "base/arena.h"
#include "shard/exchange.h"
#include "shard/exchange_engine.h"
#include "shard/links.h"

enum { ARRAY_ALIGN = 256 };

// The memory of one device.
struct device_memory {
    void *memory;
    char *results; // [max_rows]; on the front, of all ranks
    // all devices except the front: the front's ranks read the hidden rows in place
    uint32_t *hidden_rows; // [max_rows] the inbox row of each of the device's plan rows
    char *inbox;           // hidden rows from the front
    // the front only
    char *outbox;          // gathered rows, ordered by device
    uint32_t *send_tokens; // [sends] the token of each outbox row
};

struct over_nccl {
    struct exchange base;
    struct exchange_over_nccl over;
    struct links *links;
    struct device_memory memories[EXPERTD_DEVICES_MAX];
    struct arena pinned;
    uint32_t *hidden_rows, *send_tokens; // pinned copies, for uploads
    uint64_t *seen;                      // [max_tokens] equal to `stamp` if the current device already gets the token
    uint32_t *inbox_row;                 // [max_tokens] the token's row in that device's inbox
    uint64_t stamp;
    bool is_pinned;
    // By device: the front's half of the transfer with that device, and the device's half.
    struct device_transfer outgoing[EXPERTD_DEVICES_MAX], incoming[EXPERTD_DEVICES_MAX];
};

static struct over_nccl *over_nccl_of(struct exchange *exchange) {
    return (struct over_nccl *)exchange;
}

// The capacity of an inbox: one row per token, or one per choice if batches are expanded.
static size_t inbox_rows(const struct exchange_options *options) {
    return options->expanded && options->max_rows > options->max_tokens ? options->max_rows : options->max_tokens;
}

static size_t sends(const struct exchange_options *options, const struct exchange_over_nccl *over) {
    size_t all = options->max_tokens * (over->devices->count - 1);
    return all < options->max_rows ? all : options->max_rows;
}

static void *next_array(char *memory, size_t *used, size_t bytes) {
    void *at = memory ? memory + *used : NULL;
    *used += (bytes + ARRAY_ALIGN - 1) / ARRAY_ALIGN * ARRAY_ALIGN;
    return at;
}

// Places the arrays in m->memory and returns their size. With m->memory NULL it only computes the size.
static size_t place_arrays(const struct exchange_options *options, const struct exchange_over_nccl *over, uint32_t device,
                           struct device_memory *m) {
    size_t used = 0, row = arena_rounded(options->row_bytes_max);
    m->results = next_array(m->memory, &used, options->max_rows * row);
    if (device > 0) {
        m->hidden_rows = next_array(m->memory, &used, options->max_rows * sizeof *m->hidden_rows);
        m->inbox = next_array(m->memory, &used, inbox_rows(options) * row);
    } else {
        m->outbox = next_array(m->memory, &used, sends(options, over) * row);
        m->send_tokens = next_array(m->memory, &used, sends(options, over) * sizeof *m->send_tokens);
    }
    return used;
}

size_t exchange_nccl_bytes(const struct exchange_options *options, const struct exchange_over_nccl *over, uint32_t device) {
    struct device_memory unused = {0};
    return place_arrays(options, over, device, &unused);
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

// ---- which rows go to which device

// A device's rows in the plan: those of its ranks, which are consecutive.
struct row_range {
    size_t first, rows;
};

static struct row_range rows_of(const struct over_nccl *x, uint32_t device) {
    const struct plan *plan = x->base.batch.plan;
    uint32_t ranks = x->base.options.ranks, first = ranks, last = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (expertd_device_of_rank(x->over.devices, ranks, rank) == device) {
            first = rank < first ? rank : first;
            last = rank + 1;
        }
    }
    return first < last ? (struct row_range){plan->rank_rows[first], plan->rank_rows[last] - plan->rank_rows[first]}
                        : (struct row_range){0};
}

// Assigns an inbox row to each token of the device's rows, in order of first appearance. Returns the number of tokens.
static size_t assign_inbox_rows(struct over_nccl *x, struct row_range rows, uint32_t *tokens) {
    const uint32_t *row_token = x->base.batch.plan->row_token;
    size_t count = 0;
    x->stamp++;
    for (size_t row = rows.first; row < rows.first + rows.rows; row++) {
        uint32_t token = row_token[row];
        if (x->seen[token] != x->stamp) {
            x->seen[token] = x->stamp;
            x->inbox_row[token] = (uint32_t)count;
            tokens[count++] = token;
        }
        x->hidden_rows[row] = x->inbox_row[token];
    }
    return count;
}

static FALLIBLE gather(struct over_nccl *x, size_t count) {
    const struct expertd_devices *devices = x->over.devices;
    const struct exchange_batch *batch = &x->base.batch;
    const struct device_memory *front = &x->memories[0];
    struct expertd_device_error error;
    struct expertd_device_weigh rows = {
        .dtype = EXPERTD_DTYPE_F32, // 4-byte words: without weights the kernel only copies them
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

// Fills in x->outgoing and x->incoming with the transfer from the front to each device; bytes 0: none.
static FALLIBLE plan_sends(struct over_nccl *x) {
    const struct exchange_batch *batch = &x->base.batch;
    size_t sent = 0;
    for (uint32_t d = 1; d < x->over.devices->count; d++) {
        struct row_range rows = rows_of(x, d);
        const char *from = (const char *)batch->hidden + rows.first * batch->hidden_stride;
        size_t count = rows.rows;
        if (!batch->expanded) {
            from = x->memories[0].outbox + sent * batch->hidden_stride;
            count = assign_inbox_rows(x, rows, x->send_tokens + sent);
            sent += count;
        }
        size_t bytes = count * batch->hidden_stride;
        x->outgoing[d] = (struct device_transfer){.memory = (void *)from, .bytes = bytes, .peer = d};
        x->incoming[d] = (struct device_transfer){.memory = x->memories[d].inbox, .bytes = bytes, .peer = 0, .incoming = 1};
    }
    return gather(x, sent);
}

static FALLIBLE upload_rows(const struct over_nccl *x) {
    for (uint32_t d = 1; d < x->over.devices->count && !x->base.batch.expanded; d++) {
        struct row_range rows = rows_of(x, d);
        TRY(upload(x, d, x->memories[d].hidden_rows, x->hidden_rows + rows.first, rows.rows * sizeof *x->hidden_rows));
    }
    return OK;
}

size_t exchange_nccl_margin(const struct expertd_devices *devices, uint32_t device) {
    return links_bytes(devices, device);
}

// Starts one group of transfers: the front's list, and one transfer of every other device that has rows.
static FALLIBLE transfer(struct over_nccl *x, err_t (*start)(struct links *, const struct link_transfers *)) {
    struct device_transfer front[EXPERTD_DEVICES_MAX];
    struct link_transfers all[EXPERTD_DEVICES_MAX] = {{.all = front}};
    for (uint32_t d = 1; d < x->over.devices->count; d++) {
        bool any = x->outgoing[d].bytes > 0;
        all[d] = (struct link_transfers){.all = &x->incoming[d], .count = any};
        if (any) {
            front[all[0].count++] = x->outgoing[d];
        }
    }
    return start(x->links, all);
}

// Sends a byte each way between the front and every other device. NCCL connects two ranks and allocates memory on both at their
// first transfer, which should fail at start rather than during a batch. The bytes lie in memory that holds no rows yet.
static FALLIBLE try_links(struct over_nccl *x) {
    for (int back = 0; back < 2; back++) {
        for (uint32_t d = 1; d < x->over.devices->count; d++) {
            char *remote = x->memories[d].results, *local = x->memories[0].results + d;
            x->outgoing[d] = (struct device_transfer){.memory = local, .bytes = 1, .peer = d, .incoming = back};
            x->incoming[d] = (struct device_transfer){.memory = remote, .bytes = 1, .peer = 0, .incoming = !back};
        }
        TRY(transfer(x, links_try));
    }
    return OK;
}

// ---- the engine

static err_t dispatch(struct exchange *exchange) {
    struct over_nccl *x = over_nccl_of(exchange);
    INVARIANT(exchange->batch.plan->tokens <= exchange->options.max_tokens);
    INVARIANT(exchange->batch.hidden_stride <= exchange->options.row_bytes_max);
    TRY(links_ready(x->links));
    TRY(plan_sends(x));
    TRY(upload_rows(x));
    return transfer(x, links_transfer);
}

static err_t inbox(struct exchange *exchange, uint32_t rank, struct exchange_work *out) {
    const struct over_nccl *x = over_nccl_of(exchange);
    const struct exchange_batch *batch = &exchange->batch;
    uint32_t device = expertd_device_of_rank(x->over.devices, exchange->options.ranks, rank);
    const struct device_memory *m = &x->memories[device];
    struct plan_rank plan = plan_for_rank(batch->plan, rank);
    size_t row = plan.first_row - rows_of(x, device).first; // among the device's rows
    const char *hidden = device > 0 ? m->inbox : batch->hidden;
    const uint32_t *hidden_rows = device > 0 ? m->hidden_rows : batch->row_token; // the front's rows are the first of the plan
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

// The reverse of dispatch.
static err_t collect(struct exchange *exchange) {
    struct over_nccl *x = over_nccl_of(exchange);
    for (uint32_t d = 1; d < x->over.devices->count; d++) {
        struct row_range rows = rows_of(x, d);
        size_t bytes = rows.rows * exchange->row_bytes;
        char *to = exchange->results + rows.first * exchange->row_bytes;
        x->outgoing[d] = (struct device_transfer){.memory = to, .bytes = bytes, .peer = d, .incoming = 1};
        x->incoming[d] = (struct device_transfer){.memory = x->memories[d].results, .bytes = bytes, .peer = 0};
    }
    return transfer(x, links_transfer);
}

static err_t wait_for_all(struct exchange *exchange) {
    return links_wait(over_nccl_of(exchange)->links);
}

static void settle(struct exchange *exchange) {
    links_settle(over_nccl_of(exchange)->links);
}

static void state(const struct exchange *exchange, struct exchange_state *out) {
    struct links_state links;
    links_state(((const struct over_nccl *)exchange)->links, &links);
    *out = (struct exchange_state){.rebuilds = links.rebuilds, .lost = links.lost};
}

static void destroy(struct exchange *exchange) {
    struct over_nccl *x = over_nccl_of(exchange);
    const struct expertd_devices *devices = x->over.devices;
    links_destroy(x->links);
    for (uint32_t d = 0; d < devices->count; d++) {
        expertd_devices_release(devices, d, x->memories[d].memory);
    }
    if (x->is_pinned) {
        expertd_devices_unpin(devices, x->pinned.base);
    }
    arena_deinit(&x->pinned);
    free(x->seen);
    free(x->inbox_row);
    exchange_end(exchange);
    free(x);
}

static err_t alive(struct exchange *exchange) {
    return links_alive(over_nccl_of(exchange)->links);
}

static err_t ready(struct exchange *exchange) {
    return links_ready(over_nccl_of(exchange)->links);
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
        struct device_memory *m = &x->memories[d];
        size_t bytes = place_arrays(options, &x->over, d, m);
        TRY(check(x, d, devices->table->reserve(devices->all[d], bytes, &m->memory, &error), &error));
        place_arrays(options, &x->over, d, m);
    }
    x->base.results = x->memories[0].results;
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
    over->devices->timeout_ns = over->timeout_ns; // for every wait while serving
    struct links_options links = {
        .devices = over->devices, .timeout_ns = over->timeout_ns, .join_timeout_ns = over->join_timeout_ns};
    err_t e;
    TRY_OUT(e, exchange_begin(&x->base, &OVER_NCCL, options));
    x->seen = calloc(options->max_tokens + 1, sizeof *x->seen);
    x->inbox_row = calloc(options->max_tokens + 1, sizeof *x->inbox_row);
    if (!x->seen || !x->inbox_row) {
        e = err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for the tokens of the exchange");
        goto out;
    }
    TRY_OUT(e, reserve(x));
    TRY_OUT(e, links_create(&links, &x->links));
    e = try_links(x);
    if (err_is(e)) { // every cause is reported like a failed join
        e = err_context((err_t){EXPERTD_ERR_UNAVAILABLE}, "the first transfer between %u devices", over->devices->count);
        goto out;
    }
    *out = &x->base;
    return OK;
out:
    destroy(&x->base);
    return e;
}
