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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_syntax_matches_as_its_program_does),
        cmocka_unit_test(what_is_not_valid_or_takes_too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
