// The exchange with ranks in other processes. Local ranks share the front's memory, as in exchange_inproc.c; remote ranks get their
// rows as pieces over links (remote_links.h), and their answers are written to the result rows by the links' threads
// (remote_results.h).
//
// dispatch sends the first piece of every rank before the second of any, so that all ranks start to compute while later pieces are
// gathered; then the front's own ranks compute while the remote ones do; collect waits for the rest. A rank that fails ends the
// batch at once. It may be planned again: exchange_live then leaves out ranks whose links are down, and those that have failed this
// batch although their links are up. Nothing is allocated after creation.
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "shard/exchange.h"
#include "shard/exchange_engine.h"
#include "shard/remote/remote_links.h"
#include "shard/remote/remote_pieces.h"
#include "shard/remote/remote_results.h"

struct over_remote {
    struct exchange base;
    struct exchange_over_remote over;
    struct arena arena;    // of the results
    struct arena scratch;  // of the next fields, and of pieces
    bool *live;            // [ranks] the latest snapshot
    bool *excluded;        // [ranks] ranks that have failed the current batch although their links were up
    uint64_t *generations; // [ranks] of the snapshot; 0: not live, or local
    struct remote_pieces pieces;
    struct remote_results *results;
    int64_t dispatched_ns;
    bool sent;        // the batch is between dispatch and settle, or the end of collect
    bool rank_failed; // the last batch failed because of a remote rank
    atomic_ullong plans_repeated, timeouts, bytes_sent;
};

static struct over_remote *over_remote_of(struct exchange *exchange) {
    return (struct over_remote *)exchange;
}

static const struct remote_links_table *links_of(const struct over_remote *x) {
    return x->over.links->table;
}

// ---- which ranks take rows

static void exclude_failed(struct over_remote *x) {
    for (uint32_t rank = x->over.local_ranks; rank < x->base.options.ranks; rank++) {
        x->excluded[rank] |= remote_results_failure(x->results, rank) == REMOTE_ANSWERED;
    }
}

static const bool *live(struct exchange *exchange, unsigned attempt) {
    struct over_remote *x = over_remote_of(exchange);
    x->rank_failed = false;
    if (attempt == 0) {
        memset(x->excluded, false, exchange->options.ranks * sizeof *x->excluded);
    } else {
        exclude_failed(x);
        atomic_fetch_add_explicit(&x->plans_repeated, 1, memory_order_relaxed);
    }
    for (uint32_t rank = 0; rank < exchange->options.ranks; rank++) {
        bool local = rank < x->over.local_ranks;
        x->generations[rank] = local || x->excluded[rank] ? 0 : links_of(x)->generation(x->over.links->context, rank);
        x->live[rank] = local || x->generations[rank] > 0;
    }
    return x->live;
}

static bool may_plan_again(const struct exchange *exchange) {
    return ((const struct over_remote *)exchange)->rank_failed;
}

// ---- dispatch

static bool has_rows(const struct over_remote *x, uint32_t rank) {
    return plan_for_rank(x->base.batch.plan, rank).rows > 0;
}

static err_t lost(struct over_remote *x) {
    x->rank_failed = true;
    return remote_results_error(x->results);
}

static FALLIBLE expect(struct over_remote *x, uint32_t rank) {
    const struct exchange_batch *batch = &x->base.batch;
    struct plan_rank share = plan_for_rank(batch->plan, rank);
    if (x->generations[rank] == 0) {
        remote_results_fail(x->results, rank, "the plan has rows for it, but it was not live when the batch was planned");
        return lost(x);
    }
    remote_pieces_begin(&x->pieces, batch, rank);
    remote_results_expect(x->results, rank, x->generations[rank], x->base.results + share.first_row * x->base.row_bytes,
                          share.rows);
    return OK;
}

