// The quantisation section of config.json: the settings of a module, methods, modules that are left out.
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
static struct quantisation q;

static err_t read_text(const char *section) {
    static char text[1 << 20];
    quantisation_deinit(&q);
    config_destroy(config);
    config = NULL;
    snprintf(text, sizeof text, "{\"model_type\":\"m\"%s%s}", section[0] ? "," : "", section);
    assert_false(err_is(config_parse("config.json", text, strlen(text), &config)));
    return quantisation_read(config, NULL, &q);
}

static int end(void **state) {
    (void)state;
    quantisation_deinit(&q);
    config_destroy(config);
    config = NULL;
    return 0;
}

#define SAYS(words) "\"quantization_config\":{" words "}"
static const char UP[] = "model.layers.3.mlp.experts.0.up_proj", GATE[] = "model.layers.3.mlp.experts.0.gate_proj";

static struct quantisation_candidates settings_of(const char *module) {
    struct quantisation_candidates settings;
    assert_false(err_is(quantisation_of_module(&q, module, &settings)));
    return settings;
}

static struct quantisation_setting setting_of(const char *module) {
    struct quantisation_candidates settings = settings_of(module);
    assert_int_equal(settings.count, 1);
    return settings.at[0];
}

static bool is_left_out(const char *module) {
    const char *entry;
    bool is;
    assert_false(err_is(quantisation_leaves_out(&q, module, &is, &entry)));
    return is;
}

static void a_configuration_without_a_section_is_valid(void **state) {
    (void)state;
    assert_false(err_is(read_text("")));
    assert_true(!q.config && q.method[0] == '\0');
    assert_true(setting_of(UP).bits == 0 && !is_left_out(UP));
}

static void settings_are_found_where_each_method_has_them(void **state) {
    (void)state;
    assert_false(err_is(read_text(SAYS("\"quant_method\":\"fp8\",\"weight_block_size\":[128,64]"))));
    assert_string_equal(q.method, "fp8");
    assert_true(setting_of(UP).block_n == 128 && setting_of(UP).block_k == 64);
    assert_false(err_is(read_text(SAYS("\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":-1,\"desc_act\":true,\"sym\":false"))));
    struct quantisation_setting setting = setting_of(UP);
    assert_true(setting.bits == 8 && setting.group_k == QUANTISATION_ALL_K && setting.ordered == QUANTISATION_YES);
    assert_int_equal(setting.symmetric, QUANTISATION_NO);
    assert_string_equal(setting.span_key, "quantization_config.group_size");
    assert_string_equal(setting.ordered_key, "quantization_config.desc_act");
    assert_false(err_is(read_text(SAYS("\"quant_method\":\"quark\",\"global_quant_config\":{\"weight\":{\"group_size\":32,"
                                       "\"symmetric\":null}}"))));
    assert_true(setting_of(UP).group_k == 32 && setting_of(UP).symmetric == QUANTISATION_UNSAID);
    assert_false(err_is(read_text(SAYS("\"quant_method\":\"awq\",\"w_bit\":4,\"q_group_size\":64"))));
    assert_true(setting_of(UP).group_k == 64 && setting_of(UP).bits == 4);
}

#define GROUP(name, targets, weights) "\"" name "\":{\"targets\":[" targets "],\"weights\":{" weights "}}"

static void groups_apply_to_their_targets(void **state) {
    (void)state;
    assert_false(err_is(read_text(SAYS("\"quant_method\":\"compressed-tensors\",\"config_groups\":{" GROUP(
        "a", "\"re:.*up_proj$\"",
        "\"num_bits\":4,\"group_size\":32,\"actorder\":\"group\"") ","
                                                                   "\"b\":{\"targets\":[\"Linear\"],\"weights\":null}," GROUP(
                                                                       "c.d", "\"model.layers.3.mlp.experts.0.gate_proj\"",
                                                                       "\"num_bits\":8,\"strategy\":\"channel\",\"group_size\":"
                                                                       "null,\"actorder\":null") "," GROUP("e",
                                                                                                           "\"re:.*layers\\\\.(4|5)"
                                                                                                           "\\\\..*\"",
                                                                                                           "\"block_structure\":"
                                                                                                           "\"128x64\"") "}"))));
    struct quantisation_setting up = setting_of(UP), gate = setting_of(GATE);
    assert_true(up.bits == 4 && up.group_k == 32 && up.ordered == QUANTISATION_YES);
    assert_string_equal(up.bits_key, "quantization_config.config_groups.a.weights.num_bits");
    assert_true(gate.bits == 8 && gate.group_k == QUANTISATION_ALL_K && gate.ordered == QUANTISATION_UNSAID);
    assert_string_equal(gate.span_key, "quantization_config.config_groups.c.d.weights.strategy");
    assert_true(setting_of("model.layers.5.mlp.experts.0.down_proj").block_n == 128);
    assert_true(settings_of("model.layers.6.mlp.experts.0.down_proj").in_no_group);
}

