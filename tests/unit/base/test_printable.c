// Printable text, and how the rest is escaped.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/printable.h"

static void characters_have_their_lengths(void **state) {
    (void)state;
    assert_int_equal(printable_length("a"), 1);
    assert_int_equal(printable_length("\xc3\xa9"), 2);
    assert_int_equal(printable_length("\xe2\x82\xac"), 3);
    assert_int_equal(printable_length("\xf0\x9f\x98\x80"), 4);
    assert_int_equal(printable_length(""), 0);
}

static void the_first_unprintable_byte_is_found(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t at;
    } bad[] = {
        {"\xff", 0},
        {"ab\x01", 2},
        {"\xc3\xa9\x7f", 2},
        {"a\xc2\x9b", 1},         // C1
        {"a\xe2\x80\xa8", 1},     // a line separator
        {"\xef\xbb\xbfmodel", 0}, // a byte order mark
        {"a\xed\xa0\x80", 1},     // half of a surrogate pair
        {"a\xc0\xaf", 1},         // overlong
        {"a\xf4\x90\x80\x80", 1}, // beyond Unicode
        {"model \xe2\x82", 6},    // truncated
        {"model \xf0\x9f\x98z", 6},
    };
    size_t at;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(printable_is(bad[i].text, &at));
        assert_int_equal(at, bad[i].at);
    }
    assert_true(printable_is("Qwen3 30B \xe2\x82\xac", &at));
    assert_true(printable_is("", &at));
}

static void unprintable_bytes_are_escaped(void **state) {
    (void)state;
    char out[32], small[8];
    assert_string_equal(printable_escape("a\xff\n\\\xc3\xa9", out, sizeof out), "a\\xff\\x0a\\\\\xc3\xa9");
    assert_string_equal(printable_escape("abc\xff\xff", small, sizeof small), "abc\\xff"); // never a part of an escape
    assert_string_equal(printable_escape("abcd", small, 1), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_have_their_lengths),
        cmocka_unit_test(the_first_unprintable_byte_is_found),
        cmocka_unit_test(unprintable_bytes_are_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
