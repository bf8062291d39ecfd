// A layer whose experts are on ranks in "other processes": threads that compute with expert/rank. The bits are those of one
// process, whatever the ranks do. Built twice: over links in memory (tests/unit/shard/remote/memory_links.c) and over gRPC
// (tests/unit/daemon/rows/grpc_links.c).
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/safetensors.h"
#include "expert/engine/engine.h"
#include "expert/layer/layer.h"
#include "expert/loader/model_load.h"
#include "expert/rank/rank_engine.h"
#include "tests/unit/shard/remote/memory_links.h"

enum { MAX_TOKENS = 64, RANKS_MAX = 7, PIECE_BYTES = 2048, TIMEOUT_MS = 20000 };

static const char *const CASES[] = {
    "mixtral",     "mixtral_one_token", "qwen2_moe", "qwen3_moe_sharded", "qwen3_5_moe",  "olmoe",
    "deepseek_v3", "gpt_oss",           "llama4",    "gpt_oss_mxfp4",     "kimi_k2_int4", "mixtral_awq"};
enum { CASE_COUNT = sizeof CASES / sizeof CASES[0] };

// A rank that computes in its own thread, with its own engine and team.
struct remote_rank {
    struct front *front;
    uint32_t rank;
    struct expertd_team *team;
    struct rank_engine *engine;
    struct rank_batch *batch;
    uint64_t generation; // of the connection to which `batch` belongs
    atomic_bool lacks_experts;
};

struct front {
    struct model model;
    struct expertd_team *team;
    struct memory_links *links;
    struct engine *engine;
    struct layer_limits limits;
    struct safetensors golden;
    uint32_t local, ranks;
    uint64_t seed;
    bool replicated;
    struct shards *next; // of layer 0: comes into force while the first batch is computed
    pthread_t switching;
    struct remote_rank remote[RANKS_MAX];
};

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void must(err_t e) {
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
}

// ---- a rank

static bool take(void *context, size_t layer, const uint32_t *experts, size_t count, struct expert_block **blocks,
                 uint32_t *missing) {
    struct remote_rank *rank = context;
    struct shards_in_force *in_force = rank->front->model.layers[layer].in_force;
    const struct shards *shards = shards_take(in_force);
    bool all = !atomic_exchange(&rank->lacks_experts, false);
    *missing = experts[0];
    for (size_t i = 0; i < count && all; i++) {
        *missing = experts[i];
        all = placement_slot(shards->placement, rank->rank, experts[i]) != PLACEMENT_NO_SLOT;
    }
    for (size_t i = 0; i < count && all; i++) {
        blocks[i] = expert_block_share(shards->blocks[placement_slot(shards->placement, rank->rank, experts[i])]);
    }
    shards_release(in_force, shards);
    return all;
}

struct reader {
    const char *at;
};

static void read_hidden(void *context, void *to, size_t bytes) {
    struct reader *reader = context;
    memcpy(to, reader->at, bytes);
    reader->at += bytes;
}

static void *switch_placement(void *context) {
    struct front *f = context;
    shards_switch(f->model.layers[0].in_force, f->next); // waits for the batch
    return NULL;
}

// Puts f->next in force.
static void start_switch(struct front *f) {
    struct timespec pause = {.tv_nsec = 100 * NS_PER_US};
    uint64_t epoch = f->next->placement->epoch;
    INVARIANT(pthread_create(&f->switching, NULL, switch_placement, f) == 0);
    while (shards_epoch(f->model.layers[0].in_force) != epoch) {
        nanosleep(&pause, NULL);
    }
    f->next = NULL;
}

static err_t compute(void *context, uint32_t number, const struct memory_piece *from, void *results) {
    struct front *f = context;
    struct remote_rank *rank = &f->remote[number];
    if (from->generation != rank->generation) { // another connection
        rank_batch_destroy(rank->batch);
        INVARIANT(!err_is(rank_engine_create_batch(rank->engine, &rank->batch)));
        rank->generation = from->generation;
    }
    if (f->next) {
        start_switch(f);
    }
    struct reader reader = {from->hidden};
    struct rank_piece piece = {.batch = from->batch,
                               .epoch = from->epoch,
                               .layer = f->model.layers[from->layer].params.layer,
                               .row_bytes = from->row_bytes,
                               .groups = from->groups,
                               .num_groups = from->num_groups,
                               .first_row = from->first_row,
                               .rows = from->rows,
                               .hidden_rows = from->hidden_rows,
                               .first_hidden = from->first_hidden,
                               .num_hidden = from->num_hidden,
                               .copy = read_hidden,
                               .context = &reader};
    if (rank_batch_skips(rank->batch, piece.batch)) {
        return OK; // the front ignores the answer
    }
    TRY(rank_engine_take(rank->engine, rank->batch, &piece));
    return rank_engine_compute(rank->engine, rank->batch, &piece, results, piece.row_bytes);
}