static void equal_groups_are_one_and_different_ones_are_all_kept(void **state) {
    (void)state;
    char section[8192] = SAYS("\"config_groups\":{");
    size_t used = strlen(section) - 1;
    for (int i = 0; i < 40; i++) {
        used +=
            (size_t)sprintf(section + used, "%s" GROUP("g%d", "\"Linear\"", "\"num_bits\":%d"), i ? "," : "", i, i < 20 ? 4 : 8);
    }
    sprintf(section + used, "}}");
    assert_false(err_is(read_text(section)));
    struct quantisation_candidates settings = settings_of(UP);
    assert_true(settings.count == 2 && settings.at[0].bits == 4 && settings.at[1].bits == 8);
}

static void an_override_is_laid_over_the_section(void **state) {
    (void)state;
    assert_false(err_is(read_text(SAYS("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,\"sym\":true,\"dynamic\":{"
                                       "\"-:.*layers\\\\.9\\\\..*\":{},\"+:.*up_proj\":{\"bits\":8},"
                                       "\"model\\\\.layers\\\\.[0-3]\\\\..*\":{\"group_size\":32,\"sym\":false}}"))));
    struct quantisation_setting up = setting_of(UP), gate = setting_of(GATE);
    assert_true(up.bits == 8 && up.group_k == 128 && up.symmetric == QUANTISATION_YES);
    assert_string_equal(up.bits_key, "quantization_config.dynamic.+:.*up_proj.bits");
    assert_true(gate.bits == 4 && gate.group_k == 32 && gate.symmetric == QUANTISATION_NO);
    assert_true(is_left_out("model.layers.9.mlp.experts.0.up_proj") && !is_left_out(UP));
    assert_false(err_is(read_text(SAYS("\"bits\":4,\"group_size\":128,\"extra_config\":{\".*up.*\":{\"bits\":2},"
                                       "\"model.layers.3.mlp.experts.0.up_proj\":{\"bits\":8},"
                                       "\"model.layers.3.mlp.experts.0.gate_proj\":{\"bits\":16}}"))));
    assert_int_equal(setting_of(UP).bits, 8); // an exact name before an expression
    assert_true(is_left_out(GATE) && setting_of(GATE).bits == 4);
    assert_false(err_is(read_text(SAYS("\"quantized_layers\":{\"model.layers.3.mlp.experts\":{\"group_size\":16}},"
                                       "\"layer_quant_config\":{\"*gate_proj\":{\"weight\":{\"group_size\":32}}}"))));
    assert_int_equal(setting_of(UP).group_k, 16);
}

static void the_form_of_zero_points_is_said_by_one_key_of_several(void **state) {
    (void)state;
    static const struct {
        const char *words;
        bool as_is;
    } FORMS[] = {
        {"\"quant_method\":\"gptq\"", false},
        {"\"quant_method\":\"gptq\",\"checkpoint_format\":\"gptq_v2\"", true},
        {"\"quant_method\":\"gptq\",\"format\":\"gptq_v2\"", true},
        {"\"quant_method\":\"gptq\",\"format\":\"gptq\",\"checkpoint_format\":\"gptq\"", false},
        {"\"quant_method\":\"auto-round\",\"packing_format\":\"auto_round:auto_gptq\"", false},
        {"\"quant_method\":\"auto-round\",\"packing_format\":\"auto_round:gptq\"", false},
        {"\"quant_method\":\"auto-round\",\"packing_format\":\"auto_round:gptqmodel\"", true},
        {"\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"", false},
    };
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++) {
        char section[256];
        snprintf(section, sizeof section, SAYS("%s"), FORMS[i].words);
        assert_false(err_is(read_text(section)));
        assert_int_equal(q.zero_points_are_stored_as_is, FORMS[i].as_is);
    }
}

