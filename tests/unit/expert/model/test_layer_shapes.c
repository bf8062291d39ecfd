// The shapes of a layer's expert blocks and the names of its formats, for tensors of any mixture of formats.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "expert/model/layer_formats.h"
#include "expert/model/layer_shapes.h"
#include "expert/model/model.h"

enum { E = 20, I = 64, H = 128 };

// The formats of an expert's matrices: an entry of CODED, or PLAIN. `ordered`: the k of gate and up, and of down.
enum { PLAIN = -1, FP8, FP8_BF16_SCALES, INT4, MX, MINIMA, KINDS };
static const struct expertd_quantised_format CODED[KINDS] = {
    [FP8] = {.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F32},
    [FP8_BF16_SCALES] = {.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_BF16},
    [INT4] = {.code = EXPERTD_CODE_INT4, .scale = EXPERTD_DTYPE_F16, .scale_k = 32},
    [MX] = {.code = EXPERTD_CODE_E2M1, .scale = EXPERTD_DTYPE_F8_E8M0, .scale_k = 32},
    [MINIMA] = {.code = EXPERTD_CODE_INT8, .scale = EXPERTD_DTYPE_F16, .minima = true, .scale_k = 32},
};
struct kinds {
    int gate, up, down;
    enum expertd_dtype dtype; // of plain matrices
    bool ordered[2];
};

static struct kinds experts[E];
static struct quantised_matrix matrices[E][EXPERT_MATRICES];

static bool describe(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                     struct supply_matrix *out) {
    (void)supply, (void)layer;
    if (tensor > SUPPLY_DOWN || expert == SUPPLY_SHARED) {
        return false;
    }
    const struct kinds *kinds = &experts[expert];
    const int kind = tensor == SUPPLY_GATE ? kinds->gate : tensor == SUPPLY_UP ? kinds->up : kinds->down;
    out->source = (struct expertd_weight_source){.data = experts, .dtype = kinds->dtype, .n_stride = out->k, .k_stride = 1};
    if (kind != PLAIN) {
        matrices[expert][tensor] = (struct quantised_matrix){.format = CODED[kind],
                                                             .codes.data = experts,
                                                             .scale_columns = 1,
                                                             .scale_n_stride = 1,
                                                             .ordered = kinds->ordered[tensor == SUPPLY_DOWN]};
        out->quantised = &matrices[expert][tensor];
    }
    return true;
}

static const struct supply_source SOURCE = {.describe = describe};
static struct supply supply = {.source = &SOURCE, .widen_dtype = EXPERTD_DTYPE_BF16};
static const struct layer_tensors LAYER = {.params = {.num_experts = E, .intermediate_size = I, .hidden_size = H}};

static int all_in_int4(void **state) {
    (void)state;
    supply.widen = SUPPLY_WIDEN_NONE;
    for (size_t e = 0; e < E; e++) {
        experts[e] = (struct kinds){INT4, INT4, INT4, EXPERTD_DTYPE_BF16, {false}};
    }
    return 0;
}

static void assert_text(const char *want, bool want_codes) {
    char text[256];
    assert_int_equal(layer_formats_text(&supply, &LAYER, text, sizeof text), want_codes);
    assert_string_equal(text, want);
}

static void find(struct layer_shapes *out) {
    if (err_is(layer_shapes_find(&supply, &LAYER, EXPERTD_DTYPE_BF16, out))) {
        fail_msg("%s", expertd_err_message());
    }
}

static void experts_of_one_format_share_a_shape(void **state) {
    (void)state;
    struct layer_shapes shapes;
    find(&shapes);
    assert_int_equal(shapes.count, 1);
    assert_ptr_equal(shapes.all[0].shape.matrix[EXPERT_UP].format, &shapes.all[0].format[EXPERT_UP]);
    assert_true(shapes.all[0].shape.bytes >= 3 * I * H / 2);
    assert_text("int4_group32", true);
    layer_shapes_free(&shapes);
}

static void each_combination_of_formats_has_a_shape(void **state) {
    (void)state;
    struct layer_shapes shapes;
    experts[3].gate = experts[3].up = experts[3].down = PLAIN;
    experts[4].down = FP8;
    experts[7] = experts[9] = experts[4];
    experts[9].down = FP8_BF16_SCALES; // the same name, but another format
    find(&shapes);
    assert_int_equal(shapes.count, 4);
    assert_int_equal(shapes.of_expert[3], 1);
    assert_int_equal(shapes.of_expert[4], 2);
    assert_int_equal(shapes.of_expert[7], 2);
    assert_int_equal(shapes.of_expert[9], 3);
    assert_int_equal(shapes.of_expert[0] + shapes.of_expert[19], 0);
    assert_true(shapes.all[1].shape.bytes > 3 * shapes.all[0].shape.bytes);
    assert_null(shapes.all[1].shape.matrix[EXPERT_DOWN].format);
    assert_text("int4_group32, int4_group32+fp8_channel, bf16", true);
    layer_shapes_free(&shapes);
}

