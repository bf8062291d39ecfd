// Tests moves: the placement afterwards, the memory of a step, that no bit of an answer changes, and every failure.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/admin/mover.h"
#include "expert/engine/engine.h"
#include "expert/layer/layer.h"
#include "expert/loader/model_load.h"
#include "expert/model/memory.h"

enum { RANKS = 3, TOKENS = 16, HIDDEN_MAX = 1024, STEPS_MAX = 64 };

struct faults {
    unsigned copies, reserved;
    unsigned fail_copy, damage_copy, fail_reserve; // the n-th operation fails, counted from 1; 0: none
};

static err_t reserve(void *context, size_t bytes, struct arena *out) {
    struct faults *faults = context;
    if (++faults->reserved == faults->fail_reserve) {
        FAIL(EXPERTD_ERR_NOMEM, "cannot reserve %zu bytes (injected)", bytes);
    }
    return arena_init(out, bytes);
}

static err_t copy(void *context, void *to, const void *from, size_t bytes) {
    struct faults *faults = context;
    if (++faults->copies == faults->fail_copy) {
        FAIL(EXPERTD_ERR_IO, "a copy failed (injected)");
    }
    memcpy(to, from, bytes);
    if (faults->copies == faults->damage_copy) {
        ((char *)to)[bytes / 2] ^= 1;
    }
    return OK;
}

struct fixture {
    struct model model;
    struct metrics *metrics;
    struct engine *engine;
    struct mover *mover;
    struct faults faults;
    const struct model_layer *layer;
    uint32_t number, experts;
    float hidden[TOKENS * HIDDEN_MAX], want[TOKENS * HIDDEN_MAX];
};

static err_t forward(struct fixture *f, float *output, struct layer_timings *timings) {
    size_t width = f->layer->params.hidden_size;
    struct layer_request request = {
        .tokens = TOKENS,
        .hidden = {EXPERTD_DTYPE_F32, 2, {TOKENS, width}, f->hidden, TOKENS * width * sizeof(float)},
        .output_dtype = EXPERTD_DTYPE_F32,
        .output = output,
    };
    return layer_forward(f->engine, f->layer, &request, 1, NULL, timings);
}

static void check_bits(struct fixture *f) {
    static float got[TOKENS * HIDDEN_MAX];
    assert_false(err_is(forward(f, got, NULL)));
    assert_memory_equal(got, f->want, TOKENS * f->layer->params.hidden_size * sizeof *got);
}

static struct fixture *start(uint64_t steps_of) {
    struct fixture *f = calloc(1, sizeof *f);
    struct model_options options = {.model = "synthetic:tiny", .compute_dtype = EXPERTD_DTYPE_BF16, .ranks = RANKS};
    assert_false(err_is(model_load(&options, &f->model)));
    f->layer = &f->model.layers[f->model.num_layers - 1];
    f->number = f->layer->params.layer;
    f->experts = f->layer->params.num_experts;
    assert_true(f->layer->params.hidden_size <= HIDDEN_MAX);
    uint32_t *numbers = calloc(2 * f->model.num_layers, sizeof *numbers);
    for (size_t i = 0; i < f->model.num_layers; i++) {
        numbers[i] = f->model.layers[i].params.layer;
        numbers[f->model.num_layers + i] = f->model.layers[i].params.num_experts;
    }
    struct metrics_options metrics = {numbers, numbers + f->model.num_layers, f->model.num_layers, "tiny", "0"};
    assert_false(err_is(metrics_create(&metrics, &f->metrics)));
    free(numbers);
    struct engine_options engine = {.model = &f->model, .limits = layer_limits_for(&f->model, TOKENS, 8)};
    assert_false(err_is(engine_create(&engine, &f->engine)));
    struct mover_options mover = {.model = &f->model,
                                  .metrics = f->metrics,
                                  .move_bytes_max = steps_of * ((expert_shapes_bytes_max(&f->layer->shapes) + 4095) / 4096 * 4096),
                                  .copier = {.context = &f->faults, .reserve = reserve, .copy = copy}};
    assert_false(err_is(mover_create(&mover, &f->mover)));
    for (size_t i = 0; i < TOKENS * HIDDEN_MAX; i++) {
        f->hidden[i] = (float)((i * 2654435761u) % 1000) / 500.0f - 1.0f;
    }
    assert_false(err_is(forward(f, f->want, NULL)));
    return f;
}

