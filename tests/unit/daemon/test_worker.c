// On which thread a request is computed: the worker's, or its submitter's where there is nothing to compute and nobody to wait for.
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "daemon/worker.h"

enum { TOKENS = 5, TOP_K = 2, BATCH_TOKENS = 16, HIDDEN_MAX = 1024 };

struct fixture {
    struct model model;
    struct engine *engine;
    struct worker *worker;
    atomic_bool hold; // the next `done` waits for `go`
    sem_t held, go, done;
};

struct asked {
    struct worker_item item; // first: `done` casts it back
    struct fixture *fixture;
    int32_t ids[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K];
    float hidden[TOKENS * HIDDEN_MAX], output[TOKENS * HIDDEN_MAX];
    int times;        // that `done` came
    pthread_t thread; // on which
    sem_t over;       // where has_over: posted instead of the fixture's
    bool has_over;
};

static void on_done(void *context, struct worker_item *item) {
    struct fixture *f = context;
    struct asked *asked = (struct asked *)item;
    asked->times++;
    asked->thread = pthread_self();
    if (atomic_exchange(&f->hold, false)) {
        sem_post(&f->held);
        sem_wait(&f->go);
    }
    sem_post(asked->has_over ? &asked->over : &f->done);
}

static struct fixture *start(size_t max_piece_tokens, int64_t max_delay_ns) {
    struct fixture *f = calloc(1, sizeof *f);
    sem_init(&f->held, 0, 0);
    sem_init(&f->go, 0, 0);
    sem_init(&f->done, 0, 0);
    struct model_options model = {.model = "synthetic:tiny", .compute_dtype = DTYPE_BF16, .ranks = 1};
    assert_false(err_is(model_load(&model, &f->model)));
    assert_true(f->model.layers[0].params.hidden_size <= HIDDEN_MAX);
    struct layer_limits limits = layer_limits_for(&f->model, BATCH_TOKENS, 8);
    assert_false(err_is(engine_create(&(struct engine_options){.model = &f->model, .limits = limits}, &f->engine)));
    struct worker_options options = {.model = &f->model,
                                     .engine = f->engine,
                                     .limits = {.max_tokens = BATCH_TOKENS,
                                                .max_choices = limits.max_choices,
                                                .max_piece_tokens = max_piece_tokens,
                                                .max_delay_ns = max_delay_ns},
                                     .done = on_done,
                                     .context = f};
    assert_false(err_is(worker_start(&options, &f->worker)));
    return f;
}

static void stop(struct fixture *f) {
    worker_stop(f->worker);
    engine_destroy(f->engine);
    model_deinit(&f->model);
    sem_destroy(&f->held);
    sem_destroy(&f->go);
    sem_destroy(&f->done);
    free(f);
}

static struct tensor_view view(enum dtype dtype, const void *data, uint64_t columns) {
    return (struct tensor_view){
        .dtype = dtype, .rank = 2, .shape = {TOKENS, columns}, .data = data, .bytes = TOKENS * columns * dtype_size(dtype)};
}

// Of the first layer; every choice is `id`.
static struct asked *ask(struct fixture *f, int32_t id) {
    struct asked *asked = calloc(1, sizeof *asked);
    size_t width = f->model.layers[0].params.hidden_size;
    asked->fixture = f;
    for (size_t i = 0; i < TOKENS * TOP_K; i++) {
        asked->ids[i] = id;
        asked->weights[i] = 0.5F;
    }
    for (size_t i = 0; i < TOKENS * width; i++) {
        asked->hidden[i] = 1;
        asked->output[i] = NAN;
    }
    asked->item = (struct worker_item){
        .entry = {.tokens = TOKENS, .choices = TOP_K, .deadline_ns = CLOCK_NEVER},
        .light = id < 0,
        .request = {.tokens = TOKENS,
                    .hidden = view(DTYPE_F32, asked->hidden, width),
                    .source = ROUTING_GIVEN,
                    .ids = view(DTYPE_I32, asked->ids, TOP_K),
                    .weights = view(DTYPE_F32, asked->weights, TOP_K),
                    .output_dtype = DTYPE_F32,
                    .output = asked->output},
    };
    return asked;
}

