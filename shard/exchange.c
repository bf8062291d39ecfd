#include "shard/exchange.h"

#include "shard/exchange_engine.h"

FALLIBLE exchange_dispatch(struct exchange *exchange, const struct exchange_batch *batch, size_t row_bytes) {
    const struct exchange_options *options = &exchange->options;
    INVARIANT(batch->plan->placement->ranks == options->ranks);
    INVARIANT(batch->plan->rows <= options->max_rows && row_bytes <= options->row_bytes_max);
    INVARIANT(batch->layer < options->layers);
    if (batch->epoch < exchange->epochs[batch->layer] || batch->epoch != batch->plan->placement->epoch) {
        FAIL(EXPERTD_ERR_SHARD_LOST,
             "the plan of a batch has placement %llu, but the batch was dispatched for placement %llu, after a batch of placement "
             "%llu: plan it again",
             (unsigned long long)batch->plan->placement->epoch, (unsigned long long)batch->epoch,
             (unsigned long long)exchange->epochs[batch->layer]);
    }
    exchange->epochs[batch->layer] = batch->epoch;
    exchange->batch = *batch;
    exchange->row_bytes = row_bytes;
    if (exchange->batch.width_bytes == 0) {
        exchange->batch.width_bytes = row_bytes;
    }
    INVARIANT(exchange->batch.width_bytes <= row_bytes);
    return exchange->engine->dispatch(exchange);
}

FALLIBLE exchange_inbox(struct exchange *exchange, uint32_t rank, struct exchange_work *out) {
    INVARIANT(rank < exchange->local_ranks);
    return exchange->engine->inbox(exchange, rank, out);
}

FALLIBLE exchange_collect(struct exchange *exchange) {
    return exchange->engine->collect(exchange);
}

FALLIBLE exchange_wait(struct exchange *exchange) {
    return exchange->engine->wait ? exchange->engine->wait(exchange) : OK;
}

uint32_t exchange_local_ranks(const struct exchange *exchange) {
    return exchange->local_ranks;
}

const bool *exchange_live(struct exchange *exchange, unsigned attempt) {
    return exchange->engine->live ? exchange->engine->live(exchange, attempt) : NULL;
}

bool exchange_may_plan_again(const struct exchange *exchange) {
    return exchange->engine->may_plan_again && exchange->engine->may_plan_again(exchange);
}

FALLIBLE exchange_alive(struct exchange *exchange) {
    return exchange->engine->alive ? exchange->engine->alive(exchange) : OK;
}

FALLIBLE exchange_ready(struct exchange *exchange) {
    return exchange->engine->ready ? exchange->engine->ready(exchange) : OK;
}

void exchange_settle(struct exchange *exchange) {
    if (exchange->engine->settle) {
        exchange->engine->settle(exchange);
    }
}

const void *exchange_result(const struct exchange *exchange, uint32_t row) {
    INVARIANT(row < exchange->options.max_rows);
    return exchange->results + row * exchange->row_bytes;
}

void exchange_state(const struct exchange *exchange, struct exchange_state *out) {
    *out = (struct exchange_state){0};
    if (exchange->engine->state) {
        exchange->engine->state(exchange, out);
    }
}

size_t exchange_untouched(const struct exchange *exchange) {
    return exchange->engine->untouched ? exchange->engine->untouched(exchange) : 0;
}

void exchange_destroy(struct exchange *exchange) {
    if (exchange) {
        exchange->engine->destroy(exchange);
    }
}
