// The cause that a message names for memory that was refused. Limits are set in a child.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory_cause.h"

enum { LIMIT = 1 << 30, MORE = 2 << 20 };
enum { HOLDS = 0, WRONG = 1, LIMIT_IGNORED = 2 };
#define LARGE ((uint64_t)LIMIT + MORE)

static bool thread_cause_has(const char *expected) {
    char text[MEMORY_CAUSE_MAX];
    return strstr(memory_cause_of_thread(EAGAIN, text), expected) != NULL;
}

static bool cause_has(uint64_t bytes, bool writable, const char *expected) {
    char text[MEMORY_CAUSE_MAX];
    return strstr(memory_cause(ENOMEM, bytes, writable, text), expected) != NULL;
}

// Ends the child where the limit is not in force then: qemu-user accepts limits on memory and ignores them.
static void limit(int which, rlim_t soft) {
    struct rlimit set = {soft, LIMIT}, now = {0};
    if (setrlimit(which, &set) != 0 || getrlimit(which, &now) != 0) {
        _exit(WRONG);
    }
    if (now.rlim_cur != soft || now.rlim_max != LIMIT) {
        _exit(LIMIT_IGNORED);
    }
}

static bool names_the_address_space(void) {
    limit(RLIMIT_AS, LIMIT);
    return cause_has(LARGE, false, "the address space is limited to 1024 MiB (RLIMIT_AS): raise it (ulimit -v, LimitAS)") &&
           cause_has(LARGE, true, "RLIMIT_AS");
}

static bool names_writable_memory(void) {
    limit(RLIMIT_DATA, LIMIT);
    return cause_has(LARGE, true, "writable memory is limited to 1024 MiB (RLIMIT_DATA): raise it (ulimit -d, LimitDATA)") &&
           cause_has(LARGE, false, "vm.overcommit_memory");
}

static bool names_the_limit_of_threads(void) {
    if (!thread_cause_has("raise the limit on processes (ulimit -u, TasksMax)")) {
        return false;
    }
    limit(RLIMIT_DATA, MORE);
    return thread_cause_has("RLIMIT_DATA");
}

static void check(bool (*holds)(void)) {
    pid_t child = fork();
    if (child == 0) {
        _exit(holds() ? HOLDS : WRONG);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == LIMIT_IGNORED) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), HOLDS);
}

static void the_limit_that_refuses_is_named(void **state) {
    (void)state;
    check(names_the_address_space);
    check(names_writable_memory);
    check(names_the_limit_of_threads);
}

static void other_errors_are_their_text(void **state) {
    (void)state;
    char text[MEMORY_CAUSE_MAX];
    assert_string_equal(memory_cause(ENODEV, 1, true, text), strerror(ENODEV));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_limit_that_refuses_is_named),
        cmocka_unit_test(other_errors_are_their_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
