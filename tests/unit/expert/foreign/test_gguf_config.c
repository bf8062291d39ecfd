// Metadata of GGUF files as a configuration: keys of the row that computes the model, in messages the file's own.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expert/foreign/gguf_architectures.h"
#include "expert/foreign/gguf_config.h"
#include "expert/foreign/gguf_members.h"

enum { FILE_BYTES_MAX = 1 << 14 };

// A file without tensors that grows at its end.
struct image {
    unsigned char bytes[FILE_BYTES_MAX];
    size_t size;
    uint64_t pairs;
};

static void put(struct image *image, uint64_t value, size_t bytes) {
    assert_true(image->size + bytes <= FILE_BYTES_MAX);
    for (size_t i = 0; i < bytes; i++) {
        image->bytes[image->size++] = (unsigned char)(value >> (8 * i));
    }
}

static void put_text(struct image *image, const char *text) {
    put(image, strlen(text), 8);
    for (const char *c = text; *c; c++) {
        put(image, (unsigned char)*c, 1);
    }
}

static void add_key(struct image *image, const char *key, enum gguf_kind kind) {
    put_text(image, key);
    put(image, kind, 4);
    image->pairs++;
    for (size_t i = 0; i < 8; i++) {
        image->bytes[16 + i] = (unsigned char)(image->pairs >> (8 * i));
    }
}

static void add(struct image *image, const char *key, uint32_t value) {
    add_key(image, key, GGUF_U32);
    put(image, value, 4);
}

static struct image *begin(const char *architecture) {
    static struct image image;
    image = (struct image){.size = 0};
    put(&image, 0x46554747, 4); // "GGUF"
    put(&image, 3, 4);
    put(&image, 0, 8);
    put(&image, 0, 8);
    add_key(&image, "general.architecture", GGUF_STRING);
    put_text(&image, architecture);
    return &image;
}

// The sizes below the architecture's name.
static struct image *begin_model(const char *architecture) {
    static const struct {
        const char *key;
        uint32_t value;
    } SIZES[] = {{"block_count", 4},       {"embedding_length", 64},           {"expert_count", 8},
                 {"expert_used_count", 2}, {"expert_feed_forward_length", 32}, {"feed_forward_length", 96}};
    struct image *image = begin(architecture);
    char key[64];
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        snprintf(key, sizeof key, "%s.%s", architecture, SIZES[i].key);
        add(image, key, SIZES[i].value);
    }
    return image;
}

static err_t make(const struct image *image, struct config **out) {
    struct gguf file;
    assert_false(err_is(gguf_parse("FILE", image->bytes, image->size, &file)));
    err_t e = gguf_config_make(&file, &(struct gguf_config_parts){.files = &file.tensors, .count = 1, .complete = true}, out);
    gguf_close(&file);
    return e;
}

static struct config *accept(const struct image *image) {
    struct config *config = NULL;
    if (err_is(make(image, &config))) {
        fail_msg("refused: %s", expertd_err_message());
    }
    return config;
}

static void refuse(const struct image *image, const char *message) {
    struct config *config = NULL;
    if (!err_is(make(image, &config))) {
        fail_msg("accepted; expected: %s", message);
    }
    assert_null(config);
    if (!strstr(expertd_err_message(), message)) {
        fail_msg("%s\nexpected: %s", expertd_err_message(), message);
    }
}

static uint32_t number(const struct config *config, const char *key) {
    const char *const keys[] = {key, NULL};
    uint32_t value = 0;
    bool found = false;
    assert_false(err_is(config_u32(config, keys, &value, &found)));
    assert_true(found);
    return value;
}

static void sizes_have_the_keys_of_config_json(void **state) {
    (void)state;
    struct config *config = accept(begin_model("qwen3moe"));
    char text[32];
    assert_int_equal(number(config, "num_hidden_layers"), 4);
    assert_int_equal(number(config, "hidden_size"), 64);
    assert_int_equal(number(config, "num_experts"), 8);
    assert_int_equal(number(config, "num_experts_per_tok"), 2);
    assert_int_equal(number(config, "moe_intermediate_size"), 32);
    assert_true(config_value_text(config, "norm_topk_prob", text, sizeof text));
    assert_string_equal(text, "true");
    assert_true(config_value_text(config, "model_type", text, sizeof text));
    assert_string_equal(text, "qwen3_moe");
    assert_string_equal(config_key(config, "num_experts"), "qwen3moe.expert_count");
    assert_string_equal(config_label(config), "the file's metadata");
    config_destroy(config);
    config = accept(begin_model("dbrx"));
    assert_int_equal(number(config, GGUF_WIDTH_MEMBER), 96);
    config_destroy(config);
}

