// The interface between exchange.c and its engines: a function table, and the state that all engines have. Private to shard/.
#ifndef EXPERTD_SHARD_EXCHANGE_ENGINE_H
#define EXPERTD_SHARD_EXCHANGE_ENGINE_H

#include "base/arena.h"
#include "base/err.h"
#include "shard/exchange_types.h"

struct exchange_engine {
    err_t (*alive)(struct exchange *exchange);                        // NULL: always succeeds
    const bool *(*live)(struct exchange *exchange, unsigned attempt); // NULL: all ranks, always
    bool (*may_plan_again)(const struct exchange *exchange);          // NULL: never
    err_t (*ready)(struct exchange *exchange);                        // NULL: always succeeds
    err_t (*dispatch)(struct exchange *exchange);                     // exchange->batch is set
    err_t (*inbox)(struct exchange *exchange, uint32_t rank, struct exchange_work *out);
    err_t (*collect)(struct exchange *exchange);
    err_t (*wait)(struct exchange *exchange);                                   // NULL: nothing to wait for after collect
    void (*settle)(struct exchange *exchange);                                  // NULL: nothing is ever in progress
    void (*state)(const struct exchange *exchange, struct exchange_state *out); // NULL: all zero
    size_t (*untouched)(const struct exchange *exchange);                       // NULL: 0
    void (*destroy)(struct exchange *exchange);
};

// The first member of every engine's own struct.
struct exchange {
    const struct exchange_engine *engine;
    struct exchange_options options; // row_bytes_max is rounded up
    uint32_t local_ranks;            // ranks [0, local_ranks) compute in this process
    uint64_t *epochs;                // [layers] the epoch of the latest batch
    char *results;                   // [max_rows] rows of row_bytes, in the front's memory
    struct exchange_batch batch;
    size_t row_bytes;
};

// Initialises the common part of an engine's struct, which the engine has zeroed. EXPERTD_ERR_NOMEM.
FALLIBLE exchange_begin(struct exchange *exchange, const struct exchange_engine *engine, const struct exchange_options *options);
void exchange_end(struct exchange *exchange);

// ---- for engines whose local ranks share the front's memory: nothing is copied, ranks read the front's hidden rows in place and
// write their result rows where the front combines them

// Reserves exchange->results in `arena`, which the engine owns. EXPERTD_ERR_NOMEM.
FALLIBLE exchange_reserve_results(struct exchange *exchange, struct arena *arena);
err_t exchange_inbox_in_place(struct exchange *exchange, uint32_t rank, struct exchange_work *out); // an engine's `inbox`

#endif
