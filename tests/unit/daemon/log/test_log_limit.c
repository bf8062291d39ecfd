// Tests the bound on lines that one peer causes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "daemon/log/log_limit.h"

static void burst_then_one_per_second(void **state) {
    struct log_limit limit = {0};
    unsigned long left_out;
    int64_t now_ns = 5 * (int64_t)NS_PER_S;
    (void)state;
    for (int i = 0; i < LOG_LIMIT_BURST; i++) {
        assert_true(log_limit_take(&limit, now_ns, &left_out));
        assert_int_equal(left_out, 0);
    }
    for (int i = 0; i < 1000; i++) {
        assert_false(log_limit_take(&limit, now_ns, &left_out));
    }
    now_ns += NS_PER_S;
    assert_true(log_limit_take(&limit, now_ns, &left_out));
    assert_int_equal(left_out, 1000);
    assert_false(log_limit_take(&limit, now_ns, &left_out));
}

static void a_calm_peer_has_its_burst_again(void **state) {
    struct log_limit limit = {0};
    unsigned long left_out;
    (void)state;
    for (int round = 0; round < 3; round++) {
        int64_t now_ns = round * LOG_LIMIT_BURST * (int64_t)NS_PER_S;
        int allowed = 0;
        for (int i = 0; i < 2 * LOG_LIMIT_BURST; i++) {
            allowed += log_limit_take(&limit, now_ns, &left_out);
        }
        assert_int_equal(allowed, LOG_LIMIT_BURST);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(burst_then_one_per_second),
        cmocka_unit_test(a_calm_peer_has_its_burst_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
