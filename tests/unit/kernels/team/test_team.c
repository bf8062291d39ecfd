#include "tests/unit/kernels/kernel_test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mapped.h"
#include "expertd/kernels/team.h"

enum { THREADS = 4, TASKS_MAX = 2000 };

struct seen {
    int counts[TASKS_MAX]; // not atomic: two threads on one task would be a race for TSan
    atomic_size_t order;   // tasks claimed so far
    size_t thread_last[THREADS];
    atomic_int out_of_order, foreign_thread;
};

static void count_task(void *context, size_t task, unsigned thread) {
    struct seen *seen = context;
    seen->counts[task]++;
    if (thread >= THREADS) {
        atomic_store(&seen->foreign_thread, 1);
        return;
    }
    if (seen->thread_last[thread] > task) { // tasks are claimed in ascending order, so each thread's tasks ascend
        atomic_store(&seen->out_of_order, 1);
    }
    seen->thread_last[thread] = task;
}

static struct expertd_team *make_team(unsigned threads, unsigned spin_us) {
    struct expertd_team *team;
    assert_false(err_is(expertd_team_create(&(struct expertd_team_options){threads, spin_us}, &team)));
    return team;
}

static void check_run(struct expertd_team *team, size_t tasks) {
    static struct seen seen;
    memset(&seen, 0, sizeof seen);
    expertd_team_run(team, tasks, count_task, &seen);
    for (size_t i = 0; i < TASKS_MAX; i++) {
        assert_int_equal(seen.counts[i], i < tasks ? 1 : 0);
    }
    assert_int_equal(atomic_load(&seen.out_of_order), 0);
    assert_int_equal(atomic_load(&seen.foreign_thread), 0);
}

static void every_task_runs_once_in_ascending_claims(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= THREADS; threads++) {
        struct expertd_team *team = make_team(threads, 20);
        assert_int_equal(expertd_team_threads(team), threads);
        static const size_t TASKS[] = {0, 1, 2, 3, 7, 100, TASKS_MAX};
        for (size_t i = 0; i < COUNT_OF(TASKS); i++) {
            check_run(team, TASKS[i]);
        }
        expertd_team_destroy(team);
    }
}

static void no_team_runs_on_the_caller(void **state) {
    (void)state;
    check_run(NULL, 17);
    assert_int_equal(expertd_team_threads(NULL), 1);
    expertd_team_destroy(NULL);
}

// Runs in quick succession: a worker that is woken, spinning or late for one run must not touch the tasks of the next.
static void runs_follow_each_other_closely(void **state) {
    (void)state;
    static const unsigned SPINS[] = {0, 5, 100};
    for (size_t s = 0; s < COUNT_OF(SPINS); s++) {
        struct expertd_team *team = make_team(THREADS, SPINS[s]);
        for (size_t run = 0; run < 3000; run++) {
            size_t tasks = 1 + run % 8;
            struct seen *seen = calloc(1, sizeof *seen); // freed after the run
            expertd_team_run(team, tasks, count_task, seen);
            for (size_t i = 0; i < tasks; i++) {
                assert_int_equal(seen->counts[i], 1);
            }
            free(seen);
        }
        expertd_team_destroy(team);
    }
}

static void touch(void *context, size_t task, unsigned thread) {
    (void)thread;
    ((int *)context)[task]++;
}

static int64_t process_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

static void idle_team_uses_no_cpu(void **state) {
    (void)state;
    struct expertd_team *team = make_team(THREADS, 50);
    int touched[16] = {0};
    expertd_team_run(team, COUNT_OF(touched), touch, touched);
    nanosleep(&(struct timespec){0, 50 * NS_PER_MS}, NULL); // longer than the spin
    int64_t before = process_cpu_ns();
    nanosleep(&(struct timespec){0, 200 * NS_PER_MS}, NULL);
    assert_true(process_cpu_ns() - before < 20 * NS_PER_MS);
    expertd_team_run(team, COUNT_OF(touched), touch, touched); // and the team wakes again
    for (size_t i = 0; i < COUNT_OF(touched); i++) {
        assert_int_equal(touched[i], 2);
    }
    expertd_team_destroy(team);
}

// Tasks that wait for each other need all threads at the same time.
struct meeting {
    atomic_uint arrived;
    pthread_t threads[THREADS];
};

