// What an engine of the exchange fills in: one table of functions, and what all engines know of a batch. Private to shard/.
#ifndef EXPERTD_SHARD_EXCHANGE_ENGINE_H
#define EXPERTD_SHARD_EXCHANGE_ENGINE_H

#include "shard/exchange.h"

struct exchange_engine {
    err_t (*alive)(struct exchange *exchange);    // NULL: always
    err_t (*ready)(struct exchange *exchange);    // NULL: always
    err_t (*dispatch)(struct exchange *exchange); // exchange->batch is set
    err_t (*inbox)(struct exchange *exchange, uint32_t rank, struct exchange_work *out);
    err_t (*collect)(struct exchange *exchange);
    err_t (*wait)(struct exchange *exchange);                                   // NULL: collect has waited
    void (*settle)(struct exchange *exchange);                                  // NULL: nothing is ever under way
    void (*state)(const struct exchange *exchange, struct exchange_state *out); // NULL: all zero
    size_t (*untouched)(const struct exchange *exchange);                       // NULL: nothing of the host's
    void (*destroy)(struct exchange *exchange);
};

// The first member of every engine's own struct.
struct exchange {
    const struct exchange_engine *engine;
    struct exchange_options options; // row_bytes_max is rounded
    uint64_t *epochs;                // [layers] the latest dispatched
    char *results;                   // [max_rows] rows of row_bytes, in the front's memory
    struct exchange_batch batch;
    size_t row_bytes;
};

// The engine's struct is zeroed. EXPERTD_ERR_NOMEM.
FALLIBLE exchange_begin(struct exchange *exchange, const struct exchange_engine *engine, const struct exchange_options *options);
void exchange_end(struct exchange *exchange);

#endif
