// The exchange inside one process. Sender and receiver share memory, so nothing is copied: ranks read the front's hidden rows in
// place and write their result rows where the front combines them.
#include <stdlib.h>

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
    .dispatch = dispatch, .inbox = exchange_inbox_in_place, .collect = collect, .untouched = untouched, .destroy = destroy};

FALLIBLE exchange_create_inproc(const struct exchange_options *options, struct exchange **out) {
    *out = NULL;
    struct inproc *inproc = calloc(1, sizeof *inproc);
    if (!inproc) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for an exchange");
    }
    err_t e = exchange_begin(&inproc->base, &INPROC, options);
    if (!err_is(e)) {
        e = exchange_reserve_results(&inproc->base, &inproc->arena);
    }
    if (err_is(e)) {
        destroy(&inproc->base);
        return e;
    }
    *out = &inproc->base;
    return OK;
}
