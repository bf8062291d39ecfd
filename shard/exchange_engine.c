#include "shard/exchange_engine.h"

#include <stdlib.h>

#include "base/arena.h"

FALLIBLE exchange_begin(struct exchange *exchange, const struct exchange_engine *engine, const struct exchange_options *options) {
    exchange->engine = engine;
    exchange->options = *options;
    exchange->options.row_bytes_max = arena_rounded(options->row_bytes_max);
    exchange->epochs = calloc(options->layers + 1, sizeof *exchange->epochs);
    if (!exchange->epochs) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the epochs of %u layers", options->layers);
    }
    return OK;
}

void exchange_end(struct exchange *exchange) {
    free(exchange->epochs);
}