static void stop(struct fixture *f) {
    mover_destroy(f->mover);
    engine_destroy(f->engine);
    metrics_destroy(f->metrics);
    model_deinit(&f->model);
    free(f);
}

// A load whose balanced placement differs between seeds.
static struct mover_placement planned(struct fixture *f, uint32_t seed, uint32_t replicas) {
    uint64_t *rows = calloc(f->experts, sizeof *rows);
    for (uint32_t e = 0; e < f->experts; e++) {
        rows[e] = 1 + (e * 7919u + seed * 104729u) % 1000;
    }
    struct mover_plan_options options = {f->number, MOVER_BALANCED, replicas, rows, f->experts};
    struct mover_placement plan;
    assert_false(err_is(mover_plan(f->mover, &options, &plan)));
    free(rows);
    return plan;
}

static void assert_in_force(struct fixture *f, const struct mover_placement *want) {
    struct mover_placement got;
    assert_false(err_is(mover_show(f->mover, f->number, &got)));
    assert_int_equal(got.num_experts, want->num_experts);
    assert_memory_equal(got.first, want->first, (want->num_experts + 1) * sizeof *want->first);
    assert_memory_equal(got.holders, want->holders, want->first[want->num_experts] * sizeof *want->holders);
    mover_placement_deinit(&got);
}

// ---- show and plan

static void show_reports_holders_and_rows(void **state) {
    (void)state;
    struct fixture *f = start(1);
    uint64_t *load = calloc(f->model.max_experts, sizeof *load);
    load[0] = 30, load[f->experts - 1] = 10;
    metrics_expert_load(f->metrics, (size_t)(f->layer - f->model.layers), load);
    struct mover_placement shown;
    assert_false(err_is(mover_show(f->mover, f->number, &shown)));
    assert_int_equal(shown.layer, f->number);
    assert_int_equal(shown.epoch, 1);
    assert_int_equal(shown.ranks, RANKS);
    assert_int_equal(shown.holders[0], 0);
    assert_int_equal(shown.holders[shown.first[f->experts - 1]], RANKS - 1);
    assert_int_equal(shown.rows[0], 30);
    assert_true(shown.imbalance > 2.24 && shown.imbalance < 2.26); // 30 of 40 rows on one rank of three
    mover_placement_deinit(&shown);
    struct mover_plan_options options = {f->number, MOVER_BALANCED, 1, NULL, 0};
    assert_false(err_is(mover_plan(f->mover, &options, &shown)));
    assert_int_equal(shown.first[1], 2); // the busiest expert has two copies
    assert_int_equal(shown.rows[0], 30);
    assert_true(shown.imbalance < 1.3);
    assert_int_equal(shown.epoch, 1);
    mover_placement_deinit(&shown);
    free(load);
    stop(f);
}

static void refuse_plan(struct fixture *f, struct mover_plan_options options, enum expertd_err_code code, const char *field) {
    struct mover_placement plan;
    assert_int_equal(mover_plan(f->mover, &options, &plan).code, code);
    assert_string_equal(expertd_err_field(), field);
    mover_placement_deinit(&plan);
}

static void impossible_plans_are_refused_naming_the_option(void **state) {
    (void)state;
    struct fixture *f = start(1);
    uint64_t rows[2] = {1, 2}, *many = calloc(f->experts, sizeof *many);
    refuse_plan(f, (struct mover_plan_options){9999, MOVER_CONTIGUOUS, 0, NULL, 0}, EXPERTD_ERR_LAYER_UNKNOWN, "layers");
    refuse_plan(f, (struct mover_plan_options){f->number, (enum mover_policy)7, 0, NULL, 0}, EXPERTD_ERR_INVALID, "policy");
    refuse_plan(f, (struct mover_plan_options){f->number, MOVER_CONTIGUOUS, 1, NULL, 0}, EXPERTD_ERR_INVALID, "replicas");
    refuse_plan(f, (struct mover_plan_options){f->number, MOVER_BALANCED, 0, rows, 2}, EXPERTD_ERR_INVALID, "counts");
    refuse_plan(f, (struct mover_plan_options){f->number, MOVER_BALANCED, 0, NULL, 0}, EXPERTD_ERR_INVALID,
                "counts"); // no load observed
    many[0] = 1;
    refuse_plan(f, (struct mover_plan_options){f->number, MOVER_BALANCED, 1u << 20, many, f->experts}, EXPERTD_ERR_INVALID,
                "replicas");
    free(many);
    stop(f);
}

