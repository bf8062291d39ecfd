// The activations of every backend, bit for bit against their formulas in scalar functions.
#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/activation.h"
#include "kernels/elements/scalar_math.h"

enum { WIDTH_MAX = 600 };

struct operands {
    float gate[WIDTH_MAX], up[WIDTH_MAX], gate_bias[WIDTH_MAX], up_bias[WIDTH_MAX];
};

static float at_most(float x, float limit) {
    return isnan(x) ? x : x > limit ? limit : x;
}

static float within(float x, float limit) {
    return isnan(x) ? x : x > limit ? limit : x < -limit ? -limit : x;
}

// The activation of docs/numerics.md, "One MoE layer", in fp32.
static float formula(const struct expertd_activation *a, float g, float u) {
    int limited = a->limit != 0;
    switch (a->kind) {
    case EXPERTD_ACTIVATION_RELU2: {
        float r = isnan(u) ? u : u > 0 ? u : 0;
        return r * r;
    }
    case EXPERTD_ACTIVATION_SWIGLU_OAI:
        g = limited ? at_most(g, a->limit) : g;
        u = limited ? within(u, a->limit) : u;
        return (u + 1) * (g / (1 + exp_f32(-(a->alpha * g))));
    default:
        break;
    }
    if (a->clamp == EXPERTD_CLAMP_BEFORE && limited) {
        g = at_most(g, a->limit);
    }
    float s = a->kind == EXPERTD_ACTIVATION_GELU_TANH ? gelu_tanh_f32(g) : silu_f32(g);
    if (a->clamp == EXPERTD_CLAMP_AFTER && limited) {
        s = at_most(s, a->limit);
    }
    return s * (a->clamp != EXPERTD_CLAMP_NONE && limited ? within(u, a->limit) : u);
}

static void check(const struct kernel_backend *backend, const struct expertd_activation *a, const struct operands *x, size_t width,
                  int biased, enum expertd_dtype dtype) {
    float got[WIDTH_MAX + 1], want[WIDTH_MAX], expected[WIDTH_MAX];
    uint8_t *out = test_alloc(width * expertd_dtype_size(dtype));
    memset(out, 0xff, width * expertd_dtype_size(dtype));
    struct expertd_activation_args args = {
        .activation = a,
        .gate = expertd_activation_is_gated(a) ? x->gate : NULL,
        .up = x->up,
        .gate_bias = biased && expertd_activation_is_gated(a) ? x->gate_bias : NULL,
        .up_bias = biased ? x->up_bias : NULL,
        .width = width,
        .dtype = dtype,
        .out = out,
    };
    backend->activation(&args);
    for (size_t i = 0; i < width; i++) {
        float g = biased ? x->gate[i] + x->gate_bias[i] : x->gate[i];
        float u = biased ? x->up[i] + x->up_bias[i] : x->up[i];
        expected[i] = formula(a, g, u);
    }
    uint8_t *narrow = test_alloc(width * expertd_dtype_size(dtype));
    expertd_dtype_narrow(expected, width, dtype, narrow);
    expertd_dtype_widen(dtype, narrow, width, want);
    expertd_dtype_widen(dtype, out, width, got);
    assert_same_f32(got, want, width, backend->name);
    free(out), free(narrow);
}

static void fill(struct random *random, struct operands *x) {
    for (size_t i = 0; i < WIDTH_MAX; i++) {
        enum values values = i % 7 == 0 ? VALUES_ANY : i % 11 == 0 ? VALUES_SUBNORMAL : VALUES_PLAIN;
        x->gate[i] = random_f32(random, values) * (i % 3 ? 1 : 30);
        x->up[i] = random_f32(random, values) * (i % 5 ? 1 : 30);
        x->gate_bias[i] = random_f32(random, VALUES_PLAIN);
        x->up_bias[i] = random_f32(random, VALUES_PLAIN);
    }
    x->gate[1] = -0.0f, x->up[2] = -0.0f;
    x->gate[3] = x->up[4] = NAN;
    x->gate[5] = INFINITY, x->up[6] = -INFINITY, x->gate[7] = -INFINITY;
}