static void widened_and_plain_experts_share_a_shape(void **state) {
    (void)state;
    struct layer_shapes shapes;
    experts[0].gate = experts[0].up = experts[0].down = experts[5].up = PLAIN;
    experts[2].gate = MX;
    supply.widen = SUPPLY_WIDEN_ALL;
    find(&shapes);
    assert_int_equal(shapes.count, 1);
    layer_shapes_free(&shapes);
    assert_text("int4_group32, bf16, mxfp4+int4_group32+int4_group32, int4_group32+bf16+int4_group32", true);
}

static void plain_dtypes_need_no_shapes_of_their_own(void **state) {
    (void)state;
    struct layer_shapes shapes;
    for (size_t e = 0; e < E; e++) {
        experts[e].gate = experts[e].up = experts[e].down = PLAIN;
    }
    assert_text("", false);
    experts[1].dtype = EXPERTD_DTYPE_F32;
    find(&shapes);
    assert_int_equal(shapes.count, 1);
    assert_text("bf16, f32", false);
    layer_shapes_free(&shapes);
}

static void orders_belong_to_a_shape(void **state) {
    (void)state;
    struct layer_shapes shapes;
    experts[2].ordered[1] = true;
    find(&shapes);
    assert_int_equal(shapes.count, 2);
    assert_int_equal(shapes.all[1].shape.order[EXPERT_INNER_ORDER], I);
    assert_int_equal(shapes.all[1].shape.order[EXPERT_HIDDEN_ORDER], 0);
    layer_shapes_free(&shapes);
    experts[2].ordered[0] = true;
    experts[2].up = PLAIN; // reads the same row as gate
    assert_int_equal(layer_shapes_find(&supply, &LAYER, EXPERTD_DTYPE_BF16, &shapes).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "expert 2"));
    assert_non_null(strstr(expertd_err_message(), "--widen"));
    layer_shapes_free(&shapes);
}

static void too_many_combinations_are_refused_unless_widened(void **state) {
    (void)state;
    struct layer_shapes shapes;
    for (int e = 0; e < E; e++) { // 20 different ones
        experts[e].gate = experts[e].up = e % 5 - 1;
        experts[e].down = e / 5;
    }
    assert_int_equal(layer_shapes_find(&supply, &LAYER, EXPERTD_DTYPE_BF16, &shapes).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "expert 16"));
    assert_non_null(strstr(expertd_err_message(), "--widen"));
    layer_shapes_free(&shapes);
    supply.widen = SUPPLY_WIDEN_ALL;
    find(&shapes);
    assert_int_equal(shapes.count, 1);
    layer_shapes_free(&shapes);
}

// ---- what devices have no kernels for

static enum expertd_weight_code code_of(const struct layer_shape *shape, int matrix) {
    const struct expertd_quantised_format *format = shape->shape.matrix[matrix].format;
    return format ? format->code : EXPERTD_CODE_COUNT;
}

static void only_what_devices_have_no_kernels_for_is_widened(void **state) {
    (void)state;
    enum { PACKED = EXPERTD_CODE_COUNT };
    static const struct {
        struct kinds stored;
        int gate, up, down;
    } CASES[] = {
        {{MX, MX, FP8, EXPERTD_DTYPE_BF16, {false}}, EXPERTD_CODE_E2M1, EXPERTD_CODE_E2M1, EXPERTD_CODE_E4M3},
        {{MINIMA, MINIMA, FP8, EXPERTD_DTYPE_BF16, {false}}, PACKED, PACKED, EXPERTD_CODE_E4M3},
        {{MX, MX, MINIMA, EXPERTD_DTYPE_BF16, {false}}, EXPERTD_CODE_E2M1, EXPERTD_CODE_E2M1, PACKED},
        {{MX, MINIMA, MX, EXPERTD_DTYPE_BF16, {false}}, PACKED, PACKED, EXPERTD_CODE_E2M1},
        {{FP8, FP8_BF16_SCALES, MX, EXPERTD_DTYPE_BF16, {false}}, PACKED, PACKED, EXPERTD_CODE_E2M1},
        {{PLAIN, MX, MX, EXPERTD_DTYPE_BF16, {false}}, PACKED, PACKED, EXPERTD_CODE_E2M1},
        {{PLAIN, PLAIN, MX, EXPERTD_DTYPE_BF16, {false}}, PACKED, PACKED, EXPERTD_CODE_E2M1},
        {{INT4, MX, MX, EXPERTD_DTYPE_BF16, {true, false}}, PACKED, PACKED, EXPERTD_CODE_E2M1},
    };
    supply.widen = SUPPLY_WIDEN_FOR_DEVICES;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct layer_shape shape;
        experts[0] = CASES[i].stored;
        assert_false(err_is(layer_shape_of(&supply, &LAYER, 0, EXPERTD_DTYPE_BF16, &shape)));
        assert_int_equal(code_of(&shape, EXPERT_GATE), CASES[i].gate);
        assert_int_equal(code_of(&shape, EXPERT_UP), CASES[i].up);
        assert_int_equal(code_of(&shape, EXPERT_DOWN), CASES[i].down);
        assert_int_equal(shape.shape.order[EXPERT_HIDDEN_ORDER], 0);
    }
}

