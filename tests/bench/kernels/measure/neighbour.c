#include "tests/bench/kernels/measure/neighbour.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum orders { ORDER_SLEEP, ORDER_COMPUTE, ORDER_END };

struct neighbour {
    pthread_t thread;
    pthread_mutex_t lock;  // guards `computes`, and changes of `order` while the thread sleeps
    pthread_cond_t change; // of `order` or `computes`
    _Atomic int order;     // enum orders
    bool computes;
};

// Pins the thread to the last CPU of this process.
static void stay_on_one_cpu(void) {
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) != 0) {
        return;
    }
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--) {
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &one);
            (void)sched_setaffinity(0, sizeof one, &one); // unpinned it still is a neighbour
            return;
        }
    }
}

static void say(struct neighbour *n, bool computes) {
    n->computes = computes;
    pthread_cond_broadcast(&n->change);
}

static void compute(struct neighbour *n) {
    uint64_t state = 1;
    while (atomic_load(&n->order) == ORDER_COMPUTE) {
        for (int i = 0; i < 1000; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            __asm__ volatile("" : "+r"(state)); // keeps the compiler from removing the loop
        }
    }
}

static void *run(void *argument) {
    struct neighbour *n = argument;
    stay_on_one_cpu();
    pthread_mutex_lock(&n->lock);
    while (atomic_load(&n->order) != ORDER_END) {
        if (atomic_load(&n->order) == ORDER_COMPUTE) {
            say(n, true);
            pthread_mutex_unlock(&n->lock);
            compute(n);
            pthread_mutex_lock(&n->lock);
            say(n, false);
        } else {
            pthread_cond_wait(&n->change, &n->lock);
        }
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

FALLIBLE neighbour_create(struct neighbour **out) {
    *out = NULL;
    struct neighbour *n = calloc(1, sizeof *n);
    if (!n) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a busy neighbour");
    }
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->change, NULL);
    int failure = pthread_create(&n->thread, NULL, run, n);
    if (failure) {
        free(n);
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start the thread of a busy neighbour: %s", strerror(failure));
    }
    *out = n;
    return OK;
}

static void give(struct neighbour *n, enum orders order) {
    pthread_mutex_lock(&n->lock);
    atomic_store(&n->order, order);
    pthread_cond_broadcast(&n->change);
    pthread_mutex_unlock(&n->lock);
}

void neighbour_set_busy(struct neighbour *n, bool busy) {
    give(n, busy ? ORDER_COMPUTE : ORDER_SLEEP);
    pthread_mutex_lock(&n->lock);
    while (n->computes != busy) {
        pthread_cond_wait(&n->change, &n->lock);
    }
    pthread_mutex_unlock(&n->lock);
}

void neighbour_destroy(struct neighbour *n) {
    if (!n) {
        return;
    }
    give(n, ORDER_END);
    pthread_join(n->thread, NULL);
    pthread_cond_destroy(&n->change);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

double neighbour_leaves(unsigned threads, unsigned cpus) {
    return threads < cpus ? 1 : (cpus - 0.5) / cpus;
}