// A group's name may contain dots, which separate keys elsewhere, and may be longer than a key.
static void a_groups_name_may_be_any_text(void **state) {
    (void)state;
    char section[1024], name[301];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    snprintf(section, sizeof section,
             SAYS("\"config_groups\":{\"model.layers.0\":{\"weights\":{\"num_bits\":4}},\"%s\":{\"weights\":{\"num_bits\":8}},"
                  "\"\":{\"weights\":{\"num_bits\":3}}}"),
             name);
    assert_false(err_is(read_text(section)));
    struct quantisation_candidates settings = settings_of(UP);
    assert_true(settings.count == 3 && settings.at[0].bits == 4 && settings.at[1].bits == 8 && settings.at[2].bits == 3);
}

static void refuse(const char *section, const char *words) {
    assert_int_equal(read_text(section).code, EXPERTD_ERR_CHECKPOINT);
    if (!strstr(expertd_err_message(), words)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), words);
    }
}

// Quantisers that choose bits by module name each of them.
static void each_of_many_modules_has_its_own_setting(void **state) {
    (void)state;
    enum { MODULES = 5000, EACH = 80 };
    char *section = malloc(MODULES * EACH + 64), name[64];
    size_t used = (size_t)sprintf(section, "\"quantization_config\":{\"bits\":3,\"extra_config\":{");
    for (int i = 0; i < MODULES; i++) {
        used += (size_t)sprintf(section + used, "%s\"model.layers.0.mlp.experts.%d.up_proj\":{\"bits\":%d}", i ? "," : "", i,
                                4 + i % 3);
    }
    sprintf(section + used, ",\".*experts.7.*\":{\"bits\":8}}}");
    assert_false(err_is(read_text(section)));
    for (int i = 0; i < MODULES; i += 7) {
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.up_proj", i);
        assert_int_equal(setting_of(name).bits, 4 + i % 3);
    }
    assert_int_equal(setting_of("model.layers.0.mlp.experts.7.down_proj").bits, 8);
    assert_int_equal(setting_of("model.layers.1.mlp.experts.6.up_proj").bits, 3);
    free(section);
}

static void too_many_expressions_are_refused(void **state) {
    (void)state;
    enum { EXPRESSIONS = 4097, EACH = 40 };
    char *section = malloc(EXPRESSIONS * EACH + 64);
    size_t used = (size_t)sprintf(section, "\"quantization_config\":{\"dynamic\":{");
    for (int i = 0; i < EXPRESSIONS; i++) {
        used += (size_t)sprintf(section + used, "%s\"+:g%d\":{\"bits\":4}", i ? "," : "", i);
    }
    sprintf(section + used, "}}");
    refuse(section, "or 4096 expressions");
    free(section);
}

