#include "threads.h"

#include <errno.h>
#include <linux/sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bochs.h"
#include "memory.h"
#include "program.h"

enum { THREADS_MAX = 64, STUCK = 134, NS_PER_S = 1000000000 };
#define NEVER INT64_MAX

enum state { FREE, READY, WAITING };

struct thread {
    enum state state;
    uint64_t registers[BOCHS_REGISTERS], pointer, clear_at_end, waits_for;
    int64_t until_ns; // end of a timed wait; NEVER: no timeout
    uint32_t mxcsr;
};

static struct {
    struct thread all[THREADS_MAX];
    unsigned current;
} threads = {.all = {{.state = READY}}};

static struct thread *running(void) {
    return &threads.all[threads.current];
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

int thread_id(void) {
    return (int)threads.current + 1;
}

void thread_clear_at_end(uint64_t word) {
    running()->clear_at_end = word;
}

// Thread-local storage is addressed through FS.
static void set_thread_pointer(uint64_t base) {
    cpu_set_seg(BOCHS_CPU, SEGMENT_FS, 1, SELECTOR_DATA, base, UINT32_MAX, ATTRIBUTES_DATA);
}

void thread_set_pointer(uint64_t base) {
    running()->pointer = base;
    set_thread_pointer(base);
}

static void save(struct thread *thread) {
    for (unsigned r = 0; r < BOCHS_REGISTERS; r++) {
        thread->registers[r] = cpu_get_reg64(BOCHS_CPU, r);
    }
    thread->mxcsr = cpu_get_mxcsr(BOCHS_CPU);
}

static void resume(unsigned index) {
    const struct thread *thread = &threads.all[index];
    for (unsigned r = 0; r < BOCHS_REGISTERS; r++) {
        cpu_set_reg64(BOCHS_CPU, r, thread->registers[r]);
    }
    cpu_set_mxcsr(BOCHS_CPU, thread->mxcsr);
    set_thread_pointer(thread->pointer);
    threads.current = index;
}

int thread_start(uint64_t flags, uint64_t stack, uint64_t parent_word, uint64_t child_word, uint64_t pointer) {
    for (unsigned i = 1; i < THREADS_MAX; i++) {
        struct thread *thread = &threads.all[i];
        if (thread->state != FREE) {
            continue;
        }
        *thread = (struct thread){.state = READY, .pointer = flags & CLONE_SETTLS ? pointer : running()->pointer};
        thread->clear_at_end = flags & CLONE_CHILD_CLEARTID ? child_word : 0;
        save(thread);
        thread->registers[RAX] = 0;
        thread->registers[RSP] = stack;
        uint32_t id = i + 1;
        if (flags & CLONE_PARENT_SETTID) {
            memcpy(memory_host(parent_word), &id, sizeof id);
        }
        if (flags & CLONE_CHILD_SETTID) {
            memcpy(memory_host(child_word), &id, sizeof id);
        }
        return (int)id;
    }
    return -EAGAIN;
}

// The next ready thread after the current one; a thread whose wait timed out becomes ready. THREADS_MAX: none.
static unsigned next_ready(void) {
    for (unsigned step = 1; step <= THREADS_MAX; step++) {
        unsigned i = (threads.current + step) % THREADS_MAX;
        struct thread *thread = &threads.all[i];
        if (thread->state == WAITING && thread->until_ns != NEVER && thread->until_ns <= now_ns()) {
            thread->state = READY;
            thread->registers[RAX] = (uint64_t)-ETIMEDOUT;
        }
        if (thread->state == READY) {
            return i;
        }
    }
    return THREADS_MAX;
}

static bool any_timed(void) {
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        if (threads.all[i].state == WAITING && threads.all[i].until_ns != NEVER) {
            return true;
        }
    }
    return false;
}

static void take_next(void) {
    unsigned next;
    while ((next = next_ready()) == THREADS_MAX) {
        if (!any_timed()) {
            fprintf(stderr, "emulated: every thread waits for another\n");
            program_end(STUCK);
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    resume(next);
}

void thread_yield(int64_t result) {
    cpu_set_reg64(BOCHS_CPU, RAX, (uint64_t)result);
    save(running());
    take_next();
}

void thread_wait(uint64_t word, int64_t timeout_ns) {
    cpu_set_reg64(BOCHS_CPU, RAX, 0);
    struct thread *thread = running();
    save(thread);
    thread->state = WAITING;
    thread->waits_for = word;
    thread->until_ns = timeout_ns < 0 ? NEVER : now_ns() + timeout_ns;
    take_next();
}

void thread_end(void) {
    struct thread *thread = running();
    thread->state = FREE;
    if (thread->clear_at_end) {
        memset(memory_host(thread->clear_at_end), 0, sizeof(uint32_t));
        threads_wake(thread->clear_at_end, 1);
    }
    take_next();
}

int threads_wake(uint64_t word, uint32_t count) {
    int woken = 0;
    for (unsigned i = 0; i < THREADS_MAX && (uint32_t)woken < count; i++) {
        struct thread *thread = &threads.all[i];
        if (thread->state == WAITING && thread->waits_for == word) {
            thread->state = READY;
            woken++;
        }
    }
    return woken;
}
