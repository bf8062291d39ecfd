// What a program inherits from its parent. Each case prepares its surroundings in a child, whose exit status is the answer.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process/surroundings.h"

enum { PREPARED = 0, REFUSED = 1, WRONG = 2, LIMIT_IGNORED = 3 };

// Runs `inherit` and surroundings_prepare in a child, then `holds`. A refusal must contain `named`. Skips the test where a limit
// that was set is not in force: qemu-user accepts limits on memory and ignores them.
static void check(void (*inherit)(void), bool (*holds)(void), const char *named) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        inherit();
        err_t e = surroundings_prepare();
        if (err_is(e)) {
            _exit(named && strstr(expertd_err_message(), named) ? REFUSED : WRONG);
        }
        _exit(holds() ? PREPARED : WRONG);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == LIMIT_IGNORED) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), named ? REFUSED : PREPARED);
}

static void limit(int which, rlim_t soft, rlim_t hard) {
    struct rlimit set = {soft, hard}, now = {0};
    if (setrlimit(which, &set) != 0 || getrlimit(which, &now) != 0) {
        _exit(WRONG);
    }
    if (now.rlim_cur != soft || now.rlim_max != hard) {
        _exit(LIMIT_IGNORED);
    }
}

static rlim_t soft_limit(int which) {
    struct rlimit now = {0};
    return getrlimit(which, &now) == 0 ? now.rlim_cur : 0;
}

static bool always(void) {
    return true;
}

static void inherit_closed_descriptors(void) {
    close(STDIN_FILENO), close(STDOUT_FILENO), close(STDERR_FILENO);
}

static bool descriptors_are_open_and_useless(void) {
    char byte;
    int next = open("/dev/null", O_RDONLY);
    return next > STDERR_FILENO && read(STDIN_FILENO, &byte, 1) < 0 && errno == EBADF && write(STDOUT_FILENO, "x", 1) < 0 &&
           errno == EBADF && write(STDERR_FILENO, "x", 1) < 0 && errno == EBADF;
}

static void closed_descriptors_are_reserved(void **state) {
    (void)state;
    check(inherit_closed_descriptors, descriptors_are_open_and_useless, NULL);
}

static void inherit_odd_signals(void) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    signal(SIGPIPE, SIG_DFL), signal(SIGXFSZ, SIG_DFL), signal(SIGCHLD, SIG_IGN), signal(SIGHUP, SIG_IGN);
}

static bool ignores(int number) {
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static bool signals_are_usual(void) {
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    return !sigismember(&blocked, SIGTERM) && !sigismember(&blocked, SIGBUS) && ignores(SIGPIPE) && ignores(SIGXFSZ) &&
           !ignores(SIGCHLD) && ignores(SIGHUP);
}

static void signals_are_reset_and_nohup_is_kept(void **state) {
    (void)state;
    check(inherit_odd_signals, signals_are_usual, NULL);
}

static void inherit_little_stack(void) {
    limit(RLIMIT_STACK, 64 << 10, 1 << 20);
    pthread_attr_t little;
    pthread_attr_init(&little);
    pthread_attr_setstacksize(&little, 64 << 10);
    pthread_setattr_default_np(&little);
}

static void inherit_endless_stack(void) {
    pthread_attr_t endless;
    pthread_attr_init(&endless);
    pthread_attr_setstacksize(&endless, (size_t)1 << 40);
    pthread_setattr_default_np(&endless);
}

// A thread that would overrun a small stack.
static void *use_a_megabyte(void *context) {
    char area[1 << 20];
    memset(area, 1, sizeof area);
    *(char *)context = area[4096];
    return NULL;
}

static bool threads_have_stack(void) {
    pthread_t thread;
    char used = 0;
    return pthread_create(&thread, NULL, use_a_megabyte, &used) == 0 && pthread_join(thread, NULL) == 0 && used == 1;
}

static bool stack_is_the_hard_limit(void) {
    return threads_have_stack() && soft_limit(RLIMIT_STACK) == 1 << 20;
}

static void stacks_do_not_follow_a_low_limit(void **state) {
    (void)state;
    check(inherit_little_stack, stack_is_the_hard_limit, NULL);
}

static void stacks_do_not_follow_an_endless_limit(void **state) {
    (void)state;
    check(inherit_endless_stack, threads_have_stack, NULL);
}

static void inherit_hard_stack_limit(void) {
    limit(RLIMIT_STACK, 128 << 10, 128 << 10);
}

static void inherit_few_descriptors(void) {
    (void)close_range(STDERR_FILENO + 1, ~0U, 0); // what a test runner leaves open counts too
    limit(RLIMIT_NOFILE, 8, 8);
}

static void inherit_used_descriptors(void) {
    limit(RLIMIT_NOFILE, 64, 64);
    while (dup(STDERR_FILENO) >= 0) {
    }
}

static void inherit_little_memory(void) {
    limit(RLIMIT_DATA, 64 << 20, 64 << 20);
}

static void low_hard_limits_of_memory_are_named(void **state) {
    (void)state;
    check(inherit_little_memory, always, "writable memory is limited to 64 MiB (RLIMIT_DATA)");
    check(inherit_hard_stack_limit, always, "limited to 128 KiB");
}

static void low_hard_limits_of_descriptors_are_named(void **state) {
    (void)state;
    check(inherit_few_descriptors, always, "5 more files");
    check(inherit_used_descriptors, always, "0 more files");
}

static void inherit_soft_limit(void) {
    limit(RLIMIT_NOFILE, 8, 64);
}

static bool descriptors_are_the_hard_limit(void) {
    return soft_limit(RLIMIT_NOFILE) == 64;
}

static void a_low_soft_limit_is_raised(void **state) {
    (void)state;
    check(inherit_soft_limit, descriptors_are_the_hard_limit, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_descriptors_are_reserved),     cmocka_unit_test(signals_are_reset_and_nohup_is_kept),
        cmocka_unit_test(stacks_do_not_follow_a_low_limit),    cmocka_unit_test(stacks_do_not_follow_an_endless_limit),
        cmocka_unit_test(low_hard_limits_of_memory_are_named), cmocka_unit_test(low_hard_limits_of_descriptors_are_named),
        cmocka_unit_test(a_low_soft_limit_is_raised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
