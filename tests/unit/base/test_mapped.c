// A mapped file that shrinks: a message with its name, and exit code 65 instead of a crash.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mapped.h"
#include "base/safetensors.h"

enum { LARGE = 1 << 20, READERS = 8 };

static char path[64];
static pthread_barrier_t all_here;

static int make_file(void **state) {
    (void)state;
    static uint8_t zeros[LARGE];
    strcpy(path, "/tmp/expertd-mapped-XXXXXX");
    int fd = mkstemp(path);
    close(fd);
    const struct safetensors_entry entry = {
        .name = "a", .view = {.dtype = EXPERTD_DTYPE_U8, .rank = 1, .shape = {LARGE}, .data = zeros, .bytes = LARGE}};
    return err_is(safetensors_write(path, &entry, 1)) ? -1 : 0;
}

static int remove_file(void **state) {
    (void)state;
    return unlink(path);
}

// Runs `body` in a child process, returns its standard error in `text` and its wait status.
static int run_child(void (*body)(void), char *text, size_t bytes) {
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        dup2(ends[1], STDERR_FILENO);
        body();
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got; (got = read(ends[0], text + used, bytes - 1 - used)) > 0;) {
        used += (size_t)got;
    }
    text[used] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void read_all_of_a_file_that_shrinks(void) {
    struct safetensors file;
    err_t e = mapped_install_handler();
    e = err_is(e) ? e : safetensors_open(path, &file);
    if (err_is(e) || truncate(path, 4096) != 0) {
        _exit(1);
    }
    const struct expertd_tensor_view *view = &file.entries[0].view;
    unsigned sum = 0;
    for (uint64_t i = 0; i < view->bytes; i++) {
        sum += ((const uint8_t *)view->data)[i];
    }
    _exit(sum == 0 ? 2 : 3);
}

static void a_mapped_file_that_shrinks_is_named_and_ends_with_65(void **state) {
    (void)state;
    char text[512];
    int status = run_child(read_all_of_a_file_that_shrinks, text, sizeof text);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 65);
    assert_non_null(strstr(text, path));
    assert_non_null(strstr(text, "changed or became unreadable while it was read"));
}

static void *read_once_all_are_here(void *context) {
    const struct expertd_tensor_view *view = context;
    pthread_barrier_wait(&all_here);
    return (void *)(uintptr_t)((const uint8_t *)view->data)[view->bytes - 1];
}

static void read_with_many_threads(void) {
    struct safetensors file;
    pthread_t threads[READERS];
    err_t e = mapped_install_handler();
    e = err_is(e) ? e : safetensors_open(path, &file);
    if (err_is(e) || truncate(path, 4096) != 0 || pthread_barrier_init(&all_here, NULL, READERS) != 0) {
        _exit(1);
    }
    for (int i = 0; i < READERS; i++) {
        pthread_create(&threads[i], NULL, read_once_all_are_here, &file.entries[0].view);
    }
    pthread_join(threads[0], NULL);
    _exit(2);
}

static void threads_that_fault_together_report_once(void **state) {
    char text[4096], expected[512];
    for (int i = 0; i < 20; i++) {
        int status = run_child(read_with_many_threads, text, sizeof text);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 65);
        snprintf(expected, sizeof expected,
                 "expertd: the file %s changed or became unreadable while it was read: do not write into a checkpoint that is "
                 "being served\n",
                 path);
        assert_string_equal(text, expected);
        remove_file(state); // it was truncated
        assert_int_equal(make_file(state), 0);
    }
}

static void fault_elsewhere(void) {
    if (err_is(mapped_install_handler())) {
        _exit(1);
    }
    raise(SIGBUS);
    raise(SIGBUS); // the first SIGBUS has restored the default action
    _exit(2);
}

static void a_bus_error_elsewhere_keeps_its_default(void **state) {
    (void)state;
    char text[512];
    int status = run_child(fault_elsewhere, text, sizeof text);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
}

static void touch_a_closed_file(void) {
    struct safetensors file;
    err_t e = mapped_install_handler();
    e = err_is(e) ? e : safetensors_open(path, &file);
    if (err_is(e)) {
        _exit(1);
    }
    void *place = file.map;
    size_t bytes = file.map_bytes;
    safetensors_close(&file);
    int fd = open(path, O_RDONLY);
    if (mmap(place, bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) != place || truncate(path, 0) != 0) {
        _exit(1);
    }
    _exit(((volatile const char *)place)[0]); // SIGBUS in a range that is no longer registered
}

static void a_closed_file_is_not_reported(void **state) {
    (void)state;
    char text[512];
    assert_int_equal(make_file(NULL), 0); // the other test truncated it
    int status = run_child(touch_a_closed_file, text, sizeof text);
    assert_true(WIFSIGNALED(status));
    assert_null(strstr(text, "changed or became unreadable"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_mapped_file_that_shrinks_is_named_and_ends_with_65, make_file, remove_file),
        cmocka_unit_test_setup_teardown(threads_that_fault_together_report_once, make_file, remove_file),
        cmocka_unit_test(a_bus_error_elsewhere_keeps_its_default),
        cmocka_unit_test_teardown(a_closed_file_is_not_reported, remove_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