// ---- apply

struct watched {
    struct fixture *f;
    unsigned calls, stop_at, copies_before, most_copies;
    uint64_t most_bytes, epochs[STEPS_MAX];
    struct mover_progress last;
};

static bool watch(void *context, const struct mover_progress *progress) {
    struct watched *w = context;
    unsigned copies = w->f->faults.copies - w->copies_before;
    w->copies_before = w->f->faults.copies;
    w->most_copies = copies > w->most_copies ? copies : w->most_copies;
    uint64_t bytes = model_weights_bytes(&w->f->model);
    w->most_bytes = bytes > w->most_bytes ? bytes : w->most_bytes;
    w->last = *progress;
    w->epochs[w->calls] = shards_epoch(w->f->layer->in_force);
    check_bits(w->f); // also between two steps
    return ++w->calls != w->stop_at;
}

static void a_plan_is_put_in_force_in_bounded_steps(void **state) {
    (void)state;
    for (uint64_t budget = 1; budget <= 3; budget++) {
        struct fixture *f = start(budget);
        uint64_t at_rest = model_weights_bytes(&f->model), epoch;
        for (uint32_t seed = 1; seed <= 4; seed++) {
            uint32_t replicas = seed % 3;
            struct mover_placement plan = planned(f, seed, replicas);
            struct watched w = {.f = f, .copies_before = f->faults.copies};
            uint64_t before = model_weights_bytes(&f->model);
            assert_false(err_is(mover_apply(f->mover, &plan, watch, &w, &epoch)));
            assert_in_force(f, &plan);
            assert_int_equal(w.last.moved_experts, w.last.all_experts);
            assert_int_equal(w.last.moved_bytes, w.last.all_bytes);
            assert_true(w.last.all_experts > 0 && w.most_copies <= budget);
            assert_int_equal(w.calls, (w.last.all_experts + budget - 1) / budget);
            assert_int_equal(epoch, plan.epoch + w.calls); // every step has its own epoch
            assert_int_equal(model_weights_bytes(&f->model), at_rest + replicas * expert_shapes_bytes_max(&f->layer->shapes));
            uint64_t steady = before > model_weights_bytes(&f->model) ? before : model_weights_bytes(&f->model);
            assert_true(w.most_bytes <= steady);
            struct layer_timings timings;
            static float got[TOKENS * HIDDEN_MAX];
            assert_false(err_is(forward(f, got, &timings)));
            assert_int_equal(timings.placement_epoch, epoch);
            mover_placement_deinit(&plan);
        }
        stop(f);
    }
}

static void a_plan_that_is_in_force_changes_nothing(void **state) {
    (void)state;
    struct fixture *f = start(1);
    struct mover_plan_options options = {f->number, MOVER_CONTIGUOUS, 0, NULL, 0};
    struct mover_placement plan;
    uint64_t epoch = 0;
    assert_false(err_is(mover_plan(f->mover, &options, &plan)));
    assert_false(err_is(mover_apply(f->mover, &plan, NULL, NULL, &epoch)));
    assert_int_equal(epoch, 1);
    assert_int_equal(f->faults.copies, 0);
    mover_placement_deinit(&plan);
    stop(f);
}

// One fault at the k-th copy, for every k: the completed steps stay in force, and a repeated move succeeds.
static void check_fault(unsigned *where, struct fixture *f, enum expertd_err_code code) {
    struct mover_placement plan = planned(f, 5, 2);
    struct watched w = {.f = f, .copies_before = f->faults.copies};
    unsigned k = *where;
    uint64_t epoch = 0;
    err_t e = mover_apply(f->mover, &plan, watch, &w, &epoch);
    assert_int_equal(e.code, code);
    assert_int_equal(w.calls, k - 1); // one copy per step
    assert_int_equal(epoch, plan.epoch + k - 1);
    assert_int_equal(shards_epoch(f->layer->in_force), epoch);
    check_bits(f);
    *where = 0;
    plan.epoch = epoch;
    assert_false(err_is(mover_apply(f->mover, &plan, NULL, NULL, &epoch)));
    assert_in_force(f, &plan);
    check_bits(f);
    mover_placement_deinit(&plan);
}

