// A layer in process: the golden cases, the same bits as the scalar twin, and independence of a row's bits from everything else.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert/engine/engine.h"
#include "tests/unit/expert/host/fake_nodes.h"
#include "tests/unit/shard/random_placement.h"

#include <cmocka.h>

#include "base/safetensors.h"
#include "expert/host/node_teams.h"
#include "expert/layer/layer.h"
#include "expert/loader/model_load.h"

static const char *const CASES[] = {"mixtral",     "mixtral_one_token", "qwen2_moe", "qwen3_moe_sharded", "qwen3_5_moe", "olmoe",
                                    "deepseek_v3", "gpt_oss",           "llama4"};
enum { CASE_COUNT = sizeof CASES / sizeof CASES[0], MAX_TOKENS = 64 };

struct served {
    struct model model;
    struct topology topology;
    struct expertd_team *team;
    struct node_teams *node_teams;
    struct engine *engine;
    struct layer_limits limits;
    struct safetensors golden;
};

typedef err_t place_function(void *context, const struct layer_params *params, uint32_t ranks, struct placement **out);

static void serve_placed(struct served *s, const char *name, enum expertd_dtype dtype, uint32_t ranks, unsigned threads,
                         uint32_t nodes, place_function *place, void *context) {
    char path[512];
    *s = (struct served){0};
    snprintf(path, sizeof path, "%s/layers/%s", GOLDENS, name);
    assert_false(err_is(expertd_team_create(&(struct expertd_team_options){.threads = threads, .spin_us = 5}, &s->team)));
    struct model_options options = {
        .model = path, .compute_dtype = dtype, .ranks = ranks, .place = place, .place_context = context, .team = s->team};
    if (nodes > 1) {
        fake_nodes(nodes, &s->topology);
        options.topology = &s->topology;
        struct node_teams_options teams = {.topology = &s->topology, .threads = threads, .spin_us = 5};
        assert_false(err_is(node_teams_create(&teams, &s->node_teams)));
    }
    err_t e = model_load(&options, &s->model);
    if (err_is(e)) {
        fail_msg("%s: %s", name, expertd_err_message());
    }
    s->limits = layer_limits_for(&s->model, MAX_TOKENS, 16);
    struct engine_options engine = {.model = &s->model, .limits = s->limits, .team = s->team, .node_teams = s->node_teams};
    assert_false(err_is(engine_create(&engine, &s->engine)));
    snprintf(path, sizeof path, "%s/layers/%s/golden.safetensors", GOLDENS, name);
    assert_false(err_is(safetensors_open(path, &s->golden)));
}

static void serve(struct served *s, const char *name, enum expertd_dtype dtype, uint32_t ranks, unsigned threads) {
    serve_placed(s, name, dtype, ranks, threads, 1, NULL, NULL);
}

static void stop(struct served *s) {
    safetensors_close(&s->golden);
    engine_destroy(s->engine);
    model_deinit(&s->model);
    node_teams_destroy(s->node_teams);
    expertd_team_destroy(s->team);
}

static struct expertd_tensor_view golden(const struct served *s, uint32_t layer, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "layers.%u.%s", layer, what);
    const struct safetensors_entry *entry = safetensors_find(&s->golden, name);
    assert_non_null(entry);
    return entry->view;
}

static struct layer_request request_of(const struct served *s, const struct model_layer *layer, void *output) {
    struct expertd_tensor_view hidden = golden(s, layer->params.layer, "input");
    return (struct layer_request){
        .tokens = (size_t)hidden.shape[0],
        .hidden = hidden,
        .shared = layer->params.shared != SHARED_NONE,
        .output_dtype = EXPERTD_DTYPE_F32,
        .output = output,
    };
}

static void forward(struct served *s, const struct model_layer *layer, struct layer_request *requests, size_t count) {
    for (size_t i = 0; i < count; i++) {
        err_t e = layer_request_check(&requests[i], layer, &s->limits);
        if (err_is(e)) {
            fail_msg("%s", expertd_err_message());
        }
    }
    err_t e = layer_forward(s->engine, layer, requests, count, NULL, NULL);
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
}