static void settings_that_change_the_meaning_of_tensors_are_refused(void **state) {
    (void)state;
    refuse(SAYS("\"quant_method\":\"awq\",\"version\":\"gemv_fast\""), "version is gemv_fast");
    refuse(SAYS("\"quant_method\":\"gptq\",\"checkpoint_format\":\"marlin\""), "checkpoint_format is marlin");
    refuse(SAYS("\"quant_method\":\"gptq\",\"pack_dtype\":\"int8\""), "pack_dtype is int8");
    refuse(SAYS("\"quant_method\":\"gptq\",\"is_marlin_format\":true"), "is_marlin_format is true");
    refuse(SAYS("\"bits\":\"four\""), "bits is four");
    refuse(SAYS("\"group_size\":-2"), "group_size is -2");
    refuse(SAYS("\"group_size\":NaN"), "group_size is NaN: expected a number of consecutive k, or -1 for all of K");
    refuse(SAYS("\"weight_block_size\":[128]"), "weight_block_size");
    refuse(SAYS("\"weight_block_size\":[128,0]"), "weight_block_size");
    refuse(SAYS("\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":8,\"block_structure\":\"4294967297x64\"}}}"),
           "config.json: quantization_config.config_groups.a.weights.block_structure is 4294967297x64");
    refuse(SAYS("\"config_groups\":{\"a\\u001b\":{\"weights\":{\"num_bits\":true}}}"),
           "config_groups.a?.weights.num_bits is true: expected an integer from 1 to 64");
    refuse(SAYS("\"config_groups\":{\"a\":{\"weights\":{\"group_size\":32,\"strategy\":\"channel\"}}}"),
           "weights.strategy is channel, but quantization_config.config_groups.a.weights.group_size is 32");
    refuse(SAYS("\"dynamic\":{\"+:(\":{}}"), "quantization_config.dynamic.+:(");
    refuse(SAYS("\"bits\":4,\"num_bits\":8"), "num_bits");
    refuse(SAYS("\"quant_method\":\"gptq\",\"checkpoint_format\":\"gptq\",\"format\":\"gptq_v2\""),
           "quantization_config.checkpoint_format is gptq, but quantization_config.format is gptq_v2");
    refuse(SAYS("\"quant_method\":7"), "quant_method is 7");
    refuse(SAYS("\"transform_config\":{\"config_groups\":{\"u\":{}}}"), "transform_config");
    refuse(SAYS("\"quant_method\":\"gptq\",\"rotation\":\"hadamard\""), "quantization_config.rotation rotates the inputs");
    refuse(SAYS("\"rotation_config\":{\"hadamard_type\":\"hadamard\"}"), "quantization_config.rotation_config rotates");
    refuse(SAYS("\"spinquant_config\":{\"r4\":true}"), "quantization_config.spinquant_config rotates");
    refuse(SAYS("\"hadamard_config\":{\"hadamard_type\":\"hadamard\"}"), "quantization_config.hadamard_config rotates");
    refuse(SAYS("\"algo_config\":[{\"name\":\"awq\"},{\"name\":\"rotation\",\"r1\":false,\"r4\":true}]"),
           "config.json: quantization_config.algo_config[1].r4 rotates the inputs of the experts");
    refuse(SAYS("\"algo_config\":[{\"name\":\"rotation\",\"online_r1_rotation\":true}]"),
           "algo_config[0].online_r1_rotation rotates");
    refuse(
        SAYS("\"algo_config\":[{\"name\":\"rotation\",\"online_config\":{\"online_rotation_layers\":[\"model.layers.0.mlp\"]}}]"),
        "algo_config[0].online_config.online_rotation_layers rotates");
    refuse(SAYS("\"algo_config\":{\"name\":\"quarot\"}"), "quantization_config.algo_config.r4 rotates");
    assert_false(err_is(read_text(SAYS("\"algo_config\":[7,null,{\"name\":\"smooth\",\"r4\":true},{\"name\":\"rotation\","
                                       "\"r1\":true,\"r2\":true,\"r4\":false,\"online_config\":null}]"))));
    assert_false(err_is(read_text(SAYS("\"algo_config\":null,\"hadamard_config\":{}"))));
    assert_false(err_is(read_text(SAYS("\"rotation\":null,\"rotation_config\":{},\"transform_config\":{}"))));
    refuse(SAYS("\"sym\":true,\"zero_point\":true"), "quantization_config.sym is true, but quantization_config.zero_point is true");
}

static void zero_point_is_the_opposite_of_sym(void **state) {
    (void)state;
    assert_false(err_is(read_text(SAYS("\"quant_method\":\"awq\",\"zero_point\":false"))));
    assert_int_equal(setting_of(UP).symmetric, QUANTISATION_YES);
    assert_string_equal(setting_of(UP).symmetric_text, "quantization_config.zero_point is false");
    assert_false(err_is(read_text(SAYS("\"quant_method\":\"gptq\",\"sym\":false,\"zero_point\":true"))));
    assert_int_equal(setting_of(UP).symmetric, QUANTISATION_NO);
    assert_string_equal(setting_of(UP).symmetric_text, "quantization_config.sym is false");
}

