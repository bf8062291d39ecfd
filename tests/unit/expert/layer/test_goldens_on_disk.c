// For every golden checkpoint: the tensors that layer_tensors finds, multiplied naively in double, give the golden output.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expert/layout/layer_finder.h"

struct opened {
    struct checkpoint *checkpoint;
    const struct architecture *architecture;
    struct layer_tensors *layers;
    size_t count;
    struct safetensors golden;
};

static void open_golden(const char *name, struct opened *o) {
    char path[512];
    snprintf(path, sizeof path, GOLDENS "/layers/%s", name);
    err_t e = checkpoint_open(path, &o->checkpoint);
    e = err_is(e) ? e : architecture_find(checkpoint_config(o->checkpoint), &o->architecture);
    e = err_is(e) ? e : layer_tensors_find(o->checkpoint, o->architecture, NULL, &o->layers, &o->count);
    if (err_is(e)) {
        fail_msg("%s: %s", name, expertd_err_message());
    }
    snprintf(path, sizeof path, GOLDENS "/layers/%s/golden.safetensors", name);
    e = safetensors_open(path, &o->golden);
    assert_false(err_is(e));
}

static void close_golden(struct opened *o) {
    layer_tensors_free(o->layers, o->count);
    safetensors_close(&o->golden);
    checkpoint_close(o->checkpoint);
}

static const void *golden_data(const struct opened *o, uint32_t layer, const char *what, const struct expertd_tensor_view **view) {
    char name[128];
    snprintf(name, sizeof name, "layers.%u.%s", layer, what);
    const struct safetensors_entry *entry = safetensors_find(&o->golden, name);
    assert_non_null(entry);
    *view = &entry->view;
    return entry->view.data;
}

static double element(enum expertd_dtype dtype, const void *data, size_t index) {
    float value;
    expertd_dtype_widen(dtype, (const char *)data + index * expertd_dtype_size(dtype), 1, &value);
    return value;
}

static double weight_at(const struct expertd_weight_source *w, size_t n, size_t k) {
    return element(w->dtype, w->data, n * w->n_stride + k * w->k_stride);
}

static double product(const struct expertd_weight_source *w, const struct vector_source *bias, size_t n, const double *x,
                      size_t k_count) {
    double sum = bias && bias->data ? element(bias->dtype, bias->data, n * bias->stride) : 0;
    for (size_t k = 0; k < k_count; k++) {
        sum += x[k] * weight_at(w, n, k);
    }
    return sum;
}

// Dequantises matrices into memory that is kept until the layer has been checked.
struct widened {
    void *memory[256];
    size_t count;
};

static void *keep(struct widened *w, size_t bytes) {
    assert_true(w->count < sizeof w->memory / sizeof *w->memory);
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(memory);
    return w->memory[w->count++] = memory;
}

static void widen(struct widened *w, struct expert_source *e, size_t width, size_t hidden) {
    for (int part = 0; part < PART_COUNT; part++) {
        const struct quantised_matrix *m = &e->quantised[part];
        size_t n = part == PART_DOWN ? hidden : width, k = part == PART_DOWN ? width : hidden;
        struct quantised_rows rows;
        if (!m->codes.data) {
            continue;
        }
        assert_null(e->weight[part].data);
        err_t err = quantised_rows_take(m, n, k, keep(w, quantised_rows_bytes(m, n, k)), &rows);
        if (err_is(err)) {
            fail_msg("%s", expertd_err_message());
        }
        float *wide = keep(w, n * k * sizeof *wide);
        quantised_rows_widen(&rows, n, k, EXPERTD_DTYPE_F32, wide);
        e->weight[part] = (struct expertd_weight_source){.data = wide, .dtype = EXPERTD_DTYPE_F32, .n_stride = k, .k_stride = 1};
    }
}

