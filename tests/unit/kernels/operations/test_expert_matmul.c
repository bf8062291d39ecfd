// The fused products against scalar products followed by the separate steps on rows.
#include "tests/unit/kernels/quantised_case.h"

#include "expertd/kernels/expert_matmul.h"

enum { GROUPS = 4, HELD = 3, OFFSET = 1, ROWS_MAX = 80, OUTSIDE = 2 };

struct network {
    enum expertd_dtype dtype;
    enum expertd_packed_layout layout;
    size_t k, n, m;
    int biased;
    struct random random;
    int32_t sizes[GROUPS];
    char *lhs;
    struct expertd_packed_weights weights[2];
    void *blocks[2][HELD], *biases[2][HELD];
    float scale[ROWS_MAX + OUTSIDE];
};

static void fill(struct network *w, void *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (w->dtype == EXPERTD_DTYPE_F32) {
            ((float *)values)[i] = random_f32(&w->random, VALUES_PLAIN);
        } else {
            ((uint16_t *)values)[i] = random_bf16(&w->random, VALUES_PLAIN);
        }
    }
}

static void make_matrix(struct network *w, size_t which) {
    size_t bytes = expertd_packed_group_bytes(w->dtype, w->k, w->n);
    char *plain = test_alloc(w->k * w->n * expertd_dtype_size(w->dtype));
    for (size_t g = 0; g < HELD; g++) {
        float *bias = test_alloc(w->n * sizeof *bias);
        fill(w, plain, w->k * w->n);
        w->blocks[which][g] = test_alloc(bytes);
        expertd_pack_weights(&(struct expertd_weight_source){plain, w->dtype, w->k, 1}, w->k, w->n, w->dtype, w->layout,
                             w->blocks[which][g]);
        for (size_t i = 0; i < w->n; i++) {
            bias[i] = random_f32(&w->random, VALUES_PLAIN);
        }
        w->biases[which][g] = bias;
    }
    free(plain);
    w->weights[which] = (struct expertd_packed_weights){.dtype = w->dtype,
                                                        .groups = HELD,
                                                        .k = w->k,
                                                        .n = w->n,
                                                        .group_bytes = bytes,
                                                        .data = w->blocks[which],
                                                        .layout = w->layout};
}

static void network_init(struct network *w) {
    w->m = OUTSIDE;
    for (size_t g = 0; g < GROUPS; g++) {
        w->sizes[g] = (int32_t)random_below(&w->random, g == 2 ? ROWS_MAX / 2 : ROWS_MAX / 6);
        w->m += (size_t)w->sizes[g];
    }
    w->lhs = test_alloc(w->m * w->k * expertd_dtype_size(w->dtype));
    fill(w, w->lhs, w->m * w->k);
    for (size_t i = 0; i < w->m; i++) {
        w->scale[i] = random_f32(&w->random, VALUES_PLAIN);
    }
    w->layout = any_layout(w->dtype);
    make_matrix(w, 0);
    make_matrix(w, 1);
}

static void network_deinit(struct network *w) {
    for (size_t g = 0; g < HELD; g++) {
        free(w->blocks[0][g]), free(w->blocks[1][g]), free(w->biases[0][g]), free(w->biases[1][g]);
    }
    free(w->lhs);
}

static struct expertd_grouped_matmul_args product_of(struct network *w, size_t which, void *out) {
    return (struct expertd_grouped_matmul_args){
        .lhs = w->lhs,
        .lhs_stride = w->k,
        .rhs = expertd_rhs_packed(&w->weights[which]),
        .group_sizes = w->sizes,
        .num_groups = GROUPS,
        .group_offset = OFFSET,
        .num_actual_groups = HELD,
        .m = w->m,
        .out = out,
        .out_stride = w->n,
    };
}

static float *sums_of(struct network *w, size_t which) {
    float *sums = test_alloc(w->m * w->n * sizeof *sums);
    struct expertd_grouped_matmul_args args = product_of(w, which, sums);
    assert_false(err_is(expertd_grouped_matmul_reference(&args)));
    return sums;
}

// The local group of a row, or HELD if it belongs to none.
static size_t group_of(const struct network *w, size_t row) {
    size_t end = 0;
    for (size_t g = 0; g < GROUPS; g++) {
        end += (size_t)w->sizes[g];
        if (row < end) {
            return g >= OFFSET && g < OFFSET + HELD ? g - OFFSET : HELD;
        }
    }
    return HELD;
}