// Sends the rank's next piece. *more is false if there is none.
static FALLIBLE send_piece(struct over_remote *x, uint32_t rank, bool *more) {
    struct remote_piece piece;
    *more = remote_pieces_next(&x->pieces, &x->base.batch, rank, x->base.batch.width_bytes, &piece);
    if (!*more) {
        return OK;
    }
    err_t e = links_of(x)->send(x->over.links->context, rank, x->generations[rank], &piece);
    if (e.code == EXPERTD_ERR_SHARD_LOST) { // counted once, whether the transport reports the loss before or after this
        remote_results_lose(x->results, rank, x->generations[rank], expertd_err_message());
        return lost(x);
    }
    if (err_is(e)) {
        x->excluded[rank] = true; // the link is up, and would fail again
        remote_results_fail(x->results, rank, expertd_err_message());
        return lost(x);
    }
    atomic_fetch_add_explicit(&x->bytes_sent, piece.num_hidden * piece.row_bytes, memory_order_relaxed);
    return OK;
}

static FALLIBLE send_pieces(struct over_remote *x) {
    uint32_t ranks = x->base.options.ranks;
    for (bool any = true; any;) { // each round sends at most one piece to each rank
        any = false;
        for (uint32_t rank = x->over.local_ranks; rank < ranks; rank++) {
            bool more = false;
            TRY(has_rows(x, rank) ? send_piece(x, rank, &more) : OK);
            any |= more;
        }
    }
    return OK;
}

static err_t dispatch(struct exchange *exchange) {
    struct over_remote *x = over_remote_of(exchange);
    INVARIANT(!x->sent && exchange->batch.plan->tokens <= exchange->options.max_tokens);
    x->sent = true;
    x->dispatched_ns = clock_now_ns();
    struct remote_results_batch batch = {.batch = exchange->batch.batch,
                                         .epoch = exchange->batch.epoch,
                                         .row_bytes = exchange->batch.width_bytes,
                                         .stride = exchange->row_bytes};
    remote_results_begin(x->results, &batch);
    for (uint32_t rank = x->over.local_ranks; rank < exchange->options.ranks; rank++) {
        TRY(has_rows(x, rank) ? expect(x, rank) : OK);
    }
    return send_pieces(x);
}

// ---- collect

// The time until which the batch waits for answers, and whether that is the batch's own deadline.
static int64_t wait_until(const struct over_remote *x, bool *deadline) {
    int64_t until_ns = clock_add_ns(x->dispatched_ns, x->over.timeout_ns), own_ns = x->base.batch.deadline_ns;
    *deadline = own_ns > 0 && own_ns < until_ns;
    return *deadline ? own_ns : until_ns;
}

// Ends the connections of all ranks whose rows are missing. False: the last rows have come meanwhile.
static bool drop_late(struct over_remote *x) {
    char why[96];
    bool any = false;
    snprintf(why, sizeof why, "no answer within %" PRId64 " ms (exchange_timeout_ms)", x->over.timeout_ns / NS_PER_MS);
    for (uint32_t rank = x->over.local_ranks; rank < x->base.options.ranks; rank++) {
        if (remote_results_failure(x->results, rank) != REMOTE_NO_FAILURE) {
            any = true;
            remote_results_fail(x->results, rank, why);
            atomic_fetch_add_explicit(&x->timeouts, 1, memory_order_relaxed);
            links_of(x)->drop(x->over.links->context, rank, x->generations[rank], why);
        }
    }
    return any;
}

static err_t collect(struct exchange *exchange) {
    struct over_remote *x = over_remote_of(exchange);
    bool deadline;
    int64_t until_ns = wait_until(x, &deadline);
    enum remote_outcome outcome = remote_results_wait(x->results, until_ns);
    if (outcome == REMOTE_LATE && deadline) {
        FAIL(EXPERTD_ERR_DEADLINE, "the deadline passed while other shards computed");
    }
    if (outcome == REMOTE_FAILED || (outcome == REMOTE_LATE && drop_late(x))) {
        return lost(x);
    }
    remote_results_end(x->results);
    x->sent = false;
    return OK;
}