static void a_failed_copy_leaves_the_last_completed_step_in_force(void **state) {
    (void)state;
    for (unsigned k = 1; k <= 4; k++) {
        struct fixture *f = start(1);
        f->faults.fail_copy = k;
        check_fault(&f->faults.fail_copy, f, EXPERTD_ERR_IO);
        stop(f);
        f = start(1);
        f->faults.damage_copy = k; // detected by the digest
        check_fault(&f->faults.damage_copy, f, EXPERTD_ERR_IO);
        stop(f);
        f = start(1);
        f->faults.fail_reserve = k;
        check_fault(&f->faults.fail_reserve, f, EXPERTD_ERR_NOMEM);
        stop(f);
    }
}

static void a_stopped_move_leaves_the_last_step_in_force(void **state) {
    (void)state;
    struct fixture *f = start(1);
    struct mover_placement plan = planned(f, 5, 1);
    struct watched w = {.f = f, .stop_at = 2};
    uint64_t epoch;
    assert_int_equal(mover_apply(f->mover, &plan, watch, &w, &epoch).code, EXPERTD_ERR_CANCELLED);
    assert_int_equal(w.calls, 2);
    assert_int_equal(shards_epoch(f->layer->in_force), 3);
    assert_int_equal(epoch, 3);
    check_bits(f);
    mover_placement_deinit(&plan);
    stop(f);
}

static void a_bound_below_one_expert_is_refused(void **state) {
    (void)state;
    struct fixture *f = start(0);
    struct mover_placement plan = planned(f, 5, 0);
    assert_int_equal(mover_apply(f->mover, &plan, NULL, NULL, NULL).code, EXPERTD_ERR_NOMEM);
    assert_non_null(strstr(expertd_err_message(), "move_bytes_max"));
    assert_int_equal(f->faults.reserved, 0);
    mover_placement_deinit(&plan);
    stop(f);
}

// Untouched scratch is reserved: the next batch may use all of it.
static void untouched_scratch_is_not_available_to_a_move(void **state) {
    (void)state;
    struct fixture *f = start(0);
    struct mover_placement plan = planned(f, 5, 1);
    struct memory_limit limit;
    assert_false(err_is(memory_available(&limit)));
    struct engine_options engine = {.model = &f->model};
    uint32_t tokens = 1024;
    do {
        tokens *= 2;
        engine.limits = layer_limits_for(&f->model, tokens, 8);
    } while (engine_scratch_needed(&engine) < 2 * limit.bytes && tokens < 1u << 30);
    struct mover_options options = {.model = &f->model, .move_bytes_max = 1 << 30};
    assert_false(err_is(engine_create(&engine, &options.engine)));
    struct mover *mover;
    assert_false(err_is(mover_create(&options, &mover)));
    assert_int_equal(mover_apply(mover, &plan, NULL, NULL, NULL).code, EXPERTD_ERR_NOMEM);
    assert_non_null(strstr(expertd_err_message(), "scratch"));
    assert_int_equal(shards_epoch(f->layer->in_force), 1);
    mover_destroy(mover);
    engine_destroy(options.engine);
    mover_placement_deinit(&plan);
    stop(f);
}

static void replicas_beyond_the_memory_of_the_weights_are_refused(void **state) {
    (void)state;
    struct fixture *f = start(1);
    struct mover_placement plan = planned(f, 5, 1);
    struct mover_options options = {
        .model = &f->model, .move_bytes_max = 1 << 30, .weights_bytes_max = model_weights_bytes(&f->model)};
    struct mover *mover;
    assert_false(err_is(mover_create(&options, &mover)));
    assert_int_equal(mover_apply(mover, &plan, NULL, NULL, NULL).code, EXPERTD_ERR_NOMEM);
    assert_non_null(strstr(expertd_err_message(), "memory_max"));
    assert_int_equal(shards_epoch(f->layer->in_force), 1);
    mover_placement_deinit(&plan);
    plan = planned(f, 5, 0); // as many experts as before: it fits
    assert_false(err_is(mover_apply(mover, &plan, NULL, NULL, NULL)));
    mover_placement_deinit(&plan);
    mover_destroy(mover);
    stop(f);
}