static void the_kind_of_the_codes_is_that_of_the_method_or_of_an_override(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum quantisation_kind kind;
    } KINDS[] = {{"int", QUANTISATION_INTEGERS},    {"mx_int", QUANTISATION_INTEGERS},  {"uint4", QUANTISATION_INTEGERS},
                 {"float", QUANTISATION_FLOATS},    {"mx_fp", QUANTISATION_FLOATS},     {"nv_fp", QUANTISATION_FLOATS},
                 {"fp8_e4m3", QUANTISATION_FLOATS}, {"bfloat16", QUANTISATION_ANY_KIND}};
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        char section[256];
        snprintf(section, sizeof section, SAYS("\"data_type\":\"%s\""), KINDS[i].text);
        assert_false(err_is(read_text(section)));
        assert_int_equal(setting_of(UP).kind, KINDS[i].kind);
    }
    assert_false(err_is(read_text(SAYS("\"data_type\":\"int\",\"extra_config\":{\".*up_proj\":{\"data_type\":\"mx_fp\"}}"))));
    assert_int_equal(setting_of(UP).kind, QUANTISATION_FLOATS);
    assert_string_equal(setting_of(UP).kind_text, "quantization_config.extra_config..*up_proj.data_type is mx_fp");
    assert_int_equal(setting_of(GATE).kind, QUANTISATION_INTEGERS);
}

#define TEXT_SAYS(words) "\"text_config\":{\"model_type\":\"t\"," words "}"
static void only_the_outer_section_may_have_others_beside_it(void **state) {
    (void)state;
    assert_false(err_is(read_text(SAYS("\"bits\":4") ",\"compression_config\":{\"bits\":8}," TEXT_SAYS(SAYS("\"bits\":2")))));
    assert_true(setting_of(UP).bits == 4 && q.other_section);
    assert_false(err_is(read_text("\"quantization_config\":{}," TEXT_SAYS(SAYS("\"bits\":2")))));
    assert_true(setting_of(UP).bits == 2 && !q.other_section);
    assert_false(err_is(read_text("\"compression_config\":{\"bits\":2}," TEXT_SAYS(SAYS("\"bits\":2")))));
    assert_true(setting_of(UP).bits == 2 && !q.other_section);
    refuse("\"compression_config\":{\"bits\":4}," TEXT_SAYS(SAYS("\"bits\":2")),
           "config.json: text_config.quantization_config and compression_config differ");
}

static void what_a_file_beside_config_json_says_otherwise_is_refused(void **state) {
    (void)state;
    static const char SECTION[] = "{\"quantization_config\":{\"quant_method\":\"gptq\",\"sym\":false,\"desc_act\":false}}";
    static const struct {
        const char *text, *words; // words NULL: accepted
    } FILES[] = {{"{\"bits\":8,\"sym\":false,\"desc_act\":false}", NULL},
                 {"{\"sym\":true}", "quantization_config.sym is false, but quantize_config.json.sym is true"},
                 {"{\"desc_act\":true}", "quantization_config.desc_act is false, but quantize_config.json.desc_act is true"},
                 {"{\"checkpoint_format\":\"gptq_v2\"}", "checkpoint_format of quantize_config.json is gptq_v2"}};
    struct config *file;
    quantisation_deinit(&q);
    assert_false(err_is(config_parse("config.json", SECTION, strlen(SECTION), &config)));
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        assert_false(err_is(config_parse("quantize_config.json", FILES[i].text, strlen(FILES[i].text), &file)));
        const struct quantisation_file beside = {.config = file, .name = "quantize_config.json", .object = "", .method = "gptq"};
        err_t e = quantisation_read(config, &beside, &q);
        assert_int_equal(e.code, FILES[i].words ? EXPERTD_ERR_CHECKPOINT : 0);
        assert_true(!FILES[i].words || strstr(expertd_err_message(), FILES[i].words));
        quantisation_deinit(&q);
        config_destroy(file);
    }
}

// A key of the section with the objects above it, and values of other types.
struct wrong_case {
    const char *section, *key; // %s: the value
    const char *values[10];
};

