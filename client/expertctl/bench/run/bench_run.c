#include "client/expertctl/bench/run/bench_run.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum { START_DELAY_NS = 20 * NS_PER_MS, POLL_NS = 20 * NS_PER_MS };

FALLIBLE bench_share(size_t bytes, void **out) {
    *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (*out == MAP_FAILED) {
        *out = NULL;
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu bytes that the client's processes share", bytes);
    }
    return OK;
}

void bench_unshare(void *memory, size_t bytes) {
    if (memory) {
        munmap(memory, bytes);
    }
}

// *out is 0 in the child. The child is killed when its parent ends.
static FALLIBLE fork_child(pid_t *out) {
    const pid_t parent = getpid();
    fflush(NULL);
    *out = fork();
    if (*out < 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot fork a process: %s: raise the limit on processes, or give fewer --processes",
             strerror(errno));
    }
    if (*out == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) { // the parent ended before prctl took effect
            _exit(1);
        }
    }
    return OK;
}

// ---- signals

// Signals that end a process. Those that the parent made this process ignore (nohup: SIGHUP) are left alone.
static const int END_SIGNALS[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
enum { END_SIGNALS_COUNT = sizeof END_SIGNALS / sizeof *END_SIGNALS };

static sigset_t signal_set(bool of_children) {
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < END_SIGNALS_COUNT; i++) {
        struct sigaction action;
        if (sigaction(END_SIGNALS[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) {
            sigaddset(&set, END_SIGNALS[i]);
        }
    }
    if (of_children) {
        sigaddset(&set, SIGCHLD);
    }
    return set;
}

void bench_block_signals(void) {
    sigset_t set = signal_set(false);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

void bench_unblock_signals(void) {
    sigset_t set = signal_set(false);
    const struct timespec now = {0};
    while (sigtimedwait(&set, NULL, &now) > 0) { // discards pending signals: the load that they should end has ended
    }
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static bool is_end_signal(int signal) {
    return signal > 0 && signal != SIGCHLD;
}

// ---- one process

struct forked {
    struct err_copy error;
    struct proto_error_text refusal;
};

// The signals are blocked.
static FALLIBLE wait_child(pid_t child) {
    const sigset_t signals = signal_set(true);
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(child, &status, WNOHANG)) == 0) {
        struct timespec left = {0, POLL_NS};
        if (is_end_signal(sigtimedwait(&signals, NULL, &left))) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            FAIL(EXPERTD_ERR_CANCELLED, "interrupted");
        }
    }
    if (ended < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        FAIL(EXPERTD_ERR_INTERNAL, "a process of the client ended with status %#x", (unsigned)status);
    }
    return OK;
}

FALLIBLE bench_fork(err_t (*work)(void *, struct proto_error_text *), void *argument, struct proto_error_text *refusal) {
    struct forked *forked;
    pid_t child;
    TRY(bench_share(sizeof *forked, (void **)&forked));
    sigset_t signals = signal_set(true), before;
    sigprocmask(SIG_BLOCK, &signals, &before); // also in the child: the parent decides when it ends
    err_t e = fork_child(&child);
    if (!err_is(e) && child == 0) {
        e = work(argument, &forked->refusal);
        if (err_is(e)) {
            err_save(e, &forked->error);
        }
        _exit(0);
    }
    e = err_is(e) ? e : wait_child(child);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (!err_is(e) && forked->error.code != EXPERTD_ERR_OK) {
        e = err_restore(&forked->error);
        *refusal = forked->refusal;
    }
    bench_unshare(forked, sizeof *forked);
    return e;
}

// ---- a load

struct fleet {
    const struct bench_plan *plan;
    struct bench_shared *shared;
    uint32_t processes, forked, running;
    pid_t children[BENCH_PROCESSES_MAX];
    sigset_t signals, before;
    bool interrupted, broken; // broken: a process exited with an error or was killed
    int broken_status;
};

static FALLIBLE launch(struct fleet *fleet) {
    for (; fleet->forked < fleet->processes; fleet->forked++, fleet->running++) {
        pid_t child;
        TRY(fork_child(&child));
        if (child == 0) {
            bench_worker(fleet->plan, fleet->forked, fleet->shared);
            _exit(0);
        }
        fleet->children[fleet->forked] = child;
    }
    return OK;
}

static void stop_all(struct fleet *fleet) {
    atomic_store(&fleet->shared->stop, true);
}

static void kill_all(struct fleet *fleet) {
    for (uint32_t i = 0; i < fleet->forked; i++) {
        if (fleet->children[i] > 0) {
            kill(fleet->children[i], SIGKILL);
        }
    }
}

static void reap(struct fleet *fleet) {
    for (uint32_t i = 0; i < fleet->forked; i++) {
        int status;
        if (fleet->children[i] > 0 && waitpid(fleet->children[i], &status, WNOHANG) == fleet->children[i]) {
            fleet->children[i] = 0;
            fleet->running--;
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
                fleet->broken = true;
                fleet->broken_status = status;
                stop_all(fleet);
            }
        }
    }
}

