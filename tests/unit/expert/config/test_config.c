#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/stat.h>
#include <unistd.h>

#include "expert/config/config.h"

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct config *parse(const char *text) {
    struct config *config;
    err_t e = config_parse("FILE", text, strlen(text), &config);
    if (err_is(e)) {
        fail_msg("refused: %s", expertd_err_message());
    }
    return config;
}

static void refuse_text(const char *text, const char *message) {
    struct config *config;
    assert_int_equal(config_parse("FILE", text, strlen(text), &config).code, EXPERTD_ERR_CHECKPOINT);
    assert_null(config);
    assert_non_null(strstr(expertd_err_message(), "FILE"));
    if (!strstr(expertd_err_message(), message)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), message);
    }
}

static void assert_refused(err_t e, const char *message) {
    assert_int_equal(e.code, EXPERTD_ERR_CHECKPOINT);
    if (!strstr(expertd_err_message(), message)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), message);
    }
}

static void values_are_found_under_any_of_their_names(void **state) {
    (void)state;
    struct config *c =
        parse("{\"num_local_experts\": 8, \"s\": \"text\", \"f\": 2.5, \"i\": 3, \"b\": true, \"n\": null, \"r\": 4.0}");
    uint32_t u = 0;
    double d = 0;
    bool b = false, found;
    const char *s = NULL;
    assert_false(err_is(config_u32(c, KEYS("num_experts", "num_local_experts"), &u, &found)));
    assert_true(found);
    assert_int_equal(u, 8);
    assert_false(err_is(config_u32(c, KEYS("r"), &u, &found)));
    assert_int_equal(u, 4);
    assert_false(err_is(config_f64(c, KEYS("f"), &d, &found)));
    assert_true(d == 2.5);
    assert_false(err_is(config_f64(c, KEYS("i"), &d, &found)));
    assert_true(d == 3);
    assert_false(err_is(config_bool(c, KEYS("b"), &b, &found)));
    assert_true(b);
    assert_false(err_is(config_string(c, KEYS("s"), &s, &found)));
    assert_string_equal(s, "text");
    u = 77;
    assert_false(err_is(config_u32(c, KEYS("n", "absent"), &u, &found)));
    assert_false(found);
    assert_int_equal(u, 77);
    assert_false(config_has(c, "n"));
    assert_true(config_has(c, "b"));
    config_destroy(c);
}

static void wrong_types_and_ranges_name_file_key_and_value(void **state) {
    (void)state;
    struct config *c =
        parse("{\"s\": \"8\", \"neg\": -1, \"frac\": 1.5, \"big\": 4294967296, \"b\": 1, \"l\": [1, \"x\"], \"inf\": Infinity}");
    uint32_t u, list[4];
    size_t count;
    double d;
    bool b, found;
    const char *s;
    assert_refused(config_u32(c, KEYS("s"), &u, &found), "FILE: s is \"8\": expected an integer");
    assert_refused(config_u32(c, KEYS("neg"), &u, &found), "neg is -1");
    assert_refused(config_u32(c, KEYS("frac"), &u, &found), "frac is 1.5");
    assert_refused(config_u32(c, KEYS("big"), &u, &found), "big is 4294967296");
    assert_refused(config_u32(c, KEYS("inf"), &u, &found), "inf is Infinity");
    assert_refused(config_u32(c, KEYS("l"), &u, &found), "l is [1");
    assert_refused(config_f64(c, KEYS("s"), &d, &found), "expected a number");
    assert_refused(config_bool(c, KEYS("b"), &b, &found), "true or false");
    assert_refused(config_string(c, KEYS("neg"), &s, &found), "expected a string");
    assert_refused(config_string(c, KEYS("inf"), &s, &found), "expected a string");
    assert_refused(config_u32_list(c, KEYS("l"), list, 4, &count, &found), "expected an integer");
    assert_refused(config_u32_list(c, KEYS("l"), list, 1, &count, &found), "2 elements: expected at most 1");
    assert_refused(config_u32_list(c, KEYS("s"), list, 4, &count, &found), "a list of integers");
    config_destroy(c);
}