static void check_backend(const struct kernel_backend *backend) {
    static const struct expertd_activation KINDS[] = {
        {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_NONE, 0, 0},
        {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_BEFORE, 0, 7},
        {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_AFTER, 0, 7},
        {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_BEFORE, 0, 0}, // a limit of 0: no clamp
        {EXPERTD_ACTIVATION_SWIGLU_OAI, EXPERTD_CLAMP_NONE, 1.702f, 7},
        {EXPERTD_ACTIVATION_SWIGLU_OAI, EXPERTD_CLAMP_NONE, 1.5f, 0},
        {EXPERTD_ACTIVATION_RELU2, EXPERTD_CLAMP_NONE, 0, 0},
        {EXPERTD_ACTIVATION_GELU_TANH, EXPERTD_CLAMP_NONE, 0, 0},
        {EXPERTD_ACTIVATION_GELU_TANH, EXPERTD_CLAMP_BEFORE, 0, 2},
        {EXPERTD_ACTIVATION_GELU_TANH, EXPERTD_CLAMP_AFTER, 0, 2},
    };
    static const size_t WIDTHS[] = {0, 1, 7, 16, 31, 255, 256, 257, WIDTH_MAX};
    static struct operands x;
    struct random random = {6};
    for (size_t kind = 0; kind < COUNT_OF(KINDS); kind++) {
        for (size_t w = 0; w < COUNT_OF(WIDTHS); w++) {
            fill(&random, &x);
            check(backend, &KINDS[kind], &x, WIDTHS[w], 0, EXPERTD_DTYPE_BF16);
            check(backend, &KINDS[kind], &x, WIDTHS[w], 1, EXPERTD_DTYPE_BF16);
            check(backend, &KINDS[kind], &x, WIDTHS[w], 0, EXPERTD_DTYPE_F32);
            check(backend, &KINDS[kind], &x, WIDTHS[w], 1, EXPERTD_DTYPE_F32);
        }
    }
}

static void every_backend_computes_the_formulas_bit_for_bit(void **state) {
    (void)state;
    for_each_backend(check_backend);
}

static void clamps_let_nan_through(void **state) {
    (void)state;
    static const struct expertd_activation KINDS[] = {{EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_BEFORE, 0, 7},
                                                      {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_AFTER, 0, 7},
                                                      {EXPERTD_ACTIVATION_SWIGLU_OAI, EXPERTD_CLAMP_NONE, 1.702f, 7}};
    for (size_t i = 0; i < COUNT_OF(KINDS); i++) {
        float gate[2] = {NAN, 1}, up[2] = {1, NAN}, out[2] = {0};
        expertd_activation_row(&(struct expertd_activation_args){&KINDS[i], gate, up, NULL, NULL, 2, EXPERTD_DTYPE_F32, out});
        assert_true(isnan(out[0]) && isnan(out[1]));
    }
}

static void gpt_oss_clamps_both_sides_of_up_and_one_of_gate(void **state) {
    (void)state;
    struct expertd_activation a = {EXPERTD_ACTIVATION_SWIGLU_OAI, EXPERTD_CLAMP_NONE, 1.702f, 7};
    float gate[4] = {100, -100, 1, 1}, up[4] = {0, 0, 100, -100}, out[4];
    expertd_activation_row(&(struct expertd_activation_args){&a, gate, up, NULL, NULL, 4, EXPERTD_DTYPE_F32, out});
    assert_true(fabsf(out[0] - 7.0f) < 1e-4f); // gate is clamped to 7
    assert_true(fabsf(out[1]) < 1e-30f);       // and not to -7
    assert_true(fabsf(out[2] - 8 * 0.8457958f) < 1e-5f);
    assert_true(fabsf(out[3] + 6 * 0.8457958f) < 1e-5f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_backend_computes_the_formulas_bit_for_bit),
        cmocka_unit_test(clamps_let_nan_through),
        cmocka_unit_test(gpt_oss_clamps_both_sides_of_up_and_one_of_gate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
