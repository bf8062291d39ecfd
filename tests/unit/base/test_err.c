#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/err.h"

static FALLIBLE fail_with(const char *text) {
    FAIL_FIELD(EXPERTD_ERR_SHAPE_MISMATCH, "hidden.shape", "shape is %s", text);
}

static FALLIBLE pass_on(const char *text) {
    TRY(fail_with(text));
    return OK;
}

static FALLIBLE pass_on_in(const char *place) {
    TRY_IN(fail_with("[3]"), "layer %d of %s", 7, place);
    return OK;
}

static void failure_keeps_code_field_and_message(void **state) {
    (void)state;
    err_t e = pass_on("[1, 2]");
    assert_true(err_is(e));
    assert_int_equal(e.code, EXPERTD_ERR_SHAPE_MISMATCH);
    assert_string_equal(expertd_err_message(), "shape is [1, 2]");
    assert_string_equal(expertd_err_field(), "hidden.shape");
    assert_false(err_is(OK));
}

static void context_goes_before_the_message(void **state) {
    (void)state;
    assert_true(err_is(pass_on_in("model")));
    assert_string_equal(expertd_err_message(), "layer 7 of model: shape is [3]");
    assert_string_equal(expertd_err_field(), "hidden.shape");
    (void)err_context(OK, "not an error");
    assert_string_equal(expertd_err_message(), "layer 7 of model: shape is [3]");
}

static void message_may_be_made_of_the_last_message(void **state) {
    (void)state;
    (void)err_record(EXPERTD_ERR_IO, NULL, "first");
    (void)err_record(EXPERTD_ERR_IO, NULL, "second after %s", expertd_err_message());
    assert_string_equal(expertd_err_message(), "second after first");
    assert_string_equal(expertd_err_field(), "");
}

static void long_messages_and_fields_are_truncated(void **state) {
    (void)state;
    char text[4 * EXPERTD_ERR_MESSAGE_MAX];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    (void)err_record(EXPERTD_ERR_IO, text, "%s", text);
    assert_int_equal(strlen(expertd_err_message()), EXPERTD_ERR_MESSAGE_MAX - 1);
    assert_int_equal(strlen(expertd_err_field()), EXPERTD_ERR_FIELD_MAX - 1);
    for (size_t length = EXPERTD_ERR_MESSAGE_MAX - 8; length < EXPERTD_ERR_MESSAGE_MAX + 8;
         length++) { // contexts of every length near the limit
        (void)err_record(EXPERTD_ERR_IO, NULL, "message");
        (void)err_context((err_t){EXPERTD_ERR_IO}, "%.*s", (int)length, text);
        assert_true(strlen(expertd_err_message()) < EXPERTD_ERR_MESSAGE_MAX);
        assert_memory_equal(expertd_err_message(), "xxxx", 4);
    }
}

static void saved_error_outlives_the_next_failure(void **state) {
    (void)state;
    struct err_copy copy;
    err_save(pass_on("[9]"), &copy);
    (void)err_record(EXPERTD_ERR_IO, NULL, "another");
    err_t e = err_restore(&copy);
    assert_int_equal(e.code, EXPERTD_ERR_SHAPE_MISMATCH);
    assert_string_equal(expertd_err_message(), "shape is [9]");
    assert_string_equal(expertd_err_field(), "hidden.shape");
}

static void *fail_elsewhere(void *argument) {
    (void)argument;
    (void)err_record(EXPERTD_ERR_NOMEM, "elsewhere", "of another thread");
    return NULL;
}

static void messages_are_per_thread(void **state) {
    (void)state;
    (void)err_record(EXPERTD_ERR_IO, "here", "mine");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(expertd_err_message(), "mine");
    assert_string_equal(expertd_err_field(), "here");
}

static void every_code_has_a_unique_name_and_an_exit_code(void **state) {
    (void)state;
    for (int code = 0; code < EXPERTD_ERR_CODE_COUNT; code++) {
        assert_non_null(expertd_err_name((enum expertd_err_code)code));
        for (int other = 0; other < code; other++) {
            assert_string_not_equal(expertd_err_name((enum expertd_err_code)code), expertd_err_name((enum expertd_err_code)other));
        }
        assert_int_equal(err_exit_code((enum expertd_err_code)code) == 0, code == EXPERTD_ERR_OK);
    }
    assert_int_equal(err_exit_code(EXPERTD_ERR_USAGE), 64);
    assert_int_equal(err_exit_code(EXPERTD_ERR_CHECKPOINT), 65);
    assert_int_equal(err_exit_code(EXPERTD_ERR_UNAVAILABLE), 69);
    assert_int_equal(err_exit_code(EXPERTD_ERR_INTERNAL), 70);
    assert_int_equal(err_exit_code(EXPERTD_ERR_CONFIG), 78);
    assert_string_equal(expertd_err_name(EXPERTD_ERR_CODE_COUNT), "UNKNOWN");
    assert_int_equal(err_exit_code((enum expertd_err_code) - 1), 70);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failure_keeps_code_field_and_message),          cmocka_unit_test(context_goes_before_the_message),
        cmocka_unit_test(message_may_be_made_of_the_last_message),       cmocka_unit_test(long_messages_and_fields_are_truncated),
        cmocka_unit_test(saved_error_outlives_the_next_failure),         cmocka_unit_test(messages_are_per_thread),
        cmocka_unit_test(every_code_has_a_unique_name_and_an_exit_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
