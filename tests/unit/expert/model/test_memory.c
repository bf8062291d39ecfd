// The available memory is the minimum of the machine's and each control group's.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expert/model/memory.h"

enum { NOBODY = 65534 };

static char root[64];

static void write_file(const char *path, const char *text) {
    char whole[512];
    snprintf(whole, sizeof whole, "%s/%s", root, path);
    for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        assert_true(mkdir(whole, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int make_root(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/expertd-memory-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    return system(command);
}

static void without_any_file_there_is_no_limit(void **state) {
    (void)state;
    struct memory_limit limit;
    assert_false(err_is(memory_available_at("/nowhere", &limit)));
    assert_int_equal(limit.bytes, UINT64_MAX);
}

static void without_control_groups_the_machine_limits(void **state) {
    (void)state;
    struct memory_limit limit;
    write_file("proc/meminfo", "MemTotal:  4000 kB\nMemFree:  1 kB\nMemAvailable:    3000 kB\n");
    assert_false(err_is(memory_available_at(root, &limit)));
    assert_int_equal(limit.bytes, 3000 * 1024);
    assert_non_null(strstr(limit.what, "MemAvailable"));
    write_file("proc/self/cgroup", "0::/a/b\n");
    write_file("sys/fs/cgroup/a/b/memory.max", "max\n");
    write_file("sys/fs/cgroup/a/b/memory.current", "5000\n");
    assert_false(err_is(memory_available_at(root, &limit)));
    assert_int_equal(limit.bytes, 3000 * 1024);
}

static void limits_of_the_process_apply(void **state) {
    (void)state;
    struct memory_limit limit;
    write_file("proc/meminfo", "MemAvailable: 3000 kB\n");
    write_file("proc/self/limits", "Limit                     Soft Limit           Hard Limit           Units     \n"
                                   "Max data size             unlimited            unlimited            bytes     \n"
                                   "Max address space         2048000              unlimited            bytes     \n");
    assert_false(err_is(memory_available_at(root, &limit)));
    assert_int_equal(limit.bytes, 2048000); // without the status file nothing is known to be in use
    write_file("proc/self/status", "Name:\tx\nVmPeak:\t    1900 kB\nVmSize:\t    1500 kB\nVmData:\t     400 kB\n");
    assert_false(err_is(memory_available_at(root, &limit)));
    assert_int_equal(limit.bytes, 2048000 - 1500 * 1024);
    assert_string_equal(limit.what, "RLIMIT_AS of this process; raise it with ulimit -v or LimitAS");
    write_file("proc/self/limits", "Max data size             500000               unlimited            bytes     \n"
                                   "Max address space         unlimited            unlimited            bytes     \n");
    assert_false(err_is(memory_available_at(root, &limit)));
    assert_int_equal(limit.bytes, 500000 - 400 * 1024);
    assert_string_equal(limit.what, "RLIMIT_DATA of this process; raise it with ulimit -d or LimitDATA");
    write_file("proc/self/limits", "Max data size             4000                 unlimited            bytes     \n");
    assert_false(err_is(memory_available_at(root, &limit)));
    assert_int_equal(limit.bytes, 0); // already over the limit
}

static void page_cache_of_a_group_counts_as_free(void **state) {
    (void)state;
    struct memory_limit limit;
    write_file("proc/meminfo", "MemAvailable: 3000 kB\n");
    write_file("proc/self/cgroup", "12:pids:/x\n0::/a/b\n");
    write_file("sys/fs/cgroup/a/b/memory.max", "1000000\n");
    write_file("sys/fs/cgroup/a/b/memory.current", "900000\n");
    write_file("sys/fs/cgroup/a/b/memory.stat", "anon 200000\nactive_file 300000\ninactive_file 400000\n");
    assert_false(err_is(memory_available_at(root, &limit)));
    assert_int_equal(limit.bytes, 800000);
    assert_non_null(strstr(limit.what, "control group /a/b"));
}

static void a_parent_groups_limit_applies(void **state) {
    (void)state;
    struct memory_limit limit;
    write_file("proc/self/cgroup", "0::/a/b\n");
    write_file("sys/fs/cgroup/a/b/memory.max", "1000000\n");
    write_file("sys/fs/cgroup/a/b/memory.current", "0\n");
    write_file("sys/fs/cgroup/a/memory.max", "500\n");
    write_file("sys/fs/cgroup/a/memory.current", "600\n");
    assert_false(err_is(memory_available_at(root, &limit)));
    assert_int_equal(limit.bytes, 0); // the group is already over its limit
    assert_non_null(strstr(limit.what, "control group /a"));
}

static void groups_of_version_1_limit_too(void **state) {
    (void)state;
    struct memory_limit limit;
    write_file("proc/meminfo", "MemAvailable: 3000 kB\n");
    write_file("proc/self/cgroup", "9:name=systemd:/s\n7:memoryless:/no\n5:cpu,memory:/a/b\n0::/u\n");
    write_file("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    write_file("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "5000\n");
    assert_false(err_is(memory_available_at(root, &limit)));
    assert_int_equal(limit.bytes, 3000 * 1024);
    write_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n"); // a container sees its own group as the root
    write_file("sys/fs/cgroup/memory/memory.usage_in_bytes", "900000\n");
    write_file("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 300000\ntotal_active_file 400000\n");
    assert_false(err_is(memory_available_at(root, &limit)));
    assert_int_equal(limit.bytes, 800000);
    assert_string_equal(limit.what, "memory.limit_in_bytes of control group /");
}

static void a_file_that_exists_but_cannot_be_read_is_an_error(void **state) {
    (void)state;
    struct memory_limit limit;
    char path[128];
    write_file("proc/meminfo", "MemAvailable: 3000 kB\n");
    write_file("proc/self/cgroup", "0::/a\n");
    write_file("sys/fs/cgroup/a/memory.max/file", "a folder can be opened, but not read\n");
    assert_int_equal(memory_available_at(root, &limit).code, EXPERTD_ERR_NOMEM);
    assert_non_null(strstr(expertd_err_message(), "/sys/fs/cgroup/a/memory.max cannot be read: Is a directory"));
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    assert_int_equal(remove(path), 0);
    assert_int_equal(symlink("meminfo", path), 0);
    assert_int_equal(memory_available_at(root, &limit).code, EXPERTD_ERR_NOMEM);
    assert_non_null(strstr(expertd_err_message(), "/proc/meminfo cannot be read: Too many levels of symbolic links"));
}

static void without_the_usage_file_the_limit_is_used_in_full(void **state) {
    (void)state;
    struct memory_limit limit;
    write_file("proc/self/cgroup", "0::/a\n");
    write_file("sys/fs/cgroup/a/memory.max", "1000000\n");
    assert_false(err_is(memory_available_at(root, &limit)));
    assert_int_equal(limit.bytes, 1000000);
}

// Run without root's privileges, because root can read every file.
static void a_file_without_read_permission_is_named_and_sets_no_limit(void **state) {
    (void)state;
    char path[128];
    int status;
    write_file("proc/meminfo", "MemAvailable: 3000 kB\n");
    write_file("proc/self/cgroup", "0::/a\n");
    write_file("sys/fs/cgroup/a/memory.max", "1000\n");
    snprintf(path, sizeof path, "chmod -R go+rX '%s'", root);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/sys/fs/cgroup/a/memory.max", root);
    assert_int_equal(chmod(path, 0), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct memory_limit limit;
        bool right = (geteuid() != 0 || setuid(NOBODY) == 0) && !err_is(memory_available_at(root, &limit)) &&
                     limit.bytes == 3000 * 1024 && strcmp(limit.hidden, path) == 0;
        _exit(right ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void bytes_are_shown_in_the_largest_fitting_unit(void **state) {
    (void)state;
    char text[MEMORY_TEXT_MAX];
    assert_string_equal(memory_text(1023, text), "1023 bytes");
    assert_string_equal(memory_text(1536, text), "1.5 KiB");
    assert_string_equal(memory_text(57ull << 30, text), "57.0 GiB");
    assert_string_equal(memory_text(UINT64_MAX, text), "16.0 EiB");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_any_file_there_is_no_limit),
        cmocka_unit_test_setup_teardown(without_control_groups_the_machine_limits, make_root, remove_root),
        cmocka_unit_test_setup_teardown(limits_of_the_process_apply, make_root, remove_root),
        cmocka_unit_test_setup_teardown(page_cache_of_a_group_counts_as_free, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_parent_groups_limit_applies, make_root, remove_root),
        cmocka_unit_test_setup_teardown(groups_of_version_1_limit_too, make_root, remove_root),
        cmocka_unit_test_setup_teardown(without_the_usage_file_the_limit_is_used_in_full, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_file_without_read_permission_is_named_and_sets_no_limit, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_file_that_exists_but_cannot_be_read_is_an_error, make_root, remove_root),
        cmocka_unit_test(bytes_are_shown_in_the_largest_fitting_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
