// Suggestions for unknown words.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/suggest.h"

static const char *const WORDS[] = {"alpha", "beta", "gamma", "--max-queue", "--max-queue-bytes", "max_queue_delay_us", "--json"};

static const char *suggest(const char *word) {
    return suggest_word(word, strlen(word), WORDS, sizeof WORDS / sizeof *WORDS);
}

static void a_few_edits_are_forgiven(void **state) {
    (void)state;
    assert_string_equal(suggest("alhpa"), "alpha");
    assert_string_equal(suggest("bet"), "beta");
    assert_string_equal(suggest("gama"), "gamma");
    assert_string_equal(suggest("--jsn"), "--json");
}

static void case_and_dashes_cost_nothing(void **state) {
    (void)state;
    assert_string_equal(suggest("MAX_QUUE"), "--max-queue");
    assert_string_equal(suggest("max-queue-delay"), "max_queue_delay_us");
    assert_string_equal(suggest("json"), "--json");
}

static void of_two_equally_near_words_the_similar_length_wins(void **state) {
    (void)state;
    assert_string_equal(suggest("--max-que"), "--max-queue"); // a prefix of both
    assert_string_equal(suggest("max_quue_byte"), "--max-queue-bytes");
}

static void a_distant_word_has_no_suggestion(void **state) {
    (void)state;
    assert_null(suggest("delta-delta"));
    assert_null(suggest("--wrong")); // nearly as many edits as letters
    assert_null(suggest("x"));
    assert_null(suggest(""));
    assert_null(suggest("--"));
    assert_null(suggest_word("alpha", 5, WORDS, 0));
    char longest[200];
    memset(longest, 'a', sizeof longest - 1);
    longest[199] = '\0';
    assert_null(suggest(longest));
}

static void only_the_given_bytes_are_read(void **state) {
    (void)state;
    assert_string_equal(suggest_word("--jsno=x", 6, WORDS, sizeof WORDS / sizeof *WORDS), "--json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_few_edits_are_forgiven),
        cmocka_unit_test(case_and_dashes_cost_nothing),
        cmocka_unit_test(of_two_equally_near_words_the_similar_length_wins),
        cmocka_unit_test(a_distant_word_has_no_suggestion),
        cmocka_unit_test(only_the_given_bytes_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
