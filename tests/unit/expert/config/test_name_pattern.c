// Patterns for module names.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "expert/config/name_pattern.h"

static bool matches(enum name_match match, const char *text, const char *name) {
    struct name_pattern pattern;
    bool is = false;
    assert_false(err_is(name_pattern_init(&pattern, match, text)));
    assert_false(err_is(name_pattern_matches(&pattern, name, &is)));
    name_pattern_deinit(&pattern);
    return is;
}

static void each_syntax_matches_as_its_program_does(void **state) {
    (void)state;
    static const char NAME[] = "model.layers.3.mlp.experts.10.up_proj";
    assert_true(matches(NAME_EXACT, NAME, NAME) && !matches(NAME_EXACT, "model.layers.3", NAME));
    assert_true(matches(NAME_COMPONENTS, "mlp.experts", NAME) && !matches(NAME_COMPONENTS, "experts.1", NAME));
    assert_false(matches(NAME_COMPONENTS, "", NAME));
    assert_true(matches(NAME_GLOB, "model.layers.[0-4].*", NAME) && !matches(NAME_GLOB, "model.layers.[!3].*", NAME));
    assert_true(matches(NAME_GLOB, "*mlp", NAME) && !matches(NAME_GLOB, "layers.*", NAME) &&
                !matches(NAME_GLOB, "model?lay", NAME));
    assert_true(matches(NAME_GLOB, "a[b", "a[b") && matches(NAME_GLOB, "a[", "a[") && matches(NAME_GLOB, "[]]", "]"));
    assert_true(matches(NAME_START, "model\\.layers\\.\\d+\\.mlp", NAME) && !matches(NAME_START, "layers", NAME));
    assert_true(matches(NAME_START, ".*experts\\.(?:1|10)\\.(?!gate)", NAME) && matches(NAME_START, ".*?up_proj$", NAME));
    assert_true(matches(NAME_ANYWHERE, "experts.*up", NAME) && !matches(NAME_ANYWHERE, "^layers", NAME));
}

static void what_is_not_valid_or_takes_too_long_is_refused(void **state) {
    (void)state;
    struct name_pattern pattern;
    static char deep[202], name[64], glob[4000];
    memset(deep, '(', 100), memset(deep + 100, ')', 100);
    memset(glob, '.', sizeof glob - 1);
    memset(name, 'a', sizeof name - 1);
    bool is;
    assert_int_equal(name_pattern_init(&pattern, NAME_START, "a(").code, EXPERTD_ERR_CHECKPOINT);
    assert_int_equal(name_pattern_init(&pattern, NAME_START, deep).code, EXPERTD_ERR_CHECKPOINT);
    assert_int_equal(name_pattern_init(&pattern, NAME_GLOB, glob).code, EXPERTD_ERR_CHECKPOINT);
    assert_false(err_is(name_pattern_init(&pattern, NAME_START, "(a|aa)+(a|aa)+[bc]")));
    assert_int_equal(name_pattern_matches(&pattern, name, &is).code, EXPERTD_ERR_CHECKPOINT);
    name_pattern_deinit(&pattern);
}

static void the_literal_of_an_expression_is_in_each_of_its_matches(void **state) {
    (void)state;
    static const char *const EXPRESSIONS[][2] = {
        {".*layers\\.57\\.mlp\\.experts\\..*_proj$", "layers.57.mlp.experts."},
        {"ab?c", "a"},
        {"ab*", "a"},
        {"ab+c", "ab"},
        {"ab{0,2}cd", "cd"},
        {"a|bcd", ""},
        {"(a|b)cd", "cd"},
        {"(?:xyz)?c", "c"},
        {"(?i)abc", ""},
        {"ab[]c]de", "ab"},
        {"ab[^]c]def", "def"},
        {"a\\x41b", ""},
        {"\\Qa.b\\E", ""},
        {"a\\dbc", "bc"},
        {"(?!abc)de", "de"},
        {"(a\\)b)cd", "cd"},
        {"(*ANY)abc", ""},
        {"ab??c", "a"},
        {"a{", ""},
        {"", ""},
        {".*", ""},
        {"([)]x)yz", "yz"},
        {"a(b(?i)c)def", ""},
        {"(?x)a b", ""},
        {"a\\", ""},
        {"[[:alpha:]]x", ""},
        {"(\\c)a)bc", ""},
        {"[\\Q]\\E]x", ""},
        {"(\\Q)\\E)x", ""},
    };
    char literal[NAME_LITERAL_MAX], longest[200], expected[NAME_LITERAL_MAX] = {0};
    for (size_t i = 0; i < sizeof EXPRESSIONS / sizeof *EXPRESSIONS; i++) {
        name_literal_of(EXPRESSIONS[i][0], literal);
        assert_string_equal(literal, EXPRESSIONS[i][1]);
    }
    memset(longest, 'a', sizeof longest - 1), longest[sizeof longest - 1] = '\0';
    memset(expected, 'a', sizeof expected - 1);
    name_literal_of(longest, literal);
    assert_string_equal(literal, expected);
}

static void a_glob_has_a_literal(void **state) {
    (void)state;
    struct name_pattern pattern;
    assert_false(err_is(name_pattern_init(&pattern, NAME_GLOB, "*layers.5?.mlp.experts*")));
    assert_string_equal(pattern.literal, ".mlp.experts");
    name_pattern_deinit(&pattern);
}

static uint32_t next(uint32_t *seed) {
    return (*seed = *seed * 1664525 + 1013904223) >> 8;
}

// Random expressions: the search for the literal never changes a result.
static void a_literal_excludes_no_match(void **state) {
    (void)state;
    static const char *const PIECES[] = {"a", "b",    "ab",  ".", "\\.", "*",   "?",     "+", "(", ")",
                                         "|", "[ab]", "(?:", "^", "$",   "\\w", "{0,1}", "[", "]", "\\"};
    uint32_t seed = 7, valid = 0;
    for (int i = 0; i < 20000; i++) {
        char text[64] = "", name[9];
        struct name_pattern pattern;
        for (int p = 0; p < 6; p++) {
            strcat(text, PIECES[next(&seed) % (sizeof PIECES / sizeof *PIECES)]);
        }
        for (int c = 0; c < 8; c++) {
            name[c] = "ab.c"[next(&seed) % 4];
        }
        name[8] = '\0';
        if (err_is(name_pattern_init(&pattern, NAME_ANYWHERE, text))) {
            continue;
        }
        bool with, without;
        valid++;
        assert_false(err_is(name_pattern_matches(&pattern, name, &with)));
        pattern.literal[0] = '\0';
        assert_false(err_is(name_pattern_matches(&pattern, name, &without)));
        assert_int_equal(with, without);
        name_pattern_deinit(&pattern);
    }
    assert_true(valid > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_syntax_matches_as_its_program_does),
        cmocka_unit_test(the_literal_of_an_expression_is_in_each_of_its_matches),
        cmocka_unit_test(a_glob_has_a_literal),
        cmocka_unit_test(a_literal_excludes_no_match),
        cmocka_unit_test(what_is_not_valid_or_takes_too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
