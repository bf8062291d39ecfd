// Defaults that depend on the machine and its environment.
#include "tests/unit/daemon/config/options_fixture.h"

#include "daemon/config/options_defaults.h"

static void the_hub_cache_is_found_as_its_tools_find_it(void **state) {
    (void)state;
    struct options o;
    expect_ok("--model m", "HOME=/h XDG_CACHE_HOME=/x HF_HOME=/hf HF_HUB_CACHE=/hub", &o);
    assert_string_equal(o.hf_cache, "/hub");
    assert_string_equal(o.origins[OPTION_HF_CACHE], "environment HF_HUB_CACHE");
    options_deinit(&o);
    expect_ok("--model m", "HOME=/h XDG_CACHE_HOME=/x HF_HOME=/hf HF_HUB_CACHE=", &o);
    assert_string_equal(o.hf_cache, "/hf/hub");
    options_deinit(&o);
    expect_ok("--model m", "HOME=/h XDG_CACHE_HOME=/x", &o);
    assert_string_equal(o.hf_cache, "/x/huggingface/hub");
    options_deinit(&o);
    expect_ok("--model m", "", &o);
    assert_null(o.hf_cache);
    options_deinit(&o);
}

static void expect_cache(const char *environment, const char *cache) {
    struct options o;
    expect_ok("--model m", environment, &o);
    assert_string_equal(o.hf_cache, cache);
    options_deinit(&o);
}

static void older_names_of_the_hub_cache_count_after_the_newer_ones(void **state) {
    (void)state;
    expect_cache("HOME=/h HUGGINGFACE_HUB_CACHE=/old HF_HOME=/hf", "/old");
    expect_cache("HOME=/h HUGGINGFACE_HUB_CACHE=/old HF_HUB_CACHE=/hub", "/hub");
    expect_cache("HOME=/h TRANSFORMERS_CACHE=/t HF_HOME=/hf", "/hf/hub");
    expect_cache("HOME=/h TRANSFORMERS_CACHE=/t PYTORCH_TRANSFORMERS_CACHE=/p XDG_CACHE_HOME=/x", "/t");
    expect_cache("HOME=/h PYTORCH_TRANSFORMERS_CACHE=/p XDG_CACHE_HOME=/x", "/p");
    expect_cache("HOME=/h PYTORCH_PRETRAINED_BERT_CACHE=/b", "/b");
}

static void home_and_variables_are_expanded_in_the_hub_cache(void **state) {
    (void)state;
    expect_cache("HOME=/h HF_HOME=~/hf", "/h/hf/hub");
    expect_cache("HOME=/h HF_HOME=~", "/h/hub");
    expect_cache("HOME=/h HF_HUB_CACHE=$HOME/x", "/h/x");
    expect_cache("HOME=/h DISK=/d HF_HUB_CACHE=${DISK}/$HOME/a$", "/d//h/a$");
    expect_cache("HOME=/h XDG_CACHE_HOME=$HOME/.c", "/h/.c/huggingface/hub");
    expect_cache("HOME=/h HF_HUB_CACHE=/a/$NONE/${NONE}/~/b", "/a/$NONE/${NONE}/~/b");
    expect_cache("HOME=/h HF_HUB_CACHE=~nobody-of-that-name/b", "~nobody-of-that-name/b");
    expect_cache("HOME=/h HF_HUB_CACHE=relative/b", "relative/b");
}

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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hub_cache_is_found_as_its_tools_find_it),
        cmocka_unit_test(older_names_of_the_hub_cache_count_after_the_newer_ones),
        cmocka_unit_test(home_and_variables_are_expanded_in_the_hub_cache),
        cmocka_unit_test(a_cgroup_quota_anywhere_above_limits_the_threads),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