// max over tokens of max|y - y*| / max|y*|.
static double worst_error(const float *got, const float *want, size_t tokens, size_t width) {
    double worst = 0;
    for (size_t t = 0; t < tokens; t++) {
        double difference = 0, scale = 0;
        for (size_t i = 0; i < width; i++) {
            difference = fmax(difference, fabs((double)got[t * width + i] - want[t * width + i]));
            scale = fmax(scale, fabs((double)want[t * width + i]));
            assert_false(isnan(got[t * width + i]));
        }
        worst = fmax(worst, difference / scale);
    }
    return worst;
}

static void check_golden(const char *name, enum expertd_dtype dtype, uint32_t ranks) {
    struct served s;
    serve(&s, name, dtype, ranks, 2);
    double bound = atof(safetensors_metadata(&s.golden, dtype == EXPERTD_DTYPE_F32 ? "max_error_f32" : "max_error_bf16"));
    assert_true(bound > 0 && bound < 0.1);
    for (size_t l = 0; l < s.model.num_layers; l++) {
        const struct model_layer *layer = &s.model.layers[l];
        struct expertd_tensor_view want = golden(&s, layer->params.layer, "output");
        float *got = malloc((size_t)want.bytes);
        struct layer_request request = request_of(&s, layer, got);
        forward(&s, layer, &request, 1);
        double error = worst_error(got, want.data, request.tokens, layer->params.hidden_size);
        if (error > bound) {
            fail_msg("%s layer %u %s: error %g, bound %g", name, layer->params.layer, expertd_dtype_name(dtype), error, bound);
        }
        free(got);
    }
    stop(&s);
}

static void every_golden_layer_is_within_its_bounds(void **state) {
    (void)state;
    for (size_t c = 0; c < CASE_COUNT; c++) {
        for (uint32_t ranks = 1; ranks <= 3; ranks++) {
            check_golden(CASES[c], EXPERTD_DTYPE_F32, ranks);
            check_golden(CASES[c], EXPERTD_DTYPE_BF16, ranks);
        }
    }
}

static void the_scalar_twin_gives_the_same_bits(void **state) {
    (void)state;
    for (size_t c = 0; c < CASE_COUNT; c++) {
        for (int d = 0; d < 2; d++) {
            struct served s;
            serve(&s, CASES[c], d ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16, 2, 2);
            const struct model_layer *layer = &s.model.layers[0];
            size_t bytes = (size_t)golden(&s, layer->params.layer, "output").bytes;
            float *fast = malloc(bytes), *twin = malloc(bytes);
            struct layer_request request = request_of(&s, layer, fast);
            forward(&s, layer, &request, 1);
            request.output = twin;
            assert_false(err_is(layer_forward_reference(layer, s.model.compute_dtype, &request)));
            if (memcmp(fast, twin, bytes) != 0) {
                fail_msg("%s %s: the twin's bits differ", CASES[c], expertd_dtype_name(s.model.compute_dtype));
            }
            free(fast);
            free(twin);
            stop(&s);
        }
    }
}

static void rows_do_not_depend_on_their_neighbours(void **state) {
    (void)state;
    for (size_t c = 0; c < CASE_COUNT; c++) {
        struct served s, sharded;
        serve(&s, CASES[c], EXPERTD_DTYPE_BF16, 1, 1);
        serve(&sharded, CASES[c], EXPERTD_DTYPE_BF16, 3, 2);
        const struct model_layer *layer = &s.model.layers[0];
        size_t width = layer->params.hidden_size;
        float *whole = malloc((size_t)golden(&s, layer->params.layer, "output").bytes);
        struct layer_request all = request_of(&s, layer, whole);
        forward(&s, layer, &all, 1);
        float *poisoned = malloc(width * sizeof *poisoned), *row = malloc(width * sizeof *row),
              *other = malloc(width * sizeof *other);
        for (size_t i = 0; i < width; i++) {
            poisoned[i] = i % 3 == 0 ? NAN : INFINITY;
        }
        for (size_t t = 0; t < all.tokens; t++) { // each row alone in a batch with a row of NaN and Inf, on three ranks
            struct layer_request pair[2] = {all, all};
            for (int p = 0; p < 2; p++) {
                pair[p].tokens = 1;
                pair[p].hidden.shape[0] = 1;
                pair[p].hidden.bytes = width * sizeof(float);
            }
            pair[0].hidden.data = poisoned;
            pair[0].output = other;
            pair[1].hidden.data = (const float *)all.hidden.data + t * width;
            pair[1].output = row;
            forward(&sharded, &sharded.model.layers[0], pair, 2);
            assert_memory_equal(row, whole + t * width, width * sizeof *row);
        }
        free(poisoned);
        free(row);
        free(other);
        free(whole);
        stop(&s);
        stop(&sharded);
    }
}

