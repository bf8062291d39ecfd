// Tests the compute thread: each request is returned once, complete, whether it was split or not, with rows or without.
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
#include "daemon/request/worker.h"
#include "expert/engine/engine.h"
#include "expert/loader/model_load.h"

enum { TOKENS = 5, TOP_K = 2, BATCH_TOKENS = 16, HIDDEN_MAX = 1024 };

struct fixture {
    struct model model;
    struct engine *engine;
    struct worker *worker;
    atomic_bool hold; // the next `done` waits for `go`
    sem_t held, go, done;
};

struct submitted {
    struct worker_item item; // first: `done` casts it back to this struct
    struct fixture *fixture;
    int32_t ids[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K];
    float hidden[TOKENS * HIDDEN_MAX], output[TOKENS * HIDDEN_MAX];
    int times;  // calls of `done`
    sem_t over; // posted instead of the fixture's, if has_over is set
    bool has_over;
};

static void on_done(void *context, struct worker_item *item) {
    struct fixture *f = context;
    struct submitted *submitted = (struct submitted *)item;
    submitted->times++;
    if (atomic_exchange(&f->hold, false)) {
        sem_post(&f->held);
        sem_wait(&f->go);
    }
    sem_post(submitted->has_over ? &submitted->over : &f->done);
}

static struct fixture *start(size_t max_piece_tokens, int64_t max_delay_ns) {
    struct fixture *f = calloc(1, sizeof *f);
    sem_init(&f->held, 0, 0);
    sem_init(&f->go, 0, 0);
    sem_init(&f->done, 0, 0);
    struct model_options model = {.model = "synthetic:tiny", .compute_dtype = EXPERTD_DTYPE_BF16, .ranks = 1};
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

static struct expertd_tensor_view view(enum expertd_dtype dtype, const void *data, uint64_t columns) {
    return (struct expertd_tensor_view){
        .dtype = dtype, .rank = 2, .shape = {TOKENS, columns}, .data = data, .bytes = TOKENS * columns * expertd_dtype_size(dtype)};
}

// A request for the first layer; every choice is expert `id`.
static struct submitted *create_request(struct fixture *f, int32_t id) {
    struct submitted *submitted = calloc(1, sizeof *submitted);
    size_t width = f->model.layers[0].params.hidden_size;
    submitted->fixture = f;
    for (size_t i = 0; i < TOKENS * TOP_K; i++) {
        submitted->ids[i] = id;
        submitted->weights[i] = 0.5F;
    }
    for (size_t i = 0; i < TOKENS * width; i++) {
        submitted->hidden[i] = 1;
        submitted->output[i] = NAN;
    }
    submitted->item = (struct worker_item){
        .entry = {.tokens = TOKENS, .choices = TOP_K, .deadline_ns = CLOCK_NEVER},
        .request = {.tokens = TOKENS,
                    .hidden = view(EXPERTD_DTYPE_F32, submitted->hidden, width),
                    .source = ROUTING_GIVEN,
                    .ids = view(EXPERTD_DTYPE_I32, submitted->ids, TOP_K),
                    .weights = view(EXPERTD_DTYPE_F32, submitted->weights, TOP_K),
                    .output_dtype = EXPERTD_DTYPE_F32,
                    .output = submitted->output},
    };
    return submitted;
}

// The request was returned once, without an error, and every value was written.
static void check(struct submitted *submitted, bool zeros) {
    size_t values = TOKENS * submitted->fixture->model.layers[0].params.hidden_size;
    assert_int_equal(submitted->times, 1);
    assert_int_equal(submitted->item.error, EXPERTD_ERR_OK);
    assert_true(submitted->item.timings.placement_epoch > 0);
    for (size_t i = 0; i < values; i++) {
        assert_false(isnan(submitted->output[i]));
        assert_true(!zeros || submitted->output[i] == 0);
    }
    free(submitted);
}

static void ask_and_check(struct fixture *f, int32_t id) {
    struct submitted *submitted = create_request(f, id);
    worker_submit(f->worker, &submitted->item);
    sem_wait(&f->done);
    check(submitted, id < 0);
}

static void a_request_is_answered_with_and_without_rows(void **state) {
    (void)state;
    struct fixture *f = start(BATCH_TOKENS, 0);
    ask_and_check(f, 1);
    ask_and_check(f, -1);
    stop(f);
}

static void a_split_request_is_returned_once(void **state) {
    (void)state;
    struct fixture *f = start(2, 0);
    ask_and_check(f, 1);
    ask_and_check(f, -1);
    stop(f);
}

static void a_request_waits_for_the_running_batch(void **state) {
    (void)state;
    struct fixture *f = start(BATCH_TOKENS, 0);
    f->hold = true;
    struct submitted *first = create_request(f, 1), *second = create_request(f, -1);
    worker_submit(f->worker, &first->item);
    sem_wait(&f->held);
    worker_submit(f->worker, &second->item);
    assert_int_equal(second->times, 0);
    sem_post(&f->go);
    sem_wait(&f->done);
    sem_wait(&f->done);
    check(first, false);
    check(second, true);
    stop(f);
}

// The submitting thread may still be in worker_submit when `done` runs; the worker is then stopped and freed.
static void a_worker_may_stop_as_soon_as_its_last_request_is_done(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct fixture *f = start(BATCH_TOKENS, 0);
        ask_and_check(f, -1);
        stop(f);
    }
}

// Four threads, requests with and without rows: each is answered once. Run it with ThreadSanitizer.
static void *submit_many(void *context) {
    struct fixture *f = context;
    for (int i = 0; i < 100; i++) {
        struct submitted *submitted = create_request(f, i % 4 == 0 ? 1 : -1);
        sem_init(&submitted->over, 0, 0);
        submitted->has_over = true;
        worker_submit(f->worker, &submitted->item);
        sem_wait(&submitted->over);
        sem_destroy(&submitted->over);
        check(submitted, i % 4 != 0);
    }
    return NULL;
}

static void many_submitters_are_each_answered_once(void **state) {
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
        cmocka_unit_test(a_request_is_answered_with_and_without_rows),
        cmocka_unit_test(a_split_request_is_returned_once),
        cmocka_unit_test(a_request_waits_for_the_running_batch),
        cmocka_unit_test(a_worker_may_stop_as_soon_as_its_last_request_is_done),
        cmocka_unit_test(many_submitters_are_each_answered_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