static const struct wrong_case WRONG[] = {
    {"%s", "", {"7", "true", "\"abc\"", "[1]"}},
    {"{\"quant_method\":%s}", ".quant_method", {"7", "true", "[1]", "{\"a\": 1}"}},
    {"{\"bits\":%s}", ".bits", {"0", "-1", "2.5", "true", "\"8\"", "[4]", "NaN", "1000000000000", "{\"a\": 1}"}},
    {"{\"num_bits\":%s}", ".num_bits", {"2.5", "-1", "\"abc\""}},
    {"{\"w_bit\":%s}", ".w_bit", {"2.5", "-1", "\"abc\""}},
    {"{\"group_size\":%s}", ".group_size", {"-2", "2.5", "true", "\"32\"", "[32]", "NaN", "1000000000000"}},
    {"{\"q_group_size\":%s}", ".q_group_size", {"-2", "2.5", "true", "\"32\""}},
    {"{\"sym\":%s}", ".sym", {"1", "\"true\"", "[1]", "0"}},
    {"{\"zero_point\":%s}", ".zero_point", {"1", "\"true\"", "[1]", "0"}},
    {"{\"type\":%s}", ".type", {"7", "true", "[1]", "{\"a\": 1}"}},
    {"{\"data_type\":%s}", ".data_type", {"7", "true", "[1]"}},
    {"{\"desc_act\":%s}", ".desc_act", {"1", "\"true\"", "[1]", "0"}},
    {"{\"weight_block_size\":%s}", ".weight_block_size", {"128", "true", "[128]", "[0, 128]", "\"abc\"", "{\"a\": 1}"}},
    {"{\"quant_method\":\"gptq\",\"checkpoint_format\":%s}", ".checkpoint_format", {"7", "true", "\"8\"", "[1]"}},
    {"{\"quant_method\":\"gptq\",\"meta\":{\"static_groups\":%s}}", ".meta.static_groups", {"7", "\"true\"", "[1]"}},
    {"{\"dynamic\":%s}", ".dynamic", {"7", "false", "\"abc\"", "[1]"}},
    {"{\"dynamic\":{\"+:m\":%s}}", ".dynamic.+:m", {"7", "false", "\"abc\""}},
    {"{\"dynamic\":{\"+:m\":{\"bits\":%s}}}", ".dynamic.+:m.bits", {"0", "-1", "2.5", "true"}},
    {"{\"extra_config\":%s}", ".extra_config", {"7", "false", "\"abc\"", "[1]"}},
    {"{\"config_groups\":%s}", ".config_groups", {"7", "false", "\"abc\"", "[1]"}},
    {"{\"config_groups\":{\"g\":%s}}", ".config_groups.g", {"7", "false", "\"abc\""}},
    {"{\"config_groups\":{\"g\":{\"weights\":%s}}}", ".config_groups.g.weights", {"7", "false", "\"abc\"", "[1]"}},
    {"{\"config_groups\":{\"g\":{\"targets\":%s,\"weights\":{\"num_bits\":4}}}}",
     ".config_groups.g.targets",
     {"7", "\"abc\"", "true"}},
    {"{\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":%s}}}}", ".config_groups.g.weights.num_bits", {"0", "2.5", "-1", "[4]"}},
    {"{\"config_groups\":{\"g\":{\"weights\":{\"symmetric\":%s}}}}", ".config_groups.g.weights.symmetric", {"0", "\"abc\""}},
    {"{\"config_groups\":{\"g\":{\"weights\":{\"actorder\":%s}}}}", ".config_groups.g.weights.actorder", {"7", "\"abc\"", "[1]"}},
    {"{\"config_groups\":{\"g\":{\"weights\":{\"strategy\":%s}}}}", ".config_groups.g.weights.strategy", {"7", "true", "[1]"}},
    {"{\"global_quant_config\":{\"weight\":{\"group_size\":%s}}}", ".global_quant_config.weight.group_size", {"-2", "2.5", "true"}},
};

