#include "shard/exchange_engine.h"

#include <stdlib.h>

FALLIBLE exchange_begin(struct exchange *exchange, const struct exchange_engine *engine, const struct exchange_options *options) {
    exchange->engine = engine;
    exchange->options = *options;
    exchange->options.row_bytes_max = arena_rounded(options->row_bytes_max);
    exchange->local_ranks = options->ranks;
    exchange->epochs = calloc(options->layers + 1, sizeof *exchange->epochs);
    if (!exchange->epochs) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the epochs of %u layers", options->layers);
    }
    return OK;
}

void exchange_end(struct exchange *exchange) {
    free(exchange->epochs);
}

FALLIBLE exchange_reserve_results(struct exchange *exchange, struct arena *arena) {
    size_t rows = exchange->options.max_rows, row_bytes = exchange->options.row_bytes_max, bytes;
    if (__builtin_mul_overflow(rows, row_bytes, &bytes)) {
        FAIL(EXPERTD_ERR_NOMEM, "%zu result rows of %zu bytes are more than an address space", rows, row_bytes);
    }
    TRY_IN(arena_init(arena, bytes), "result rows of the exchange");
    exchange->results = arena->base;
    return OK;
}

err_t exchange_inbox_in_place(struct exchange *exchange, uint32_t rank, struct exchange_work *out) {
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
