#include "daemon/serve/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/regions/region.h"
#include "daemon/serve/health.h"
#include "daemon/serve/serve_call.h"
#include "daemon/serve/serve_tick.h"
#include "daemon/serve/serve_types.h"

FALLIBLE serve_create(const struct serve_options *options, struct serve **out) {
    *out = NULL;
    struct serve *serve = calloc(1, sizeof *serve);
    struct serve_thread *threads = calloc(options->rpc_threads, sizeof *threads);
    if (!serve || !threads) {
        free(serve);
        free(threads);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the service");
    }
    // A connection is counted while it has an open call or health check, or a request that is computed after its call was released.
    size_t connections = (size_t)options->admission.max_calls + CHECKS_MAX + options->admission.max_queue + 1;
    err_t e = connections_init(&serve->connections, connections);
    if (err_is(e)) {
        free(serve);
        free(threads);
        return e;
    }
    serve->options = *options;
    serve->threads = threads;
    pthread_mutex_init(&serve->mutex, NULL);
    admission_init(&serve->admission, &options->admission);
    backlog_init(&serve->backlog, &options->backlog);
    for (unsigned t = 0; t < options->rpc_threads; t++) {
        TAILQ_INIT(&threads[t].active);
        STAILQ_INIT(&threads[t].slot_queue);
        TAILQ_INIT(&threads[t].calls);
        threads[t].due_ns = threads[t].calls_due_ns = CLOCK_NEVER;
        STAILQ_INIT(&threads[t].finished);
        pthread_mutex_init(&threads[t].mutex, NULL);
    }
    *out = serve;
    return OK;
}

const struct rpc_handler *serve_handler(struct serve *serve) {
    serve_call_handlers(serve);
    serve->handler.tick = serve_tick;
    return &serve->handler;
}

void serve_attach(struct serve *serve, struct rpc_server *server, struct health *health) {
    serve->server = server;
    serve->health = health;
}

void serve_share(struct serve *serve, struct region_registry *regions, const char *path) {
    serve->regions = regions;
    snprintf(serve->region_path, sizeof serve->region_path, "%s", path);
}

void serve_ready(struct serve *serve, const struct serve_backend *backend) {
    serve->backend = *backend;
    pthread_mutex_lock(&serve->mutex);
    serve->admission.loading = false;
    pthread_mutex_unlock(&serve->mutex);
    atomic_store(&serve->ready, true);
}

void serve_done(void *context, struct worker_item *item) {
    struct serve *serve = context;
    struct serve_request *r = (struct serve_request *)((char *)item - offsetof(struct serve_request, item));
    unsigned index = r->thread; // once it is in the mailbox, r belongs to its thread
    struct serve_thread *thread = &serve->threads[index];
    pthread_mutex_lock(&thread->mutex);
    STAILQ_INSERT_TAIL(&thread->finished, r, finished);
    pthread_mutex_unlock(&thread->mutex);
    rpc_wake(serve->server, index);
}

void serve_batched(void *context, uint64_t tokens, int64_t spent_ns, bool idle) {
    struct serve *serve = context;
    pthread_mutex_lock(&serve->mutex);
    backlog_batch(&serve->backlog, tokens, spent_ns, idle);
    pthread_mutex_unlock(&serve->mutex);
}

static void wake_all(struct serve *serve) {
    for (unsigned t = 0; t < serve->options.rpc_threads; t++) {
        rpc_wake(serve->server, t);
    }
}

void serve_drain(struct serve *serve) {
    pthread_mutex_lock(&serve->mutex);
    serve->admission.draining = true;
    pthread_mutex_unlock(&serve->mutex);
    atomic_store(&serve->draining, true);
    wake_all(serve);
}

uint64_t serve_active(struct serve *serve) {
    return atomic_load(&serve->active);
}

void serve_end_streams(struct serve *serve) {
    atomic_store(&serve->ending, true);
    health_end_watches(serve->health);
    wake_all(serve);
}

struct serve_counts serve_counts(struct serve *serve) {
    pthread_mutex_lock(&serve->mutex);
    struct serve_counts counts = {.queued = serve->admission.queued,
                                  .queued_bytes = serve->admission.queued_bytes,
                                  .streams = serve->admission.streams,
                                  .read_slots = serve->admission.slots_used,
                                  .pushback_ms = backlog_pushback_ms(&serve->backlog)};
    memcpy(counts.refused, serve->admission.refused, sizeof counts.refused);
    pthread_mutex_unlock(&serve->mutex);
    if (serve->regions) {
        struct region_counts regions = region_counts(serve->regions);
        counts.regions = regions.held;
        counts.region_bytes = regions.bytes;
    }
    counts.open_calls = atomic_load(&serve->open_calls);
    counts.ready = atomic_load(&serve->ready);
    counts.draining = atomic_load(&serve->draining);
    return counts;
}

// Frees the requests that the transport and the worker returned too late to be answered.
static void free_thread(struct serve *serve, struct serve_thread *thread) {
    struct serve_request *r;
    while ((r = TAILQ_FIRST(&thread->active))) {
        TAILQ_REMOVE(&thread->active, r, active);
        request_regions_release(&r->regions, serve->regions);
        free(r->output);
        free(r);
    }
    pthread_mutex_destroy(&thread->mutex);
}

void serve_destroy(struct serve *serve) {
    if (!serve) {
        return;
    }
    for (unsigned t = 0; t < serve->options.rpc_threads; t++) {
        free_thread(serve, &serve->threads[t]);
    }
    pthread_mutex_destroy(&serve->mutex);
    connections_deinit(&serve->connections);
    free(serve->threads);
    free(serve);
}