// At the top, and in a wrapper's text model.
static void each_key_refuses_values_of_other_types_by_its_path(void **state) {
    (void)state;
    static const char *const PLACES[][3] = {
        {"{\"quantization_config\":", "}", "config.json: quantization_config"},
        {"{\"text_config\":{\"model_type\":\"lm\",\"quantization_config\":", "}}", "config.json: text_config.quantization_config"}};
    for (size_t i = 0; i < 2 * sizeof WRONG / sizeof *WRONG; i++) {
        const struct wrong_case *wrong = &WRONG[i / 2];
        const char *const *place = PLACES[i % 2], *rest = strstr(wrong->section, "%s") + 2;
        for (size_t v = 0; v < 10 && wrong->values[v]; v++) {
            char text[512], wanted[256];
            const char *value = wrong->values[v];
            bool plain = strcmp(value, "\"abc\"") == 0; // shown without quotes
            snprintf(text, sizeof text, "%s%.*s%s%s%s", place[0], (int)(rest - 2 - wrong->section), wrong->section, value, rest,
                     place[1]);
            snprintf(wanted, sizeof wanted, "%s%s is %.*s", place[2], wrong->key, (int)strlen(value) - 2 * plain, value + plain);
            config_destroy(config);
            assert_false(err_is(config_parse("config.json", text, strlen(text), &config)));
            if (quantisation_read(config, NULL, &q).code != EXPERTD_ERR_CHECKPOINT) {
                fail_msg("%s is accepted", text);
            }
            if (!strstr(expertd_err_message(), wanted) || !strstr(expertd_err_message(), "expected")) {
                fail_msg("\"%s\" does not say \"%s\" and what is expected", expertd_err_message(), wanted);
            }
        }
    }
}

static void sections_of_foreign_quantisers_are_not_read(void **state) {
    (void)state;
    assert_false(err_is(read_text(SAYS("\"quant_method\":\"exl2\",\"bits\":4.25"))));
    assert_string_equal(q.foreign, "EXL2");
    assert_false(err_is(read_text(SAYS("\"quant_method\":\"gptq\",\"bits\":4"))));
    assert_null(q.foreign);
}

static bool leaves_out(const char *list, const char *module) {
    char section[512];
    snprintf(section, sizeof section, "\"quantization_config\":{%s}", list);
    assert_false(err_is(read_text(section)));
    return is_left_out(module);
}

static void modules_are_left_out_by_name_and_by_pattern(void **state) {
    (void)state;
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
    assert_true(leaves_out("\"ignore\":[7, \"re:.*(gate|up)_proj\"]", UP));
    assert_false(leaves_out("\"ignore\":[\"re:(\", \"re:layers\"]", UP)); // not valid; not at the beginning
    assert_true(leaves_out("\"ignore\":[\"re:(?!.*layers\\\\.4).*up_proj\"]", UP));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_configuration_without_a_section_is_valid, end),
        cmocka_unit_test_teardown(settings_are_found_where_each_method_has_them, end),
        cmocka_unit_test_teardown(groups_apply_to_their_targets, end),
        cmocka_unit_test_teardown(equal_groups_are_one_and_different_ones_are_all_kept, end),
        cmocka_unit_test_teardown(an_override_is_laid_over_the_section, end),
        cmocka_unit_test_teardown(the_form_of_zero_points_is_said_by_one_key_of_several, end),
        cmocka_unit_test_teardown(a_groups_name_may_be_any_text, end),
        cmocka_unit_test_teardown(each_of_many_modules_has_its_own_setting, end),
        cmocka_unit_test_teardown(too_many_expressions_are_refused, end),
        cmocka_unit_test_teardown(settings_that_change_the_meaning_of_tensors_are_refused, end),
        cmocka_unit_test_teardown(zero_point_is_the_opposite_of_sym, end),
        cmocka_unit_test_teardown(the_kind_of_the_codes_is_that_of_the_method_or_of_an_override, end),
        cmocka_unit_test_teardown(only_the_outer_section_may_have_others_beside_it, end),
        cmocka_unit_test_teardown(what_a_file_beside_config_json_says_otherwise_is_refused, end),
        cmocka_unit_test_teardown(each_key_refuses_values_of_other_types_by_its_path, end),
        cmocka_unit_test_teardown(sections_of_foreign_quantisers_are_not_read, end),
        cmocka_unit_test_teardown(modules_are_left_out_by_name_and_by_pattern, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