static void meet(void *context, size_t task, unsigned thread) {
    struct meeting *meeting = context;
    meeting->threads[task] = pthread_self();
    (void)thread;
    atomic_fetch_add(&meeting->arrived, 1);
    int64_t deadline = clock_now_ns() + 20LL * NS_PER_S;
    while (atomic_load(&meeting->arrived) < THREADS && clock_now_ns() < deadline) {
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
}

static void all_threads_work_at_once(void **state) {
    (void)state;
    struct expertd_team *team = make_team(THREADS, 0);
    nanosleep(&(struct timespec){0, 20 * NS_PER_MS}, NULL); // until all workers sleep
    struct meeting meeting = {0};
    expertd_team_run(team, THREADS, meet, &meeting);
    for (size_t i = 0; i < THREADS; i++) {
        for (size_t j = 0; j < i; j++) {
            assert_false(pthread_equal(meeting.threads[i], meeting.threads[j]));
        }
    }
    expertd_team_destroy(team);
}

#if defined(__x86_64__) || defined(__aarch64__)
#include "tests/unit/kernels/odd_mode.h"

static void note_mode(void *context, size_t task, unsigned thread) {
    (void)thread;
    float_mode mode = float_mode_set_ieee();
    ((float_mode *)context)[task] = mode & ~FLOAT_MODE_FLAGS; // without the sticky flags
    float_mode_restore(mode);
    nanosleep(&(struct timespec){0, 200000}, NULL); // so that every thread gets tasks
}

static void run_flushed(void *context, size_t tasks, void (*task)(void *work, size_t index, unsigned thread), void *work) {
    (void)context;
    for (size_t i = 0; i < tasks; i++) {
        (void)float_mode_set(FLOAT_MODE_FLUSHED); // the mode of this pool's threads
        task(work, i, 0);
    }
}

static void note_modes_on_a_pool(float_mode *modes, size_t count) {
    struct expertd_team *team;
    assert_false(err_is(expertd_team_create_on(&(struct expertd_team_pool){2, run_flushed, NULL}, &team)));
    expertd_team_run(team, count, note_mode, modes);
    expertd_team_destroy(team);
}

static void tasks_compute_in_ieee_mode_whoever_made_the_team(void **state) {
    (void)state;
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    struct expertd_team *team = make_team(THREADS, 0);
    float_mode modes[32] = {0};
    expertd_team_run(team, COUNT_OF(modes), note_mode, modes);
    expertd_team_run(NULL, 1, note_mode, modes);
    note_modes_on_a_pool(modes, COUNT_OF(modes) / 2);
    assert_int_equal(float_mode_set(before) & ~FLOAT_MODE_FLAGS, FLOAT_MODE_FLUSHED); // the caller's mode is unchanged
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(modes[i], FLOAT_MODE_IEEE);
    }
    expertd_team_destroy(team);
}
#else
static void tasks_compute_in_ieee_mode_whoever_made_the_team(void **state) {
    (void)state;
    skip();
}
#endif

// A pool with minimal guarantees: new threads for each run, tasks in descending order.
struct backward_pool {
    atomic_size_t left;
    atomic_uint started;
    void (*task)(void *work, size_t index, unsigned thread);
    void *work;
};

static void *pool_thread(void *context) {
    struct backward_pool *pool = context;
    unsigned thread = atomic_fetch_add(&pool->started, 1);
    for (size_t left = atomic_load(&pool->left); left > 0;) {
        if (atomic_compare_exchange_weak(&pool->left, &left, left - 1)) {
            pool->task(pool->work, left - 1, thread);
            left = atomic_load(&pool->left);
        }
    }
    return NULL;
}

static void run_backward(void *context, size_t tasks, void (*task)(void *work, size_t index, unsigned thread), void *work) {
    struct backward_pool *pool = context;
    pthread_t threads[THREADS];
    pool->task = task, pool->work = work;
    atomic_store(&pool->left, tasks);
    atomic_store(&pool->started, 0);
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, pool_thread, pool), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void a_callers_pool_runs_every_task_once(void **state) {
    (void)state;
    struct backward_pool pool = {0};
    struct expertd_team *team;
    assert_false(err_is(expertd_team_create_on(&(struct expertd_team_pool){THREADS, run_backward, &pool}, &team)));
    assert_int_equal(expertd_team_threads(team), THREADS);
    static struct seen seen;
    memset(&seen, 0, sizeof seen);
    expertd_team_run(team, TASKS_MAX, count_task, &seen);
    for (size_t i = 0; i < TASKS_MAX; i++) {
        assert_int_equal(seen.counts[i], 1);
    }
    assert_int_equal(atomic_load(&seen.foreign_thread), 0);
    char *last = expertd_team_scratch(team, THREADS - 1);
    last[EXPERTD_TEAM_SCRATCH_BYTES - 1] = 1; // every thread of the pool has its own scratch
    expertd_team_destroy(team);
    assert_int_equal(expertd_team_create_on(&(struct expertd_team_pool){THREADS, NULL, NULL}, &team).code, EXPERTD_ERR_CONFIG);
    assert_int_equal(expertd_team_create_on(&(struct expertd_team_pool){0, run_backward, NULL}, &team).code, EXPERTD_ERR_CONFIG);
    assert_null(team);
}