// llama.cpp reads the width of some architectures, and of others only the count.
static void shared_experts_have_the_width_that_llama_cpp_reads(void **state) {
    (void)state;
    struct image *image = begin_model("glm4moe");
    add(image, "glm4moe.expert_shared_count", 3);
    struct config *config = accept(image);
    assert_int_equal(number(config, GGUF_SHARED_WIDTH_MEMBER), 96);
    assert_string_equal(config_key(config, GGUF_SHARED_WIDTH_MEMBER),
                        "glm4moe.expert_shared_count times expert_feed_forward_length");
    config_destroy(config);
    add(image, "glm4moe.expert_shared_feed_forward_length", 64);
    refuse(image, "FILE: glm4moe.expert_shared_feed_forward_length is 64, but glm4moe.expert_shared_count times "
                  "glm4moe.expert_feed_forward_length is 96");
    image = begin_model("hy_v3");
    add(image, "hy_v3.expert_shared_count", 3);
    add(image, "hy_v3.expert_shared_feed_forward_length", 64);
    config = accept(image);
    assert_int_equal(number(config, GGUF_SHARED_WIDTH_MEMBER), 64);
    config_destroy(config);
    image = begin_model("laguna"); // neither key, and no tensor
    config = accept(image);
    assert_int_equal(number(config, GGUF_SHARED_WIDTH_MEMBER), 0);
    config_destroy(config);
}

static const char *model_type(struct image *image, char text[32]) {
    struct config *config = accept(image);
    assert_true(config_value_text(config, "model_type", text, 32));
    config_destroy(config);
    return text;
}

// One name of llama.cpp stands for several models.
static void the_conditions_choose_the_row(void **state) {
    (void)state;
    char text[32];
    struct image *image = begin_model("deepseek2");
    assert_string_equal(model_type(image, text), "deepseek_v2");
    add(image, "deepseek2.expert_gating_func", 2);
    assert_string_equal(model_type(image, text), "deepseek_v3");
    image = begin_model("deepseek2");
    add(image, "deepseek2.expert_weights_norm", 1);
    assert_string_equal(model_type(image, text), "mistral4");
    image = begin_model("deepseek2");
    add(image, "deepseek2.expert_gating_func", 3);
    refuse(image, "FILE: deepseek2.expert_gating_func is 3, which is not supported with this architecture");
    image = begin_model("cohere2moe");
    add(image, "cohere2moe.expert_weights_norm", 1);
    refuse(image, "FILE: cohere2moe.expert_gating_func is missing: this architecture requires it");
    add(image, "cohere2moe.expert_gating_func", 0);
    refuse(image, "FILE: cohere2moe.expert_gating_func is 0, which is not supported");
}