static err_t place_at_random(void *context, const struct layer_params *params, uint32_t ranks, struct placement **out) {
    uint64_t random = *(const uint64_t *)context + params->layer; // the same for every call with the same layer
    *out = random_placement(&random, params->num_experts, ranks, 2, 1);
    return OK;
}

// Random placements with replicas, as loaded and after every step of a move, give the bits of one rank.
static void bits_do_not_depend_on_placement_and_replicas(void **state) {
    (void)state;
    for (size_t c = 0; c < CASE_COUNT; c++) {
        struct served one;
        serve(&one, CASES[c], EXPERTD_DTYPE_BF16, 1, 1);
        for (uint32_t ranks = 2; ranks <= 5; ranks++) {
            uint64_t seed = 41 * ranks + c;
            struct served s;
            // Also on several memory nodes, whose ranks compute at the same time.
            serve_placed(&s, CASES[c], EXPERTD_DTYPE_BF16, ranks, 2 + ranks % 2, 1 + ranks % 3, place_at_random, &seed);
            for (size_t l = 0; l < one.model.num_layers; l++) {
                size_t bytes = (size_t)golden(&one, one.model.layers[l].params.layer, "output").bytes;
                float *want = malloc(bytes), *got = malloc(bytes);
                struct layer_request request = request_of(&one, &one.model.layers[l], want);
                forward(&one, &one.model.layers[l], &request, 1);
                const struct model_layer *layer = &s.model.layers[l];
                request.output = got;
                forward(&s, layer, &request, 1);
                assert_memory_equal(got, want, bytes);
                for (uint64_t epoch = 2; epoch <= 4; epoch++) {
                    struct placement *placement = random_placement(&seed, layer->params.num_experts, ranks, 2, epoch);
                    struct shards *next;
                    assert_false(err_is(shards_move(layer->in_force->shards, placement,
                                                    &(struct block_copier){.topology = s.model.topology}, &next)));
                    shards_switch(layer->in_force, next);
                    memset(got, 0xff, bytes);
                    struct layer_timings timings;
                    assert_false(err_is(layer_forward(s.engine, layer, &request, 1, NULL, &timings)));
                    assert_int_equal(timings.placement_epoch, epoch);
                    assert_memory_equal(got, want, bytes);
                }
                free(want);
                free(got);
            }
            stop(&s);
        }
        stop(&one);
    }
}

static void given_routes_and_logits_agree_with_the_own_router(void **state) {
    (void)state;
    struct served s;
    serve(&s, "mixtral", EXPERTD_DTYPE_F32, 1, 2);
    const struct model_layer *layer = &s.model.layers[0];
    struct expertd_tensor_view want = golden(&s, layer->params.layer, "output");
    float *got = malloc((size_t)want.bytes);
    struct layer_request request = request_of(&s, layer, got);
    request.source = ROUTING_GIVEN;
    request.ids = golden(&s, layer->params.layer, "topk_ids");
    request.weights = golden(&s, layer->params.layer, "topk_weights");
    forward(&s, layer, &request, 1);
    assert_true(worst_error(got, want.data, request.tokens, layer->params.hidden_size) < 1e-5);
    free(got);
    stop(&s);
}

