// The exchange inside one process. Sender and receiver share memory, so nothing is copied: ranks read the front's hidden rows in
// place and write their result rows where the front combines them.
#include <stdlib.h>

#include "base/arena.h"
#include "shard/exchange.h"
#include "shard/exchange_engine.h"

struct inproc {
    struct exchange base;
    struct arena arena; // of the results
};

static err_t dispatch(struct exchange *exchange) {
    (void)exchange; // the ranks read the rows in place
    return OK;
}

static err_t inbox(struct exchange *exchange, uint32_t rank, struct exchange_work *out) {
    const struct exchange_batch *batch = &exchange->batch;
    struct plan_rank plan = plan_for_rank(batch->plan, rank);
    const char *hidden = batch->hidden;
    *out = (struct exchange_work){
        .plan = plan,
        .hidden = batch->expanded ? hidden + plan.first_row * batch->hidden_stride : hidden,
        .hidden_stride = batch->hidden_stride,
        .hidden_rows = batch->expanded ? NULL : batch->plan->row_token + plan.first_row,
        .results = exchange->results + plan.first_row * exchange->row_bytes,
        .results_stride = exchange->row_bytes,
    };
    return OK;
}

static err_t collect(struct exchange *exchange) {
    (void)exchange; // the ranks have written in place
    return OK;
}

static size_t untouched(const struct exchange *exchange) {
    return arena_untouched(&((const struct inproc *)exchange)->arena);
}

static void destroy(struct exchange *exchange) {
    struct inproc *inproc = (struct inproc *)exchange;
    arena_deinit(&inproc->arena);
    exchange_end(exchange);
    free(inproc);
}

static const struct exchange_engine INPROC = {
    .dispatch = dispatch, .inbox = inbox, .collect = collect, .untouched = untouched, .destroy = destroy};

FALLIBLE exchange_create_inproc(const struct exchange_options *options, struct exchange **out) {
    *out = NULL;
    size_t row_bytes = arena_rounded(options->row_bytes_max), bytes;
    if (__builtin_mul_overflow(options->max_rows, row_bytes, &bytes)) {
        FAIL(EXPERTD_ERR_NOMEM, "%zu result rows of %zu bytes are more than an address space", options->max_rows, row_bytes);
    }
    struct inproc *inproc = calloc(1, sizeof *inproc);
    if (!inproc) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for an exchange");
    }
    err_t e = exchange_begin(&inproc->base, &INPROC, options);
    if (!err_is(e)) {
        e = arena_init(&inproc->arena, bytes);
    }
    if (err_is(e)) {
        destroy(&inproc->base);
        return err_context(e, "result rows of the exchange");
    }
    inproc->base.results = inproc->arena.base;
    *out = &inproc->base;
    return OK;
}
