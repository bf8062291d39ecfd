// The exchange inside one process: sender and receiver share memory, so nothing is copied. Ranks read the front's hidden rows where
// they lie and write their result rows where the front will combine them.
#include <stdlib.h>

#include "base/arena.h"
#include "shard/exchange.h"

struct exchange {
    uint32_t ranks, layers;
    uint64_t *epochs; // [layers] the latest dispatched
    size_t max_rows, row_bytes_max;
    struct arena arena;
    char *results; // [max_rows] rows of row_bytes
    size_t row_bytes;
    struct exchange_batch batch;
};

FALLIBLE exchange_create_inproc(const struct exchange_options *options, struct exchange **out) {
    *out = NULL;
    size_t row_bytes = arena_rounded(options->row_bytes_max);
    size_t bytes;
    if (__builtin_mul_overflow(options->max_rows, row_bytes, &bytes)) {
        FAIL(ERR_NOMEM, "%zu result rows of %zu bytes overflow an address space", options->max_rows, row_bytes);
    }
    struct exchange *exchange = calloc(1, sizeof *exchange + options->layers * sizeof(uint64_t));
    if (!exchange) {
        FAIL(ERR_NOMEM, "no memory for an exchange");
    }
    exchange->epochs = (uint64_t *)(exchange + 1);
    exchange->ranks = options->ranks;
    exchange->layers = options->layers;
    exchange->max_rows = options->max_rows;
    exchange->row_bytes_max = row_bytes;
    err_t e = arena_init(&exchange->arena, bytes);
    if (err_is(e)) {
        free(exchange);
        return err_context(e, "result rows of the exchange");
    }
    exchange->results = exchange->arena.base;
    *out = exchange;
    return OK;
}

void exchange_destroy(struct exchange *exchange) {
    if (exchange) {
        arena_deinit(&exchange->arena);
        free(exchange);
    }
}

FALLIBLE exchange_dispatch(struct exchange *exchange, const struct exchange_batch *batch, size_t row_bytes) {
    INVARIANT(batch->plan->placement->ranks == exchange->ranks);
    INVARIANT(batch->plan->rows <= exchange->max_rows && row_bytes <= exchange->row_bytes_max);
    INVARIANT(batch->layer < exchange->layers);
    if (batch->epoch < exchange->epochs[batch->layer] || batch->epoch != batch->plan->placement->epoch) {
        FAIL(ERR_SHARD_LOST, "a batch planned from placement %llu, dispatched for %llu, after one of %llu: plan it anew",
             (unsigned long long)batch->plan->placement->epoch, (unsigned long long)batch->epoch,
             (unsigned long long)exchange->epochs[batch->layer]);
    }
    exchange->epochs[batch->layer] = batch->epoch;
    exchange->batch = *batch;
    exchange->row_bytes = row_bytes;
    return OK;
}

FALLIBLE exchange_inbox(struct exchange *exchange, uint32_t rank, struct exchange_work *out) {
    INVARIANT(rank < exchange->ranks);
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

FALLIBLE exchange_collect(struct exchange *exchange) {
    (void)exchange; // every local rank has written in place
    return OK;
}

const void *exchange_result(const struct exchange *exchange, uint32_t row) {
    INVARIANT(row < exchange->batch.plan->rows);
    return exchange->results + row * exchange->row_bytes;
}