static void assert_rows(struct network *w, const char *got, void (*want_row)(struct network *, size_t, size_t, void *)) {
    size_t bytes = w->n * expertd_dtype_size(w->dtype);
    char *want = test_alloc(bytes);
    for (size_t row = 0; row < w->m; row++) {
        memset(want, 0, bytes);
        size_t group = group_of(w, row);
        if (group < HELD) {
            want_row(w, row, group, want);
        }
        assert_memory_equal(got + row * bytes, want, bytes);
    }
    free(want);
}

static const struct expertd_activation *activation;
static float *gate_sums, *up_sums;

static void want_activated(struct network *w, size_t row, size_t group, void *want) {
    expertd_activation_row(&(struct expertd_activation_args){
        .activation = activation,
        .gate = gate_sums ? gate_sums + row * w->n : NULL,
        .up = up_sums + row * w->n,
        .gate_bias = w->biased && gate_sums ? w->biases[1][group] : NULL,
        .up_bias = w->biased ? w->biases[0][group] : NULL,
        .width = w->n,
        .dtype = w->dtype,
        .out = want,
    });
}

static void want_finished(struct network *w, size_t row, size_t group, void *want) {
    const float *bias = w->biases[0][group];
    float *sums = up_sums + row * w->n;
    for (size_t i = 0; i < w->n; i++) {
        sums[i] = (w->biased ? sums[i] + bias[i] : sums[i]) * (w->biased ? w->scale[row] : 1.0f);
    }
    expertd_dtype_narrow(sums, w->n, w->dtype, want);
}

static void check_network(struct network *w, struct expertd_team *team) {
    static const struct expertd_activation KINDS[] = {{EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_NONE, 0, 0},
                                                      {EXPERTD_ACTIVATION_SWIGLU_OAI, EXPERTD_CLAMP_NONE, 1.702f, 7.0f},
                                                      {EXPERTD_ACTIVATION_RELU2, EXPERTD_CLAMP_NONE, 0, 0}};
    network_init(w);
    size_t bytes = w->m * w->n * expertd_dtype_size(w->dtype);
    char *out = test_alloc(bytes);
    void *scratch = test_alloc(expertd_packed_matmul_workspace_bytes(w->m, GROUPS));
    for (size_t i = 0; i < COUNT_OF(KINDS); i++) {
        activation = &KINDS[i];
        bool gated = expertd_activation_is_gated(activation);
        struct expertd_gate_up_args args = {product_of(w, 0, out), gated ? &w->weights[1] : NULL, activation,
                                            gated && w->biased ? w->biases[1] : NULL, w->biased ? w->biases[0] : NULL};
        memset(out, 0xff, bytes); // NaN in either dtype
        assert_false(err_is(expertd_expert_gate_up(&args, team, scratch)));
        up_sums = sums_of(w, 0), gate_sums = gated ? sums_of(w, 1) : NULL;
        assert_rows(w, out, want_activated);
        free(gate_sums), free(up_sums);
    }
    struct expertd_down_args args = {product_of(w, 0, out), w->biased ? w->biases[0] : NULL, w->biased ? w->scale : NULL};
    memset(out, 0xff, bytes);
    assert_false(err_is(expertd_expert_down(&args, team, scratch)));
    up_sums = sums_of(w, 0);
    assert_rows(w, out, want_finished);
    free(up_sums), free(out), free(scratch);
    network_deinit(w);
}

static void fused_steps_leave_the_bits_of_separate_ones(void **state) {
    (void)state;
    static const size_t K[] = {1, 70, 300}, N[] = {1, 64, 130, 200, 320};
    struct expertd_team *team;
    assert_false(err_is(expertd_team_create(&(struct expertd_team_options){3, 20}, &team)));
    for (size_t i = 0; i < 2 * COUNT_OF(K) * COUNT_OF(N); i++) {
        struct network w = {.dtype = i % 2 ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16,
                            .k = K[i / 2 % COUNT_OF(K)],
                            .n = N[i / 2 / COUNT_OF(K)],
                            .biased = i % 3 == 0,
                            .random = {900 + i}};
        check_network(&w, i % 4 == 3 ? NULL : team);
    }
    expertd_team_destroy(team);
}