static void widen_layer(struct widened *w, struct layer_tensors *l) {
    for (uint32_t e = 0; e < l->params.num_experts; e++) {
        widen(w, &l->experts[e], l->params.intermediate_size, l->params.hidden_size);
    }
    widen(w, &l->shared, l->params.shared_intermediate_size, l->params.hidden_size);
}

static double activated(const struct expertd_activation *a, double g, double u) {
    if (a->kind == EXPERTD_ACTIVATION_SWIGLU_OAI) {
        g = fmin(g, a->limit);
        u = fmax(fmin(u, a->limit), -a->limit);
        return (u + 1) * g / (1 + exp(-a->alpha * g));
    }
    assert_int_equal(a->kind, EXPERTD_ACTIVATION_SILU);
    return g / (1 + exp(-g)) * u;
}

// y[H] += scale * expert(x)
static void add_expert(const struct expert_source *e, const struct expertd_activation *a, size_t width, size_t hidden,
                       const double *x, double scale, double *y) {
    double h[512];
    assert_true(width <= 512);
    for (size_t i = 0; i < width; i++) {
        double g = product(&e->weight[PART_GATE], &e->bias[PART_GATE], i, x, hidden);
        double u = product(&e->weight[PART_UP], &e->bias[PART_UP], i, x, hidden);
        h[i] = activated(a, g, u);
    }
    for (size_t n = 0; n < hidden; n++) {
        y[n] += scale * product(&e->weight[PART_DOWN], &e->bias[PART_DOWN], n, h, width);
    }
}

static void compute_token(const struct layer_tensors *l, const float *input, const int32_t *ids, const float *weights, double *y) {
    const struct layer_params *p = &l->params;
    double x[512], scaled[512];
    for (size_t i = 0; i < p->hidden_size; i++) {
        x[i] = input[i];
        y[i] = 0;
    }
    for (uint32_t j = 0; j < p->routing.top_k; j++) {
        for (size_t i = 0; i < p->hidden_size; i++) {
            scaled[i] = p->weights_on_input ? weights[j] * x[i] : x[i];
        }
        assert_in_range(ids[j], 0, p->num_experts - 1);
        add_expert(&l->experts[ids[j]], &p->activation, p->intermediate_size, p->hidden_size, scaled,
                   p->weights_on_input ? 1 : weights[j], y);
    }
    if (p->shared != SHARED_NONE) {
        double gate = p->shared == SHARED_SIGMOID ? 1 / (1 + exp(-product(&l->shared_gate.plain, NULL, 0, x, p->hidden_size))) : 1;
        add_expert(&l->shared, &p->shared_activation, p->shared_intermediate_size, p->hidden_size, x, gate, y);
    }
}

// The architecture's routing, on logits from the router that was found, gives the golden's ids and weights.
static void check_routes(const struct layer_tensors *l, const float *input, const int32_t *ids, const float *weights) {
    struct expertd_routing routing = l->params.routing;
    float logits[64], bias[64], own_weights[16];
    int32_t own_ids[16];
    double x[512];
    assert_true(routing.num_experts <= 64 && routing.top_k <= 16);
    for (size_t i = 0; i < l->params.hidden_size; i++) {
        x[i] = input[i];
    }
    for (uint32_t e = 0; e < routing.num_experts; e++) {
        logits[e] = (float)product(&l->router.plain, &l->router_bias, e, x, l->params.hidden_size);
        bias[e] = l->selection_bias.data ? (float)element(l->selection_bias.dtype, l->selection_bias.data, e) : 0;
    }
    routing.selection_bias = l->params.router_has_selection_bias ? bias : NULL;
    size_t scratch_bytes = (expertd_routing_scratch_bytes(&routing) + 63) / 64 * 64;
    void *scratch = aligned_alloc(64, scratch_bytes ? scratch_bytes : 64);
    expertd_routing_row(&routing, logits, own_ids, own_weights, scratch);
    free(scratch);
    for (uint32_t j = 0; j < routing.top_k; j++) {
        uint32_t at = 0;
        while (at < routing.top_k && own_ids[at] != ids[j]) {
            at++;
        }
        assert_true(at < routing.top_k);
        assert_true(fabs((double)own_weights[at] - weights[j]) <= 2e-6 * fabs((double)weights[j]) + 1e-12);
    }
}

