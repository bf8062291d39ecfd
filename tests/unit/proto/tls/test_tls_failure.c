// Tests what is said about a connection that ended.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "proto/tls/tls_failure.h"

static const char *explain(bool tls, bool has_answered) {
    static char text[512];
    struct tls_failure_context context = {.address = "a:1", .tls = tls, .has_answered = has_answered};
    tls_failure_explain(&context, "Socket closed", text, sizeof text);
    return text;
}

static void a_connection_that_never_answered_may_have_met_the_other_kind_of_server(void **state) {
    (void)state;
    assert_non_null(strstr(explain(false, false), "set tls_ca"));
    assert_non_null(strstr(explain(true, false), "during the handshake"));
}

static void a_connection_that_has_answered_and_ends_is_no_question_of_tls(void **state) {
    (void)state;
    assert_string_equal(explain(false, true), "Socket closed");
    assert_string_equal(explain(true, true), "Socket closed");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_that_never_answered_may_have_met_the_other_kind_of_server),
        cmocka_unit_test(a_connection_that_has_answered_and_ends_is_no_question_of_tls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