static void integers_have_a_range_and_lists_a_type(void **state) {
    (void)state;
    struct config *c = parse("{\"i\": 9, \"n\": -1, \"t\": true, \"l\": [3, 9], \"r\": 2.0, \"none\": null}");
    const struct config_range range = {1, 8};
    uint32_t u = 0;
    size_t count;
    bool found;
    assert_refused(config_u32_in(c, KEYS("i"), 0, range, &u, &found), "FILE: i is 9: expected an integer from 1 to 8");
    assert_refused(config_u32_in(c, KEYS("n"), 0, range, &u, &found), "n is -1: expected an integer from 1 to 8");
    assert_refused(config_u32_in(c, KEYS("t"), 0, range, &u, &found), "t is true: expected an integer from 1 to 8");
    assert_refused(config_u32_in(c, KEYS("l"), 1, range, &u, &found), "l[1] is 9: expected an integer from 1 to 8");
    assert_refused(config_u32_in(c, KEYS("l"), CONFIG_WHOLE, range, &u, &found), "l is [3, 9]: expected an integer from 1 to 8");
    assert_false(err_is(config_u32_in(c, KEYS("r"), 0, range, &u, &found)));
    assert_int_equal(u, 2);
    assert_false(err_is(config_list(c, "l", "numbers", &count)));
    assert_int_equal(count, 2);
    assert_false(err_is(config_list(c, "none", "numbers", &count)));
    assert_int_equal(count, 0);
    assert_refused(config_list(c, "t", "numbers", &count), "FILE: t is true: expected a list of numbers");
    config_destroy(c);
}

static void expected_values_have_the_type_of_their_text(void **state) {
    (void)state;
    struct config *c = parse("{\"s\": \"silu\", \"t\": true, \"st\": \"true\", \"f\": false, \"z\": 0, \"sz\": \"0\", "
                             "\"one\": 1.0, \"none\": null, \"l\": [1], \"n\": NaN, \"empty\": \"\"}");
    assert_false(err_is(config_expect(c, "s", "gelu|silu")));
    assert_false(err_is(config_expect(c, "t", "true")));
    assert_false(err_is(config_expect(c, "f", "false")));
    assert_false(err_is(config_expect(c, "z", "1|0")));
    assert_false(err_is(config_expect(c, "one", "0|1")));
    assert_false(err_is(config_expect(c, "none", "1")));
    assert_false(err_is(config_expect(c, "absent", "1")));
    assert_refused(config_expect(c, "s", "a|b|c"), "FILE: s is silu, which is not supported: expected a, b or c");
    assert_refused(config_expect(c, "st", "true"), "st is \"true\", which is not supported: expected true");
    assert_refused(config_expect(c, "f", "0"), "f is false, which is not supported: expected 0");
    assert_refused(config_expect(c, "z", "false"), "z is 0, which");
    assert_refused(config_expect(c, "sz", "0"), "sz is \"0\", which");
    assert_refused(config_expect(c, "l", "1"), "l is [1], which");
    assert_refused(config_expect(c, "n", "1"), "n is NaN, which");
    assert_refused(config_expect(c, "empty", "silu"), "empty is \"\", which");
    config_destroy(c);
}

