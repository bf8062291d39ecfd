// The exchange over remote ranks: the conformance suite with 0 to 6 local ranks, and what only this engine has. Built twice: over
// links in memory (memory_links.c) and over gRPC (tests/unit/daemon/rows/grpc_links.c).
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/unit/shard/exchange_conformance.h"
#include "tests/unit/shard/remote/memory_links.h"

enum { RANKS = CONFORMANCE_RANKS, LATE_MS = 30, ROW_BYTES = 48, PIECE_ROWS = 3 };
enum { TIMEOUT_MS = 20000, SHORT_TIMEOUT_MS = 400 }; // the short one is waited for completely where a rank stops

static struct memory_links *links;
static uint32_t local_ranks;
static unsigned planted;
static int64_t timeout_ms = TIMEOUT_MS, patience_ms = TIMEOUT_MS;
static atomic_uint held_back; // a set of ranks, which do not answer until it is empty

static void wait_while_held_back(uint32_t rank) {
    struct timespec pause = {.tv_nsec = 100 * NS_PER_US};
    while (atomic_load(&held_back) >> rank & 1) {
        nanosleep(&pause, NULL);
    }
}

// Checks that each hidden row is sent once, and plays the rank.
static err_t compute(void *context, uint32_t rank, const struct memory_piece *piece, void *results) {
    (void)context;
    static _Thread_local uint64_t batch, generation;
    static _Thread_local size_t rows, hidden;
    static _Thread_local float received[128][ROW_BYTES / sizeof(float)];
    if (piece->batch != batch || piece->generation != generation) {
        INVARIANT(piece->batch > batch || piece->generation > generation);
        batch = piece->batch, generation = piece->generation;
        rows = hidden = 0;
    }
    INVARIANT(piece->row_bytes == ROW_BYTES && piece->first_row == rows && piece->first_hidden == hidden);
    INVARIANT(piece->rows > 0 && piece->rows <= PIECE_ROWS && piece->num_hidden <= piece->rows);
    memcpy(received[hidden], piece->hidden, piece->num_hidden * ROW_BYTES);
    for (size_t i = 0; i < piece->num_hidden; i++) { // the first element identifies the row
        for (size_t j = 0; j < hidden + i; j++) {
            INVARIANT(received[hidden + i][0] != received[j][0]);
        }
    }
    rows += piece->rows;
    hidden += piece->num_hidden;
    float *out = results;
    size_t row = 0;
    for (size_t g = 0; g < piece->num_groups; g++) {
        for (uint32_t i = 0; i < piece->groups[g].rows; i++, row++) {
            INVARIANT(piece->hidden_rows[row] < hidden);
            for (uint32_t c = 0; c < ROW_BYTES / sizeof(float); c++) {
                *out++ = conformance_answer(piece->groups[g].expert, received[piece->hidden_rows[row]][c], c);
            }
        }
    }
    INVARIANT(row == piece->rows);
    wait_while_held_back(rank);
    return OK;
}

static err_t create(const struct exchange_options *options, struct exchange **out) {
    links = memory_links_create(&(struct memory_links_options){.ranks = options->ranks,
                                                               .local_ranks = local_ranks,
                                                               .compute = compute,
                                                               .delay_us_max = 200,
                                                               .late_ms = LATE_MS,
                                                               .seed = 11});
    struct exchange_over_remote over = {.links = memory_links_of(links),
                                        .local_ranks = local_ranks,
                                        .timeout_ns = timeout_ms * NS_PER_MS,
                                        .piece_bytes = PIECE_ROWS * ROW_BYTES,
                                        .patience_ns = patience_ms * NS_PER_MS};
    return exchange_create_remote(options, &over, out);
}

static void destroyed(void) {
    memory_links_destroy(links);
}