static void dropped_choices_give_zero_rows(void **state) {
    (void)state;
    struct served s;
    serve(&s, "mixtral", EXPERTD_DTYPE_BF16, 2, 1);
    const struct model_layer *layer = &s.model.layers[0];
    size_t width = layer->params.hidden_size;
    float *got = malloc(MAX_TOKENS * width * sizeof *got);
    struct layer_request request = request_of(&s, layer, got);
    int64_t ids[MAX_TOKENS * 3];
    uint16_t weights[MAX_TOKENS * 3];
    for (size_t i = 0; i < request.tokens * 3; i++) {
        ids[i] = i / 3 % 2 ? 4 : -1 - (int64_t)i; // even rows have no expert, odd rows name one expert three times
        weights[i] = expertd_bf16_from_f32(0.25f);
    }
    memset(got, 0xff, MAX_TOKENS * width * sizeof *got);
    request.source = ROUTING_GIVEN;
    request.ids = (struct expertd_tensor_view){EXPERTD_DTYPE_I64, 2, {request.tokens, 3}, ids, request.tokens * 3 * 8};
    request.weights = (struct expertd_tensor_view){EXPERTD_DTYPE_BF16, 2, {request.tokens, 3}, weights, request.tokens * 3 * 2};
    forward(&s, layer, &request, 1);
    for (size_t i = 0; i < request.tokens * width; i++) {
        assert_true((i / width) % 2 ? !isnan(got[i]) : expertd_f32_bits(got[i]) == 0);
    }
    request.ids.data = ids;
    ids[1] = layer->params.num_experts;
    assert_int_equal(layer_request_check(&request, layer, &s.limits).code, EXPERTD_ERR_EXPERT_OUT_OF_RANGE);
    free(got);
    stop(&s);
}

// Rows without a choice are read only if the request includes the shared experts, with any other rows in the batch.
static void dropped_rows_are_read_for_the_shared_experts_alone(void **state) {
    (void)state;
    struct served s;
    serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 2, 2);
    const struct model_layer *layer = &s.model.layers[0];
    size_t width = layer->params.hidden_size;
    float *alone = malloc(MAX_TOKENS * width * sizeof *alone), *merged = malloc(MAX_TOKENS * width * sizeof *merged),
          *dropped = malloc(MAX_TOKENS * width * sizeof *dropped), *nan = malloc(MAX_TOKENS * width * sizeof *nan),
          *routed = malloc(MAX_TOKENS * width * sizeof *routed);
    char ids[MAX_TOKENS * sizeof(int32_t) + 1]; // one choice each, misaligned as in a message
    float weights[MAX_TOKENS];
    memset(ids, 0xff, sizeof ids);
    for (size_t i = 0; i < MAX_TOKENS * width; i++) {
        nan[i] = NAN;
        weights[i % MAX_TOKENS] = NAN;
    }
    struct layer_request own = request_of(&s, layer, routed), request = own;
    own.tokens = request.tokens = MAX_TOKENS / 4;
    own.hidden.shape[0] = request.hidden.shape[0] = MAX_TOKENS / 4;
    own.hidden.bytes = request.hidden.bytes = MAX_TOKENS / 4 * width * sizeof(float);
    request.output = alone;
    request.source = ROUTING_GIVEN;
    request.ids =
        (struct expertd_tensor_view){EXPERTD_DTYPE_I32, 2, {request.tokens, 1}, ids + 1, request.tokens * sizeof(int32_t)};
    request.weights =
        (struct expertd_tensor_view){EXPERTD_DTYPE_F32, 2, {request.tokens, 1}, weights, request.tokens * sizeof(float)};
    assert_true(request.shared);
    forward(&s, layer, &request, 1);
    struct layer_request requests[3] = {request, own, request}; // the second request has more choices
    requests[0].shared = false;
    requests[0].hidden.data = nan;
    requests[0].output = dropped;
    requests[2].output = merged;
    memset(dropped, 0xff, request.tokens * width * sizeof *dropped);
    forward(&s, layer, requests, 3);
    assert_memory_equal(merged, alone, request.tokens * width * sizeof *merged);
    for (size_t i = 0; i < request.tokens * width; i++) {
        assert_int_equal(expertd_f32_bits(dropped[i]), 0);
        assert_false(isnan(alone[i]));
    }
    free(alone);
    free(merged);
    free(dropped);
    free(nan);
    free(routed);
    stop(&s);
}

