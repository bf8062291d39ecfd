#include "daemon/worker.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/metrics.h"

struct worker {
    struct worker_options options;
    pthread_t thread;
    uint64_t *expert_load; // [max_experts] of one batch
    // Guards batcher and stopping; taken alone, held for a list walk, never while computing or calling back.
    pthread_mutex_t mutex;
    pthread_cond_t waiting; // signalled when there may be work, or the end
    struct batcher batcher;
    bool stopping;
};

static struct worker_item *item_of(struct batcher_entry *entry) {
    return (struct worker_item *)((char *)entry - offsetof(struct worker_item, entry));
}

static void fail_item(struct worker_item *item, enum err_code code, const char *message) {
    item->error = code;
    snprintf(item->message, sizeof item->message, "%s", message);
}

// Sleeps until there is a batch; 0 at the end.
static size_t next_batch(struct worker *worker, struct batcher_entry *entries[BATCH_REQUESTS_MAX]) {
    size_t count = 0;
    pthread_mutex_lock(&worker->mutex);
    while (!worker->stopping && (count = batcher_next(&worker->batcher, entries)) == 0) {
        pthread_cond_wait(&worker->waiting, &worker->mutex);
    }
    pthread_mutex_unlock(&worker->mutex);
    return count;
}

// A request past its deadline is not computed: hands those back and closes the ranks. Returns how many are left.
static size_t drop_expired(struct worker *worker, struct worker_item **items, size_t count, int64_t now_ns) {
    size_t left = 0;
    for (size_t i = 0; i < count; i++) {
        if (items[i]->entry.deadline_ns > now_ns) {
            items[left++] = items[i];
            continue;
        }
        fail_item(items[i], ERR_DEADLINE, "the deadline passed while the request waited for its batch");
        items[i]->started_ns = now_ns;
        worker->options.done(worker->options.context, items[i]);
    }
    return left;
}

static void count_batch(struct worker *worker, size_t layer, uint64_t tokens, size_t requests, const struct layer_timings *t) {
    struct metrics *metrics = worker->options.metrics;
    if (!metrics) {
        return;
    }
    metrics_batch(metrics, layer, tokens, requests);
    metrics_expert_load(metrics, layer, worker->expert_load);
    metrics_stage(metrics, STAGE_ROUTE, t->route);
    metrics_stage(metrics, STAGE_EXCHANGE, t->exchange);
    metrics_stage(metrics, STAGE_COMPUTE, t->compute);
    metrics_stage(metrics, STAGE_COMBINE, t->combine);
}

static void run_batch(struct worker *worker, struct worker_item **items, size_t count) {
    int64_t started_ns = clock_now_ns();
    count = drop_expired(worker, items, count, started_ns);
    if (count == 0) {
        return;
    }
    const struct model_layer *layer = &worker->options.model->layers[items[0]->entry.layer];
    struct layer_request requests[BATCH_REQUESTS_MAX];
    size_t tokens = 0;
    for (size_t i = 0; i < count; i++) {
        requests[i] = items[i]->request;
        tokens += requests[i].tokens;
    }
    memset(worker->expert_load, 0, worker->options.model->max_experts * sizeof *worker->expert_load);
    struct layer_timings timings = {0};
    err_t e = layer_forward(worker->options.engine, layer, requests, count, worker->expert_load, &timings);
    if (!err_is(e)) {
        count_batch(worker, items[0]->entry.layer, tokens, count, &timings);
    }
    for (size_t i = 0; i < count; i++) {
        struct worker_item *item = items[i];
        fail_item(item, e.code, err_is(e) ? err_message() : "");
        item->started_ns = started_ns;
        item->timings = timings;
        item->batch_tokens = (uint32_t)tokens;
        item->batch_requests = (uint32_t)count;
        worker->options.done(worker->options.context, item);
    }
}

// What still waits at the end goes back unanswered.
static void hand_back(struct worker *worker) {
    struct batcher_entry *entries[BATCH_REQUESTS_MAX];
    size_t count;
    while ((count = batcher_next(&worker->batcher, entries)) > 0) {
        for (size_t i = 0; i < count; i++) {
            fail_item(item_of(entries[i]), ERR_DRAINING, "the service is shutting down: send to another one");
            worker->options.done(worker->options.context, item_of(entries[i]));
        }
    }
}

static void *worker_main(void *context) {
    struct worker *worker = context;
    struct batcher_entry *entries[BATCH_REQUESTS_MAX];
    struct worker_item *items[BATCH_REQUESTS_MAX];
    size_t count;
    while ((count = next_batch(worker, entries)) > 0) {
        for (size_t i = 0; i < count; i++) {
            items[i] = item_of(entries[i]);
        }
        run_batch(worker, items, count);
    }
    return NULL;
}

FALLIBLE worker_start(const struct worker_options *options, struct worker **out) {
    *out = NULL;
    struct worker *worker = calloc(1, sizeof *worker);
    uint64_t *load = calloc(options->model->max_experts ? options->model->max_experts : 1, sizeof *load);
    if (!worker || !load) {
        free(worker);
        free(load);
        FAIL(ERR_NOMEM, "no memory for the worker");
    }
    worker->options = *options;
    worker->expert_load = load;
    batcher_init(&worker->batcher, &options->limits);
    pthread_mutex_init(&worker->mutex, NULL);
    pthread_cond_init(&worker->waiting, NULL);
    int error = pthread_create(&worker->thread, NULL, worker_main, worker);
    if (error) {
        free(load);
        free(worker);
        FAIL(ERR_UNAVAILABLE, "cannot start the compute thread: %s", strerror(error));
    }
    pthread_setname_np(worker->thread, "compute");
    *out = worker;
    return OK;
}

void worker_submit(struct worker *worker, struct worker_item *item) {
    pthread_mutex_lock(&worker->mutex);
    batcher_push(&worker->batcher, &item->entry);
    pthread_mutex_unlock(&worker->mutex);
    pthread_cond_signal(&worker->waiting); // after the unlock: else the worker wakes only to wait for the mutex
}

bool worker_withdraw(struct worker *worker, struct worker_item *item) {
    pthread_mutex_lock(&worker->mutex);
    bool withdrawn = batcher_remove(&worker->batcher, &item->entry);
    pthread_mutex_unlock(&worker->mutex);
    return withdrawn;
}

void worker_stop(struct worker *worker) {
    if (!worker) {
        return;
    }
    pthread_mutex_lock(&worker->mutex);
    worker->stopping = true;
    pthread_cond_signal(&worker->waiting);
    pthread_mutex_unlock(&worker->mutex);
    pthread_join(worker->thread, NULL);
    hand_back(worker);
    pthread_cond_destroy(&worker->waiting);
    pthread_mutex_destroy(&worker->mutex);
    free(worker->expert_load);
    free(worker);
}