static void check_layer(const struct opened *o, const struct layer_tensors *l) {
    const struct expertd_tensor_view *in, *out, *ids_view, *weights_view;
    const float *input = golden_data(o, l->params.layer, "input", &in);
    const float *wanted = golden_data(o, l->params.layer, "output", &out);
    const int32_t *ids = golden_data(o, l->params.layer, "topk_ids", &ids_view);
    const float *weights = golden_data(o, l->params.layer, "topk_weights", &weights_view);
    size_t hidden = l->params.hidden_size, top_k = l->params.routing.top_k;
    double bound = strtod(safetensors_metadata(&o->golden, "max_error_f32"), NULL);
    assert_int_equal(in->shape[1], hidden);
    assert_int_equal(ids_view->shape[1], top_k);
    for (size_t t = 0; t < in->shape[0]; t++) {
        double y[512], worst = 0, greatest = 0;
        check_routes(l, input + t * hidden, ids + t * top_k, weights + t * top_k);
        compute_token(l, input + t * hidden, ids + t * top_k, weights + t * top_k, y);
        for (size_t i = 0; i < hidden; i++) {
            worst = fmax(worst, fabs(y[i] - wanted[t * hidden + i]));
            greatest = fmax(greatest, fabs((double)wanted[t * hidden + i]));
        }
        assert_true(worst <= bound * greatest);
    }
}

static void check_case(const char *name) {
    struct opened o = {0};
    open_golden(name, &o);
    char layers[64] = "";
    for (size_t i = 0; i < o.count; i++) {
        snprintf(layers + strlen(layers), sizeof layers - strlen(layers), "%s%u", i ? "," : "", o.layers[i].params.layer);
        struct widened widened = {.count = 0};
        widen_layer(&widened, &o.layers[i]);
        check_layer(&o, &o.layers[i]);
        while (widened.count > 0) {
            free(widened.memory[--widened.count]);
        }
    }
    assert_string_equal(layers, safetensors_metadata(&o.golden, "moe_layers"));
    close_golden(&o);
}

#define GOLDEN(name)                                                                                                               \
    static void golden_##name##_is_found_and_multiplies_to_its_output(void **state) {                                              \
        (void)state;                                                                                                               \
        check_case(#name);                                                                                                         \
    }
GOLDEN(mixtral)
GOLDEN(mixtral_one_token)
GOLDEN(qwen2_moe)
GOLDEN(qwen3_moe_sharded)
GOLDEN(qwen3_5_moe)
GOLDEN(olmoe)
GOLDEN(deepseek_v3)
GOLDEN(gpt_oss)
GOLDEN(llama4)
GOLDEN(ernie4_5_moe)
GOLDEN(glm4_moe)
GOLDEN(granitemoe_f16)
GOLDEN(hunyuan_v1_moe)
GOLDEN(phimoe)
GOLDEN(deepseek_v3_fp8)
GOLDEN(gpt_oss_mxfp4)
GOLDEN(kimi_k2_int4)
GOLDEN(mixtral_awq)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_mixtral_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_mixtral_one_token_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_qwen2_moe_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_qwen3_moe_sharded_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_qwen3_5_moe_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_olmoe_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_deepseek_v3_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_gpt_oss_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_llama4_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_ernie4_5_moe_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_glm4_moe_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_granitemoe_f16_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_hunyuan_v1_moe_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_phimoe_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_deepseek_v3_fp8_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_gpt_oss_mxfp4_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_kimi_k2_int4_is_found_and_multiplies_to_its_output),
        cmocka_unit_test(golden_mixtral_awq_is_found_and_multiplies_to_its_output),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
