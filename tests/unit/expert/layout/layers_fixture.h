// A checkpoint of small tensors, and the layers found in it. Each test adds tensors to `builder` and opens the folder.
#ifndef EXPERTD_TESTS_UNIT_EXPERT_LAYOUT_LAYERS_FIXTURE_H
#define EXPERTD_TESTS_UNIT_EXPERT_LAYOUT_LAYERS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>

#include "expert/layout/layer_finder.h"
#include "tests/unit/expert/checkpoint/checkpoint_builder.h"

enum { E = 3, I = 4, H = 6, GATE_UP = 1000, DOWN = 5000, EXPERT = 100 };

static char folder[64];
static struct builder builder;
static struct checkpoint *checkpoint;
static struct layer_tensors *layers;
static size_t layer_count;

static inline int begin(void **state) {
    (void)state;
    strcpy(folder, "/tmp/expertd-layers-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int end(void **state) {
    (void)state;
    char command[128];
    layer_tensors_free(layers, layer_count);
    checkpoint_close(checkpoint);
    builder_clear(&builder);
    layers = NULL;
    checkpoint = NULL;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static inline err_t open_layers(const char *config, const struct layer_tensors_options *options) {
    const struct architecture *architecture;
    layer_tensors_free(layers, layer_count);
    checkpoint_close(checkpoint);
    layers = NULL;
    builder_write_text(folder, "config.json", config);
    builder_write(&builder, 0, builder.count, folder, "model.safetensors");
    TRY(checkpoint_open(folder, &checkpoint));
    TRY(architecture_find(checkpoint_config(checkpoint), &architecture));
    return layer_tensors_find(checkpoint, architecture, options, &layers, &layer_count);
}

static inline void open_whole(const char *config) {
    if (err_is(open_layers(config, NULL))) {
        fail_msg("%s", expertd_err_message());
    }
}

static inline void refuse(const char *config, const char *message) {
    assert_int_equal(open_layers(config, NULL).code, EXPERTD_ERR_CHECKPOINT);
    if (!strstr(expertd_err_message(), message)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), message);
    }
}

static inline float at(const struct expertd_weight_source *w, size_t n, size_t k) {
    assert_non_null(w->data);
    assert_int_equal(w->dtype, EXPERTD_DTYPE_F32);
    float value;
    memcpy(&value, (const char *)w->data + 4 * (n * w->n_stride + k * w->k_stride), 4);
    return value;
}

#define QWEN3(layers)                                                                                                              \
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":6,\"moe_intermediate_size\":4,\"num_experts\":3,\"num_experts_per_tok\":2,"     \
    "\"num_hidden_layers\":" layers "}"

// Tensors of one layer, one per expert and matrix. The values of expert e begin at 100 e (gate), 100 e + 30 (up), 100 e + 60
// (down).
static inline void add_separate(const char *prefix, const char *module, const char *gate, const char *up, const char *down) {
    char name[256];
    for (int e = 0; e < E; e++) {
        snprintf(name, sizeof name, "%s.%s.%d.%s.weight", prefix, module, e, gate);
        builder_add(&builder, name, EXPERTD_DTYPE_F32, (float)(EXPERT * e), 2, I, H);
        snprintf(name, sizeof name, "%s.%s.%d.%s.weight", prefix, module, e, up);
        builder_add(&builder, name, EXPERTD_DTYPE_F32, (float)(EXPERT * e + 30), 2, I, H);
        snprintf(name, sizeof name, "%s.%s.%d.%s.weight", prefix, module, e, down);
        builder_add(&builder, name, EXPERTD_DTYPE_F32, (float)(EXPERT * e + 60), 2, H, I);
    }
}

static inline void add_named(const char *prefix, const char *name, int rank, int a, int b) {
    char full[256];
    snprintf(full, sizeof full, "%s.%s", prefix, name);
    if (rank == 1) {
        builder_add(&builder, full, EXPERTD_DTYPE_F32, 0, 1, a);
    } else {
        builder_add(&builder, full, EXPERTD_DTYPE_F32, 0, 2, a, b);
    }
}

static inline void add_qwen3_layer(const char *layer) {
    add_separate(layer, "mlp.experts", "gate_proj", "up_proj", "down_proj");
    add_named(layer, "mlp.gate.weight", 2, E, H);
}

static inline void add_fused(int gate_up_rows, int gate_up_columns, int down_rows, int down_columns) {
    builder_add(&builder, "model.layers.0.mlp.experts.gate_up_proj", EXPERTD_DTYPE_F32, GATE_UP, 3, E, gate_up_rows,
                gate_up_columns);
    builder_add(&builder, "model.layers.0.mlp.experts.down_proj", EXPERTD_DTYPE_F32, DOWN, 3, E, down_rows, down_columns);
    add_named("model.layers.0", "mlp.gate.weight", 2, E, H);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

#endif
