// Tests that an urgent thread is not kept waiting by a mutex's holder that busy CPUs do not let run.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/threads/thread_priority.h"

enum { WAIT_S = 60 };

struct scene {
    pthread_mutex_t mutex;
    atomic_int tid; // of the holder, once it holds the mutex
    atomic_bool may_end;
};

static void *hold(void *context) {
    struct scene *scene = context;
    thread_relax();
    pthread_mutex_lock(&scene->mutex);
    atomic_store(&scene->tid, (int)syscall(SYS_gettid));
    while (!atomic_load(&scene->may_end)) {
        usleep(1000);
    }
    pthread_mutex_unlock(&scene->mutex);
    return NULL;
}

static void *wait_urgently(void *context) {
    struct scene *scene = context;
    thread_make_urgent();
    pthread_mutex_lock(&scene->mutex);
    pthread_mutex_unlock(&scene->mutex);
    return NULL;
}

// The priority by which Linux schedules the thread now: negative if it runs as a realtime thread.
static long priority_of(int tid) {
    char path[64];
    long priority = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %ld", &priority), 1);
    fclose(file);
    return priority;
}

static bool becomes_urgent(const struct scene *scene) {
    int64_t until_ns = clock_now_ns() + (int64_t)WAIT_S * NS_PER_S;
    while (priority_of(atomic_load(&scene->tid)) >= 0) {
        if (clock_now_ns() > until_ns) {
            return false;
        }
        usleep(1000);
    }
    return true;
}

static void the_holder_of_a_mutex_is_as_urgent_as_the_thread_that_waits_for_it(void **state) {
    (void)state;
    if (thread_urgency_allowed() != THREAD_REALTIME) {
        skip(); // no realtime priority here (CAP_SYS_NICE)
    }
    struct scene scene = {.tid = 0};
    thread_mutex_init(&scene.mutex);
    pthread_t holder, waiter;
    assert_int_equal(pthread_create(&holder, NULL, hold, &scene), 0);
    while (!atomic_load(&scene.tid)) {
        usleep(1000);
    }
    assert_true(priority_of(atomic_load(&scene.tid)) >= 0);
    assert_int_equal(pthread_create(&waiter, NULL, wait_urgently, &scene), 0);
    bool is_urgent = becomes_urgent(&scene);
    atomic_store(&scene.may_end, true);
    pthread_join(holder, NULL);
    pthread_join(waiter, NULL);
    pthread_mutex_destroy(&scene.mutex);
    assert_true(is_urgent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_holder_of_a_mutex_is_as_urgent_as_the_thread_that_waits_for_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