// It is done once, without an error, and no value is left unwritten.
static void check(struct asked *asked, bool zeros) {
    size_t values = TOKENS * asked->fixture->model.layers[0].params.hidden_size;
    assert_int_equal(asked->times, 1);
    assert_int_equal(asked->item.error, ERR_OK);
    assert_true(asked->item.timings.placement_epoch > 0);
    for (size_t i = 0; i < values; i++) {
        assert_false(isnan(asked->output[i]));
        assert_true(!zeros || asked->output[i] == 0);
    }
    free(asked);
}

static bool is_here(const struct asked *asked) {
    return pthread_equal(asked->thread, pthread_self()) != 0;
}

static void a_light_request_is_computed_by_its_submitter(void **state) {
    (void)state;
    struct fixture *f = start(BATCH_TOKENS, 0);
    for (int i = 0; i < 3; i++) {
        struct asked *light = ask(f, -1);
        assert_true(worker_submit(f->worker, &light->item));
        assert_true(is_here(light));
        check(light, true);
    }
    stop(f);
}

static void one_that_is_cut_is_computed_whole_before_submit_returns(void **state) {
    (void)state;
    struct fixture *f = start(2, 0);
    struct asked *light = ask(f, -1);
    assert_true(worker_submit(f->worker, &light->item));
    assert_true(is_here(light));
    check(light, true);
    stop(f);
}

static void a_request_with_rows_is_computed_by_the_worker(void **state) {
    (void)state;
    struct fixture *f = start(BATCH_TOKENS, 0);
    struct asked *heavy = ask(f, 1);
    assert_false(worker_submit(f->worker, &heavy->item));
    sem_wait(&f->done);
    assert_false(is_here(heavy));
    check(heavy, false);
    stop(f);
}

// The engine is one thread's at a time.
static void a_light_request_waits_for_the_batch_under_way(void **state) {
    (void)state;
    struct fixture *f = start(BATCH_TOKENS, 0);
    f->hold = true;
    struct asked *heavy = ask(f, 1), *light = ask(f, -1);
    assert_false(worker_submit(f->worker, &heavy->item));
    sem_wait(&f->held);
    assert_false(worker_submit(f->worker, &light->item));
    assert_int_equal(light->times, 0);
    sem_post(&f->go);
    sem_wait(&f->done);
    sem_wait(&f->done);
    assert_false(is_here(light));
    check(heavy, false);
    check(light, true);
    stop(f);
}

static void a_light_request_waits_for_company_where_batches_do(void **state) {
    (void)state;
    struct fixture *f = start(BATCH_TOKENS, 5 * NS_PER_MS);
    struct asked *light = ask(f, -1);
    assert_false(worker_submit(f->worker, &light->item));
    sem_wait(&f->done);
    assert_false(is_here(light));
    check(light, true);
    stop(f);
}

// Four threads, with and without rows: each is answered once, on whichever thread (ThreadSanitizer watches the engine).
static void *submit_many(void *context) {
    struct fixture *f = context;
    for (int i = 0; i < 100; i++) {
        struct asked *asked = ask(f, i % 4 == 0 ? 1 : -1);
        sem_init(&asked->over, 0, 0);
        asked->has_over = true;
        (void)worker_submit(f->worker, &asked->item);
        sem_wait(&asked->over);
        sem_destroy(&asked->over);
        check(asked, i % 4 != 0);
    }
    return NULL;
}

static void submitters_and_the_worker_take_turns_at_the_engine(void **state) {
    (void)state;
    struct fixture *f = start(2, 0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, submit_many, f), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    stop(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_light_request_is_computed_by_its_submitter),
        cmocka_unit_test(one_that_is_cut_is_computed_whole_before_submit_returns),
        cmocka_unit_test(a_request_with_rows_is_computed_by_the_worker),
        cmocka_unit_test(a_light_request_waits_for_the_batch_under_way),
        cmocka_unit_test(a_light_request_waits_for_company_where_batches_do),
        cmocka_unit_test(submitters_and_the_worker_take_turns_at_the_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
