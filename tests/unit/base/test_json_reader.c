#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json_reader.h"

static err_t skip_all(const char *text) {
    struct json_reader reader;
    json_reader_init(&reader, text, strlen(text));
    TRY(json_reader_skip(&reader));
    return json_reader_end(&reader);
}

static void values_of_every_kind_are_skipped(void **state) {
    (void)state;
    static const char *const GOOD[] = {
        "0",
        "-0",
        "12",
        "-1.5e+10",
        "1E5",
        "0.0",
        "1e-9",
        "true",
        "false",
        "null",
        "\"\"",
        "\"\\u00e9\\\"\\/\"",
        "[]",
        "{}",
        " [ 1 , [ ] , { } ] ",
        "{\"a\":{\"b\":[1,{\"c\":null}]},\"d\":[[]]}",
        "[[1],2]",
        "\t[\r\n]\n",
    };
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) {
        if (err_is(skip_all(GOOD[i]))) {
            fail_msg("%s: %s", GOOD[i], expertd_err_message());
        }
    }
}

static void invalid_json_is_refused(void **state) {
    (void)state;
    static const char *const BAD[] = {
        "",
        " ",
        "-",
        "01",
        "1.",
        "1.e5",
        ".5",
        "1e",
        "1e+",
        "+1",
        "tru",
        "True",
        "nul",
        "NaN",
        "\"",
        "\"\\",
        "[",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{a:1}",
        "{1:1}",
        "{\"a\" 1}",
        "[}",
        "{]",
        "[1}",
        "{\"a\":1]",
        "1 1",
        "[] []",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\ud800x\"",
        "\"\\ud800\\u0041\"",
        "\"a\nb\"",
        "'a'",
        "[1]]",
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        if (!err_is(skip_all(BAD[i]))) {
            fail_msg("accepted: %s", BAD[i]);
        }
        assert_non_null(strstr(expertd_err_message(), "bad JSON at byte"));
    }
}

static void nesting_is_bounded(void **state) {
    (void)state;
    char text[2 * 65 + 1] = "";
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    assert_false(err_is(skip_all(text))); // 64 levels, the innermost empty
    memset(text, '[', 66);
    memset(text + 66, ']', 64);
    assert_true(err_is(skip_all(text)));
    assert_non_null(strstr(expertd_err_message(), "levels of nesting"));
}

static void a_text_without_terminator_is_not_read_past(void **state) {
    (void)state;
    static const char *const CUT[] = {"\"abc", "\"\\", "\"\\u00", "\"\xc3", "12", "tru", "{\"a\":", "\"\\ud800\\u", "1.", "-"};
    for (size_t i = 0; i < sizeof CUT / sizeof *CUT; i++) {
        size_t length = strlen(CUT[i]);
        char *exact = malloc(length); // a sanitizer detects a read past the end
        memcpy(exact, CUT[i], length);
        struct json_reader reader;
        json_reader_init(&reader, exact, length);
        (void)err_is(json_reader_skip(&reader));
        assert_true(reader.at <= reader.end);
        free(exact);
    }
}

static void an_unescaped_string_never_grows(void **state) {
    (void)state;
    static const char TEXT[] = "\"\\u0041\\n\\ud83d\\ude00\\u20ac\xf0\x9f\x98\x80\"";
    char *out = malloc(sizeof TEXT - 1);
    struct json_reader reader;
    size_t length;
    json_reader_init(&reader, TEXT, sizeof TEXT - 1);
    assert_false(err_is(json_reader_string(&reader, out, &length)));
    assert_string_equal(out, "A\n\xf0\x9f\x98\x80\xe2\x82\xac\xf0\x9f\x98\x80");
    assert_int_equal(length, strlen(out));
    free(out);
}

static void integers_reach_2_to_63(void **state) {
    (void)state;
    uint64_t value;
    struct json_reader reader;
    json_reader_init(&reader, "9223372036854775807", 19);
    assert_false(err_is(json_reader_u64(&reader, &value)));
    assert_true(value == INT64_MAX);
    json_reader_init(&reader, "9223372036854775808", 19);
    assert_true(err_is(json_reader_u64(&reader, &value)));
    json_reader_init(&reader, "18446744073709551617", 20); // 2^64 + 1
    assert_true(err_is(json_reader_u64(&reader, &value)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_every_kind_are_skipped),
        cmocka_unit_test(invalid_json_is_refused),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(a_text_without_terminator_is_not_read_past),
        cmocka_unit_test(an_unescaped_string_never_grows),
        cmocka_unit_test(integers_reach_2_to_63),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