static void start_ranks(struct front *f) {
    for (uint32_t r = f->local; r < f->ranks; r++) {
        struct remote_rank *rank = &f->remote[r];
        *rank = (struct remote_rank){.front = f, .rank = r};
        must(expertd_team_create(&(struct expertd_team_options){.threads = 1, .spin_us = 5}, &rank->team));
        struct rank_engine_options options = {
            .model = &f->model, .limits = f->limits, .team = rank->team, .take = take, .context = rank};
        must(rank_engine_create(&options, &rank->engine));
    }
    f->links = memory_links_create(&(struct memory_links_options){.ranks = f->ranks,
                                                                  .local_ranks = f->local,
                                                                  .compute = compute,
                                                                  .context = f,
                                                                  .delay_us_max = 100,
                                                                  .late_ms = 20,
                                                                  .seed = f->seed + 1});
}

static void stop_ranks(struct front *f) {
    memory_links_destroy(f->links);
    for (uint32_t r = f->local; r < f->ranks; r++) {
        rank_batch_destroy(f->remote[r].batch);
        rank_engine_destroy(f->remote[r].engine);
        expertd_team_destroy(f->remote[r].team);
    }
}

// ---- a front

// Every expert on one rank, or on two; with more ranks than experts, some have none.
static err_t place(void *context, const struct layer_params *params, uint32_t ranks, struct placement **out) {
    struct front *f = context;
    uint32_t experts = params->num_experts, copies = f->replicated && ranks > 1 ? 2 : 1;
    uint32_t *first = calloc(experts + 1, sizeof *first), *holders = calloc(copies * (size_t)experts, sizeof *holders);
    uint64_t random = f->seed * 77 + params->layer + 1;
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t rank = (uint32_t)(next_random(&random) % ranks);
        first[e + 1] = first[e] + copies;
        holders[first[e]] = rank;
        if (copies > 1) {
            holders[first[e] + 1] = (rank + 1 + (uint32_t)(next_random(&random) % (ranks - 1))) % ranks;
        }
    }
    struct placement_table table = {.num_experts = experts, .ranks = ranks, .first = first, .holders = holders};
    err_t e = placement_from_table(&table, 1, out);
    free(first);
    free(holders);
    return e;
}

// remote 0: one process, as today.
static void serve(struct front *f, const char *name, enum expertd_dtype dtype, uint32_t local, uint32_t remote, bool replicated,
                  int64_t timeout_ms) {
    char path[512];
    uint64_t seed = f->seed;
    *f = (struct front){.local = local, .ranks = local + remote, .replicated = replicated, .seed = seed};
    snprintf(path, sizeof path, "%s/layers/%s", GOLDENS, name);
    must(expertd_team_create(&(struct expertd_team_options){.threads = 2, .spin_us = 5}, &f->team));
    struct model_options options = {.model = path,
                                    .compute_dtype = dtype,
                                    .ranks = f->ranks,
                                    .place = remote > 0 ? place : NULL,
                                    .place_context = f,
                                    .team = f->team};
    must(model_load(&options, &f->model));
    f->limits = layer_limits_for(&f->model, MAX_TOKENS, 16);
    struct engine_options engine = {.model = &f->model,
                                    .limits = f->limits,
                                    .team = f->team,
                                    .exchange_timeout_ns = timeout_ms * NS_PER_MS,
                                    .local_ranks = local,
                                    .remote_piece_bytes = PIECE_BYTES};
    if (remote > 0) {
        start_ranks(f);
        engine.links = memory_links_of(f->links);
    }
    must(engine_create(&engine, &f->engine));
    assert_true(engine_scratch_bytes(f->engine) == engine_scratch_needed(&engine));
    snprintf(path, sizeof path, "%s/layers/%s/golden.safetensors", GOLDENS, name);
    must(safetensors_open(path, &f->golden));
}

static void stop(struct front *f) {
    engine_destroy(f->engine);
    if (f->links) {
        stop_ranks(f);
    }
    safetensors_close(&f->golden);
    model_deinit(&f->model);
    expertd_team_destroy(f->team);
}

static struct expertd_tensor_view golden(const struct front *f, uint32_t layer, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "layers.%u.%s", layer, what);
    const struct safetensors_entry *entry = safetensors_find(&f->golden, name);
    assert_non_null(entry);
    return entry->view;
}

