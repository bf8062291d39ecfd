#include "expertd/kernels/team.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/memory_cause.h"
#include "base/threads/thread_signals.h"
#include "kernels/cpu/common/float_mode.h"

#if defined(__x86_64__)
static inline void cpu_pause(void) {
    __builtin_ia32_pause();
}
#elif defined(__aarch64__)
static inline void cpu_pause(void) {
    __asm__ __volatile__("isb" ::: "memory"); // YIELD does nothing on most cores; this waits some tens of cycles
}
#else
static inline void cpu_pause(void) {
}
#endif

enum { SPINS_PER_CLOCK = 64, CACHE_LINE = 64, STACK_BYTES_MIN = 1 << 20 };

// `state` holds the run's number (high half) and the count of unclaimed tasks (low half). Workers change it by compare-and-exchange
// alone. So a worker that slept through a run cannot claim a task with that run's body: its exchange fails, because the owner
// writes body, context and tasks only when no unclaimed tasks are left, and then changes the number. (The number wraps after 2^32
// runs. To be confused, a worker would have to stop between two instructions for exactly that many runs.)
struct expertd_team {
    _Alignas(CACHE_LINE) _Atomic uint64_t state;
    _Atomic(void (*)(void *, size_t, unsigned)) body;
    _Atomic(void *) context;
    _Atomic uint32_t tasks;

    _Alignas(CACHE_LINE) _Atomic uint32_t finished; // tasks of this run; futex of the owner
    _Atomic uint32_t owner_sleeps;

    _Alignas(CACHE_LINE) _Atomic uint32_t published; // runs so far, the stop included; futex of the workers
    _Atomic uint32_t sleepers;
    atomic_bool stop;

    // used by the owner only
    uint32_t run;
    atomic_flag running; // a run is in progress
    int64_t spin_ns;
    unsigned threads; // including the owner
    unsigned started; // workers
    struct worker *workers;
    pid_t process;                 // that has the workers; a child of fork() has none
    struct arena scratch;          // [threads] EXPERTD_TEAM_SCRATCH_BYTES
    struct expertd_team_pool pool; // run NULL: the team's own threads
};

struct worker {
    struct expertd_team *team;
    pthread_t thread;
    unsigned index;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0); // EAGAIN and EINTR: the caller looks again
}

static void futex_wake(_Atomic uint32_t *word, uint32_t count) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

// Polls `ready` for spin_ns; false where it stayed false.
static bool spin(const struct expertd_team *team, bool (*ready)(const struct expertd_team *)) {
    int64_t end = clock_now_ns() + team->spin_ns;
    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (ready(team)) {
                return true;
            }
            cpu_pause();
        }
    } while (clock_now_ns() < end);
    return false;
}

static uint32_t unclaimed(uint64_t state) {
    return (uint32_t)state;
}

// Runs tasks in ascending order until none are left. Body and context are read before the claim; a successful claim proves them
// valid.
static void work_until_done(struct expertd_team *team, unsigned thread) {
    uint64_t state = atomic_load(&team->state);
    while (unclaimed(state) > 0) {
        void (*body)(void *, size_t, unsigned) = atomic_load(&team->body);
        void *context = atomic_load(&team->context);
        uint32_t tasks = atomic_load(&team->tasks);
        if (!atomic_compare_exchange_weak(&team->state, &state, state - 1)) {
            continue;
        }
        body(context, tasks - unclaimed(state), thread);
        if (atomic_fetch_add(&team->finished, 1) + 1 == tasks && atomic_load(&team->owner_sleeps)) {
            futex_wake(&team->finished, 1);
        }
        state = atomic_load(&team->state);
    }
}

static bool has_work_or_stop(const struct expertd_team *team) {
    return unclaimed(atomic_load(&team->state)) > 0 || atomic_load(&team->stop);
}

static void sleep_until_published(struct expertd_team *team) {
    uint32_t seen = atomic_load(&team->published);
    atomic_fetch_add(&team->sleepers, 1);
    // Runs published before `seen` was read are visible here. Later ones change the futex word, and the wait returns at once.
    if (!has_work_or_stop(team)) {
        futex_wait(&team->published, seen);
    }
    atomic_fetch_sub(&team->sleepers, 1);
}

static void *worker_main(void *argument) {
    struct worker *worker = argument;
    struct expertd_team *team = worker->team;
    (void)float_mode_set_ieee();
    while (!atomic_load(&team->stop)) {
        work_until_done(team, worker->index);
        if (!spin(team, has_work_or_stop)) {
            sleep_until_published(team);
        }
    }
    return NULL;
}

static void publish(struct expertd_team *team, uint32_t wake) {
    atomic_fetch_add(&team->published, 1);
    uint32_t sleepers = atomic_load(&team->sleepers);
    if (sleepers > 0 && wake > 0) {
        futex_wake(&team->published, wake < sleepers ? wake : sleepers);
    }
}

// Kernels need 1 MiB of stack; the program's default may be less.
static void set_stack_size(pthread_attr_t *attributes) {
    size_t bytes = 0;
    pthread_attr_init(attributes);
    if (pthread_attr_getstacksize(attributes, &bytes) != 0 || bytes < STACK_BYTES_MIN) {
        pthread_attr_setstacksize(attributes, STACK_BYTES_MIN);
    }
}

// Workers block all signals: the program's own threads handle them.
static FALLIBLE start_workers(struct expertd_team *team) {
    pthread_attr_t attributes;
    set_stack_size(&attributes);
    sigset_t before;
    thread_signals_block(&before);
    int failure = 0;
    for (unsigned i = 0; i + 1 < team->threads && !failure; i++) {
        team->workers[i] = (struct worker){.team = team, .index = i + 1};
        failure = pthread_create(&team->workers[i].thread, &attributes, worker_main, &team->workers[i]);
        if (!failure) {
            pthread_setname_np(team->workers[i].thread, "expertd-team");
            team->started++;
        }
    }
    thread_signals_restore(&before);
    pthread_attr_destroy(&attributes);
    if (failure) {
        char cause[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start thread %u of a team of %u: %s", team->started + 2, team->threads,
             memory_cause_of_thread(failure, cause));
    }
    return OK;
}