static void plant(enum conformance_fault fault, unsigned after) {
    static const enum memory_fault FAULTS[] = {
        [RANK_DIES] = MEMORY_DIES,
        [RANK_STOPS] = MEMORY_STOPS,
        [RANK_IS_LATE] = MEMORY_IS_LATE,
        [RANK_CANNOT_BE_SENT] = MEMORY_CANNOT_SEND,
        [RANK_DIES_BETWEEN] = MEMORY_DIES_BETWEEN,
        [RANK_RECONNECTS] = MEMORY_RECONNECTS,
        [RANK_FAILS] = MEMORY_FAILS,
        [RANK_WRONG_EPOCH] = MEMORY_WRONG_EPOCH,
        [RANK_WRONG_BATCH] = MEMORY_WRONG_BATCH,
        [RANK_FUTURE_BATCH] = MEMORY_FUTURE_BATCH,
        [RANK_ANSWERS_TWICE] = MEMORY_ANSWERS_TWICE,
        [RANK_TOO_FEW_BYTES] = MEMORY_TOO_FEW_BYTES,
        [RANK_TOO_MANY_BYTES] = MEMORY_TOO_MANY_BYTES,
        [RANK_TOO_MANY_ROWS] = MEMORY_TOO_MANY_ROWS,
        [RANK_OUT_OF_ORDER] = MEMORY_OUT_OF_ORDER,
    };
    uint32_t remote = RANKS - local_ranks;
    memory_links_plant(links, RANKS - 1 - planted++ % remote, FAULTS[fault], after);
}

static void restore(void) {
    memory_links_restore(links);
}

static const struct exchange_subject REMOTE = {.create = create, .plant = plant, .restore = restore, .destroyed = destroyed};

static void rows_reach_their_experts_over_random_placements(void **state) {
    (void)state;
    for (local_ranks = 0; local_ranks <= RANKS; local_ranks += 2) {
        exchange_conforms_over_random_placements(&REMOTE);
    }
}

static void one_hot_rank_gets_every_row(void **state) {
    (void)state;
    for (local_ranks = 0; local_ranks <= RANKS; local_ranks += RANKS) {
        exchange_conforms_with_one_hot_rank(&REMOTE);
    }
}

static void an_empty_batch_needs_no_rank(void **state) {
    (void)state;
    local_ranks = 1;
    exchange_conforms_with_an_empty_batch(&REMOTE);
}

static void a_batch_of_an_old_epoch_is_refused(void **state) {
    (void)state;
    local_ranks = 2;
    exchange_refuses_an_old_epoch(&REMOTE);
}

static void a_rank_that_dies_costs_one_batch(void **state) {
    (void)state;
    local_ranks = 1;
    exchange_survives_a_rank_that_dies(&REMOTE);
}

static void a_rank_that_stops_costs_one_batch(void **state) {
    (void)state;
    local_ranks = 1;
    timeout_ms = SHORT_TIMEOUT_MS;
    exchange_survives_a_rank_that_stops(&REMOTE);
    timeout_ms = TIMEOUT_MS;
}

static void a_late_rank_is_waited_for(void **state) {
    (void)state;
    local_ranks = 3;
    exchange_waits_for_a_rank_that_is_late(&REMOTE);
}

static void a_batch_is_planned_again_without_a_rank_that_fails(void **state) {
    (void)state;
    for (enum conformance_fault fault = 0; fault < RANK_FAULTS; fault++) {
        local_ranks = fault % 3;
        timeout_ms = fault == RANK_STOPS || fault == RANK_WRONG_BATCH ? SHORT_TIMEOUT_MS : TIMEOUT_MS;
        exchange_plans_again_without_a_rank_that_fails(&REMOTE, fault);
        timeout_ms = TIMEOUT_MS;
    }
}

static void random_faults_give_results_or_name_an_expert(void **state) {
    (void)state;
    for (local_ranks = 0; local_ranks <= 2; local_ranks += 2) {
        exchange_gives_results_or_names_an_expert(&REMOTE);
    }
}

// ---- only this engine

enum { TOKENS = 20, CHOICES = 2, EXPERTS = 6 };

// A front with two experts on each of three ranks, the first of which is local. Each token chooses an expert of every rank.
struct front {
    struct exchange *exchange;
    struct placement *placement;
    struct plan plan;
    void *memory;
    int32_t ids[TOKENS * 3];
    float hidden[TOKENS][ROW_BYTES / sizeof(float)];
    uint64_t batches;
};

