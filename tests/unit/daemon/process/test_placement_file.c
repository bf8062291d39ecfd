#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/process/placement_file.h"

static void counts_are_found_by_layer(void **state) {
    (void)state;
    static const char TEXT[] = " {\"layers\": {\"3\": [5, 0, 18446744], \"11\":[7]} }\n";
    struct placement_file file;
    const uint64_t *rows;
    assert_false(err_is(placement_file_parse(TEXT, strlen(TEXT), &file)));
    assert_int_equal(file.count, 2);
    assert_false(err_is(placement_file_find(&file, 3, 3, &rows)));
    assert_int_equal(rows[2], 18446744);
    assert_false(err_is(placement_file_find(&file, 11, 1, &rows)));
    assert_int_equal(placement_file_find(&file, 11, 2, &rows).code, EXPERTD_ERR_CONFIG);
    assert_string_equal(expertd_err_message(), "1 counts for layer 11, which has 2 experts");
    assert_null(rows);
    assert_int_equal(placement_file_find(&file, 4, 1, &rows).code, EXPERTD_ERR_CONFIG);
    assert_string_equal(expertd_err_message(), "no counts for layer 4");
    placement_file_deinit(&file);
}

static void output_of_show_is_accepted(void **state) {
    (void)state;
    static const char TEXT[] =
        "{\"address\": \"unix:/a\", \"layers\": [{\"layer\": 3, \"epoch\": 1, \"experts\": [[0], [1]], \"imbalance\": "
        "0.5, \"rows\": [5, 0]}, {\"rows\": [7], \"layer\": 11}]}";
    struct placement_file file;
    const uint64_t *rows;
    assert_false(err_is(placement_file_parse(TEXT, strlen(TEXT), &file)));
    assert_int_equal(file.count, 2);
    assert_false(err_is(placement_file_find(&file, 3, 2, &rows)));
    assert_int_equal(rows[0], 5);
    assert_false(err_is(placement_file_find(&file, 11, 1, &rows)));
    assert_int_equal(rows[0], 7);
    placement_file_deinit(&file);
}

static void many_counts_are_accepted(void **state) {
    (void)state;
    enum { COUNTS = 1000 };
    char *text = malloc(COUNTS * 4 + 64), *at = text + sprintf(text, "{\"layers\":{\"0\":[0");
    for (int i = 1; i < COUNTS; i++) {
        at += sprintf(at, ",%d", i);
    }
    at += sprintf(at, "]}}");
    struct placement_file file;
    const uint64_t *rows;
    assert_false(err_is(placement_file_parse(text, (size_t)(at - text), &file)));
    assert_false(err_is(placement_file_find(&file, 0, COUNTS, &rows)));
    assert_int_equal(rows[COUNTS - 1], COUNTS - 1);
    placement_file_deinit(&file);
    free(text);
}

static void invalid_files_are_refused_with_the_position(void **state) {
    (void)state;
    static const char *const BAD[][2] = {
        {"", "byte 0"},
        {"[]", "byte 0"},
        {"{\"layer\": {}}", "unknown key \"layer\""},
        {"{\"layers\": {}}", "byte"},
        {"{\"layers\": {\"x\": [1]}}", "\"x\" is not a layer number"},
        {"{\"layers\": {\"-1\": [1]}}", "not a layer number"},
        {"{\"layers\": {\"99999999999\": [1]}}", "not a layer number"},
        {"{\"layers\": {\"111111111111111111111111111111111111111\": [1]}}", "unknown key"},
        {"{\"layers\": {\"1\": []}}", "byte"},
        {"{\"layers\": {\"1\": [1.5]}}", "byte"},
        {"{\"layers\": {\"1\": [-1]}}", "byte"},
        {"{\"layers\": {\"1\": [1], \"1\": [2]}}", "layer 1 is given twice"},
        {"{\"layers\": {\"1\": [1]}, \"more\": 2}", "unknown key \"more\""},
        {"{\"layers\": {\"1\": [1]}} x", "byte"},
        {"{\"layers\": {\"1\": [1", "byte"},
        {"{\"layers\": []}", "byte"},
        {"{\"address\": 1}", "the file has no \"layers\""},
        {"{\"layers\": [{\"rows\": [1]}]}", "byte 12: this layer has no \"layer\""},
        {"{\"layers\": [{\"layer\": 1}]}", "byte 12: this layer has no \"rows\""},
        {"{\"layers\": [{\"layer\": 4294967295, \"rows\": [1]}]}", "no \"layer\""},
        {"{\"layers\": [{\"layer\": 1, \"rows\": [1], \"rows\": [2]}, {\"layer\": 1, \"rows\": [1]}]}", "layer 1 is given twice"},
        {"{\"layers\": [{\"layer\": 1, \"rows\": [1]}, 7]}", "byte"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        struct placement_file file;
        if (placement_file_parse(BAD[i][0], strlen(BAD[i][0]), &file).code != EXPERTD_ERR_CONFIG ||
            !strstr(expertd_err_message(), BAD[i][1])) {
            fail_msg("%s: %s", BAD[i][0], expertd_err_message());
        }
        placement_file_deinit(&file);
    }
    struct placement_file file;
    assert_int_equal(placement_file_read("/nowhere/counts.json", &file).code, EXPERTD_ERR_CONFIG);
    assert_non_null(strstr(expertd_err_message(), "/nowhere/counts.json"));
    placement_file_deinit(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_found_by_layer),
        cmocka_unit_test(output_of_show_is_accepted),
        cmocka_unit_test(many_counts_are_accepted),
        cmocka_unit_test(invalid_files_are_refused_with_the_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
