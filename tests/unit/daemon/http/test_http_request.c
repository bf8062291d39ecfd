// A refused request: is it known whether its answer has a body?
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/http/http_request.h"

enum { TEXT_MAX = 16384 };

// "begin", `length` times x, "end", in pieces of `step` bytes.
static struct http_request_state feed(struct http_request *request, const char *begin, size_t length, const char *end,
                                      size_t step) {
    static char text[TEXT_MAX], filling[TEXT_MAX];
    assert_true(length < sizeof filling);
    memset(filling, 'x', length);
    filling[length] = '\0';
    size_t all = (size_t)snprintf(text, sizeof text, "%s%s%s", begin, filling, end);
    assert_true(all < sizeof text);
    http_request_reset(request);
    for (size_t at = 0; at < all && !http_request_state(request).done; at += step) {
        http_request_feed(request, text + at, all - at < step ? all - at : step);
    }
    return http_request_state(request);
}

static void a_refused_head_request_gets_no_body(void **state) {
    (void)state;
    static const struct {
        const char *begin;
        size_t length;
        const char *end;
        int refused;
        bool head;
    } CASES[] = {
        {"HEAD / HTTP/1.1\r\n\r\n", 0, "", 0, true},
        {"HEAD /", 1100, " HTTP/1.1\r\n\r\n", 414, true},
        {"HEAD / HTTP/1.1\r\nA: ", 10000, "\r\n\r\n", 431, true},
        {"HEAD / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", 0, "", 413, true},
        {"HEAD /a b HTTP/1.1\r\n\r\n", 0, "", 400, true},
        {"HEAD / HTTP/3.0\r\n\r\n", 0, "", 505, true},
        {"\r\nHEAD /", 1100, " HTTP/1.1\r\n\r\n", 414, true},
        {"HELP / HTTP/1.1\r\n\r\n", 0, "", 400, false},
        {"GET / HTTP/1.1\r\n\r\n", 0, "", 0, false},
        {"GET /", 1100, " HTTP/1.1\r\n\r\n", 414, false},
        {"POST / HTTP/1.1\r\n\r\n", 0, "", 405, false},
    };
    struct http_request *request;
    assert_false(err_is(http_request_create(&request)));
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        for (size_t step = 1; step <= TEXT_MAX; step *= 128) {
            struct http_request_state got = feed(request, CASES[i].begin, CASES[i].length, CASES[i].end, step);
            if (!got.done || got.refused != CASES[i].refused || got.head != CASES[i].head) {
                fail_msg("%s: done %d, refused %d, head %d", CASES[i].begin, got.done, got.refused, got.head);
            }
        }
    }
    http_request_destroy(request);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_head_request_gets_no_body),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
