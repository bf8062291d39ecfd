// A golden case's layer on simulated devices or on the CPU, and a batch of three callers for it.
#ifndef EXPERTD_TESTS_UNIT_EXPERT_LAYER_SERVED_LAYER_H
#define EXPERTD_TESTS_UNIT_EXPERT_LAYER_SERVED_LAYER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/safetensors.h"
#include "expert/engine/engine.h"
#include "expert/layer/layer.h"
#include "expert/loader/model_load.h"
#include "expertd/kernels/devices.h"
#include "expertd/kernels/kernel_select.h"
#include "tests/unit/share.h"

enum { MAX_TOKENS = 96, FLOATS_MAX = 96 * 160 };
enum {
    TIMEOUT_MS = 500
}; // waited for completely if a rank or kernel hangs; well above the time of a late one, or of a busy machine

// Options of every engine that is created.
static struct engine_shared_memory shared_memory;
static uint32_t max_tokens = MAX_TOKENS;

struct served {
    struct model model;
    struct expertd_team *team;
    struct expertd_devices *devices; // NULL: the CPU
    struct engine *engine;
    struct layer_limits limits;
    struct safetensors golden;
    uint64_t tokens_max; // tokens of each caller; 0: all of the case
};

static inline void must(err_t e) {
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
}

// Serves a checkpoint's folder. device: "sim:2", or NULL for the CPU.
static inline err_t try_to_serve_folder(struct served *s, const char *path, enum expertd_dtype dtype, uint32_t ranks,
                                        const char *device) {
    *s = (struct served){0};
    TRY(expertd_team_create(&(struct expertd_team_options){.threads = 1, .spin_us = 5}, &s->team));
    struct model_options options = {.model = path, .compute_dtype = dtype, .ranks = ranks, .team = s->team};
    if (device) {
        struct expertd_devices_request request;
        TRY(expertd_devices_parse(device, &request));
        TRY(expertd_devices_open(&request, &s->devices));
        options.for_devices = true;
        s->devices->timeout_ns = (int64_t)TIMEOUT_MS * NS_PER_MS;
        options.arithmetic = s->devices->facts.arithmetic;
        options.arithmetic_f32 = s->devices->facts.arithmetic_f32;
    }
    TRY(model_load(&options, &s->model));
    s->limits = layer_limits_for(&s->model, max_tokens, 16);
    struct engine_options engine = {.model = &s->model,
                                    .limits = s->limits,
                                    .team = s->team,
                                    .devices = s->devices,
                                    .shared_memory = shared_memory,
                                    .exchange_timeout_ns = (int64_t)TIMEOUT_MS * NS_PER_MS};
    return engine_create(&engine, &s->engine);
}

// Serves a golden case.
static inline err_t try_to_serve(struct served *s, const char *name, enum expertd_dtype dtype, uint32_t ranks, const char *device) {
    char path[512];
    snprintf(path, sizeof path, "%s/layers/%s", GOLDENS, name);
    TRY(try_to_serve_folder(s, path, dtype, ranks, device));
    snprintf(path, sizeof path, "%s/layers/%s/golden.safetensors", GOLDENS, name);
    return safetensors_open(path, &s->golden);
}

static inline void stop(struct served *s) {
    safetensors_close(&s->golden);
    engine_destroy(s->engine);
    model_deinit(&s->model);
    expertd_devices_close(s->devices);
    expertd_team_destroy(s->team);
}

static inline struct expertd_tensor_view golden(const struct served *s, uint32_t layer, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "layers.%u.%s", layer, what);
    const struct safetensors_entry *entry = safetensors_find(&s->golden, name);
    assert_non_null(entry);
    return entry->view;
}

// Three callers in one batch: the model's router with F32 output, given routes with BF16 output, and the model's router without
// shared experts with F16 output. Outputs are poisoned first.
enum { CALLERS = 3 };

static inline struct expertd_tensor_view first_rows(const struct served *s, struct expertd_tensor_view view) {
    if (s->tokens_max > 0 && s->tokens_max < view.shape[0]) {
        view.bytes = view.bytes / view.shape[0] * s->tokens_max;
        view.shape[0] = s->tokens_max;
    }
    return view;
}

static inline size_t batch_bytes(const struct expertd_tensor_view *hidden) {
    return (size_t)(hidden->shape[0] * hidden->shape[1] * sizeof(float));
}

static inline void ask(const struct served *s, const struct model_layer *layer, float out[CALLERS][FLOATS_MAX],
                       struct layer_request requests[CALLERS]) {
    static const enum expertd_dtype OUTPUTS[CALLERS] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F16};
    uint32_t number = layer->params.layer;
    for (size_t i = 0; i < CALLERS; i++) {
        struct expertd_tensor_view hidden = first_rows(s, golden(s, number, "input"));
        assert_true(batch_bytes(&hidden) <= sizeof out[i]);
        requests[i] = (struct layer_request){.tokens = (size_t)hidden.shape[0],
                                             .hidden = hidden,
                                             .shared = layer->params.shared != SHARED_NONE && i < 2,
                                             .output_dtype = OUTPUTS[i],
                                             .output = out[i]};
        memset(out[i], 0xff, sizeof out[i]);
    }
    if (requests[0].tokens * CALLERS > MAX_TOKENS) {
        requests[2].tokens = 0, requests[2].hidden.shape[0] = 0, requests[2].hidden.bytes = 0;
    }
    if (requests[0].tokens * 2 > MAX_TOKENS) {
        fail_msg("a case of %zu tokens", requests[0].tokens);
    }
    requests[1].source = ROUTING_GIVEN;
    requests[1].ids = first_rows(s, golden(s, number, "topk_ids"));
    requests[1].weights = first_rows(s, golden(s, number, "topk_weights"));
    for (size_t i = 0; i < CALLERS; i++) {
        must(layer_request_check(&requests[i], layer, &s->limits));
    }
}

static inline err_t forward(struct served *s, const struct model_layer *layer, float out[CALLERS][FLOATS_MAX]) {
    struct layer_request requests[CALLERS];
    ask(s, layer, out, requests);
    return layer_forward(s->engine, layer, requests, CALLERS, NULL, NULL);
}

#endif