// Up and gate in these formats (NULL: plain elements), with sizes[] rows of each group.
static void check_formats(const struct expertd_quantised_format *const formats[2], enum expertd_dtype dtype, const int32_t *sizes,
                          uint64_t seed) {
    struct network w = {.dtype = dtype, .k = 72, .n = 2 * EXPERTD_KERNEL_PANEL + 8, .random = {seed}};
    network_init(&w);
    struct quantised_case q[2];
    void *coded[2][HELD];
    for (size_t which = 0; which < 2; which++) {
        if (formats[which]) {
            quantised_case_init(&q[which], formats[which], w.k, w.n, VALUES_PLAIN, &w.random);
            coded[which][0] = coded[which][1] = coded[which][2] = q[which].packed;
            w.weights[which].format = &q[which].format;
            w.weights[which].layout = EXPERTD_PACKED_PANELS;
            w.weights[which].group_bytes = expertd_quantised_group_bytes(&q[which].format, w.k, w.n);
            w.weights[which].data = coded[which];
        }
    }
    assert_true(w.m >= 10);
    memcpy(w.sizes, sizes, sizeof w.sizes);
    void *out = test_alloc(w.m * w.n * expertd_dtype_size(dtype)),
         *scratch = test_alloc(expertd_packed_matmul_workspace_bytes(w.m, GROUPS));
    struct expertd_gate_up_args args = {product_of(&w, 0, out), &w.weights[1], activation, NULL, NULL};
    assert_false(err_is(expertd_expert_gate_up(&args, NULL, scratch)));
    up_sums = sums_of(&w, 0), gate_sums = sums_of(&w, 1);
    assert_rows(&w, out, want_activated);
    free(gate_sums), free(up_sums), free(out), free(scratch);
    for (size_t which = 0; which < 2; which++) {
        if (formats[which]) {
            quantised_case_deinit(&q[which]);
        }
    }
    network_deinit(&w);
}

// E4M3 and E5M2 have equal sizes, so only the format distinguishes them; INT4 has another size, and plain elements may have another
// layout. With small and large m.
static void a_gate_of_another_format_is_decoded_correctly(void **state) {
    (void)state;
    static const struct expertd_quantised_format
        E4M3 = {EXPERTD_CODE_E4M3, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 0},
        E5M2 = {EXPERTD_CODE_E5M2, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 0},
        INT4 = {EXPERTD_CODE_INT4, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, true, false, false, 32};
    static const struct expertd_quantised_format *const PAIRS[][2] = {
        {&E4M3, &E5M2}, {&E4M3, &INT4}, {&INT4, &E4M3}, {NULL, &INT4}, {&E4M3, NULL}};
    static const int32_t SIZES[][GROUPS] = {{1, 2, 1, 4}, {0, 3, 5, 2}};
    static const struct expertd_activation SILU = {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_NONE, 0, 0};
    activation = &SILU;
    for (size_t i = 0; i < COUNT_OF(PAIRS) * COUNT_OF(SIZES); i++) {
        const int32_t *sizes = SIZES[i % COUNT_OF(SIZES)];
        check_formats(PAIRS[i / COUNT_OF(SIZES)], EXPERTD_DTYPE_BF16, sizes, 31 + i);
        check_formats(PAIRS[i / COUNT_OF(SIZES)], EXPERTD_DTYPE_F32, sizes, 61 + i);
    }
}

static void a_gate_of_another_shape_is_refused(void **state) {
    (void)state;
    struct network w = {.dtype = EXPERTD_DTYPE_F32, .k = 8, .n = 16, .random = {3}},
                   other = {.dtype = EXPERTD_DTYPE_F32, .k = 8, .n = 17, .random = {4}};
    static const struct expertd_activation SILU = {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_NONE, 0, 0},
                                           RELU2 = {EXPERTD_ACTIVATION_RELU2, EXPERTD_CLAMP_NONE, 0, 0};
    network_init(&w), network_init(&other);
    float *out = test_alloc(w.m * w.n * sizeof *out);
    void *scratch = test_alloc(expertd_packed_matmul_workspace_bytes(w.m, GROUPS));
    struct expertd_gate_up_args args = {product_of(&w, 0, out), &other.weights[1], &SILU, NULL, NULL};
    assert_int_equal(expertd_expert_gate_up(&args, NULL, scratch).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "gate");
    struct expertd_packed_weights as_another = w.weights[1];
    as_another.layout = w.layout == EXPERTD_PACKED_PANELS ? EXPERTD_PACKED_SLICES : EXPERTD_PACKED_PANELS;
    args.gate = &as_another;
    assert_int_equal(expertd_expert_gate_up(&args, NULL, scratch).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "gate");
    args.gate = NULL;
    assert_int_equal(expertd_expert_gate_up(&args, NULL, scratch).code, EXPERTD_ERR_INVALID);
    args.gate = &w.weights[1], args.activation = &RELU2;
    assert_int_equal(expertd_expert_gate_up(&args, NULL, scratch).code, EXPERTD_ERR_INVALID);
    args.activation = &SILU;
    assert_false(err_is(expertd_expert_gate_up(&args, NULL, scratch)));
    free(out), free(scratch);
    network_deinit(&w), network_deinit(&other);
}