static void what_is_not_computed_is_refused(void **state) {
    (void)state;
    refuse(begin("qwen9moe"),
           "FILE: general.architecture is qwen9moe, which is not served, and the file has no expert_count: a model "
           "without experts has no layer to serve: expected one of llama, mistral3");
    refuse(begin_model("qwen9moe"), "FILE: general.architecture is qwen9moe, which is not served: expected one of llama, mistral3");
    for (size_t i = 0; i < GGUF_REFUSED_COUNT; i++) {
        refuse(begin_model(GGUF_REFUSED[i].name), GGUF_REFUSED[i].reason);
    }
    refuse(begin("qwen3moe"), "FILE: qwen3moe.expert_count is missing: the model has no experts");
    refuse(begin("a\x1b[1m"), "general.architecture is a\\x1b[1m, which");
    struct image *image = begin_model("qwen3moe");
    add(image, "qwen3moe.expert_weights_scale", 2);
    refuse(image, "FILE: qwen3moe.expert_weights_scale is 2, which is not supported with this architecture: expected 0|1");
    image = begin_model("qwen3moe");
    add(image, "qwen3moe.moe_something_new", 1);
    refuse(image, "FILE: qwen3moe.moe_something_new is 1: this architecture (qwen3moe) has no such key");
    image = begin_model("qwen3moe");
    add(image, "qwen3moe.moe_something_new", 0); // says nothing
    add(image, "qwen3moe.attention.head_count", 4);
    add_key(image, "qwen3moe.swiglu_clamp_exp", GGUF_ARRAY); // zeros
    put(image, GGUF_F32, 4);
    put(image, 2, 8);
    put(image, 0, 8);
    config_destroy(accept(image));
    image = begin_model("deepseek2");
    add_key(image, "deepseek2.expert_shared_count", GGUF_U64);
    put(image, 1ull << 63, 8);
    refuse(image, "deepseek2.expert_shared_count is 9223372036854775808: expected an integer up to 2^53");
    image = begin_model("qwen3moe");
    add(image, "qwen3moe.nextn_predict_layers", 4);
    refuse(image, "qwen3moe.block_count is 4 and qwen3moe.nextn_predict_layers is 4");
}

static void lists_go_by_layer(void **state) {
    (void)state;
    struct image *image = begin_model("step35");
    add_key(image, "step35.swiglu_clamp_exp", GGUF_ARRAY);
    put(image, GGUF_F32, 4);
    put(image, 2, 8);
    put(image, 0, 4);
    put(image, 0x40e00000, 4); // 7
    struct config *config = accept(image);
    const char *const keys[] = {"swiglu_limits", NULL};
    double limit = 0;
    bool found;
    assert_false(err_is(config_f64_at(config, keys, 1, &limit, &found)));
    assert_true(found && limit == 7);
    assert_true(err_is(config_f64_at(config, keys, 2, &limit, &found)));
    assert_non_null(strstr(expertd_err_message(), "step35.swiglu_clamp_exp"));
    config_destroy(config);
}

// Each row of the table, with its sizes, conditions and required keys alone.
static void every_row_makes_a_configuration(void **state) {
    (void)state;
    for (size_t i = 0; i < GGUF_ARCHITECTURE_COUNT; i++) {
        const struct gguf_architecture *row = &GGUF_ARCHITECTURES[i];
        struct image *image = begin(row->name);
        static const char *const SIZES[] = {"embedding_length", "expert_used_count", "expert_feed_forward_length"};
        char key[128], text[32];
        bool has_count = false, has_blocks = false;
        for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++) {
            snprintf(key, sizeof key, "%s.%s", row->name, SIZES[s]);
            add(image, key, 2);
        }
        for (size_t c = 0; c < GGUF_CONDITIONS && row->when[c].key; c++) {
            snprintf(key, sizeof key, "%s.%s", row->name, row->when[c].key);
            add(image, key, (uint32_t)row->when[c].value);
            has_count = has_count || strcmp(row->when[c].key, "expert_count") == 0;
            has_blocks = has_blocks || strcmp(row->when[c].key, "block_count") == 0;
        }
        snprintf(key, sizeof key, "%s.block_count", row->name);
        if (!has_blocks) {
            add(image, key, 2);
        }
        for (size_t k = 0; k < GGUF_ROW_KEYS && row->keys[k].key; k++) {
            if (row->keys[k].only && row->keys[k].only[0] == '!') {
                snprintf(key, sizeof key, "%s.%s", row->name, row->keys[k].key);
                add(image, key, 1);
            }
        }
        snprintf(key, sizeof key, "%s.expert_count", row->name);
        if (!has_count) {
            add(image, key, 8);
        }
        assert_string_equal(model_type(image, text), row->model_type);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_have_the_keys_of_config_json), cmocka_unit_test(the_conditions_choose_the_row),
        cmocka_unit_test(what_is_not_computed_is_refused),    cmocka_unit_test(lists_go_by_layer),
        cmocka_unit_test(every_row_makes_a_configuration),    cmocka_unit_test(shared_experts_have_the_width_that_llama_cpp_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