static void a_value_in_the_place_of_an_object_is_named(void **state) {
    (void)state;
    struct config *c = parse("{\"ffn_config\": \"gelu\", \"o\": {\"p\": [1]}, \"none\": null, \"text_config\": 3}");
    uint32_t u;
    size_t count;
    bool found;
    assert_refused(config_u32(c, KEYS("ffn_config.moe_top_k"), &u, &found), "FILE: ffn_config is gelu: expected an object");
    assert_refused(config_u32(c, KEYS("o.p.q"), &u, &found), "FILE: o.p is [1]: expected an object");
    assert_refused(config_list(c, "o.p.q", "numbers", &count), "FILE: o.p is [1]: expected an object");
    assert_refused(config_expect(c, "o.p.q", "1"), "FILE: o.p is [1]: expected an object");
    assert_false(err_is(config_u32(c, KEYS("none.k"), &u, &found)));
    assert_false(found);
    assert_refused(config_missing(c, KEYS("k"), CONFIG_WHOLE, "a number"), "; text_config is 3: its keys are not read");
    config_destroy(c);
    c = parse("{\"text_config\": {\"k\": 3}}");
    assert_refused(config_missing(c, KEYS("k"), CONFIG_WHOLE, "a number"), "; text_config.model_type is missing: its keys are not");
    config_destroy(c);
}

static void a_long_value_is_cut_visibly(void **state) {
    (void)state;
    struct config *c =
        parse("{\"a\": \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}");
    uint32_t u;
    bool found;
    assert_refused(config_u32(c, KEYS("a"), &u, &found), "xxx...: expected");
    config_destroy(c);
}

static void two_names_of_one_setting_must_agree(void **state) {
    (void)state;
    struct config *c = parse("{\"a\": 8, \"b\": 8.0, \"c\": 9, \"d\": null}");
    uint32_t u;
    bool found;
    assert_false(err_is(config_u32(c, KEYS("d", "a", "b"), &u, &found)));
    assert_refused(config_u32(c, KEYS("a", "c"), &u, &found), "a is 8 and c is 9");
    config_destroy(c);
}

static void lists_are_read_per_layer(void **state) {
    (void)state;
    struct config *c = parse("{\"k\": [2, 3, null], \"one\": 5, \"t\": [\"dense\", \"sparse\"], \"f\": [0.0, 7.5], \"u\": [1, 2]}");
    uint32_t u = 0, list[4];
    size_t count;
    double d;
    bool found;
    const char *s;
    assert_false(err_is(config_u32_at(c, KEYS("k"), 1, &u, &found)));
    assert_int_equal(u, 3);
    assert_false(err_is(config_u32_at(c, KEYS("k"), 2, &u, &found)));
    assert_false(found);
    assert_refused(config_u32_at(c, KEYS("k"), 3, &u, &found), "k has 3 elements: element 3 is missing");
    assert_false(err_is(config_u32_at(c, KEYS("one"), 99, &u, &found)));
    assert_int_equal(u, 5);
    assert_false(err_is(config_f64_at(c, KEYS("f"), 1, &d, &found)));
    assert_true(d == 7.5);
    assert_false(err_is(config_string_at(c, KEYS("t"), 1, &s, &found)));
    assert_string_equal(s, "sparse");
    assert_int_equal(config_list_length(c, "t"), 2);
    assert_int_equal(config_list_length(c, "one"), 0);
    assert_false(err_is(config_u32_list(c, KEYS("u"), list, 4, &count, &found)));
    assert_int_equal(count, 2);
    assert_int_equal(list[1], 2);
    config_destroy(c);
}

static void dots_in_a_key_select_nested_objects(void **state) {
    (void)state;
    struct config *c = parse("{\"ffn_config\": {\"moe_top_k\": 4, \"act\": {\"name\": \"silu\"}}, \"list\": [1]}");
    uint32_t u = 0;
    bool found;
    char text[16];
    assert_false(err_is(config_u32(c, KEYS("ffn_config.moe_top_k"), &u, &found)));
    assert_int_equal(u, 4);
    assert_true(config_value_text(c, "ffn_config.act.name", text, sizeof text));
    assert_string_equal(text, "silu");
    assert_false(config_has(c, "list.x"));
    assert_false(config_has(c, "ffn_config.act.name.deeper"));
    assert_false(config_has(c, "a.b.c.d.e.f"));
    config_destroy(c);
}