static void assert_both_refuse(const struct expertd_gate_up_args *args, void *workspace, const char *field) {
    struct expertd_down_args down = {.product = args->product};
    assert_int_equal(expertd_expert_gate_up(args, NULL, workspace).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), field);
    assert_int_equal(expertd_expert_down(&down, NULL, workspace).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), field);
}

static void unsupported_arguments_of_the_fused_products_are_refused(void **state) {
    (void)state;
    static const struct expertd_activation SILU = {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_NONE, 0, 0};
    struct network w = {.dtype = EXPERTD_DTYPE_BF16, .k = 8, .n = 16, .random = {5}};
    network_init(&w);
    uint16_t *out = test_alloc(w.m * w.n * sizeof *out), *plain = test_alloc(HELD * w.k * w.n * sizeof *plain);
    void *workspace = test_alloc(expertd_packed_matmul_workspace_bytes(w.m, GROUPS)), *nowhere[HELD] = {NULL};
    struct expertd_plain_weights dense = {.dtype = EXPERTD_DTYPE_BF16, .groups = HELD, .k = w.k, .n = w.n, .data = plain};
    struct expertd_matmul_options options = expertd_matmul_options_default();
    const struct expertd_gate_up_args good = {product_of(&w, 0, out), &w.weights[1], &SILU, NULL, NULL};
    struct expertd_gate_up_args args = good;
    args.product.rhs = expertd_rhs_plain(&dense);
    assert_both_refuse(&args, workspace, "product");
    args = good, args.product.options = &options;
    assert_both_refuse(&args, workspace, "product");
    args = good, args.product.out_dtype = EXPERTD_DTYPE_F16;
    assert_both_refuse(&args, workspace, "product");
    args = good, args.product.out = NULL;
    assert_both_refuse(&args, workspace, "out");
    assert_both_refuse(&good, NULL, "workspace");
    struct expertd_packed_weights missing = w.weights[1];
    missing.data = nowhere;
    args = good, args.gate = &missing;
    assert_int_equal(expertd_expert_gate_up(&args, NULL, workspace).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "gate");
    assert_non_null(strstr(expertd_err_message(), "group 0 of rhs"));
    static const struct expertd_activation UNKNOWN[] = {{(enum expertd_activation_kind)9, EXPERTD_CLAMP_NONE, 0, 0},
                                                        {EXPERTD_ACTIVATION_SILU, (enum expertd_activation_clamp)9, 0, 0}};
    const struct expertd_activation *activations[] = {NULL, &UNKNOWN[0], &UNKNOWN[1]};
    for (size_t i = 0; i < COUNT_OF(activations); i++) {
        args = good, args.activation = activations[i];
        assert_int_equal(expertd_expert_gate_up(&args, NULL, workspace).code, EXPERTD_ERR_INVALID);
        assert_string_equal(expertd_err_field(), "activation");
    }
    args = good, args.up_bias = nowhere;
    assert_int_equal(expertd_expert_gate_up(&args, NULL, workspace).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "up_bias");
    args = good, args.gate_bias = nowhere;
    assert_int_equal(expertd_expert_gate_up(&args, NULL, workspace).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "gate_bias");
    struct expertd_down_args down = {.product = good.product, .bias = nowhere};
    assert_int_equal(expertd_expert_down(&down, NULL, workspace).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "bias");
    down.bias = NULL, down.row_scale = (const float *)(const void *)((const char *)good.product.lhs + 2);
    assert_int_equal(expertd_expert_down(&down, NULL, workspace).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "row_scale");
    assert_false(err_is(expertd_expert_gate_up(&good, NULL, workspace)));
    free(out), free(plain), free(workspace);
    network_deinit(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_steps_leave_the_bits_of_separate_ones),
        cmocka_unit_test(a_gate_of_another_format_is_decoded_correctly),
        cmocka_unit_test(a_gate_of_another_shape_is_refused),
        cmocka_unit_test(unsupported_arguments_of_the_fused_products_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
