#include "daemon/process/event_loop.h"

#include <signal.h>
#include <stdlib.h>
#include <uv.h>

struct event_loop {
    uv_loop_t uv;
    struct event_loop_handler handler;
    uv_signal_t terminate, interrupt, hangup;
    uv_timer_t timer;
    uv_async_t messages[EVENT_LOOP_MESSAGES];
};

static void on_signal(uv_signal_t *handle, int number) {
    struct event_loop *loop = handle->data;
    loop->handler.signalled(loop->handler.context, number);
}

static void on_timer(uv_timer_t *handle) {
    struct event_loop *loop = handle->data;
    loop->handler.timer(loop->handler.context);
}

static void on_message(uv_async_t *handle) {
    struct event_loop *loop = handle->data;
    loop->handler.message(loop->handler.context, (enum event_loop_message)(handle - loop->messages));
}

// nohup starts a program with SIGHUP ignored.
static bool is_ignored(int number) {
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

// These libuv calls fail only at start, when memory or descriptors are short. The process then exits, so nothing is freed here.
FALLIBLE event_loop_create(const struct event_loop_handler *handler, struct event_loop **out) {
    *out = NULL;
    struct event_loop *loop = calloc(1, sizeof *loop);
    if (!loop) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the event loop");
    }
    loop->handler = *handler;
    loop->terminate.data = loop->interrupt.data = loop->hangup.data = loop->timer.data = loop;
    int failed = uv_loop_init(&loop->uv);
    failed = failed ? failed : uv_signal_init(&loop->uv, &loop->terminate);
    failed = failed ? failed : uv_signal_init(&loop->uv, &loop->interrupt);
    failed = failed ? failed : uv_signal_init(&loop->uv, &loop->hangup);
    failed = failed ? failed : uv_timer_init(&loop->uv, &loop->timer);
    for (int i = 0; i < EVENT_LOOP_MESSAGES; i++) {
        loop->messages[i].data = loop;
        failed = failed ? failed : uv_async_init(&loop->uv, &loop->messages[i], on_message);
    }
    failed = failed ? failed : uv_signal_start(&loop->terminate, on_signal, SIGTERM);
    failed = failed ? failed : uv_signal_start(&loop->interrupt, on_signal, SIGINT);
    if (!failed && !is_ignored(SIGHUP)) {
        failed = uv_signal_start(&loop->hangup, on_signal, SIGHUP);
    }
    if (failed) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot set up the event loop: %s", uv_strerror(failed));
    }
    *out = loop;
    return OK;
}

void *event_loop_uv(struct event_loop *loop) {
    return &loop->uv;
}

void event_loop_run(struct event_loop *loop) {
    uv_run(&loop->uv, UV_RUN_DEFAULT);
}

void event_loop_post(struct event_loop *loop, enum event_loop_message message) {
    uv_async_send(&loop->messages[message]);
}

void event_loop_start_timer(struct event_loop *loop, unsigned period_ms) {
    uv_timer_start(&loop->timer, on_timer, 0, period_ms);
}

void event_loop_close(struct event_loop *loop) {
    // Without their handles the signals would kill the process. Blocked, a late one stays pending until the process exits.
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    uv_close((uv_handle_t *)&loop->terminate, NULL);
    uv_close((uv_handle_t *)&loop->interrupt, NULL);
    uv_close((uv_handle_t *)&loop->hangup, NULL);
    uv_close((uv_handle_t *)&loop->timer, NULL);
    for (int i = 0; i < EVENT_LOOP_MESSAGES; i++) {
        uv_close((uv_handle_t *)&loop->messages[i], NULL);
    }
}

void event_loop_destroy(struct event_loop *loop) {
    if (loop) {
        uv_loop_close(&loop->uv);
        free(loop);
    }
}