static struct remote_links recorded; // the links in memory, with a record of the pieces
static struct remote_links_table recording;
static uint32_t sent_to[64];
static size_t sent;

static bool has_no_memory; // for the next message

static err_t record_send(void *context, uint32_t rank, uint64_t generation, const struct remote_piece *piece) {
    if (has_no_memory) {
        has_no_memory = false;
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a message");
    }
    sent_to[sent++] = rank;
    return memory_links_of(links)->table->send(context, rank, generation, piece);
}

static void front_init(struct front *f) {
    *f = (struct front){.memory = aligned_alloc(64, plan_bytes(TOKENS, 3, EXPERTS, 3))};
    links = memory_links_create(
        &(struct memory_links_options){.ranks = 3, .local_ranks = 1, .compute = compute, .delay_us_max = 100, .seed = 2});
    recording = *memory_links_of(links)->table;
    recording.send = record_send;
    recorded = (struct remote_links){&recording, memory_links_of(links)->context};
    sent = 0;
    struct exchange_options options = {
        .ranks = 3, .layers = 1, .max_tokens = TOKENS, .max_rows = TOKENS * 3, .row_bytes_max = ROW_BYTES};
    struct exchange_over_remote over = {.links = &recorded,
                                        .local_ranks = 1,
                                        .timeout_ns = timeout_ms * NS_PER_MS,
                                        .piece_bytes = PIECE_ROWS * ROW_BYTES,
                                        .patience_ns = patience_ms * NS_PER_MS};
    assert_false(err_is(exchange_create_remote(&options, &over, &f->exchange)));
    assert_false(err_is(placement_contiguous(EXPERTS, 3, 1, &f->placement)));
    plan_init(&f->plan, f->memory, TOKENS, 3, EXPERTS, 3);
    for (size_t t = 0; t < TOKENS; t++) {
        for (size_t r = 0; r < 3; r++) {
            f->ids[3 * t + r] = (int32_t)(2 * r + t % 2);
        }
        for (size_t c = 0; c < ROW_BYTES / sizeof(float); c++) {
            f->hidden[t][c] = (float)(100 * t + c);
        }
    }
}

static void front_deinit(struct front *f) {
    exchange_destroy(f->exchange);
    memory_links_destroy(links);
    placement_destroy(f->placement);
    free(f->memory);
}

// Plans and dispatches a batch that is not needed after deadline_ns.
static err_t dispatch(struct front *f, int64_t deadline_ns) {
    struct plan_batch choices = {
        .placement = f->placement, .live = exchange_live(f->exchange, 0), .ids = f->ids, .tokens = TOKENS, .top_k = 3};
    assert_false(err_is(plan_make(&f->plan, &choices)));
    struct exchange_batch batch = {.epoch = 1,
                                   .batch = ++f->batches,
                                   .plan = &f->plan,
                                   .hidden = f->hidden,
                                   .hidden_stride = sizeof f->hidden[0],
                                   .deadline_ns = deadline_ns};
    return exchange_dispatch(f->exchange, &batch, ROW_BYTES);
}

// Does the last error begin and end so? Between them, a transport may say more.
static bool fails_with(const char *begin, const char *end) {
    const char *message = expertd_err_message();
    size_t length = strlen(message), tail = strlen(end);
    return strncmp(message, begin, strlen(begin)) == 0 && length >= tail && strcmp(message + length - tail, end) == 0;
}

static void first_pieces_leave_before_second_ones(void **state) {
    (void)state;
    struct front f;
    front_init(&f);
    assert_false(err_is(dispatch(&f, 0)));
    assert_int_equal(sent, 2 * 8); // of ten rows, in parts of 3, 3, 3 and 1, for each expert
    for (size_t i = 0; i < sent; i++) {
        assert_int_equal(sent_to[i], 1 + i % 2);
    }
    assert_false(err_is(exchange_collect(f.exchange)));
    struct exchange_state counts;
    exchange_state(f.exchange, &counts);
    assert_int_equal(counts.remote.bytes_sent, 2 * TOKENS * ROW_BYTES); // each token's row once to each rank
    assert_int_equal(counts.remote.bytes_received, 2 * TOKENS * ROW_BYTES);
    front_deinit(&f);
}