static void bare_infinity_and_nan_are_numbers(void **state) {
    (void)state;
    struct config *c =
        parse("{\"a\": Infinity, \"b\": [-Infinity , NaN], \"c\": \"NaN, Infinity\", \"d\": \"\\\"NaN\", \"e\": -2, \"f\":NaN}");
    double d;
    bool found;
    const char *s;
    assert_false(err_is(config_f64(c, KEYS("a"), &d, &found)));
    assert_true(d == INFINITY);
    assert_false(err_is(config_f64_at(c, KEYS("b"), 0, &d, &found)));
    assert_true(d == -INFINITY);
    assert_false(err_is(config_f64_at(c, KEYS("b"), 1, &d, &found)));
    assert_true(isnan(d));
    assert_false(err_is(config_string(c, KEYS("c"), &s, &found)));
    assert_string_equal(s, "NaN, Infinity");
    assert_false(err_is(config_string(c, KEYS("d"), &s, &found)));
    assert_string_equal(s, "\"NaN");
    config_destroy(c);
    refuse_text("{NaN: 1}", "bad JSON");
    refuse_text("{\"a\": NaNs}", "bad JSON");
    refuse_text("{\"a\": --Infinity}", "bad JSON");
    refuse_text("{\"a\": nan}", "bad JSON");
    refuse_text("NaN", "bad JSON");
}

static void bad_json_names_its_line(void **state) {
    (void)state;
    refuse_text("", "bad JSON");
    refuse_text("{\n\"a\": 1,\n}", "line 3");
    refuse_text("[1]", "it is not a JSON object, but [1]: expected an object");
    refuse_text("{\"a\": 1, \"a\": 1}", "duplicate");
    refuse_text("{\"a\": 1, \"a\": 1}", "remove one of the two");
    refuse_text("{} {}", "bad JSON");
    refuse_text(
        "{\"b\": 2, \"a\": 1e999}",
        "bad JSON in line 1: real number overflow near '1e999' (after: {\"b\": 2, \"a\": 1e999): no setting has a number as large");
    refuse_text("{\"a\": 1000000000000000000000}", "(after: {\"a\": 1000000000000000000000)");
    refuse_text("{\"a", "bad JSON");
    refuse_text("{\"a\\", "bad JSON");
    refuse_text("{\"a\": \"\xff\"}", "bad JSON");
}

static void messages_name_the_key_as_the_file_has_it(void **state) {
    (void)state;
    struct config *c = parse("{\"text_config\": {\"model_type\": \"m\", \"n_experts\": 0, \"list\": [1, \"true\"], \"none\": null, "
                             "\"nulls\": [1, null]}, "
                             "\"experts\": 1, \"size\": -Infinity}");
    const struct config *text = config_text(c);
    char values[64];
    assert_refused(config_refuse(text, KEYS("experts", "n_experts"), CONFIG_WHOLE, ": expected 1 to %d", 8),
                   "FILE: text_config.n_experts is 0: expected 1 to 8");
    assert_refused(config_refuse(text, KEYS("list"), 1, ": no"), "FILE: text_config.list[1] is \"true\": no");
    assert_refused(config_refuse(text, KEYS("list"), CONFIG_WHOLE, ": no"), "FILE: text_config.list is [1, \"true\"]: no");
    assert_refused(config_refuse(text, KEYS("none"), 0, ": no"), "FILE: text_config.none is null: no");
    assert_refused(config_refuse(c, KEYS("absent"), 0, ": no"), "FILE: absent is missing: no");
    assert_refused(config_missing(c, KEYS("absent", "gone", "none"), CONFIG_WHOLE, "1 to %d", 8),
                   "FILE: absent is missing (expected: 1 to 8; other names: gone, none): is this the model's own config.json?");
    assert_refused(config_missing(text, KEYS("absent"), CONFIG_WHOLE, "a number"),
                   "FILE: text_config.absent is missing (expected: a number)");
    assert_refused(config_missing(text, KEYS("absent", "none"), CONFIG_WHOLE, "a number"),
                   "FILE: text_config.none is null (expected: a number; other names: absent)");
    assert_refused(config_missing(text, KEYS("absent", "nulls"), 1, "a number"), "FILE: text_config.nulls[1] is null (expected");
    const char *const *const settings[] = {KEYS("gone"), KEYS("e", "experts"), KEYS("size"), NULL};
    assert_string_equal(config_values_text(c, settings, values, sizeof values), "experts 1, size -Infinity");
    assert_string_equal(config_values_text(c, settings, values, 8), "experts");
    config_destroy(c);
}

