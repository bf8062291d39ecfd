// The dialler: its threads and its pool of buffers.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/grpc/dialler/dial_stream.h"
#include "daemon/grpc/queue/backup_poll.h"
#include "daemon/grpc/queue/tuning.h"

enum { NAME_MAX_BYTES = 10 };

static int64_t run_due(struct queue_thread *queue, int64_t now_ns, bool woken) {
    struct dial_thread *thread = TAG_OWNER(queue, struct dial_thread, queue);
    const struct dialler_options *options = &thread->dialler->options;
    int64_t next_ns = dial_stream_check_opening(thread, now_ns);
    if (thread->ticking && (woken || now_ns >= thread->next_tick_ns)) {
        thread->next_tick_ns = options->tick(options->context, thread->index, now_ns);
    }
    return next_ns < thread->next_tick_ns ? next_ns : thread->next_tick_ns;
}

static void on_started(struct queue_thread *queue) {
    struct dial_thread *thread = TAG_OWNER(queue, struct dial_thread, queue);
    thread->ticking = thread->dialler->options.tick != NULL;
    thread->next_tick_ns = thread->ticking ? 0 : CLOCK_NEVER; // the first tick runs at once
}

static FALLIBLE start_thread(struct dialler *dialler, unsigned index) {
    struct dial_thread *thread = &dialler->threads[index];
    thread->dialler = dialler;
    thread->index = index;
    thread->next_tick_ns = CLOCK_NEVER;
    LIST_INIT(&thread->opening);
    snprintf(thread->name, sizeof thread->name, "%.*s-%u", NAME_MAX_BYTES, dialler->options.name, index % DIAL_THREADS_MAX);
    struct queue_thread_options options = {
        .name = thread->name, .is_urgent = dialler->options.is_urgent, .polls = true, .run_due = run_due, .started = on_started};
    TRY(queue_thread_init(&thread->queue, &options));
    return queue_thread_start(&thread->queue);
}

static FALLIBLE start(struct dialler *dialler) {
    for (unsigned i = 0; i < dialler->options.threads; i++) {
        TRY(start_thread(dialler, i));
    }
    return OK;
}

FALLIBLE dialler_create(const struct dialler_options *options, struct dialler **out) {
    *out = NULL;
    if (options->threads < 1 || options->threads > DIAL_THREADS_MAX) {
        FAIL(EXPERTD_ERR_CONFIG, "a dialler has 1 to %d threads, not %u", DIAL_THREADS_MAX, options->threads);
    }
    struct dialler *dialler = calloc(1, sizeof *dialler);
    if (!dialler) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the dialler");
    }
    err_t e = pool_init(&dialler->pool, 4 * options->max_message_bytes);
    if (err_is(e)) {
        free(dialler);
        return e;
    }
    dialler->options = *options;
    tuning_process();
    grpc_init();
    e = start(dialler);
    dialler->options.name = NULL;
    if (err_is(e)) {
        dialler_destroy(dialler);
        return e;
    }
    *out = dialler;
    return OK;
}

void dialler_destroy(struct dialler *dialler) {
    if (!dialler) {
        return;
    }
    for (unsigned i = 0; i < dialler->options.threads; i++) {
        queue_thread_stop(&dialler->threads[i].queue);
    }
    for (unsigned i = 0; i < dialler->options.threads; i++) {
        queue_thread_deinit(&dialler->threads[i].queue);
    }
    pool_deinit(&dialler->pool);
    backup_poll_end();
    grpc_shutdown();
    free(dialler);
}

void dialler_wake(struct dialler *dialler, unsigned thread) {
    INVARIANT(thread < dialler->options.threads);
    queue_thread_wake(&dialler->threads[thread].queue);
}

struct rpc_buffer *dial_buffer_take(struct dialler *dialler, size_t length) {
    return pool_take(&dialler->pool, length);
}

void dial_buffer_release(struct dialler *dialler, struct rpc_buffer *buffer) {
    message_release(&dialler->pool, buffer);
}