static bool apply_again(void *context, const struct mover_progress *progress) {
    (void)progress;
    struct watched *w = context;
    struct mover_placement plan = planned(w->f, 6, 0);
    assert_int_equal(mover_apply(w->f->mover, &plan, NULL, NULL, NULL).code, EXPERTD_ERR_UNAVAILABLE);
    assert_non_null(strstr(expertd_err_message(), "under way"));
    mover_placement_deinit(&plan);
    return true;
}

static void a_placement_that_does_not_fit_is_refused_and_changes_nothing(void **state) {
    (void)state;
    struct fixture *f = start(1);
    struct mover_placement plan = planned(f, 5, 0);
    struct mover_placement bad = plan;
    bad.layer = 9999;
    assert_int_equal(mover_apply(f->mover, &bad, NULL, NULL, NULL).code, EXPERTD_ERR_LAYER_UNKNOWN);
    bad = plan, bad.epoch++;
    assert_int_equal(mover_apply(f->mover, &bad, NULL, NULL, NULL).code, EXPERTD_ERR_UNAVAILABLE);
    bad = plan, bad.ranks++;
    assert_int_equal(mover_apply(f->mover, &bad, NULL, NULL, NULL).code, EXPERTD_ERR_INVALID);
    bad = plan, bad.num_experts--;
    assert_int_equal(mover_apply(f->mover, &bad, NULL, NULL, NULL).code, EXPERTD_ERR_INVALID);
    plan.holders[0] += RANKS;
    assert_int_equal(mover_apply(f->mover, &plan, NULL, NULL, NULL).code, EXPERTD_ERR_INVALID);
    plan.holders[0] -= RANKS;
    assert_int_equal(shards_epoch(f->layer->in_force), 1);
    struct watched w = {.f = f};
    assert_false(err_is(mover_apply(f->mover, &plan, apply_again, &w, NULL)));
    mover_placement_deinit(&plan);
    stop(f);
}

// ---- moves while the layer is served

struct server {
    struct fixture *f;
    atomic_bool stop;
    atomic_uint batches, wrong;
    uint64_t last_epoch;
    bool epochs_fell;
};

static void *serve(void *context) {
    struct server *s = context;
    static float got[TOKENS * HIDDEN_MAX];
    while (!atomic_load(&s->stop)) {
        struct layer_timings timings;
        size_t bytes = TOKENS * s->f->layer->params.hidden_size * sizeof *got;
        memset(got, 0xff, bytes);
        bool right = !err_is(forward(s->f, got, &timings)) && memcmp(got, s->f->want, bytes) == 0;
        s->epochs_fell |= timings.placement_epoch < s->last_epoch;
        s->last_epoch = timings.placement_epoch;
        atomic_fetch_add(&s->wrong, !right);
        atomic_fetch_add(&s->batches, 1);
    }
    return NULL;
}

static void moves_run_beside_batches_and_no_bit_changes(void **state) {
    (void)state;
    struct fixture *f = start(2);
    struct server s = {.f = f};
    pthread_t thread;
    uint64_t epoch = 0;
    assert_int_equal(pthread_create(&thread, NULL, serve, &s), 0);
    for (uint32_t seed = 1; seed <= 30 || (atomic_load(&s.batches) < 50 && seed < 3000); seed++) {
        struct mover_placement plan = planned(f, seed, seed % 4);
        assert_false(err_is(mover_apply(f->mover, &plan, NULL, NULL, &epoch)));
        assert_in_force(f, &plan);
        mover_placement_deinit(&plan);
    }
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&s.wrong), 0);
    assert_false(s.epochs_fell);
    assert_true(atomic_load(&s.batches) > 0 && epoch > 30);
    stop(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(show_reports_holders_and_rows),
        cmocka_unit_test(impossible_plans_are_refused_naming_the_option),
        cmocka_unit_test(a_plan_is_put_in_force_in_bounded_steps),
        cmocka_unit_test(a_plan_that_is_in_force_changes_nothing),
        cmocka_unit_test(a_failed_copy_leaves_the_last_completed_step_in_force),
        cmocka_unit_test(a_stopped_move_leaves_the_last_step_in_force),
        cmocka_unit_test(a_bound_below_one_expert_is_refused),
        cmocka_unit_test(untouched_scratch_is_not_available_to_a_move),
        cmocka_unit_test(replicas_beyond_the_memory_of_the_weights_are_refused),
        cmocka_unit_test(a_placement_that_does_not_fit_is_refused_and_changes_nothing),
        cmocka_unit_test(moves_run_beside_batches_and_no_bit_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