static void a_nul_byte_is_refused(void **state) {
    (void)state;
    struct config *c;
    assert_refused(config_parse("FILE", "{}\0{\"a\"", 7, &c), "FILE: bad JSON: byte 3 of 7 is NUL: the file is damaged");
    assert_refused(config_parse("FILE", "{}\n\0\0\0", 6, &c), "FILE: bad JSON: byte 4 of 6 is NUL: the file is damaged");
    assert_refused(config_parse("FILE", "\0\0\0\0", 4, &c), "FILE: bad JSON: byte 1 of 4 is NUL: the file is damaged");
}

static void a_byte_order_mark_and_carriage_returns_are_accepted(void **state) {
    (void)state;
    struct config *c = parse("\xef\xbb\xbf{\r\n\"i\": 3,\r\n\"f\": NaN\r\n}\r\n");
    uint32_t u = 0;
    bool found;
    assert_false(err_is(config_u32(c, KEYS("i"), &u, &found)));
    assert_int_equal(u, 3);
    config_destroy(c);
}

static void a_file_that_is_no_json_says_what_it_is(void **state) {
    (void)state;
    struct config *c;
    refuse_text("version https://git-lfs.github.com/spec/v1\noid sha256:aa\n", "FILE: it is a Git LFS pointer");
    refuse_text("", "the file is empty (an unfinished download?)");
    refuse_text(" \n", "the file is empty (an unfinished download?)");
    assert_refused(config_parse("FILE", "\xff\xfe{\0}\0", 6, &c), "the file is in UTF-16");
    assert_refused(config_parse("FILE", "\xfe\xff\0{\0}", 6, &c), "the file is in UTF-16");
    assert_refused(config_parse("FILE", "{\0}\0", 4, &c), "the file is in UTF-16");
}

static void deep_nesting_is_refused(void **state) {
    (void)state;
    enum { DEEP = 100000 };
    char *text = malloc(DEEP + 1);
    memset(text, '[', DEEP);
    memcpy(text, "{\"a\":", 5);
    text[DEEP] = '\0';
    refuse_text(text, "bad JSON");
    free(text);
}

static void a_wrappers_text_model_is_found(void **state) {
    (void)state;
    struct config *c = parse("{\"model_type\": \"vl\", \"text_config\": {\"model_type\": \"lm\", \"x\": \"y\"}}");
    uint32_t u;
    bool found;
    assert_refused(config_u32(config_text(c), KEYS("x"), &u, &found), "FILE: text_config.x is y");
    config_destroy(c);
    c = parse("{\"thinker_config\": {\"text_config\": {\"model_type\": \"lm\"}}}");
    assert_true(config_text(c) != c);
    config_destroy(c);
    c = parse("{\"text_config\": {\"x\": 1}}"); // no model_type: not a model of its own
    assert_ptr_equal(config_text(c), c);
    config_destroy(c);
    c = parse("{\"text_config\": 3, \"llm_config\": [1]}");
    assert_ptr_equal(config_text(c), c);
    config_destroy(c);
    c = parse("{\"text_config\": {\"model_type\": \"lm\"}, \"llm_config\": {\"model_type\": \"lm\"}}"); // equal
    config_destroy(c);
    refuse_text("{\"text_config\": {\"model_type\": \"lm\"}, \"llm_config\": {\"model_type\": \"lm\", \"x\": 1}}",
                "text_config and llm_config both describe a text model and differ");
}

