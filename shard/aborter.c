#include "shard/aborter.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/threads/thread_signals.h"
#include "expertd/kernels/devices.h"

struct aborter {
    const struct expertd_device_links *calls;
    pthread_t thread;
    // Guards the fields below, except that the thread reads `links` without it. Never held across a blocking call.
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct device_link *links[EXPERTD_DEVICES_MAX];
    uint32_t count; // number of links to abort; 0: idle
    bool ending;    // the thread exits when it is idle
    bool detached;  // the aborter was destroyed during an abort: the thread frees everything
};

static void free_aborter(struct aborter *a) {
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->mutex);
    free(a);
}

static void *aborter_main(void *context) {
    struct aborter *a = context;
    pthread_mutex_lock(&a->mutex);
    for (;;) {
        while (a->count == 0 && !a->ending) {
            pthread_cond_wait(&a->changed, &a->mutex);
        }
        if (a->count == 0) {
            break;
        }
        uint32_t count = a->count;
        pthread_mutex_unlock(&a->mutex);
        for (uint32_t i = 0; i < count; i++) {
            a->calls->abort(a->links[i]);
        }
        pthread_mutex_lock(&a->mutex);
        a->count = 0;
        pthread_cond_broadcast(&a->changed);
    }
    bool detached = a->detached;
    pthread_mutex_unlock(&a->mutex);
    if (detached) {
        free_aborter(a);
    }
    return NULL;
}

static int start(struct aborter *a) {
    pthread_condattr_t monotonic;
    sigset_t before;
    pthread_mutex_init(&a->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&a->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    thread_signals_block(&before); // the event loop's thread handles the process's signals
    int failure = pthread_create(&a->thread, NULL, aborter_main, a);
    thread_signals_restore(&before);
    return failure;
}

FALLIBLE aborter_create(const struct expertd_device_links *calls, struct aborter **out) {
    *out = NULL;
    struct aborter *a = calloc(1, sizeof *a);
    if (!a) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the thread that aborts links between devices");
    }
    a->calls = calls;
    int failure = start(a);
    if (failure) {
        free_aborter(a);
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start the thread that aborts links between devices: %s", strerror(failure));
    }
    pthread_setname_np(a->thread, "expertd-aborter");
    *out = a;
    return OK;
}

void aborter_destroy(struct aborter *a) {
    if (!a) {
        return;
    }
    pthread_mutex_lock(&a->mutex);
    pthread_t thread = a->thread;
    bool busy = a->count > 0;
    a->ending = true;
    a->detached = busy;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->mutex);
    if (busy) {
        pthread_detach(thread);
    } else {
        pthread_join(thread, NULL);
        free_aborter(a);
    }
}

static bool wait_idle(struct aborter *a, int64_t timeout_ns) {
    int64_t until_ns = clock_add_ns(clock_now_ns(), timeout_ns);
    struct timespec until = {.tv_sec = until_ns / NS_PER_S, .tv_nsec = until_ns % NS_PER_S};
    int failure = 0;
    while (a->count > 0 && !failure) {
        failure = pthread_cond_timedwait(&a->changed, &a->mutex, &until);
    }
    return a->count == 0;
}

bool aborter_abort(struct aborter *a, struct device_link *const *links, uint32_t count, int64_t timeout_ns) {
    pthread_mutex_lock(&a->mutex);
    INVARIANT(a->count == 0 && count <= EXPERTD_DEVICES_MAX);
    memcpy(a->links, links, count * sizeof *links);
    a->count = count;
    pthread_cond_broadcast(&a->changed);
    bool idle = wait_idle(a, timeout_ns);
    pthread_mutex_unlock(&a->mutex);
    return idle;
}

bool aborter_wait_idle(struct aborter *a, int64_t timeout_ns) {
    pthread_mutex_lock(&a->mutex);
    bool idle = wait_idle(a, timeout_ns);
    pthread_mutex_unlock(&a->mutex);
    return idle;
}