static void note_stack(void *context, size_t task, unsigned thread) {
    (void)task;
    pthread_attr_t attributes;
    size_t bytes = 0;
    assert_int_equal(pthread_getattr_np(pthread_self(), &attributes), 0);
    pthread_attr_getstacksize(&attributes, &bytes);
    pthread_attr_destroy(&attributes);
    ((size_t *)context)[thread] = bytes;
}

static void workers_have_the_stack_that_kernels_take(void **state) {
    (void)state;
    pthread_attr_t little, before;
    size_t stacks[THREADS] = {0};
    assert_int_equal(pthread_getattr_default_np(&before), 0);
    pthread_attr_init(&little);
    pthread_attr_setstacksize(&little, 128 << 10);
    assert_int_equal(pthread_setattr_default_np(&little), 0);
    struct expertd_team *team = make_team(THREADS, 0);
    assert_int_equal(pthread_setattr_default_np(&before), 0);
    while (!stacks[1] || !stacks[2] || !stacks[3]) {
        expertd_team_run(team, 100 * THREADS, note_stack, stacks);
    }
    for (size_t i = 1; i < THREADS; i++) {
        assert_true(stacks[i] >= 512 << 10);
    }
    expertd_team_destroy(team);
    pthread_attr_destroy(&little), pthread_attr_destroy(&before);
}

static void run_again(void *context, size_t task, unsigned thread) {
    (void)task, (void)thread;
    expertd_team_run(context, 1, run_again, context);
}

static void expect_the_end(struct expertd_team *team, size_t tasks, void (*body)(void *, size_t, unsigned)) {
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        fclose(stderr);
        signal(SIGABRT, SIG_DFL);
        expertd_team_run(team, tasks, body, team);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

// With worker threads, without, and on a pool; also with few tasks.
static void a_team_that_is_used_twice_at_once_ends_the_program(void **state) {
    (void)state;
    struct expertd_team *alone = make_team(1, 0), *many = make_team(2, 0), *on_pool;
    assert_false(err_is(expertd_team_create_on(&(struct expertd_team_pool){3, run_tasks_backward, NULL}, &on_pool)));
    expect_the_end(alone, 1, run_again);
    expect_the_end(many, 1, run_again);
    expect_the_end(on_pool, 1, run_again);
    expertd_team_destroy(alone), expertd_team_destroy(many), expertd_team_destroy(on_pool);
}

static void end_well(void *context, size_t task, unsigned thread) {
    (void)context, (void)task, (void)thread;
    _exit(0);
}

static void more_tasks_than_a_team_numbers_end_the_program(void **state) {
    (void)state;
    struct expertd_team *team = make_team(2, 0);
    expect_the_end(team, (size_t)UINT32_MAX + 1, end_well);
    expertd_team_destroy(team);
}

// The exit status of a child of fork() that destroys the team, optionally after a run.
static int status_of_a_child(struct expertd_team *team, bool runs) {
    pid_t child = fork();
    if (child == 0) {
        int touched[100] = {0}, wrong = 0;
        alarm(60); // a child that waits for missing threads would hang
        if (runs) {
            expertd_team_run(team, COUNT_OF(touched), touch, touched);
        }
        for (size_t i = 0; i < COUNT_OF(touched); i++) {
            wrong += touched[i] != runs;
        }
        expertd_team_destroy(team);
        _exit(wrong != 0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void expect_children_that_use_and_destroy(struct expertd_team *team) {
    int touched[100] = {0};
    for (int i = 0; i < 4; i++) {
        expertd_team_run(team, COUNT_OF(touched), touch, touched); // workers still spin when the first child starts
        assert_int_equal(status_of_a_child(team, i % 2), 0);
        nanosleep(&(struct timespec){0, 2 * NS_PER_MS}, NULL);
        assert_int_equal(status_of_a_child(team, i % 2), 0); // workers sleep now
    }
    expertd_team_run(team, COUNT_OF(touched), touch, touched); // the parent still has its workers
    for (size_t i = 0; i < COUNT_OF(touched); i++) {
        assert_int_equal(touched[i], 5);
    }
    expertd_team_destroy(team);
}

static void a_child_of_fork_uses_and_destroys_a_team_that_was_idle(void **state) {
    (void)state;
    static const unsigned THREADS_OF[] = {1, 2, 4, 32};
    for (size_t i = 0; i < COUNT_OF(THREADS_OF); i++) {
        expect_children_that_use_and_destroy(make_team(THREADS_OF[i], 50));
    }
    struct expertd_team *on_pool;
    assert_false(err_is(expertd_team_create_on(&(struct expertd_team_pool){3, run_tasks_backward, NULL}, &on_pool)));
    expect_children_that_use_and_destroy(on_pool);
}

static void impossible_sizes_are_refused(void **state) {
    (void)state;
    struct expertd_team *team = (struct expertd_team *)1;
    assert_int_equal(expertd_team_create(&(struct expertd_team_options){0, 50}, &team).code, EXPERTD_ERR_CONFIG);
    assert_null(team);
    assert_int_equal(expertd_team_create(&(struct expertd_team_options){1u << 20, 50}, &team).code, EXPERTD_ERR_CONFIG);
    assert_non_null(strstr(expertd_err_message(), "1048576"));
}

// A file that shrinks while a worker reads it: the SIGBUS handler reports its name, so workers must not block SIGBUS.
static void read_on_workers(void *context, size_t task, unsigned thread) {
    const char *bytes = context;
    (void)task;
    if (thread != 0) { // workers only; the owner's signal mask is the program's
        _exit(((volatile const char *)bytes)[0]);
    }
    nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
}

static void read_what_shrank(int errors, int file) {
    void *bytes = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    dup2(errors, STDERR_FILENO);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    mapped_add(bytes, 4096, "the file that shrank");
    if (bytes == MAP_FAILED || err_is(mapped_install_handler()) || ftruncate(file, 0) != 0) {
        _exit(1);
    }
    expertd_team_run(make_team(2, 20), TASKS_MAX, read_on_workers, bytes);
    _exit(2);
}

static void a_file_that_shrinks_under_a_worker_is_named(void **state) {
    (void)state;
    char text[512] = "";
    int ends[2], status, file = memfd_create("shrinks", MFD_CLOEXEC);
    assert_int_equal(ftruncate(file, 4096), 0);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        read_what_shrank(ends[1], file);
    }
    close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(read(ends[0], text, sizeof text - 1) >= 0);
    close(ends[0]), close(file);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), MAPPED_EXIT_CODE);
    assert_non_null(strstr(text, "the file that shrank changed or became unreadable"));
}

static void see_mask(void *context, size_t task, unsigned thread) {
    sigset_t *masks = context;
    (void)task;
    pthread_sigmask(SIG_SETMASK, NULL, &masks[thread]);
    nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL); // lets the other threads take part
}