static struct layer_request request_of(const struct front *f, const struct model_layer *layer, void *output, int64_t deadline_ns) {
    struct expertd_tensor_view hidden = golden(f, layer->params.layer, "input");
    return (struct layer_request){
        .tokens = (size_t)hidden.shape[0],
        .hidden = hidden,
        .shared = layer->params.shared != SHARED_NONE,
        .deadline_ns = deadline_ns,
        .output_dtype = EXPERTD_DTYPE_F32,
        .output = output,
    };
}

struct outcome {
    err_t e;
    struct layer_timings timings;
};

static struct outcome forward(struct front *f, size_t l, void *output, int64_t deadline_ns) {
    const struct model_layer *layer = &f->model.layers[l];
    struct layer_request request = request_of(f, layer, output, deadline_ns);
    struct outcome outcome;
    must(layer_request_check(&request, layer, &f->limits));
    outcome.e = layer_forward(f->engine, layer, &request, 1, NULL, &outcome.timings);
    return outcome;
}

// The outputs of one process, by layer: those of the scalar twin, and of an engine without links.
struct expected {
    size_t layers, bytes[8];
    void *outputs[8];
};

static void expect(struct expected *want, const char *name, enum expertd_dtype dtype) {
    struct front one = {.seed = 0};
    serve(&one, name, dtype, 1, 0, false, TIMEOUT_MS);
    want->layers = one.model.num_layers;
    assert_in_range(want->layers, 1, 8);
    for (size_t l = 0; l < want->layers; l++) {
        want->bytes[l] = (size_t)golden(&one, one.model.layers[l].params.layer, "output").bytes;
        want->outputs[l] = malloc(want->bytes[l]);
        void *got = malloc(want->bytes[l]);
        struct layer_request request = request_of(&one, &one.model.layers[l], want->outputs[l], 0);
        must(layer_forward_reference(&one.model.layers[l], one.model.compute_dtype, &request));
        must(forward(&one, l, got, 0).e);
        assert_memory_equal(got, want->outputs[l], want->bytes[l]);
        free(got);
    }
    stop(&one);
}

static void free_expected(struct expected *want) {
    for (size_t l = 0; l < want->layers; l++) {
        free(want->outputs[l]);
    }
}

// Computes a layer with faults or without, and compares the bits. Returns how often it was planned again.
static uint32_t check_layer(struct front *f, const struct expected *want, size_t l) {
    void *got = malloc(want->bytes[l]);
    memset(got, 0xff, want->bytes[l]);
    struct outcome outcome = forward(f, l, got, 0);
    must(outcome.e);
    assert_memory_equal(got, want->outputs[l], want->bytes[l]);
    free(got);
    return outcome.timings.plans_repeated;
}

static const uint32_t REMOTE[] = {1, 2, 3, 5};
enum { REMOTE_COUNT = sizeof REMOTE / sizeof *REMOTE };

static void remote_ranks_give_the_bits_of_one_process(void **state) {
    (void)state;
    for (size_t c = 0; c < CASE_COUNT; c++) {
        enum expertd_dtype dtype = c % 3 == 2 ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16;
        struct expected want;
        expect(&want, CASES[c], dtype);
        for (size_t r = 0; r < REMOTE_COUNT; r++) {
            struct front f = {.seed = c + 10 * r};
            serve(&f, CASES[c], dtype, (uint32_t)(c + r) % 3, REMOTE[r], r % 2, TIMEOUT_MS);
            for (size_t l = 0; l < want.layers; l++) {
                assert_int_equal(check_layer(&f, &want, l), 0);
            }
            stop(&f);
        }
        free_expected(&want);
    }
}

// With two copies of each expert, faults of one rank at random pieces of a batch cost nothing but a second plan.
static void faults_do_not_change_bits_where_experts_have_copies(void **state) {
    (void)state;
    uint32_t again = 0;
    uint64_t random = 4;
    for (size_t c = 0; c < CASE_COUNT; c++) {
        struct expected want;
        expect(&want, CASES[c], EXPERTD_DTYPE_BF16);
        for (size_t r = 1; r < REMOTE_COUNT; r++) {
            struct front f = {.seed = 3 * c + r};
            serve(&f, CASES[c], EXPERTD_DTYPE_BF16, (uint32_t)r % 2, REMOTE[r], true, TIMEOUT_MS);
            for (unsigned round = 0; round < 12; round++) {
                enum memory_fault fault = (enum memory_fault)(next_random(&random) % MEMORY_FAULTS);
                fault = fault == MEMORY_STOPS || fault == MEMORY_WRONG_BATCH ? MEMORY_DIES : fault; // not waited for
                uint32_t rank = f.local + (uint32_t)(next_random(&random) % REMOTE[r]);
                atomic_store(&f.remote[rank].lacks_experts, next_random(&random) % 4 == 0);
                memory_links_plant(f.links, rank, fault, next_random(&random) % 4);
                again += check_layer(&f, &want, round % want.layers);
                memory_links_restore(f.links);
                atomic_store(&f.remote[rank].lacks_experts, false);
            }
            stop(&f);
        }
        free_expected(&want);
    }
    assert_true(again > 50);
}