static void a_lost_rank_ends_the_wait_while_others_are_awaited(void **state) {
    (void)state;
    struct front f;
    front_init(&f);
    atomic_store(&held_back, 1 << 1);
    memory_links_plant(links, 2, MEMORY_DIES, 2);
    assert_false(err_is(dispatch(&f, 0)));
    assert_int_equal(exchange_collect(f.exchange).code, EXPERTD_ERR_SHARD_LOST);
    assert_true(fails_with("shard 2: ", "the connection has ended"));
    exchange_settle(f.exchange);
    assert_true(exchange_may_plan_again(f.exchange));
    atomic_store(&held_back, 0);
    front_deinit(&f);
}

static void a_deadline_ends_the_wait_but_no_connection(void **state) {
    (void)state;
    struct front f;
    struct exchange_state counts;
    front_init(&f);
    atomic_store(&held_back, 1 << 1 | 1 << 2);
    assert_false(err_is(dispatch(&f, clock_now_ns() + 10 * NS_PER_MS)));
    for (uint32_t rank = 1; rank < 3; rank++) {
        while (memory_links_received(links, rank).pieces == 0) { // the rank works on its first piece
        }
    }
    assert_int_equal(exchange_collect(f.exchange).code, EXPERTD_ERR_DEADLINE);
    exchange_settle(f.exchange);
    assert_false(exchange_may_plan_again(f.exchange));
    char *results = (char *)exchange_result(f.exchange, f.plan.rank_rows[1]);
    size_t bytes = (f.plan.rows - f.plan.rank_rows[1]) * ROW_BYTES;
    memset(results, 0x5a, bytes);
    atomic_store(&held_back, 0);
    do { // the answers to the first pieces come, and touch nothing
        exchange_state(f.exchange, &counts);
    } while (counts.remote.answers_late < 2);
    for (size_t i = 0; i < bytes; i++) {
        assert_int_equal(results[i], 0x5a);
    }
    assert_int_equal(counts.remote.links_lost + counts.remote.links_down, 0);
    assert_false(err_is(dispatch(&f, 0)));
    assert_false(err_is(exchange_collect(f.exchange)));
    front_deinit(&f);
}

static void a_rank_that_does_not_answer_is_named_and_dropped(void **state) {
    (void)state;
    struct front f;
    struct exchange_state counts;
    timeout_ms = SHORT_TIMEOUT_MS;
    front_init(&f);
    memory_links_plant(links, 2, MEMORY_STOPS, 1);
    assert_false(err_is(dispatch(&f, 0)));
    assert_int_equal(exchange_collect(f.exchange).code, EXPERTD_ERR_SHARD_LOST);
    assert_string_equal(expertd_err_message(), "shard 2: no answer within 400 ms (exchange_timeout_ms)");
    exchange_settle(f.exchange);
    assert_false(exchange_live(f.exchange, 1)[2]);
    exchange_state(f.exchange, &counts);
    assert_int_equal(counts.remote.links_lost, 1);
    assert_int_equal(counts.remote.links_down, 1);
    timeout_ms = TIMEOUT_MS;
    front_deinit(&f);
}

