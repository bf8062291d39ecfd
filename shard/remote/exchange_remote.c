// The exchange with ranks in other processes. Local ranks share the front's memory, as in exchange_inproc.c; remote ranks get their
// rows as pieces over links (remote_links.h), and their answers are written to the result rows by the links' threads
// (remote_results.h).
//
// dispatch sends the first piece of every rank before the second of any, so that all ranks start to compute while later pieces are
// gathered; then the front's own ranks compute while the remote ones do; collect waits for the rest. A rank that fails ends the
// batch at once. It may be planned again: exchange_live then leaves out ranks whose links are down, and those that have failed this
// batch although their links are up. A rank that is connected but answers nothing counts as failed before its time is up, where
// others hold its experts: a process that answers heartbeats may hang all the same. Nothing is allocated after creation.
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

enum {
    PATIENCE_MS = 250,
    PATIENCE_GAPS = 4, // the longest time between answers lately is this part of the patience, at most
    DROP_PATIENCES = 8,
    STALLS_MAX = 4, // in a row, of a rank that answers a part of each batch
    LOOK_MS = 10,   // between looks at silent ranks. One that was silent in the batch before gets this much
};

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
        enum remote_failure failure = remote_results_failure(x->results, rank);
        x->excluded[rank] |= failure == REMOTE_ANSWERED || failure == REMOTE_STALLED;
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

static void drop_rank(struct over_remote *x, uint32_t rank, const char *why) {
    atomic_fetch_add_explicit(&x->timeouts, 1, memory_order_relaxed);
    links_of(x)->drop(x->over.links->context, rank, x->generations[rank], why);
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
            drop_rank(x, rank, why);
        }
    }
    return any;
}

// ---- ranks that are connected and silent

// Does another live rank, which is not silent, hold the expert?
static bool another_holds(const struct over_remote *x, uint32_t rank, uint32_t expert, int64_t now_ns) {
    const struct placement *placement = x->base.batch.plan->placement;
    int64_t longest_ns;
    for (uint32_t i = placement->holder_first[expert]; i < placement->holder_first[expert + 1]; i++) {
        uint32_t other = placement->holders[i];
        if (other != rank && x->live[other] &&
            remote_results_silence(x->results, other, now_ns, &longest_ns) < x->over.patience_ns) {
            return true;
        }
    }
    return false;
}

static bool others_hold(const struct over_remote *x, uint32_t rank, int64_t now_ns) {
    const struct plan *plan = x->base.batch.plan;
    const struct placement *placement = plan->placement;
    for (uint32_t slot = placement->rank_first[rank]; slot < placement->rank_first[rank + 1]; slot++) {
        if (plan->group_sizes[slot] > 0 && !another_holds(x, rank, placement->rank_experts[slot], now_ns)) {
            return false;
        }
    }
    return true;
}

// Fails a rank that was silent for too long, and ends the connection of one that hangs. False: it may still answer.
static bool give_up(struct over_remote *x, uint32_t rank, int64_t now_ns) {
    char why[128];
    int64_t longest_ns, patience_ns = x->over.patience_ns;
    int64_t silence_ns = remote_results_silence(x->results, rank, now_ns, &longest_ns);
    if (PATIENCE_GAPS * longest_ns > patience_ns) {
        patience_ns = PATIENCE_GAPS * longest_ns;
    }
    if (silence_ns < patience_ns || !others_hold(x, rank, now_ns)) {
        return false;
    }
    snprintf(why, sizeof why, "connected, but it has answered no rows for %" PRId64 " ms", silence_ns / NS_PER_MS);
    unsigned stalls = remote_results_stall(x->results, rank, why);
    bool hangs = silence_ns >= DROP_PATIENCES * patience_ns, answers_parts = stalls >= STALLS_MAX;
    if (stalls > 0 && (hangs || answers_parts)) {
        drop_rank(x, rank, why);
    }
    return stalls > 0;
}

static bool give_up_silent(struct over_remote *x) {
    int64_t now_ns = clock_now_ns();
    bool any = false;
    for (uint32_t rank = x->over.local_ranks; rank < x->base.options.ranks; rank++) {
        any |= x->generations[rank] > 0 && has_rows(x, rank) && give_up(x, rank, now_ns);
    }
    return any;
}

// Waits for all rows, and looks from time to time for ranks that are silent.
static enum remote_outcome wait_for_rows(struct over_remote *x, int64_t until_ns) {
    for (;;) {
        int64_t look_ns = clock_add_ns(clock_now_ns(), LOOK_MS * NS_PER_MS);
        enum remote_outcome outcome = remote_results_wait(x->results, look_ns < until_ns ? look_ns : until_ns);
        if (outcome != REMOTE_LATE || clock_now_ns() >= until_ns) {
            return outcome;
        }
        if (give_up_silent(x)) {
            return REMOTE_FAILED;
        }
    }
}

// The batch's deadline has passed: ends the connections of ranks that have hung for longer than any batch may take.
static void drop_hung(struct over_remote *x) {
    int64_t now_ns = clock_now_ns(), longest_ns;
    for (uint32_t rank = x->over.local_ranks; rank < x->base.options.ranks; rank++) {
        if (x->generations[rank] > 0 && remote_results_silence(x->results, rank, now_ns, &longest_ns) >= x->over.timeout_ns) {
            drop_rank(x, rank, "no answer to several batches (exchange_timeout_ms)");
        }
    }
}

static err_t collect(struct exchange *exchange) {
    struct over_remote *x = over_remote_of(exchange);
    bool deadline;
    int64_t until_ns = wait_until(x, &deadline);
    enum remote_outcome outcome = wait_for_rows(x, until_ns);
    if (outcome == REMOTE_LATE && deadline) {
        drop_hung(x);
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
    x->over.patience_ns = over->patience_ns > 0 ? over->patience_ns : PATIENCE_MS * NS_PER_MS;
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
