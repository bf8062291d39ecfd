#include "daemon/request/worker.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory_cause.h"
#include "daemon/log/log.h"
#include "daemon/metrics/metrics.h"
#include "expert/engine/engine.h"
#include "expert/layer/layer_piece.h"

struct worker {
    struct worker_options options;
    pthread_t thread;
    uint64_t *expert_load; // [max_experts] rows per expert of one batch
    // Guards batcher and stopping. Taken with no other lock held, for a walk over a list; not held while computing or in callbacks.
    pthread_mutex_t mutex;
    pthread_cond_t waiting; // signalled by a new request, and by worker_stop
    struct batcher batcher;
    struct batcher_layer *layers; // the batcher's memory
    bool stopping;
    // The compute thread only.
    bool lost_reported;
    int64_t next_lost_ns; // of the log line
    unsigned long losses_unlogged;
};

// One batch, from the batcher to its answers.
struct batch {
    struct batcher_piece pieces[BATCH_REQUESTS_MAX];
    size_t count, tokens;
    bool idle;                                         // the worker had waited for it
    struct layer_request requests[BATCH_REQUESTS_MAX]; // views of the pieces, while the engine has the batch
    struct layer_pass *pass;                           // NULL: its input is not converted yet
    int64_t started_ns;
};

static struct worker_item *item_of(struct batcher_entry *entry) {
    return (struct worker_item *)((char *)entry - offsetof(struct worker_item, entry));
}

// The request keeps the first failure of its batches.
static void fail_item(struct worker_item *item, enum expertd_err_code code, const char *message) {
    if (item->error != EXPERTD_ERR_OK) {
        return;
    }
    item->error = code;
    snprintf(item->message, sizeof item->message, "%s", message);
}

// ---- from the batcher

// Waits until again_ns or a signal. The caller holds the mutex.
static void await_work(struct worker *worker, int64_t again_ns) {
    if (again_ns == CLOCK_NEVER) {
        pthread_cond_wait(&worker->waiting, &worker->mutex);
        return;
    }
    struct timespec until = {.tv_sec = again_ns / NS_PER_S, .tv_nsec = again_ns % NS_PER_S};
    pthread_cond_timedwait(&worker->waiting, &worker->mutex, &until);
}

// Takes the batch that is due. False: none is, and *again_ns is when to look again. The caller holds the mutex.
static bool take_batch(struct worker *worker, struct batch *batch, int64_t *again_ns) {
    batch->count = batcher_next(&worker->batcher, clock_now_ns(), batch->pieces, again_ns);
    for (size_t i = 0; i < batch->count; i++) {
        item_of(batch->pieces[i].entry)->batches++;
    }
    return batch->count > 0;
}

// Waits for a batch. batch->count is 0 if the worker is stopping.
static void next_batch(struct worker *worker, struct batch *batch) {
    batch->count = 0;
    batch->idle = false;
    pthread_mutex_lock(&worker->mutex);
    while (!worker->stopping) {
        int64_t again_ns;
        if (take_batch(worker, batch, &again_ns)) {
            break;
        }
        batch->idle = true;
        await_work(worker, again_ns);
    }
    pthread_mutex_unlock(&worker->mutex);
}

// Called while a batch is computed. Takes the next batch if it is due and large; otherwise batch->count is 0.
static void next_large_batch(struct worker *worker, struct batch *batch) {
    int64_t again_ns;
    batch->count = 0;
    batch->idle = false;
    pthread_mutex_lock(&worker->mutex);
    if (!worker->stopping && batcher_next_is_large(&worker->batcher, clock_now_ns())) {
        take_batch(worker, batch, &again_ns);
    }
    pthread_mutex_unlock(&worker->mutex);
}

static void return_item(struct worker *worker, struct worker_item *item) {
    worker->options.done(worker->options.context, item);
}

// A batch no longer holds the item. True: the item is done: its last row was computed, it failed, or it was withdrawn meanwhile.
static bool leave_batch(struct worker *worker, struct worker_item *item) {
    pthread_mutex_lock(&worker->mutex);
    item->batches--;
    if (item->error != EXPERTD_ERR_OK) {
        batcher_remove(&worker->batcher, &item->entry);
    }
    bool over = !item->entry.queued && item->batches == 0;
    pthread_mutex_unlock(&worker->mutex);
    return over;
}

// Removes the requests whose deadline has passed from the batch, and returns them.
static void drop_expired(struct worker *worker, struct batch *batch, int64_t now_ns) {
    size_t left = 0;
    for (size_t i = 0; i < batch->count; i++) {
        struct worker_item *item = item_of(batch->pieces[i].entry);
        if (item->entry.deadline_ns > now_ns) {
            batch->pieces[left++] = batch->pieces[i];
            continue;
        }
        fail_item(item, EXPERTD_ERR_DEADLINE, "the deadline passed while the request waited for its batch");
        item->started_ns = item->started_ns ? item->started_ns : now_ns;
        if (leave_batch(worker, item)) { // otherwise the batch being computed holds rows of it
            return_item(worker, item);
        }
    }
    batch->count = left;
}

