// Files of other kinds are recognised by their first bytes; files of the expected kinds never are.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file_magic.h"

static void assert_found(const char *bytes, size_t length, const char *what) {
    const struct file_magic *magic = file_magic_find(bytes, length);
    if (!magic || !strstr(magic->what, what)) {
        fail_msg("%s: found %s", what, magic ? magic->what : "nothing");
    }
    assert_int_equal(file_magic_check(bytes, length).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), what));
    assert_non_null(strstr(expertd_err_message(), magic->mend));
}

static void each_kind_is_recognised(void **state) {
    (void)state;
    char tar[300] = "model/config.json", zeros[20] = "";
    memcpy(tar + 257, "ustar", sizeof "ustar");
    assert_found("tjgg\1\0\0\0", 8, "before GGUF");
    assert_found("version https://hawser.github.com/spec/v1", 41, "Git LFS pointer");
    assert_found("\xef\xbb\xbf\r\n<!DOCTYPE HTML>", 20, "HTML page");
    assert_found("<Error><Code>AccessDenied", 25, "XML document");
    assert_found("PK\3\4....................m/data.pkl", 34, "pickle of PyTorch");
    assert_found("PK\3\4....................config.json", 35, "zip archive");
    assert_found("\x80\x02}q\x01", 5, "Python pickle");
    assert_found("\xfd\x37zXZ\0", 6, "compressed (xz)");
    assert_found(tar, sizeof tar, "tar archive");
    assert_found(zeros, sizeof zeros, "begins with zeros");
    assert_found("....TFL3", 8, "TensorFlow Lite");
}

static void expected_kinds_are_not_recognised(void **state) {
    (void)state;
    assert_null(file_magic_find("GGUF\3\0\0\0", 8));
    assert_null(file_magic_find("{\"model_type\": \"<html>\"}", 24));
    assert_null(file_magic_find("", 0));
    assert_null(file_magic_find(" \n", 2));
    assert_null(file_magic_find("\x1f\x8b", 2)); // too short for the magic number
    assert_false(err_is(file_magic_check_binary("", 0)));
    assert_false(err_is(file_magic_check_binary("GGUF\3\0\0\0", 8)));
}

// A header of 0x0002_8008 bytes and others begin with what is a magic number elsewhere.
static void a_length_that_looks_like_a_magic_number_is_one_of_safetensors(void **state) {
    (void)state;
    static const char *const MAGICS[] = {"\x80\x02}", "\x1f\x8b\x08", "BZh", "lmgg", "PK\3\4"};
    for (size_t i = 0; i < sizeof MAGICS / sizeof *MAGICS; i++) {
        char bytes[16] = "\0\0\0\0\0\0\0\0{\"a\":{}";
        memcpy(bytes, MAGICS[i], strlen(MAGICS[i]));
        assert_null(file_magic_find(bytes, sizeof bytes));
        bytes[8] = 'x';
        assert_non_null(file_magic_find(bytes, sizeof bytes));
    }
}

static void text_is_no_binary_file(void **state) {
    (void)state;
    assert_false(err_is(file_magic_check("Entry not found", 15)));
    assert_int_equal(file_magic_check_binary("Entry not found\n", 16).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "it is text, not weights (\"Entry not found\")"));
    assert_int_equal(file_magic_check_binary("{\"error\": \"Unauthorized\"}", 25).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "(\"{\"error\": \"Unauthorized\"}\")"));
    assert_false(err_is(file_magic_check_binary("\x90\x01\0\0\0\0\0\0{", 9)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_is_recognised),
        cmocka_unit_test(expected_kinds_are_not_recognised),
        cmocka_unit_test(a_length_that_looks_like_a_magic_number_is_one_of_safetensors),
        cmocka_unit_test(text_is_no_binary_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