static void an_empty_request_is_answered_beside_a_full_one(void **state) {
    (void)state;
    struct served s;
    serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 2, 2);
    const struct model_layer *layer = &s.model.layers[0];
    struct expertd_tensor_view want = golden(&s, layer->params.layer, "output");
    float *got = malloc((size_t)want.bytes);
    struct layer_request requests[2] = {request_of(&s, layer, got), request_of(&s, layer, got)};
    requests[0].tokens = 0;
    requests[0].hidden.shape[0] = 0;
    requests[0].hidden.bytes = 0;
    requests[0].hidden.data = NULL;
    forward(&s, layer, requests, 1);
    forward(&s, layer, requests, 2);
    assert_true(worst_error(got, want.data, requests[1].tokens, layer->params.hidden_size) < 1e-2);
    free(got);
    stop(&s);
}

static void check_code(struct served *s, const struct layer_request *request, enum expertd_err_code code, const char *field) {
    err_t e = layer_request_check(request, &s->model.layers[0], &s->limits);
    if (e.code != code || strcmp(expertd_err_field(), field) != 0) {
        fail_msg("%s at %s, expected %s at %s: %s", expertd_err_name(e.code), expertd_err_field(), expertd_err_name(code), field,
                 expertd_err_message());
    }
}

static void requests_that_do_not_fit_are_refused_by_field(void **state) {
    (void)state;
    struct served s;
    serve(&s, "mixtral", EXPERTD_DTYPE_BF16, 1, 1);
    const struct model_layer *layer = &s.model.layers[0];
    float output[1];
    const struct layer_request good = request_of(&s, layer, output);
    struct layer_request bad = good;
    bad.hidden.shape[1]--;
    check_code(&s, &bad, EXPERTD_ERR_SHAPE_MISMATCH, "hidden.shape");
    bad = good;
    bad.hidden.dtype = EXPERTD_DTYPE_I32;
    check_code(&s, &bad, EXPERTD_ERR_DTYPE_UNSUPPORTED, "hidden.dtype");
    bad = good;
    bad.hidden.bytes--;
    check_code(&s, &bad, EXPERTD_ERR_TENSOR_BYTES, "hidden");
    bad = good;
    bad.hidden.shape[0] = MAX_TOKENS + 1;
    check_code(&s, &bad, EXPERTD_ERR_TOO_LARGE, "hidden.shape");
    bad = good;
    bad.shared = true;
    check_code(&s, &bad, EXPERTD_ERR_NO_SHARED_EXPERTS, "shared_experts");
    bad = good;
    bad.output_dtype = EXPERTD_DTYPE_F8_E4M3;
    check_code(&s, &bad, EXPERTD_ERR_DTYPE_UNSUPPORTED, "output_dtype");
    bad = good;
    bad.hidden_scale = (struct expertd_tensor_view){EXPERTD_DTYPE_F32, 1, {1}, output, 4};
    check_code(&s, &bad, EXPERTD_ERR_DTYPE_UNSUPPORTED, "hidden_scale");
    bad = good;
    bad.source = ROUTING_LOGITS;
    bad.logits = (struct expertd_tensor_view){EXPERTD_DTYPE_F32, 2, {good.tokens, 7}, output, good.tokens * 28};
    check_code(&s, &bad, EXPERTD_ERR_SHAPE_MISMATCH, "router_logits");
    bad = good;
    bad.source = ROUTING_GIVEN;
    bad.ids = (struct expertd_tensor_view){EXPERTD_DTYPE_I32, 2, {good.tokens, 17}, output, good.tokens * 68};
    bad.weights = (struct expertd_tensor_view){EXPERTD_DTYPE_F32, 2, {good.tokens, 17}, output, good.tokens * 68};
    check_code(&s, &bad, EXPERTD_ERR_TOO_LARGE, "routes.ids.shape");
    stop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_layer_is_within_its_bounds),
        cmocka_unit_test(the_scalar_twin_gives_the_same_bits),
        cmocka_unit_test(rows_do_not_depend_on_their_neighbours),
        cmocka_unit_test(bits_do_not_depend_on_placement_and_replicas),
        cmocka_unit_test(given_routes_and_logits_agree_with_the_own_router),
        cmocka_unit_test(dropped_choices_give_zero_rows),
        cmocka_unit_test(dropped_rows_are_read_for_the_shared_experts_alone),
        cmocka_unit_test(an_empty_request_is_answered_beside_a_full_one),
        cmocka_unit_test(requests_that_do_not_fit_are_refused_by_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