static void workers_take_the_signals_of_their_own_faults_alone(void **state) {
    (void)state;
    sigset_t masks[THREADS], callers;
    memset(masks, 0, sizeof masks);
    struct expertd_team *team = make_team(THREADS, 20);
    pthread_sigmask(SIG_SETMASK, NULL, &callers);
    assert_false(sigismember(&callers, SIGTERM)); // unchanged
    while (!sigismember(&masks[1], SIGTERM) || !sigismember(&masks[2], SIGTERM) || !sigismember(&masks[3], SIGTERM)) {
        expertd_team_run(team, 4 * THREADS, see_mask, masks);
    }
    static const int OWN[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}, OTHERS[] = {SIGINT, SIGHUP, SIGCHLD};
    for (unsigned t = 1; t < THREADS; t++) {
        for (size_t i = 0; i < COUNT_OF(OWN); i++) {
            assert_false(sigismember(&masks[t], OWN[i]));
        }
        for (size_t i = 0; i < COUNT_OF(OTHERS); i++) {
            assert_true(sigismember(&masks[t], OTHERS[i]));
        }
    }
    expertd_team_destroy(team);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once_in_ascending_claims),
        cmocka_unit_test(no_team_runs_on_the_caller),
        cmocka_unit_test(runs_follow_each_other_closely),
        cmocka_unit_test(idle_team_uses_no_cpu),
        cmocka_unit_test(all_threads_work_at_once),
        cmocka_unit_test(tasks_compute_in_ieee_mode_whoever_made_the_team),
        cmocka_unit_test(a_callers_pool_runs_every_task_once),
        cmocka_unit_test(workers_have_the_stack_that_kernels_take),
        cmocka_unit_test(a_team_that_is_used_twice_at_once_ends_the_program),
        cmocka_unit_test(more_tasks_than_a_team_numbers_end_the_program),
        cmocka_unit_test(a_child_of_fork_uses_and_destroys_a_team_that_was_idle),
        cmocka_unit_test(a_file_that_shrinks_under_a_worker_is_named),
        cmocka_unit_test(workers_take_the_signals_of_their_own_faults_alone),
        cmocka_unit_test(impossible_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