// Its link stays up, so that later batches have rows for it too, until it has hung for long.
static void a_silent_rank_is_left_out_where_others_hold_its_experts_and_dropped_later(void **state) {
    (void)state;
    struct front f;
    struct exchange_state counts;
    uint32_t holders[2 * EXPERTS], first[EXPERTS + 1];
    for (uint32_t e = 0; e <= EXPERTS; e++) {
        first[e] = 2 * e;
        holders[2 * (e % EXPERTS)] = 1;
        holders[2 * (e % EXPERTS) + 1] = 2;
    }
    patience_ms = 50;
    front_init(&f);
    placement_destroy(f.placement);
    const struct placement_table table = {.num_experts = EXPERTS, .ranks = 3, .first = first, .holders = holders};
    assert_false(err_is(placement_from_table(&table, 1, &f.placement)));
    memory_links_plant(links, 2, MEMORY_STOPS, 1);
    assert_false(err_is(dispatch(&f, 0)));
    assert_int_equal(exchange_collect(f.exchange).code, EXPERTD_ERR_SHARD_LOST);
    assert_non_null(strstr(expertd_err_message(), "shard 2: connected, but it has answered no rows for "));
    exchange_settle(f.exchange);
    assert_true(exchange_may_plan_again(f.exchange));
    assert_false(exchange_live(f.exchange, 1)[2]);
    assert_true(exchange_live(f.exchange, 0)[2]);
    do {
        sent = 0;
        assert_false(err_is(dispatch(&f, 0)));
        assert_int_equal(exchange_collect(f.exchange).code, EXPERTD_ERR_SHARD_LOST);
        exchange_settle(f.exchange);
        exchange_state(f.exchange, &counts);
    } while (counts.remote.links_down == 0);
    sent = 0;
    assert_false(err_is(dispatch(&f, 0)));
    assert_false(err_is(exchange_collect(f.exchange)));
    patience_ms = TIMEOUT_MS;
    front_deinit(&f);
}

// The rank is left out of this batch, but its link stays up and the next batch includes it.
static void a_rank_that_answers_with_an_error_is_left_out_of_one_batch(void **state) {
    (void)state;
    struct front f;
    front_init(&f);
    memory_links_plant(links, 1, MEMORY_FAILS, 1);
    assert_false(err_is(dispatch(&f, 0)));
    assert_int_equal(exchange_collect(f.exchange).code, EXPERTD_ERR_SHARD_LOST);
    assert_true(fails_with("shard 1: ", "the rank has no memory left"));
    exchange_settle(f.exchange);
    const bool *live = exchange_live(f.exchange, 1);
    assert_true(live[0] && !live[1] && live[2]);
    live = exchange_live(f.exchange, 2);
    assert_true(live[0] && !live[1] && live[2]);
    live = exchange_live(f.exchange, 0);
    assert_true(live[0] && live[1] && live[2]);
    front_deinit(&f);
}

// The link is up, so that the rank would be live for the second plan, and its message might fail again.
static void a_rank_whose_message_finds_no_memory_is_left_out_of_one_batch(void **state) {
    (void)state;
    struct front f;
    front_init(&f);
    has_no_memory = true;
    assert_int_equal(dispatch(&f, 0).code, EXPERTD_ERR_SHARD_LOST);
    assert_string_equal(expertd_err_message(), "shard 1: no memory for a message");
    exchange_settle(f.exchange);
    assert_true(exchange_may_plan_again(f.exchange));
    assert_false(exchange_live(f.exchange, 1)[1]);
    assert_true(exchange_live(f.exchange, 0)[1]);
    front_deinit(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_reach_their_experts_over_random_placements),
        cmocka_unit_test(one_hot_rank_gets_every_row),
        cmocka_unit_test(an_empty_batch_needs_no_rank),
        cmocka_unit_test(a_batch_of_an_old_epoch_is_refused),
        cmocka_unit_test(a_rank_that_dies_costs_one_batch),
        cmocka_unit_test(a_rank_that_stops_costs_one_batch),
        cmocka_unit_test(a_late_rank_is_waited_for),
        cmocka_unit_test(a_batch_is_planned_again_without_a_rank_that_fails),
        cmocka_unit_test(random_faults_give_results_or_name_an_expert),
        cmocka_unit_test(first_pieces_leave_before_second_ones),
        cmocka_unit_test(a_lost_rank_ends_the_wait_while_others_are_awaited),
        cmocka_unit_test(a_deadline_ends_the_wait_but_no_connection),
        cmocka_unit_test(a_rank_that_does_not_answer_is_named_and_dropped),
        cmocka_unit_test(a_silent_rank_is_left_out_where_others_hold_its_experts_and_dropped_later),
        cmocka_unit_test(a_rank_that_answers_with_an_error_is_left_out_of_one_batch),
        cmocka_unit_test(a_rank_whose_message_finds_no_memory_is_left_out_of_one_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