static void widened_formats_are_counted_with_their_layers(void **state) {
    (void)state;
    enum { LAYERS = 6 };
    static const uint32_t NUMBERS[LAYERS] = {1, 2, 3, 5, 6, 9};
    struct layer_tensors layers[LAYERS];
    struct model_layer model_layers[LAYERS] = {{.params = {0}}};
    struct model model = {.layers = model_layers, .num_layers = LAYERS};
    char text[WIDENED_TEXT_MAX];
    for (size_t i = 0; i < LAYERS; i++) {
        layers[i] = LAYER;
        layers[i].params.layer = model_layers[i].params.layer = NUMBERS[i];
    }
    experts[3].down = MINIMA;
    experts[4].gate = PLAIN;
    struct supply some = {
        .source = &SOURCE, .layers = layers, .count = LAYERS, .widen = SUPPLY_WIDEN_FOR_DEVICES, .widen_dtype = EXPERTD_DTYPE_BF16};
    widened_count(&some, &model.widened);
    assert_int_equal(model.widened.count, 2);
    assert_true(model.widened.any && !model.widened.all);
    assert_string_equal(model.widened.formats[0].name, "int8_group32");
    assert_false(model.widened.formats[0].has_kernel);
    assert_int_equal(model.widened.formats[0].matrices, LAYERS);
    assert_int_equal(model.widened.formats[0].bytes, LAYERS * H * I * 2);
    assert_string_equal(model.widened.formats[1].name, "int4_group32");
    assert_true(model.widened.formats[1].has_kernel);
    assert_int_equal(model.widened.bytes, 2 * LAYERS * H * I * 2);
    for (size_t i = 0; i < LAYERS; i++) {
        assert_int_equal(widened_in_layer(&some, i, &model.widened), 3);
        model_layers[i].widened = i == 1 ? 1 : 3;
    }
    assert_string_equal(model_widened_layers(&model, 0, text), "1-3,5-6,9");
    assert_string_equal(model_widened_layers(&model, 1, text), "1,3,5-6,9");
    assert_string_equal(widened_names_text(&model.widened, 3, text), "int8_group32, int4_group32");
    assert_string_equal(widened_names_text(&model.widened, 2, text), "int4_group32");
    some.widen = SUPPLY_WIDEN_ALL;
    widened_count(&some, &model.widened);
    assert_true(model.widened.any && model.widened.all && model.widened.count == 0);
}

static void long_lists_of_layers_are_cut(void **state) {
    (void)state;
    enum { LAYERS = 400 };
    static struct model_layer layers[LAYERS];
    struct model model = {.layers = layers, .num_layers = LAYERS};
    char text[WIDENED_TEXT_MAX];
    for (uint32_t i = 0; i < LAYERS; i++) {
        layers[i].params.layer = 2 * i;
        layers[i].widened = 1;
    }
    model_widened_layers(&model, 0, text);
    assert_memory_equal(text, "0,2,4,", 6);
    assert_true(strlen(text) > WIDENED_TEXT_MAX - 16 && strcmp(text + strlen(text) - 4, ",...") == 0);
}

static void long_lists_are_cut_between_names(void **state) {
    (void)state;
    experts[1].down = MX;
    experts[2].down = FP8;
    for (size_t bytes = 20; bytes < 80; bytes++) {
        char text[80];
        memset(text, '#', sizeof text);
        layer_formats_text(&supply, &LAYER, text, bytes);
        assert_true(strlen(text) < bytes);
        assert_memory_equal(text, "int4_group32", strlen("int4_group32"));
        const char *rest = strstr(text, ", ...");
        assert_true(rest ? rest[5] == '\0' : strcmp(text, "int4_group32, int4_group32+mxfp4, int4_group32+fp8_channel") == 0);
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup(name, all_in_int4)
    const struct CMUnitTest tests[] = {
        TEST(experts_of_one_format_share_a_shape),
        TEST(each_combination_of_formats_has_a_shape),
        TEST(widened_and_plain_experts_share_a_shape),
        TEST(plain_dtypes_need_no_shapes_of_their_own),
        TEST(orders_belong_to_a_shape),
        TEST(too_many_combinations_are_refused_unless_widened),
        TEST(only_what_devices_have_no_kernels_for_is_widened),
        TEST(widened_formats_are_counted_with_their_layers),
        TEST(long_lists_of_layers_are_cut),
        TEST(long_lists_are_cut_between_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