static void a_text_model_in_an_object_of_its_own_type_must_agree_with_it(void **state) {
    (void)state;
    uint32_t u;
    bool found, b;
    struct config *c = parse("{\"model_type\": \"lm\", \"x\": 1, \"y\": 2, \"z\": true, \"n\": null, \"text_config\": "
                             "{\"model_type\": \"lm\", \"x\": 3, \"y\": 2.0, \"n\": 4, \"w\": 5}}");
    assert_refused(config_u32(config_text(c), KEYS("x"), &u, &found), "FILE: text_config.x is 3, but x is 1");
    assert_refused(config_bool(config_text(c), KEYS("z"), &b, &found), "FILE: text_config.z is absent, but z is true");
    assert_false(err_is(config_u32(config_text(c), KEYS("y"), &u, &found)));
    assert_false(err_is(config_u32(config_text(c), KEYS("n"), &u, &found)));
    assert_false(err_is(config_u32(config_text(c), KEYS("w"), &u, &found)));
    assert_int_equal(u, 5);
    config_destroy(c);
    c = parse("{\"model_type\": \"vl\", \"x\": 1, \"text_config\": {\"model_type\": \"lm\", \"x\": 3}}"); // a wrapper
    assert_false(err_is(config_u32(config_text(c), KEYS("x"), &u, &found)));
    assert_int_equal(u, 3);
    config_destroy(c);
}

static void a_key_that_a_layer_overrides_is_refused_when_it_is_read(void **state) {
    (void)state;
    struct config *c =
        parse("{\"k\": 8, \"same\": 2, \"f\": {\"k\": 1}, \"heads\": 4, \"per_layer_config\": {\"0\": {}, \"03\": "
              "{\"k\": 2, \"same\": 2.0, \"f\": {\"k\": 1}, \"other\": null, \"skip\": []}, \"4\": {\"f\": {\"k\": 2}}}}");
    uint32_t u;
    bool found, b;
    assert_refused(config_u32(c, KEYS("k"), &u, &found), "FILE: per_layer_config.03 overrides k, which is not supported");
    assert_refused(config_u32_at(c, KEYS("k"), 0, &u, &found), "per_layer_config.03");
    assert_refused(config_bool(c, KEYS("absent", "other"), &b, &found), "per_layer_config.03 overrides other");
    assert_refused(config_u32(c, KEYS("f.k"), &u, &found), "per_layer_config.4 overrides f.k");
    assert_false(err_is(config_u32(c, KEYS("same"), &u, &found)));
    assert_int_equal(u, 2);
    assert_false(err_is(config_u32(c, KEYS("heads"), &u, &found)));
    config_destroy(c);
    c = parse("{\"text_config\": {\"model_type\": \"lm\", \"k\": 8, \"l\": 8, \"per_layer_config\": {\"1\": {\"k\": 2}}},"
              "\"per_layer_config\": {\"2\": {\"l\": 2}}}");
    assert_refused(config_u32(config_text(c), KEYS("k"), &u, &found), "FILE: per_layer_config.1 overrides text_config.k");
    assert_refused(config_u32(config_text(c), KEYS("l"), &u, &found), "FILE: per_layer_config.2 overrides text_config.l");
    assert_false(err_is(config_u32(c, KEYS("k"), &u, &found)));
    config_destroy(c);
    config_destroy(parse("{\"per_layer_config\": null}"));
}