static void settle(struct exchange *exchange) {
    struct over_remote *x = over_remote_of(exchange);
    if (!x->sent) {
        return;
    }
    x->sent = false;
    remote_results_end(x->results);
    for (uint32_t rank = x->over.local_ranks; rank < exchange->options.ranks; rank++) {
        if (remote_results_failure(x->results, rank) != REMOTE_NO_FAILURE && x->generations[rank] > 0) {
            links_of(x)->abandon(x->over.links->context, rank, x->generations[rank], exchange->batch.batch);
        }
    }
}

// ---- state and life

static void state(const struct exchange *exchange, struct exchange_state *out) {
    const struct over_remote *x = (const struct over_remote *)exchange;
    struct remote_results_counts counts;
    remote_results_count(x->results, &counts);
    out->remote = (struct exchange_remote_state){
        .links_lost = counts.links_lost + atomic_load_explicit(&x->timeouts, memory_order_relaxed),
        .plans_repeated = atomic_load_explicit(&x->plans_repeated, memory_order_relaxed),
        .errors = counts.errors,
        .answers_late = counts.late,
        .answers_refused = counts.refused,
        .bytes_sent = atomic_load_explicit(&x->bytes_sent, memory_order_relaxed),
        .bytes_received = counts.bytes,
    };
    for (uint32_t rank = x->over.local_ranks; rank < exchange->options.ranks; rank++) {
        out->remote.links_down += links_of(x)->generation(x->over.links->context, rank) == 0;
    }
}

static size_t untouched(const struct exchange *exchange) {
    return arena_untouched(&((const struct over_remote *)exchange)->arena);
}

static void destroy(struct exchange *exchange) {
    struct over_remote *x = over_remote_of(exchange);
    if (x->results) {
        links_of(x)->attach(x->over.links->context, NULL);
    }
    remote_results_destroy(x->results);
    arena_deinit(&x->scratch);
    arena_deinit(&x->arena);
    exchange_end(exchange);
    free(x);
}

static const struct exchange_engine OVER_REMOTE = {.live = live,
                                                   .may_plan_again = may_plan_again,
                                                   .dispatch = dispatch,
                                                   .inbox = exchange_inbox_in_place,
                                                   .collect = collect,
                                                   .settle = settle,
                                                   .state = state,
                                                   .untouched = untouched,
                                                   .destroy = destroy};

// Bytes of the arrays by rank, which precede those of the pieces.
static size_t rank_bytes(const struct exchange_options *options) {
    return arena_rounded(options->ranks * sizeof(uint64_t)) + 2 * arena_rounded(options->ranks * sizeof(bool));
}

size_t exchange_remote_bytes(const struct exchange_options *options) {
    return rank_bytes(options) + remote_pieces_bytes(options);
}

static FALLIBLE reserve(struct over_remote *x) {
    const struct exchange_options *options = &x->base.options;
    TRY(exchange_reserve_results(&x->base, &x->arena));
    TRY_IN(arena_init(&x->scratch, exchange_remote_bytes(options)), "the exchange with remote shards");
    x->generations = (uint64_t *)(void *)x->scratch.base;
    x->live = (bool *)x->scratch.base + arena_rounded(options->ranks * sizeof *x->generations);
    x->excluded = x->live + arena_rounded(options->ranks * sizeof *x->live);
    remote_pieces_init(&x->pieces, x->scratch.base + rank_bytes(options), options,
                       x->over.piece_bytes > 0 ? x->over.piece_bytes : REMOTE_PIECE_BYTES);
    return remote_results_create(options->ranks, &x->results);
}

FALLIBLE exchange_create_remote(const struct exchange_options *options, const struct exchange_over_remote *over,
                                struct exchange **out) {
    *out = NULL;
    INVARIANT(over->local_ranks <= options->ranks);
    struct over_remote *x = calloc(1, sizeof *x);
    if (!x) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for an exchange");
    }
    x->over = *over;
    err_t e = exchange_begin(&x->base, &OVER_REMOTE, options);
    x->base.local_ranks = over->local_ranks;
    if (!err_is(e)) {
        e = reserve(x);
    }
    if (err_is(e)) {
        destroy(&x->base);
        return e;
    }
    links_of(x)->attach(over->links->context, x->results);
    *out = &x->base;
    return OK;
}
