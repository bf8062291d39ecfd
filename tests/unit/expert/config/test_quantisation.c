// The quantisation section of config.json: sizes, methods, modules that are left out.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expert/config/quantisation.h"

static struct config *config;

static err_t read_text(const char *section, struct quantisation *out) {
    static char text[64 << 10];
    config_destroy(config);
    config = NULL;
    snprintf(text, sizeof text, "{\"model_type\":\"m\"%s%s}", section[0] ? "," : "", section);
    assert_false(err_is(config_parse("config.json", text, strlen(text), &config)));
    return quantisation_read(config, out);
}

static int end(void **state) {
    (void)state;
    config_destroy(config);
    config = NULL;
    return 0;
}

#define SAYS(words) "\"quantization_config\":{" words "}"

static void a_configuration_without_a_section_is_valid(void **state) {
    (void)state;
    struct quantisation q;
    const char *entry;
    assert_false(err_is(read_text("", &q)));
    assert_true(!q.config && q.method[0] == '\0' && q.count == 0);
    assert_false(quantisation_leaves_out(&q, "model.layers.0.mlp.experts.0.up_proj", &entry));
}

static void sizes_are_found_where_each_method_has_them(void **state) {
    (void)state;
    struct quantisation q;
    assert_false(err_is(read_text(SAYS("\"quant_method\":\"fp8\",\"weight_block_size\":[128,64]"), &q)));
    assert_string_equal(q.method, "fp8");
    assert_true(q.count == 1 && q.settings[0].block_n == 128 && q.settings[0].block_k == 64);
    assert_false(err_is(read_text(SAYS("\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":-1,\"desc_act\":true,"
                                       "\"checkpoint_format\":\"gptq_v2\""),
                                  &q)));
    assert_true(q.settings[0].bits == 8 && q.settings[0].group_k == QUANTISATION_ALL_K);
    assert_true(q.in_activation_order && q.zero_points_are_stored_as_is);
    assert_false(err_is(read_text(SAYS("\"quant_method\":\"compressed-tensors\",\"config_groups\":{"
                                       "\"a\":{\"weights\":{\"num_bits\":4,\"group_size\":32}},"
                                       "\"b\":{\"weights\":null},"
                                       "\"c\":{\"weights\":{\"num_bits\":8,\"strategy\":\"channel\",\"group_size\":null}},"
                                       "\"d\":{\"weights\":{\"num_bits\":8,\"block_structure\":\"128x64\"}}}"),
                                  &q)));
    assert_int_equal(q.count, 3);
    assert_true(q.settings[0].bits == 4 && q.settings[0].group_k == 32);
    assert_true(q.settings[1].bits == 8 && q.settings[1].group_k == QUANTISATION_ALL_K);
    assert_true(q.settings[2].block_n == 128 && q.settings[2].block_k == 64);
}

// A group's name may contain dots, which separate keys elsewhere, and may be longer than a key.
static void a_groups_name_may_be_any_text(void **state) {
    (void)state;
    struct quantisation q;
    char section[1024], name[301];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    snprintf(section, sizeof section,
             SAYS("\"config_groups\":{\"model.layers.0\":{\"weights\":{\"num_bits\":4}},\"%s\":{\"weights\":{\"num_bits\":8}},"
                  "\"\":{\"weights\":{\"num_bits\":3}}}"),
             name);
    assert_false(err_is(read_text(section, &q)));
    assert_true(q.count == 3 && q.settings[0].bits == 4 && q.settings[1].bits == 8 && q.settings[2].bits == 3);
}

static void refuse(const char *section, const char *words) {
    struct quantisation q;
    assert_int_equal(read_text(section, &q).code, EXPERTD_ERR_CHECKPOINT);
    if (!strstr(expertd_err_message(), words)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), words);
    }
}

static void too_many_groups_are_refused_before_they_are_read(void **state) {
    (void)state;
    enum { GROUPS = 1025, EACH = 40 };
    char *section = malloc(GROUPS * EACH + 64);
    struct quantisation q;
    for (int groups = GROUPS - 1; groups <= GROUPS; groups++) {
        size_t used = (size_t)sprintf(section, "\"quantization_config\":{\"config_groups\":{");
        for (int i = 0; i < groups; i++) {
            used += (size_t)sprintf(section + used, "%s\"g%d\":{\"input_activations\":0}", i ? "," : "", i);
        }
        sprintf(section + used, "}}");
        if (groups == GROUPS) {
            refuse(section, "config.json: quantization_config.config_groups has 1025 groups, more than 1024");
        } else {
            assert_false(err_is(read_text(section, &q)));
            assert_int_equal(q.count, 0);
        }
    }
    free(section);
}

static void sizes_that_vary_by_module_are_ignored(void **state) {
    (void)state;
    struct quantisation q;
    assert_false(
        err_is(read_text(SAYS("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,\"dynamic\":{\"+:x\":{\"bits\":8}}"), &q)));
    assert_int_equal(q.count, 0);
}