static void invalid_entries_of_per_layer_config_are_refused(void **state) {
    (void)state;
    refuse_text("{\"per_layer_config\": [1]}", "per_layer_config is [1]: expected an object with one member for each layer");
    refuse_text("{\"per_layer_config\": {\"3a\": {}}}", "per_layer_config has a layer \"3a\": expected a layer's number");
    refuse_text("{\"per_layer_config\": {\"\": {}}}", "has a layer \"\"");
    refuse_text("{\"per_layer_config\": {\"-1\": {}}}", "has a layer \"-1\"");
    refuse_text("{\"per_layer_config\": {\"3\": 2}}", "per_layer_config.3 is 2: expected an object with the keys of that layer");
    refuse_text("{\"per_layer_config\": {\"3\": {\"skip\": [\"mlp\"]}}}", "per_layer_config.3.skip is [\"mlp\"]");
    refuse_text("{\"text_config\": {\"model_type\": \"lm\", \"per_layer_config\": 3}}", "per_layer_config is 3");
}

static void the_files_bytes_are_returned_unchanged(void **state) {
    (void)state;
    static const char TEXT[] = "{ \"a\" :\tNaN }\n";
    struct config *c = parse(TEXT);
    size_t length;
    assert_memory_equal(config_text_bytes(c, &length), TEXT, sizeof TEXT - 1);
    assert_int_equal(length, sizeof TEXT - 1);
    config_destroy(c);
    config_destroy(NULL);
}

static void values_in_messages_carry_no_control_characters(void **state) {
    (void)state;
    struct config *c = parse("{\"a\": \"\\u001b[31m\\n\"}");
    uint32_t u;
    bool found;
    assert_refused(config_u32(c, KEYS("a"), &u, &found), "a is ?[31m?:");
    config_destroy(c);
}

static void files_are_opened_and_bounded(void **state) {
    (void)state;
    char path[] = "/tmp/expertd-config-XXXXXX", fifo[64];
    struct config *c;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "{\"a\": 1}", 8), 8);
    assert_false(err_is(config_open(path, &c)));
    assert_string_equal(config_path(c), path);
    config_destroy(c);
    assert_int_equal(ftruncate(fd, (off_t)CONFIG_BYTES_MAX + 1), 0);
    assert_refused(config_open(path, &c), "more than the limit of 8388608");
    close(fd);
    unlink(path);
    assert_int_equal(config_open(path, &c).code, EXPERTD_ERR_CHECKPOINT);
    snprintf(fifo, sizeof fifo, "%s.fifo", path);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_refused(config_open(fifo, &c), "not a regular file");
    unlink(fifo);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_found_under_any_of_their_names),
        cmocka_unit_test(wrong_types_and_ranges_name_file_key_and_value),
        cmocka_unit_test(integers_have_a_range_and_lists_a_type),
        cmocka_unit_test(expected_values_have_the_type_of_their_text),
        cmocka_unit_test(a_value_in_the_place_of_an_object_is_named),
        cmocka_unit_test(a_long_value_is_cut_visibly),
        cmocka_unit_test(two_names_of_one_setting_must_agree),
        cmocka_unit_test(lists_are_read_per_layer),
        cmocka_unit_test(dots_in_a_key_select_nested_objects),
        cmocka_unit_test(bare_infinity_and_nan_are_numbers),
        cmocka_unit_test(bad_json_names_its_line),
        cmocka_unit_test(messages_name_the_key_as_the_file_has_it),
        cmocka_unit_test(a_nul_byte_is_refused),
        cmocka_unit_test(a_byte_order_mark_and_carriage_returns_are_accepted),
        cmocka_unit_test(a_file_that_is_no_json_says_what_it_is),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(a_wrappers_text_model_is_found),
        cmocka_unit_test(a_text_model_in_an_object_of_its_own_type_must_agree_with_it),
        cmocka_unit_test(a_key_that_a_layer_overrides_is_refused_when_it_is_read),
        cmocka_unit_test(invalid_entries_of_per_layer_config_are_refused),
        cmocka_unit_test(the_files_bytes_are_returned_unchanged),
        cmocka_unit_test(values_in_messages_carry_no_control_characters),
        cmocka_unit_test(files_are_opened_and_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
