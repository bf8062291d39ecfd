// Helpers for tests of the architecture table: config.json texts, and the parameters and layers that result.
#ifndef EXPERTD_TESTS_UNIT_EXPERT_ARCHITECTURE_ARCHITECTURE_TEXTS_H
#define EXPERTD_TESTS_UNIT_EXPERT_ARCHITECTURE_ARCHITECTURE_TEXTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expert/architecture/architecture.h"
#include "expert/architecture/architecture_layers.h"
#include "expert/architecture/architecture_table.h"
#include "expert/config/config.h"

static inline struct config *parse(const char *text) {
    struct config *config;
    err_t e = config_parse("config.json", text, strlen(text), &config);
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
    return config;
}

static inline const struct architecture *row_of(const struct config *config) {
    const struct architecture *row = NULL;
    err_t e = architecture_find(config, &row);
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
    return row;
}

static inline struct layer_params params_at(const char *text, uint32_t layer) {
    struct config *config = parse(text);
    struct layer_params p;
    err_t e = architecture_params(row_of(config), config, layer, &p);
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
    config_destroy(config);
    return p;
}

static inline void assert_says(const char *message) {
    if (!strstr(expertd_err_message(), message)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), message);
    }
}

static inline void refuse_params(const char *text, const char *message) {
    struct config *config = parse(text);
    struct layer_params p;
    assert_int_equal(architecture_params(row_of(config), config, 0, &p).code, EXPERTD_ERR_CHECKPOINT);
    assert_says("config.json");
    assert_says(message);
    config_destroy(config);
}

// "MD-": layers 0, 1, 2 are MoE, dense, unspecified.
static inline void assert_layers(const char *text, const char *kinds) {
    struct config *config = parse(text);
    const struct architecture *row = row_of(config);
    for (uint32_t layer = 0; kinds[layer]; layer++) {
        enum layer_kind kind;
        if (err_is(architecture_layer_kind(row, config, layer, &kind))) {
            fail_msg("%s", expertd_err_message());
        }
        if (kind != (kinds[layer] == 'M' ? LAYER_MOE : kinds[layer] == 'D' ? LAYER_DENSE : LAYER_UNSPECIFIED)) {
            fail_msg("layer %u of %s is kind %d", layer, text, (int)kind);
        }
    }
    config_destroy(config);
}

static inline void refuse_layer(const char *text, uint32_t layer, const char *message) {
    struct config *config = parse(text);
    enum layer_kind kind;
    assert_int_equal(architecture_layer_kind(row_of(config), config, layer, &kind).code, EXPERTD_ERR_CHECKPOINT);
    assert_says(message);
    config_destroy(config);
}

#define MIXTRAL(more)                                                                                                              \
    "{\"model_type\":\"mixtral\",\"hidden_size\":64,\"intermediate_size\":96,\"num_local_experts\":8,\"num_experts_per_tok\":2,"   \
    "\"hidden_act\":\"silu\"" more "}"
#define QWEN(type, more)                                                                                                           \
    "{\"model_type\":\"" type                                                                                                      \
    "\",\"hidden_size\":64,\"moe_intermediate_size\":40,\"num_experts\":8,\"num_experts_per_tok\":3" more "}"
#define DEEPSEEK(type, more)                                                                                                       \
    "{\"model_type\":\"" type                                                                                                      \
    "\",\"hidden_size\":96,\"moe_intermediate_size\":24,\"n_routed_experts\":16,\"num_experts_per_tok\":4,"                        \
    "\"routed_scaling_factor\":2.5,\"n_shared_experts\":2" more "}"

#endif
