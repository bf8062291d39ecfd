// A request's life: serve_step. An event goes into the pure machine of request.h, which answers with what to do; each arm is a
// stage.
#include "daemon/serve.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/log.h"
#include "daemon/serve_internal.h"

static FALLIBLE admit(struct serve_request *r) {
    struct serve *serve = r->serve;
    uint64_t bytes = r->message->capacity + r->output_bytes;
    pthread_mutex_lock(&serve->mutex);
    err_t e = admission_admit(&serve->admission, bytes, r->deadline_ns, clock_now_ns());
    pthread_mutex_unlock(&serve->mutex);
    TRY(e);
    r->admitted = true;
    r->admitted_bytes = bytes;
    r->output = aligned_alloc(64, (r->output_bytes + 64) / 64 * 64);
    if (!r->output) {
        FAIL(ERR_NOMEM, "no memory for an answer of %llu bytes", (unsigned long long)r->output_bytes);
    }
    r->item.request.output = r->output;
    return OK;
}

static void give_slot(struct serve_request *r) {
    struct serve *serve = r->serve;
    if (!r->has_slot) {
        return;
    }
    r->has_slot = false;
    pthread_mutex_lock(&serve->mutex);
    admission_give_slot(&serve->admission);
    pthread_mutex_unlock(&serve->mutex);
    for (unsigned t = 0; t < serve->options.rpc_threads; t++) {
        rpc_wake(serve->server, t); // whoever waits for a slot takes it in its tick
    }
}

// Read: decode it, check it, weigh it, queue it; or say why not.
static void take_in(struct serve_request *r) {
    give_slot(r);
    r->read_ns = clock_now_ns();
    err_t e = serve_intake(r);
    if (!err_is(e)) {
        e = admit(r);
    }
    if (err_is(e)) {
        err_save(e, &r->error);
        serve_step(r, REQUEST_REFUSED, e.code);
        return;
    }
    serve_step(r, REQUEST_ENQUEUED, ERR_OK);
    r->item.submitted_ns = clock_now_ns();
    worker_submit(r->serve->backend.worker, &r->item);
}

static void withdraw(struct serve_request *r) {
    bool withdrawn = worker_withdraw(r->serve->backend.worker, &r->item);
    serve_step(r, withdrawn ? REQUEST_WITHDRAWN : REQUEST_STARTED, ERR_OK);
}

// Everything it holds goes back; a stream that waited for the place reads on.
static void let_go(struct serve_request *r) {
    struct serve *serve = r->serve;
    struct serve_thread *thread = &serve->threads[r->thread];
    struct call *call = r->call;
    give_slot(r);
    if (r->waits_for_slot) {
        STAILQ_REMOVE(&thread->slots, r, serve_request, slot);
    }
    if (r->admitted) {
        pthread_mutex_lock(&serve->mutex);
        admission_release(&serve->admission, r->admitted_bytes);
        pthread_mutex_unlock(&serve->mutex);
    }
    if (r->message) {
        rpc_buffer_release(serve->server, r->message);
    }
    if (r->counted) {
        atomic_fetch_sub(&serve->active, 1);
    }
    TAILQ_REMOVE(&thread->active, r, active);
    if (call && call->reading == r) {
        call->reading = NULL;
    }
    bool reads_on = call && r->is_stream && r->counted;
    free(r->output);
    free(r);
    if (reads_on) {
        call->inflight--;
        serve_stream_read(call);
    }
}

// The reason that goes with a failure which the machine found by itself.
static void explain(struct serve_request *r) {
    if (r->core.error == r->error.code) {
        return;
    }
    err_t e = r->core.error == ERR_DEADLINE ? err_record(ERR_DEADLINE, NULL, "the deadline passed while the request was %s",
                                                         r->core.computing ? "computed" : "waiting")
                                            : err_record(r->core.error, NULL, "%s", r->item.message);
    err_save(e, &r->error);
}

void serve_step(struct serve_request *r, enum request_event_kind kind, enum err_code error) {
    struct request_event event = {.kind = kind, .error = error};
    switch (request_step(&r->core, &event)) {
    case REQUEST_DO_NOTHING:
        break;
    case REQUEST_DO_READ:
        rpc_read(r->call->rpc);
        break;
    case REQUEST_DO_ADMIT:
        take_in(r);
        break;
    case REQUEST_DO_WITHDRAW:
        withdraw(r);
        break;
    case REQUEST_DO_ANSWER:
        serve_answer(r);
        break;
    case REQUEST_DO_FAIL:
        explain(r);
        serve_fail(r);
        break;
    case REQUEST_DO_RELEASE:
        let_go(r);
        break;
    }
}

// ---- the service as a whole

FALLIBLE serve_create(const struct serve_options *options, struct serve **out) {
    *out = NULL;
    struct serve *serve = calloc(1, sizeof *serve);
    struct serve_thread *threads = calloc(options->rpc_threads, sizeof *threads);
    if (!serve || !threads) {
        free(serve);
        free(threads);
        FAIL(ERR_NOMEM, "no memory for the service");
    }
    serve->options = *options;
    serve->threads = threads;
    pthread_mutex_init(&serve->mutex, NULL);
    admission_init(&serve->admission, &options->admission);
    for (unsigned t = 0; t < options->rpc_threads; t++) {
        TAILQ_INIT(&threads[t].active);
        STAILQ_INIT(&threads[t].slots);
        TAILQ_INIT(&threads[t].calls);
        STAILQ_INIT(&threads[t].finished);
        pthread_mutex_init(&threads[t].mutex, NULL);
    }
    *out = serve;
    return OK;
}

void serve_attach(struct serve *serve, struct rpc_server *server, struct health *health) {
    serve->server = server;
    serve->health = health;
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
    unsigned index = r->thread; // r belongs to its thread once it is in the mailbox
    struct serve_thread *thread = &serve->threads[index];
    pthread_mutex_lock(&thread->mutex);
    STAILQ_INSERT_TAIL(&thread->finished, r, finished);
    pthread_mutex_unlock(&thread->mutex);
    rpc_wake(serve->server, index);
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
    struct serve_counts counts = {.queued = serve->admission.queued, .queued_bytes = serve->admission.queued_bytes};
    pthread_mutex_unlock(&serve->mutex);
    counts.open_calls = atomic_load(&serve->open_calls);
    counts.ready = atomic_load(&serve->ready);
    counts.draining = atomic_load(&serve->draining);
    return counts;
}

// What the transport and the worker handed back too late to be answered.
static void forget_thread(struct serve_thread *thread) {
    struct serve_request *r;
    while ((r = TAILQ_FIRST(&thread->active))) {
        TAILQ_REMOVE(&thread->active, r, active);
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
        forget_thread(&serve->threads[t]);
    }
    pthread_mutex_destroy(&serve->mutex);
    free(serve->threads);
    free(serve);
}