// Waits for a signal until until_ns or POLL_NS, then reaps processes that have ended.
static void wait_signal(struct fleet *fleet, int64_t until_ns) {
    int64_t left_ns = until_ns - clock_now_ns();
    left_ns = left_ns < 0 ? 0 : left_ns < POLL_NS ? left_ns : POLL_NS;
    struct timespec left = {0, left_ns};
    if (is_end_signal(sigtimedwait(&fleet->signals, NULL, &left))) {
        // A second signal, or one before the start: do not wait for the calls in flight.
        if (fleet->interrupted || atomic_load(&fleet->shared->start_ns) == 0) {
            kill_all(fleet);
        }
        fleet->interrupted = true;
        stop_all(fleet);
    }
    reap(fleet);
}

static bool any_in_state(const struct fleet *fleet, enum account_state state) {
    for (uint32_t i = 0; i < fleet->processes; i++) {
        if (atomic_load(&fleet->shared->accounts[i].state) == (int)state) {
            return true;
        }
    }
    return false;
}

static void start_together(struct fleet *fleet) {
    while (any_in_state(fleet, ACCOUNT_STARTING) && fleet->running == fleet->processes && !fleet->interrupted) {
        wait_signal(fleet, clock_now_ns() + POLL_NS);
    }
    if (any_in_state(fleet, ACCOUNT_FAILED)) {
        stop_all(fleet);
    }
    atomic_store(&fleet->shared->start_ns, clock_now_ns() + START_DELAY_NS);
}

struct progress {
    uint64_t answers, tokens, failed, wrong, inflight;
};

static struct progress progress_of(const struct fleet *fleet) {
    struct progress sum = {0};
    for (uint32_t i = 0; i < fleet->processes; i++) {
        struct bench_account *account = &fleet->shared->accounts[i];
        sum.answers += atomic_load_explicit(&account->answers, memory_order_relaxed);
        sum.tokens += atomic_load_explicit(&account->tokens, memory_order_relaxed);
        sum.failed += atomic_load_explicit(&account->failed, memory_order_relaxed);
        sum.wrong += atomic_load_explicit(&account->wrong, memory_order_relaxed);
        sum.inflight += atomic_load_explicit(&account->inflight, memory_order_relaxed);
    }
    return sum;
}

static void print_progress(const struct fleet *fleet, int64_t second, const struct progress *last, const struct progress *now) {
    bool warm = second * NS_PER_S > fleet->plan->warmup_ns;
    fprintf(stderr,
            "%4" PRId64 " s%s  %8" PRIu64 " calls/s  %9" PRIu64 " tokens/s  %5" PRIu64 " in flight  %" PRIu64 " failed  %" PRIu64
            " wrong\n",
            second, warm ? "      " : " warm ", now->answers - last->answers, now->tokens - last->tokens, now->inflight,
            now->failed, now->wrong);
}

static void watch(struct fleet *fleet) {
    struct progress last = {0};
    int64_t start_ns = atomic_load(&fleet->shared->start_ns);
    for (int64_t second = 1; fleet->running > 0; second++) {
        while (fleet->running > 0 && clock_now_ns() < start_ns + second * NS_PER_S) {
            wait_signal(fleet, start_ns + second * NS_PER_S);
        }
        if (fleet->running > 0 && !fleet->plan->options->quiet) {
            struct progress now = progress_of(fleet);
            print_progress(fleet, second, &last, &now);
            last = now;
        }
    }
}

static FALLIBLE collect(const struct fleet *fleet, struct bench_result *out, struct proto_error_text *refusal) {
    for (uint32_t i = 0; i < fleet->processes; i++) {
        struct bench_account *account = &fleet->shared->accounts[i];
        if (atomic_load(&account->state) == ACCOUNT_FAILED) {
            *refusal = account->refusal;
            return err_restore(&account->error);
        }
    }
    if (fleet->broken && fleet->interrupted) {
        FAIL(EXPERTD_ERR_CANCELLED, "interrupted");
    }
    if (fleet->broken) {
        FAIL(EXPERTD_ERR_INTERNAL, "a process of the client ended with status %#x", (unsigned)fleet->broken_status);
    }
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < fleet->processes; i++) {
        result_merge(out, &fleet->shared->accounts[i].result);
    }
    return OK;
}

FALLIBLE bench_run(const struct bench_plan *plan, struct bench_result *out, bool *interrupted, struct proto_error_text *refusal) {
    struct fleet fleet = {.plan = plan, .processes = plan->options->processes};
    size_t bytes = sizeof *fleet.shared + fleet.processes * sizeof *fleet.shared->accounts;
    TRY(bench_share(bytes, (void **)&fleet.shared));
    fleet.signals = signal_set(true);
    sigprocmask(SIG_BLOCK, &fleet.signals, &fleet.before);
    err_t e = launch(&fleet);
    if (err_is(e)) {
        stop_all(&fleet);
    }
    start_together(&fleet);
    watch(&fleet);
    sigprocmask(SIG_SETMASK, &fleet.before, NULL);
    e = err_is(e) ? e : collect(&fleet, out, refusal);
    *interrupted = fleet.interrupted;
    bench_unshare(fleet.shared, bytes);
    return e;
}
