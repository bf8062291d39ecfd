// The number of CPUs, from which the number of threads follows.
#include "tests/unit/daemon/config/options_fixture.h"

#include <sys/stat.h>

#include "daemon/config/options_defaults.h"

static void a_cgroup_quota_anywhere_above_limits_the_threads(void **state) {
    (void)state;
    char root[128], path[256], file[256];
    snprintf(root, sizeof root, "%s/cgroup", folder);
    snprintf(path, sizeof path, "%s/a/b", root);
    assert_int_equal(mkdir(root, 0700), 0);
    snprintf(path, sizeof path, "%s/a", root);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/a/b", root);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(file, sizeof file, "%s", write_file("self", "1:cpu:/other\n0::/a/b\n"));
    uint32_t unlimited = options_cpu_count(file, "/nowhere");
    assert_true(unlimited >= 1);
    write_file("cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(options_cpu_count(file, root), unlimited);
    write_file("cgroup/a/cpu.max", "50000 100000\n");
    assert_int_equal(options_cpu_count(file, root), 1);
    write_file("cgroup/a/cpu.max", "9000000 100000\n");
    assert_int_equal(options_cpu_count(file, root), unlimited < 90 ? unlimited : 90);
    write_file("cgroup/cpu.max", "100001 100000\n");
    assert_int_equal(options_cpu_count(file, root), unlimited < 2 ? unlimited : 2);
    write_file("cgroup/cpu.max", "0 0\n");
    assert_int_equal(options_cpu_count(file, root), unlimited < 90 ? unlimited : 90);
    assert_int_equal(options_cpu_count("/nowhere", "/nowhere"), unlimited);
}

int main(void) {
    (void)expect_ok; // of the fixture
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_cgroup_quota_anywhere_above_limits_the_threads)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