// ---- the batch

static void count_batch(struct worker *worker, size_t layer, const struct batch *batch, const struct layer_timings *t) {
    struct metrics *metrics = worker->options.metrics;
    if (!metrics) {
        return;
    }
    metrics_batch(metrics, layer, batch->tokens, batch->count);
    metrics_rows_direct(metrics, t->rows_direct);
    metrics_expert_load(metrics, layer, worker->expert_load);
    metrics_stage(metrics, STAGE_ROUTE, t->route);
    metrics_stage(metrics, STAGE_EXCHANGE, t->exchange);
    metrics_stage(metrics, STAGE_COMPUTE, t->compute);
    metrics_stage(metrics, STAGE_COMBINE, t->combine);
}

static void add_timings(struct layer_timings *to, const struct layer_timings *from) {
    to->route += from->route;
    to->exchange += from->exchange;
    to->compute += from->compute;
    to->combine += from->combine;
    to->placement_epoch = from->placement_epoch; // of the last piece: the placement changes no bit of the answer
}

// Drops expired requests, and converts the input of the rest. All of them may have expired: then the batch has no pieces.
static void convert_input(struct worker *worker, struct batch *batch) {
    batch->pass = NULL;
    batch->tokens = 0;
    batch->started_ns = clock_now_ns();
    drop_expired(worker, batch, batch->started_ns);
    if (batch->count == 0) {
        return;
    }
    const struct model_layer *layer = &worker->options.model->layers[batch->pieces[0].entry->layer];
    for (size_t i = 0; i < batch->count; i++) {
        const struct batcher_piece *piece = &batch->pieces[i];
        batch->requests[i] =
            layer_request_piece(&item_of(piece->entry)->request, piece->first, piece->tokens, layer->params.hidden_size);
        batch->requests[i].deadline_ns = piece->entry->deadline_ns;
        batch->tokens += piece->tokens;
    }
    batch->pass = layer_pass_input(worker->options.engine, layer, batch->requests, batch->count);
}

static FALLIBLE finish(struct worker *worker, const struct batch *batch, struct layer_timings *timings) {
    memset(worker->expert_load, 0, worker->options.model->max_experts * sizeof *worker->expert_load);
    TRY(layer_pass_finish(batch->pass, worker->expert_load, timings));
    count_batch(worker, batch->pieces[0].entry->layer, batch, timings);
    return OK;
}

// Logs the loss of a shard once for all requests of the batch, and reports a permanent loss to the owner. While an expert has no
// shard every batch that needs it is lost: then at most one line per second, with the number of those left out. A device's loss is
// rare.
static void report_lost(struct worker *worker, const struct batch *batch) {
    struct engine_exchange exchange;
    struct err_copy error;
    char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    err_save((err_t){EXPERTD_ERR_SHARD_LOST}, &error); // kept for the answers of the requests
    engine_exchange_state(worker->options.engine, &exchange);
    const int64_t now_ns = clock_now_ns();
    const bool is_due = engine_overlaps(worker->options.engine) || now_ns >= worker->next_lost_ns;
    log_line(is_due ? LOG_LEVEL_WARNING : LOG_LEVEL_DEBUG, "shard_lost",
             "requests=%zu tokens=%zu for_good=%d since_last=%lu message=%s", batch->count, batch->tokens, exchange.lost,
             worker->losses_unlogged, log_quote(error.message, quoted, sizeof quoted));
    worker->losses_unlogged = is_due ? 0 : worker->losses_unlogged + 1;
    worker->next_lost_ns = is_due ? clock_add_ns(now_ns, NS_PER_S) : worker->next_lost_ns;
    if (exchange.lost && !worker->lost_reported && worker->options.lost) {
        worker->lost_reported = true;
        worker->options.lost(worker->options.lost_context);
    }
    (void)err_restore(&error);
}

static void answer(struct worker *worker, const struct batch *batch, err_t e, const struct layer_timings *timings) {
    for (size_t i = 0; i < batch->count; i++) {
        struct worker_item *item = item_of(batch->pieces[i].entry);
        fail_item(item, e.code, err_is(e) ? expertd_err_message() : "");
        item->started_ns = item->started_ns ? item->started_ns : batch->started_ns;
        add_timings(&item->timings, timings);
        if (batch->tokens >= item->batch_tokens) {
            item->batch_tokens = (uint32_t)batch->tokens;
            item->batch_requests = (uint32_t)batch->count;
        }
        if (leave_batch(worker, item)) {
            return_item(worker, item);
        }
    }
}