#define GROUP(name) "\"" name "\":{\"weights\":{\"num_bits\":4}}"
#define EIGHT_GROUPS                                                                                                               \
    GROUP("a") "," GROUP("b") "," GROUP("c") "," GROUP("d") "," GROUP("e") "," GROUP("f") "," GROUP("g") "," GROUP("h")

static void settings_that_change_the_meaning_of_tensors_are_refused(void **state) {
    (void)state;
    refuse(SAYS("\"quant_method\":\"awq\",\"version\":\"gemv_fast\""), "version is gemv_fast");
    refuse(SAYS("\"quant_method\":\"gptq\",\"checkpoint_format\":\"marlin\""), "checkpoint_format is marlin");
    refuse(SAYS("\"quant_method\":\"gptq\",\"pack_dtype\":\"int8\""), "pack_dtype is int8");
    refuse(SAYS("\"bits\":\"four\""), "bits is four");
    refuse(SAYS("\"group_size\":-2"), "group_size is -2");
    refuse(SAYS("\"group_size\":NaN"), "group_size is nan");
    refuse(SAYS("\"weight_block_size\":[128]"), "weight_block_size");
    refuse(SAYS("\"weight_block_size\":[128,0]"), "weight_block_size");
    refuse(SAYS("\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":8,\"block_structure\":\"4294967297x64\"}}}"),
           "config.json: quantization_config.config_groups.a: weights.block_structure is 4294967297x64");
    refuse(SAYS("\"config_groups\":{\"a\\u001b\":{\"weights\":{\"num_bits\":true}}}"),
           "config_groups.a?: weights.num_bits is true");
    refuse(SAYS("\"config_groups\":{" EIGHT_GROUPS "," GROUP("i") "}"), "config_groups.i: more than 8 groups have weights");
    refuse(SAYS("\"quant_method\":7"), "quant_method is 7");
    refuse(SAYS("\"transform_config\":{\"config_groups\":{\"u\":{}}}"), "transform_config");
}

static bool leaves_out(const char *list, const char *module) {
    struct quantisation q;
    char section[512];
    const char *entry;
    snprintf(section, sizeof section, "\"quantization_config\":{%s}", list);
    assert_false(err_is(read_text(section, &q)));
    return quantisation_leaves_out(&q, module, &entry);
}

static void modules_are_left_out_by_name_and_by_pattern(void **state) {
    (void)state;
    static const char UP[] = "model.layers.3.mlp.experts.0.up_proj", GATE[] = "model.layers.3.mlp.experts.0.gate_proj";
    assert_true(leaves_out("\"ignore\":[\"lm_head\",\"model.layers.3.mlp.experts.0.up_proj\"]", UP));
    assert_true(leaves_out("\"modules_to_not_convert\":[\"model.layers.3.mlp\"]", UP));
    assert_true(leaves_out("\"modules_to_not_convert\":[\"up_proj\"]", UP));
    assert_false(leaves_out("\"modules_to_not_convert\":[\"gate\",\"mlp.gate\",\"model.layers.3.mlp.gate\",\"\"]", GATE));
    assert_false(leaves_out("\"ignore\":[\"model.layers.30\",\"layers.3.mlp.expert\"]", UP));
    assert_true(leaves_out("\"exclude_modules\":[\"model.layers.*.mlp*\"]", UP));
    assert_true(leaves_out("\"modules_to_not_convert\":[\"model.layers.*.mlp\"]", UP));
    assert_false(leaves_out("\"modules_to_not_convert\":[\"model.layers.*.self_attn\"]", UP));
    assert_true(leaves_out("\"ignore\":[\"re:.*mlp\\\\.experts.*\"]", UP));
    assert_true(leaves_out("\"ignore\":[\"re:model.*up_proj$\"]", UP));
    assert_false(leaves_out("\"ignore\":[\"re:.*mlp.gate$\",\"re:.*shared_experts.*\"]", GATE));
    assert_false(leaves_out("\"ignore\":[\"re:.*(gate|up)_proj\", \"re:.*[a-z]*\", 7]", UP)); // not supported: they match nothing
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_configuration_without_a_section_is_valid, end),
        cmocka_unit_test_teardown(sizes_are_found_where_each_method_has_them, end),
        cmocka_unit_test_teardown(a_groups_name_may_be_any_text, end),
        cmocka_unit_test_teardown(too_many_groups_are_refused_before_they_are_read, end),
        cmocka_unit_test_teardown(sizes_that_vary_by_module_are_ignored, end),
        cmocka_unit_test_teardown(settings_that_change_the_meaning_of_tensors_are_refused, end),
        cmocka_unit_test_teardown(modules_are_left_out_by_name_and_by_pattern, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