// Two of five ranks die one after the other, the second while the batch is computed again. Each expert has three copies.
static void a_second_fault_while_a_batch_is_computed_again_costs_a_third_plan(void **state) {
    (void)state;
    struct expected want;
    struct front f = {.seed = 8};
    expect(&want, "qwen2_moe", EXPERTD_DTYPE_BF16);
    serve(&f, "qwen2_moe", EXPERTD_DTYPE_BF16, 0, 3, true, TIMEOUT_MS);
    struct shards_in_force *in_force = f.model.layers[0].in_force;
    uint32_t experts = f.model.layers[0].params.num_experts, *numbers = calloc(4 * (size_t)experts + 1, sizeof *numbers);
    for (uint32_t e = 0; e < experts; e++) {
        numbers[e + 1] = 3 * (e + 1);
        for (uint32_t r = 0; r < 3; r++) {
            numbers[experts + 1 + 3 * e + r] = r;
        }
    }
    struct placement *placement;
    struct placement_table table = {.num_experts = experts, .ranks = 3, .first = numbers, .holders = numbers + experts + 1};
    must(placement_from_table(&table, 2, &placement));
    struct shards *next;
    must(shards_move(in_force->shards, placement, &(struct block_copier){0}, &next));
    shards_switch(in_force, next);
    memory_links_plant(f.links, 0, MEMORY_DIES, 0);
    memory_links_plant(f.links, 1, MEMORY_IS_LATE, 0); // its answer to the first plan comes late
    assert_int_equal(check_layer(&f, &want, 0), 1);
    memory_links_plant(f.links, 1, MEMORY_DIES_BETWEEN, 1);
    assert_int_equal(check_layer(&f, &want, 0), 1);
    memory_links_restore(f.links);
    memory_links_plant(f.links, 0, MEMORY_DIES, 0);
    memory_links_plant(f.links, 2, MEMORY_FAILS, 20); // beyond the pieces of one plan, within those of two
    uint32_t again = check_layer(&f, &want, 0);
    assert_in_range(again, 1, 2);
    free(numbers);
    stop(&f);
    free_expected(&want);
}

// The stages behind dispatch, the shared experts among them, have not run when the batch is planned again.
static void a_batch_whose_dispatch_fails_has_its_shared_experts(void **state) {
    (void)state;
    struct expected want;
    struct front f = {.seed = 6};
    expect(&want, "qwen2_moe", EXPERTD_DTYPE_BF16);
    serve(&f, "qwen2_moe", EXPERTD_DTYPE_BF16, 1, 2, true, TIMEOUT_MS);
    for (unsigned after = 0; after < 2; after++) {
        memory_links_plant(f.links, 2, MEMORY_CANNOT_SEND, after);
        assert_int_equal(check_layer(&f, &want, 0), 1);
        memory_links_restore(f.links);
    }
    stop(&f);
    free_expected(&want);
}

static void experts_without_a_live_rank_are_named_with_their_layer(void **state) {
    (void)state;
    struct expected want;
    struct front f = {.seed = 5};
    expect(&want, "mixtral", EXPERTD_DTYPE_BF16);
    serve(&f, "mixtral", EXPERTD_DTYPE_BF16, 1, 2, false, TIMEOUT_MS);
    void *got = malloc(want.bytes[0]);
    memory_links_plant(f.links, 1, MEMORY_DIES, 0);
    assert_int_equal(forward(&f, 0, got, 0).e.code, EXPERTD_ERR_SHARD_LOST);
    char start[64], ends[] = "is only on shard 1, which is lost; it is computed again when one of its shards is back";
    snprintf(start, sizeof start, "plan: layer %u: expert ", f.model.layers[0].params.layer);
    assert_memory_equal(expertd_err_message(), start, strlen(start));
    assert_non_null(strstr(expertd_err_message(), ends));
    assert_int_equal(forward(&f, 0, got, 0).e.code, EXPERTD_ERR_SHARD_LOST); // at once: the plan is refused
    memory_links_restore(f.links);
    check_layer(&f, &want, 0);
    free(got);
    stop(&f);
    free_expected(&want);
}