// Computes a batch. If the engine can overlap, a large next batch is converted meanwhile.
static void run_batch(struct worker *worker, const struct batch *batch, struct batch *next) {
    struct layer_timings timings = {0};
    int64_t begun_ns = clock_now_ns();
    layer_pass_compute(batch->pass);
    next->count = 0;
    if (engine_overlaps(worker->options.engine)) {
        next_large_batch(worker, next);
        convert_input(worker, next);
        if (next->count > 0 && worker->options.metrics) {
            metrics_batch_ahead(worker->options.metrics);
        }
    }
    err_t e = finish(worker, batch, &timings);
    if (e.code == EXPERTD_ERR_SHARD_LOST) {
        report_lost(worker, batch);
    }
    if (worker->options.batched) {
        worker->options.batched(worker->options.context, batch->tokens, clock_now_ns() - begun_ns, batch->idle);
    }
    answer(worker, batch, e, &timings);
}

// Returns the requests that wait when the worker stops.
static void return_waiting(struct worker *worker) {
    for (size_t i = 0; i < worker->batcher.num_layers; i++) {
        struct batcher_entry *entry;
        while ((entry = worker->layers[i].first)) {
            batcher_remove(&worker->batcher, entry);
            fail_item(item_of(entry), EXPERTD_ERR_DRAINING, "the service is shutting down: send to another one");
            return_item(worker, item_of(entry));
        }
    }
}

// Waits for the next batch and converts its input. False: the worker is stopping.
static bool await_batch(struct worker *worker, struct batch *batch) {
    do {
        next_batch(worker, batch);
        if (batch->count == 0) {
            return false;
        }
        convert_input(worker, batch);
    } while (batch->count == 0); // all of its requests had expired
    return true;
}

static void *worker_main(void *context) {
    struct worker *worker = context;
    struct batch batches[2], *batch = &batches[0], *next = &batches[1];
    next->count = 0;
    while (next->count > 0 || await_batch(worker, next)) {
        struct batch *converted = next;
        next = batch;
        batch = converted;
        run_batch(worker, batch, next);
    }
    return NULL;
}

static FALLIBLE create_lock(struct worker *worker) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); // the clock of clock_now_ns
    int error = pthread_cond_init(&worker->waiting, &attributes);
    pthread_condattr_destroy(&attributes);
    if (error) {
        FAIL(EXPERTD_ERR_NOMEM, "cannot create the condition variable of the compute thread: %s", strerror(error));
    }
    pthread_mutex_init(&worker->mutex, NULL);
    return OK;
}

static void free_worker(struct worker *worker) {
    free(worker->expert_load);
    free(worker->layers);
    free(worker);
}

FALLIBLE worker_start(const struct worker_options *options, struct worker **out) {
    *out = NULL;
    size_t num_layers = options->model->num_layers, max_experts = options->model->max_experts;
    struct worker *worker = calloc(1, sizeof *worker);
    if (!worker) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the worker");
    }
    worker->options = *options;
    worker->expert_load = calloc(max_experts + 1, sizeof *worker->expert_load);
    worker->layers = calloc(num_layers + 1, sizeof *worker->layers);
    err_t e = OK;
    if (!worker->expert_load || !worker->layers) {
        e = err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for the worker's %zu layers", num_layers);
        goto out;
    }
    batcher_init(&worker->batcher, &options->limits, worker->layers, num_layers);
    TRY_OUT(e, create_lock(worker));
    int error = pthread_create(&worker->thread, NULL, worker_main, worker);
    if (error) {
        char cause[MEMORY_CAUSE_MAX];
        e = err_record(EXPERTD_ERR_UNAVAILABLE, NULL, "cannot start the compute thread: %s", memory_cause_of_thread(error, cause));
        goto out;
    }
    pthread_setname_np(worker->thread, "compute");
    *out = worker;
    return OK;
out:
    free_worker(worker);
    return e;
}

void worker_submit(struct worker *worker, struct worker_item *item) {
    item->error = EXPERTD_ERR_OK;
    item->message[0] = '\0';
    item->batches = 0;
    pthread_mutex_lock(&worker->mutex);
    batcher_push(&worker->batcher, &item->entry, clock_now_ns());
    pthread_cond_signal(&worker->waiting); // under the mutex: after the unlock the item may be done, and the worker destroyed
    pthread_mutex_unlock(&worker->mutex);
}

bool worker_withdraw(struct worker *worker, struct worker_item *item) {
    pthread_mutex_lock(&worker->mutex);
    bool withdrawn = batcher_remove(&worker->batcher, &item->entry) && item->batches == 0;
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
    return_waiting(worker);
    pthread_cond_destroy(&worker->waiting);
    pthread_mutex_destroy(&worker->mutex);
    free_worker(worker);
}
