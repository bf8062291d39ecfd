// Parsing of addresses.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "client/c/address.h"

static void assert_target(const char *text, const char *shown, const char *target) {
    struct address address;
    char got[ADDRESS_TARGET_MAX];
    if (err_is(address_parse(text, &address))) {
        fail_msg("%s: %s", text, expertd_err_message());
    }
    assert_string_equal(address.text, shown);
    address_target(&address, got);
    assert_string_equal(got, target);
}

static void assert_refused(const char *text, const char *cause) {
    struct address address;
    assert_int_equal(address_parse(text, &address).code, EXPERTD_ERR_USAGE);
    if (!strstr(expertd_err_message(), cause)) {
        fail_msg("%s: '%s' does not mention '%s'", text, expertd_err_message(), cause);
    }
}

static void address_takes_sockets_names_and_both_ip_versions(void **state) {
    (void)state;
    assert_target("unix:/run/expertd.sock", "unix:/run/expertd.sock", "unix:/run/expertd.sock");
    assert_target("unix:///run/expertd.sock", "unix:/run/expertd.sock", "unix:/run/expertd.sock");
    assert_target("unix:x.sock", "unix:x.sock", "unix:x.sock");
    assert_target("unix:@name", "unix:@name", "unix-abstract:name");
    assert_target("127.0.0.1:7411", "127.0.0.1:7411", "127.0.0.1:7411");
    assert_target("node-3.example.org:1", "node-3.example.org:1", "node-3.example.org:1");
    assert_target("[::1]:65535", "[::1]:65535", "[::1]:65535");
}

static void address_escapes_what_a_target_cannot_hold(void **state) {
    (void)state;
    assert_target("unix:/a b/100%.sock", "unix:/a b/100%.sock", "unix:/a%20b/100%25.sock");
    assert_target("unix:/\xc3\xa4?#", "unix:/\xc3\xa4?#", "unix:/%C3%A4%3F%23");
}

static void address_names_what_is_wrong(void **state) {
    (void)state;
    assert_refused("", "port is missing");
    assert_refused("localhost", "such as localhost:7411");
    assert_refused("localhost:", "port is not a number");
    assert_refused(":7411", "host is missing");
    assert_refused("localhost:0", "1 to 65535");
    assert_refused("localhost:65536", "1 to 65535");
    assert_refused("localhost:74 11", "port is not a number");
    assert_refused("localhost:-1", "port is not a number");
    assert_refused("localhost:000000007411", "port is not a number");
    assert_refused("::1:7411", "brackets");
    assert_refused("http://localhost:7411", "scheme");
    assert_refused("/run/expertd.sock", "unix:/run/expertd.sock");
    assert_refused("unix:", "path is missing");
    assert_refused("host name:1", "does not belong");
    assert_refused("ho\nst:1", "does not belong");
}

static void address_bounds_paths_and_hosts(void **state) {
    (void)state;
    char text[600] = "unix:/";
    memset(text + 6, 'a', 106); // the longest path, 107 bytes
    struct address address;
    assert_false(err_is(address_parse(text, &address)));
    text[112] = 'a';
    assert_refused(text, "107 bytes");
    memset(text, ' ', sizeof text);
    memset(text, 'h', 300);
    memcpy(text + 300, ":1", 3);
    assert_refused(text, "too long");
    memset(text, ' ', sizeof text - 1); // every byte must be escaped
    memcpy(text, "unix:", 5);
    text[5 + 107] = '\0';
    assert_false(err_is(address_parse(text, &address)));
    char target[ADDRESS_TARGET_MAX];
    address_target(&address, target);
    assert_int_equal(strlen(target), 5 + 3 * 107);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_takes_sockets_names_and_both_ip_versions),
        cmocka_unit_test(address_escapes_what_a_target_cannot_hold),
        cmocka_unit_test(address_names_what_is_wrong),
        cmocka_unit_test(address_bounds_paths_and_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
