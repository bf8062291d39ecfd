#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "shard/membership/health.h"

static const struct health_options OPTIONS = {
    .interval_ns = 25, .missed_max = 4, .dead_after_ns = 2000, .absences_max = 3, .window_ns = 60000, .flap = {1000, 60000}};

static void a_silent_member_is_suspect_after_the_missed_heartbeats_and_dead_later(void **state) {
    (void)state;
    struct health health = {0};
    health_connected(&health, 1000);
    assert_int_equal(health_check(&health, &OPTIONS, 1099), HEALTH_SAME);
    assert_int_equal(health_check(&health, &OPTIONS, 1100), HEALTH_SUSPECT);
    assert_int_equal(health_check(&health, &OPTIONS, 1200), HEALTH_SAME); // said once
    assert_int_equal(health_check(&health, &OPTIONS, 3000), HEALTH_DEAD);
}

static void an_echo_ends_a_suspicion_and_counts_a_false_alarm(void **state) {
    (void)state;
    struct health health = {0};
    health_connected(&health, 0);
    assert_false(health_echo(&health, 7, 50));
    assert_int_equal(health.round_trip_ns, 7);
    assert_int_equal(health_check(&health, &OPTIONS, 150), HEALTH_SUSPECT);
    assert_true(health_echo(&health, 90, 160));
    assert_int_equal(health.false_alarms, 1);
    assert_int_equal(health_check(&health, &OPTIONS, 160), HEALTH_SAME);
}

static int64_t pause_after_absence(struct health *health, int64_t now_ns) {
    health_absent(health, &OPTIONS, now_ns);
    health_returned(health, &OPTIONS, now_ns);
    return health->usable_ns - now_ns;
}

static void absences_close_to_one_another_cause_pauses_that_double_to_a_limit(void **state) {
    (void)state;
    struct health health = {0};
    int64_t now = 0;
    static const int64_t PAUSES[] = {0, 0, 0, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000};
    for (size_t i = 0; i < sizeof PAUSES / sizeof PAUSES[0]; i++) {
        int64_t pause = pause_after_absence(&health, now);
        assert_int_equal(pause, PAUSES[i]);
        now += pause + 59999; // the pause itself is no calm time
    }
    now += 1;
    assert_int_equal(pause_after_absence(&health, now), 0); // a window without an absence: forgiven
    assert_int_equal(health.absences, 1);
}

static void time_in_which_this_process_did_not_run_is_no_silence(void **state) {
    (void)state;
    struct health health = {0};
    health_connected(&health, 0);
    health_excuse(&health, 5000, 5020);
    assert_int_equal(health_check(&health, &OPTIONS, 5020), HEALTH_SAME);
    health_excuse(&health, 5000, 5050); // never later than now
    assert_int_equal(health.heard_ns, 5050);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_silent_member_is_suspect_after_the_missed_heartbeats_and_dead_later),
        cmocka_unit_test(an_echo_ends_a_suspicion_and_counts_a_false_alarm),
        cmocka_unit_test(absences_close_to_one_another_cause_pauses_that_double_to_a_limit),
        cmocka_unit_test(time_in_which_this_process_did_not_run_is_no_silence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