// A team with scratch and without workers.
static FALLIBLE make_team(unsigned threads, struct expertd_team **out) {
    *out = NULL;
    if (threads < 1 || threads > EXPERTD_TEAM_THREADS_MAX) {
        FAIL(EXPERTD_ERR_CONFIG, "threads is %u: a team has 1 to %d", threads, EXPERTD_TEAM_THREADS_MAX);
    }
    struct expertd_team *team = aligned_alloc(CACHE_LINE, sizeof *team);
    struct worker *workers = calloc(threads, sizeof *workers);
    if (!team || !workers) {
        free(team);
        free(workers);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a team of %u threads", threads);
    }
    memset(team, 0, sizeof *team);
    atomic_flag_clear(&team->running);
    team->threads = threads;
    team->workers = workers;
    team->process = getpid();
    err_t e = arena_init(&team->scratch, (size_t)team->threads * EXPERTD_TEAM_SCRATCH_BYTES);
    if (err_is(e)) {
        expertd_team_destroy(team);
        return e;
    }
    *out = team;
    return OK;
}

FALLIBLE expertd_team_create(const struct expertd_team_options *options, struct expertd_team **out) {
    TRY(make_team(options->threads, out));
    (*out)->spin_ns = (int64_t)options->spin_us * NS_PER_US;
    err_t e = start_workers(*out);
    if (err_is(e)) {
        expertd_team_destroy(*out);
        *out = NULL;
    }
    return e;
}

FALLIBLE expertd_team_create_on(const struct expertd_team_pool *pool, struct expertd_team **out) {
    *out = NULL;
    if (!pool->run) {
        FAIL(EXPERTD_ERR_CONFIG, "pool.run is NULL: a team on a caller's pool needs the pool's function");
    }
    TRY(make_team(pool->threads, out));
    (*out)->pool = *pool;
    return OK;
}

static void stop_workers(struct expertd_team *team) {
    atomic_store(&team->stop, true);
    publish(team, team->threads);
    for (unsigned i = 0; i < team->started; i++) {
        pthread_join(team->workers[i].thread, NULL);
    }
}

void expertd_team_destroy(struct expertd_team *team) {
    if (!team) {
        return;
    }
    if (team->process == getpid()) { // a child of fork() has copies of the pthread_t, but no threads to join
        stop_workers(team);
    }
    arena_deinit(&team->scratch);
    free(team->workers);
    free(team);
}

void *expertd_team_scratch(struct expertd_team *team, unsigned thread) {
    return team->scratch.base + (size_t)thread * EXPERTD_TEAM_SCRATCH_BYTES;
}

unsigned expertd_team_threads(const struct expertd_team *team) {
    return team ? team->threads : 1;
}

static bool is_finished(const struct expertd_team *team) {
    return atomic_load(&team->finished) == atomic_load(&team->tasks);
}

static void wait_until_finished(struct expertd_team *team) {
    if (is_finished(team) || spin(team, is_finished)) {
        return;
    }
    atomic_store(&team->owner_sleeps, 1);
    uint32_t finished;
    while ((finished = atomic_load(&team->finished)) != atomic_load(&team->tasks)) {
        futex_wait(&team->finished, finished);
    }
    atomic_store(&team->owner_sleeps, 0);
}

static void run_alone(size_t tasks, void (*body)(void *, size_t, unsigned), void *context) {
    for (size_t task = 0; task < tasks; task++) {
        body(context, task, 0);
    }
}

struct pool_run {
    const struct expertd_team *team;
    void (*body)(void *, size_t, unsigned);
    void *context;
};

static void run_pool_task(void *work, size_t index, unsigned thread) {
    const struct pool_run *run = work;
    INVARIANT(thread < run->team->threads);
    float_mode before = float_mode_set_ieee();
    run->body(run->context, index, thread);
    float_mode_restore(before);
}

static void run_on_pool(struct expertd_team *team, size_t tasks, void (*body)(void *, size_t, unsigned), void *context) {
    struct pool_run run = {team, body, context};
    team->pool.run(team->pool.pool, tasks, run_pool_task, &run);
}

static void run_on_team(struct expertd_team *team, uint32_t tasks, void (*body)(void *, size_t, unsigned), void *context) {
    atomic_store(&team->body, body);
    atomic_store(&team->context, context);
    atomic_store(&team->tasks, tasks);
    atomic_store(&team->finished, 0);
    team->run++;
    atomic_store(&team->state, (uint64_t)team->run << 32 | tasks);
    publish(team, tasks - 1);
    work_until_done(team, 0);
    wait_until_finished(team);
}

void expertd_team_run(struct expertd_team *team, size_t tasks, void (*body)(void *context, size_t task, unsigned thread),
                      void *context) {
    // Also for runs on one thread: they use the team's scratch.
    INVARIANT(!team || !atomic_flag_test_and_set(&team->running));
    float_mode before = float_mode_set_ieee(); // the calling thread runs tasks too
    if (!team || team->threads == 1 || tasks <= 1) {
        run_alone(tasks, body, context);
    } else if (team->pool.run) {
        run_on_pool(team, tasks, body, context);
    } else {
        INVARIANT(tasks <= UINT32_MAX);
        run_on_team(team, (uint32_t)tasks, body, context);
    }
    float_mode_restore(before);
    if (team) {
        atomic_flag_clear(&team->running);
    }
}