static void a_batch_ends_at_its_deadline(void **state) {
    (void)state;
    struct expected want;
    struct front f = {.seed = 1};
    expect(&want, "mixtral", EXPERTD_DTYPE_BF16);
    serve(&f, "mixtral", EXPERTD_DTYPE_BF16, 0, 2, true, TIMEOUT_MS);
    void *got = malloc(want.bytes[0]);
    memory_links_plant(f.links, 1, MEMORY_STOPS, 0);
    int64_t began_ns = clock_now_ns();
    assert_int_equal(forward(&f, 0, got, began_ns + 50 * (int64_t)NS_PER_MS).e.code, EXPERTD_ERR_DEADLINE);
    assert_true(clock_now_ns() - began_ns < TIMEOUT_MS / 2 * (int64_t)NS_PER_MS);
    memory_links_end(f.links, 1);
    assert_int_equal(check_layer(&f, &want, 0), 0); // without the rank that is lost
    memory_links_restore(f.links);
    check_layer(&f, &want, 0);
    free(got);
    stop(&f);
    free_expected(&want);
}

// Placements change between batches while ranks fail.
static void moves_and_faults_do_not_change_bits(void **state) {
    (void)state;
    struct expected want;
    uint64_t random = 12;
    struct front f = {.seed = 2};
    expect(&want, "deepseek_v3", EXPERTD_DTYPE_BF16);
    serve(&f, "deepseek_v3", EXPERTD_DTYPE_BF16, 1, 3, true, TIMEOUT_MS);
    const struct model_layer *layer = &f.model.layers[0];
    for (uint64_t epoch = 2; epoch < 30; epoch++) {
        struct placement *placement;
        struct shards *next;
        f.seed = epoch;
        must(place(&f, &layer->params, f.ranks, &placement));
        placement->epoch = epoch;
        must(shards_move(layer->in_force->shards, placement, &(struct block_copier){0}, &next));
        shards_switch(layer->in_force, next);
        memory_links_plant(f.links, 1 + (uint32_t)(next_random(&random) % 3), MEMORY_DIES, next_random(&random) % 3);
        check_layer(&f, &want, 0);
        memory_links_restore(f.links);
    }
    struct engine_exchange exchange;
    engine_exchange_state(f.engine, &exchange);
    assert_true(exchange.remote.plans_repeated > 5 && exchange.remote.links_lost == exchange.remote.plans_repeated);
    assert_true(exchange.remote.bytes_sent > 0 && exchange.remote.bytes_received > 0);
    stop(&f);
    free_expected(&want);
}

// The only rank of some experts dies while another placement, without it, comes into force: the second plan has that one.
static void a_second_plan_has_the_placement_in_force(void **state) {
    (void)state;
    struct expected want;
    struct front f = {.seed = 3};
    struct placement *placement;
    expect(&want, "mixtral", EXPERTD_DTYPE_BF16);
    serve(&f, "mixtral", EXPERTD_DTYPE_BF16, 1, 1, false, TIMEOUT_MS);
    uint32_t experts = f.model.layers[0].params.num_experts, first[65], holders[64] = {0};
    for (uint32_t e = 0; e <= experts; e++) {
        first[e] = e;
    }
    must(placement_from_table(&(struct placement_table){.num_experts = experts, .ranks = 2, .first = first, .holders = holders}, 2,
                              &placement)); // all on the local rank
    must(shards_move(f.model.layers[0].in_force->shards, placement, &(struct block_copier){0}, &f.next));
    memory_links_plant(f.links, 1, MEMORY_DIES, 0);
    void *got = malloc(want.bytes[0]);
    struct outcome outcome = forward(&f, 0, got, 0);
    must(outcome.e);
    assert_memory_equal(got, want.outputs[0], want.bytes[0]);
    assert_int_equal(outcome.timings.plans_repeated, 1);
    assert_int_equal(outcome.timings.placement_epoch, 2);
    pthread_join(f.switching, NULL);
    free(got);
    stop(&f);
    free_expected(&want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(remote_ranks_give_the_bits_of_one_process),
        cmocka_unit_test(faults_do_not_change_bits_where_experts_have_copies),
        cmocka_unit_test(a_second_fault_while_a_batch_is_computed_again_costs_a_third_plan),
        cmocka_unit_test(a_batch_whose_dispatch_fails_has_its_shared_experts),
        cmocka_unit_test(experts_without_a_live_rank_are_named_with_their_layer),
        cmocka_unit_test(a_batch_ends_at_its_deadline),
        cmocka_unit_test(moves_and_faults_do_not_change_bits),
        cmocka_unit_test(a_second_plan_has_the_placement_in_force),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
