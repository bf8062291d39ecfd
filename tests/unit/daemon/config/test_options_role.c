// --role shard: the options that contradict it, and those that do not.
#include "tests/unit/daemon/config/options_fixture.h"

#include "daemon/config/options_conflict.h"

static void refused(const char *flags, const char *environment, enum expertd_err_code code, const char *thing, const char *remedy) {
    struct options options;
    err_t e = parse(flags, environment, &options);
    options_deinit(&options);
    if (e.code != code || !strstr(expertd_err_message(), thing) || !strstr(expertd_err_message(), remedy)) {
        fail_msg("%s | %s: %s", flags, environment, err_is(e) ? expertd_err_message() : "(no error)");
    }
}

static void options_of_a_front_are_refused_with_the_remedy(void **state) {
    (void)state;
    const enum expertd_err_code usage = EXPERTD_ERR_USAGE;
    refused("--model m --role shard --shards 2", "", usage, "shards is set (flag --shards)", "remove shards");
    refused("--model m --role shard --placement balanced --placement-counts f", "", usage, "placement is set", "on the front");
    refused("--model m --role shard --placement balanced --placement-counts f --replicas 3", "", usage, "is set", "on the front");
    refused("--model m --role shard --device cuda", "", usage, "device is cuda (flag --device)",
            "computes on the CPU in this version");
    refused("--model m --role shard --device sim:2", "", usage, "device is sim:2", "set device to cpu");
    refused("--model m --role shard --tuning tune", "", usage, "tuning is tune", "set tuning to cached");
    refused("--model m --role shard --verify", "", usage, "--verify", "remove --role");
    refused("--model m --role shard --inspect", "", usage, "--inspect", "remove --role");
    refused("--model m", "EXPERTD_ROLE=shard EXPERTD_SHARDS=2", EXPERTD_ERR_CONFIG, "role is shard (environment EXPERTD_ROLE)",
            "remove shards");
    refused("--model m --role server", "", usage, "--role", "front");
    refused("--model m --max-fronts 65", "", usage, "--max-fronts", "64");
}

static void limits_for_callers_and_defaults_are_no_contradiction(void **state) {
    (void)state;
    struct options o;
    expect_ok(
        "--model m --role shard --shards 1 --placement contiguous --device cpu --tuning heuristic --max-queue 9 --max-streams 3 "
        "--move-bytes-max 5MiB --max-region-bytes 0",
        "", &o);
    assert_true(options_is_shard(&o));
    options_deinit(&o);
    expect_ok("--model m --shards 2", "", &o);
    assert_false(options_is_shard(&o));
    options_deinit(&o);
}

int main(void) {
    (void)write_file; // of the fixture
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_a_front_are_refused_with_the_remedy),
        cmocka_unit_test(limits_for_callers_and_defaults_are_no_contradiction),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
