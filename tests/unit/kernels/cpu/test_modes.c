// The library packs, multiplies, interprets, routes, normalises and combines to the same bits in any floating-point mode of the
// caller: rounding upward, flushing subnormals, or with all exceptions unmasked.
#include "tests/unit/kernels/odd_mode.h"
#include "tests/unit/kernels/quantised_case.h"

#include "expertd/kernels/kernels.h"

enum { M = 13, K = 80, N = 100, GROUPS = 2, CHOICES = 3, EXPERTS = 32 };

static const int32_t SIZES[GROUPS] = {9, 4};

struct data {
    float x[M * K], w[GROUPS * K * N], bias[N];
    uint8_t codes[N * K], scales[4 * N * K]; // of any format
};

struct results {
    float plain[M * N], interpreted[M * N], transposed[GROUPS * K * K], packed[M * N];
    uint16_t narrow[M * N];
    float combined[N], activated[N], normalised[K], weights[CHOICES];
    int32_t ids[CHOICES];
    uint64_t panels; // a digest of all packed weights
};

static uint64_t digest(uint64_t seed, const void *data, size_t bytes) {
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++) {
        seed = (seed ^ at[i]) * 0x100000001b3;
    }
    return seed;
}

static void multiply(const struct data *data, struct expertd_matmul_rhs rhs, const struct expertd_matmul_options *options,
                     enum expertd_dtype out_dtype, void *out) {
    struct expertd_grouped_matmul_args args = {.lhs = data->x,
                                               .lhs_stride = K,
                                               .rhs = rhs,
                                               .group_sizes = SIZES,
                                               .num_groups = GROUPS,
                                               .num_actual_groups = GROUPS,
                                               .m = M,
                                               .out = out,
                                               .out_dtype = out_dtype,
                                               .out_stride = N,
                                               .options = options};
    void *workspace = test_alloc(expertd_grouped_matmul_workspace_bytes(&args, NULL) + 1);
    assert_false(err_is(expertd_grouped_matmul(&args, NULL, workspace)));
    free(workspace);
}

static void multiply_all(const struct data *data, struct results *r) {
    struct expertd_plain_weights plain = {.dtype = EXPERTD_DTYPE_F32, .groups = GROUPS, .k = K, .n = N, .data = data->w};
    struct expertd_matmul_options interpret = expertd_matmul_options_default();
    interpret.interpret = true;
    multiply(data, expertd_rhs_plain(&plain), NULL, EXPERTD_DTYPE_F32, r->plain);
    multiply(data, expertd_rhs_plain(&plain), NULL, EXPERTD_DTYPE_F16, r->narrow);
    multiply(data, expertd_rhs_plain(&plain), &interpret, EXPERTD_DTYPE_F32, r->interpreted);
    struct expertd_transposed_grouped_matmul_args transposed = {.lhs = data->x,
                                                                .lhs_transposed = true,
                                                                .rhs = data->x,
                                                                .rhs_stride = K,
                                                                .lhs_dtype = EXPERTD_DTYPE_F32,
                                                                .rhs_dtype = EXPERTD_DTYPE_F32,
                                                                .k = K,
                                                                .m = M,
                                                                .n = K,
                                                                .group_sizes = SIZES,
                                                                .num_groups = GROUPS,
                                                                .num_actual_groups = GROUPS,
                                                                .out = r->transposed};
    assert_false(err_is(expertd_transposed_grouped_matmul_reference(&transposed)));
}

static void pack_and_multiply(const struct data *data, struct results *r) {
    void *groups[GROUPS];
    size_t bytes = expertd_packed_group_bytes(EXPERTD_DTYPE_F32, K, N);
    for (size_t g = 0; g < GROUPS; g++) {
        groups[g] = test_alloc(bytes);
        expertd_pack_weights(&(struct expertd_weight_source){data->w + g * K * N, EXPERTD_DTYPE_F32, 1, N}, K, N, EXPERTD_DTYPE_F32,
                             EXPERTD_PACKED_PANELS, groups[g]);
    }
    struct expertd_packed_weights packed = {
        .dtype = EXPERTD_DTYPE_F32, .groups = GROUPS, .k = K, .n = N, .group_bytes = bytes, .data = groups};
    multiply(data, expertd_rhs_packed(&packed), NULL, EXPERTD_DTYPE_F32, r->packed);
    for (size_t g = 0; g < GROUPS; g++) {
        expertd_pack_weights(&(struct expertd_weight_source){data->w + g * K * N, EXPERTD_DTYPE_F16, 1, N}, K, N, EXPERTD_DTYPE_F32,
                             EXPERTD_PACKED_PANELS, groups[g]);
        r->panels = digest(r->panels, groups[g], bytes);
        expertd_pack_weights(&(struct expertd_weight_source){data->w + g * K * N, EXPERTD_DTYPE_F32, 1, N}, K, N,
                             EXPERTD_DTYPE_BF16, EXPERTD_PACKED_PANELS, groups[g]);
        r->panels = digest(r->panels, groups[g], expertd_packed_group_bytes(EXPERTD_DTYPE_BF16, K, N));
        free(groups[g]);
    }
}

static void pack_formats(const struct data *data, struct results *r) {
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        const struct expertd_quantised_format *format = &FORMATS[f];
        const size_t columns = format->scale_of_panel ? 128 : 1;
        struct expertd_quantised_source source = {.codes = plain_codes(data->codes, K, format_has_4_bits(format) ? 4 : 8),
                                                  .scales = data->scales,
                                                  .scale_columns = columns,
                                                  .scale_n_stride = K,
                                                  .scale_g_stride = 1,
                                                  .minima = format->minima ? data->scales : NULL,
                                                  .super_scales = format->scale == EXPERTD_DTYPE_I8 ? data->scales : NULL,
                                                  .super_minima =
                                                      format->scale == EXPERTD_DTYPE_I8 && format->minima ? data->scales : NULL,
                                                  .super_n_stride = K,
                                                  .super_g_stride = 1,
                                                  .global = 0.0117f};
        uint8_t zeros[N * K] = {0};
        if (format->zero_points) {
            source.zeros = plain_codes(zeros, K, 8);
        }
        void *packed = test_alloc(expertd_quantised_group_bytes(format, K, N));
        assert_false(err_is(expertd_pack_quantised(&source, format, K, N, packed)));
        r->panels = digest(r->panels, packed, expertd_quantised_group_bytes(format, K, N));
        free(packed);
    }
}

static void take_rows(const struct data *data, struct results *r) {
    const struct expertd_activation silu = {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_NONE, 0, 0};
    expertd_activation_row(&(struct expertd_activation_args){
        .activation = &silu, .gate = data->w, .up = data->w + N, .width = N, .dtype = EXPERTD_DTYPE_F32, .out = r->activated});
    const void *rows[CHOICES] = {data->w, data->w + N, data->w + 2 * N};
    const float weights[CHOICES] = {0.3f, 0.7f, 0x1p-120f};
    expertd_combine_row(&(struct expertd_combine_args){.width = N,
                                                       .choices = CHOICES,
                                                       .rows = rows,
                                                       .weights = weights,
                                                       .dtype = EXPERTD_DTYPE_F32,
                                                       .routed_scale = 2.5f,
                                                       .bias = data->bias,
                                                       .averaged = true,
                                                       .output_dtype = EXPERTD_DTYPE_F32,
                                                       .out = r->combined});
    expertd_rms_normalise_row(data->x, K, 1e-6f, data->w, r->normalised);
    const struct expertd_routing routing = {
        .score = EXPERTD_SCORE_SIGMOID, .norm = EXPERTD_NORM_SUM, .num_experts = EXPERTS, .top_k = CHOICES, .scale = 1.7f};
    void *scratch = test_alloc(expertd_routing_scratch_bytes(&routing));
    expertd_routing_row(&routing, data->x, r->ids, r->weights, scratch);
    expertd_routing_row_chosen(&routing, data->x + EXPERTS, r->ids, r->weights, scratch);
    free(scratch);
}

static void take_all(const struct data *data, struct results *r) {
    *r = (struct results){0};
    multiply_all(data, r);
    pack_and_multiply(data, r);
    pack_formats(data, r);
    take_rows(data, r);
}

static void fill(struct data *data) {
    struct random random = {99};
    for (size_t i = 0; i < M * K; i++) {
        data->x[i] = random_f32(&random, i % 7 ? VALUES_PLAIN : VALUES_SUBNORMAL);
    }
    for (size_t i = 0; i < GROUPS * K * N; i++) {
        data->w[i] = random_f32(&random, i % 5 ? VALUES_PLAIN : VALUES_SUBNORMAL);
    }
    for (size_t i = 0; i < N; i++) {
        data->bias[i] = random_f32(&random, VALUES_PLAIN);
    }
    for (size_t i = 0; i < sizeof data->codes; i++) {
        data->codes[i] = (uint8_t)(random_next(&random) & 0x77);
    }
    for (size_t i = 0; i < sizeof data->scales; i++) {
        data->scales[i] = (uint8_t)(random_next(&random) & 0x3b);
    }
}

static void check_backend(const struct kernel_backend *backend) {
    static const float_mode MODES[] = {FLOAT_MODE_ODD, FLOAT_MODE_FLUSHED | FLOAT_MODE_FLAGS, FLOAT_MODE_TRAPPING};
    static struct data data;
    static struct results want, got;
    fill(&data);
    assert_false(err_is(expertd_kernel_select(backend->name)));
    take_all(&data, &want);
    for (size_t i = 0; i < COUNT_OF(MODES); i++) {
        float_mode before = float_mode_set(MODES[i]);
        take_all(&data, &got);
        float_mode after = float_mode_set(before);
        assert_true((after & ~FLOAT_MODE_FLAGS) == (MODES[i] & ~FLOAT_MODE_FLAGS));
        assert_same_f32(got.plain, want.plain, COUNT_OF(want.plain), "plain");
        assert_memory_equal(got.narrow, want.narrow, sizeof want.narrow);
        assert_same_f32(got.interpreted, want.interpreted, COUNT_OF(want.interpreted), "interpreted");
        assert_same_f32(got.transposed, want.transposed, COUNT_OF(want.transposed), "transposed");
        assert_same_f32(got.packed, want.packed, COUNT_OF(want.packed), "packed");
        assert_same_f32(got.combined, want.combined, COUNT_OF(want.combined), "combined");
        assert_same_f32(got.activated, want.activated, COUNT_OF(want.activated), "activated");
        assert_same_f32(got.normalised, want.normalised, COUNT_OF(want.normalised), "normalised");
        assert_memory_equal(got.ids, want.ids, sizeof want.ids);
        assert_same_f32(got.weights, want.weights, COUNT_OF(want.weights), "weights");
        assert_true(got.panels == want.panels);
    }
}

static void no_mode_of_the_callers_changes_a_bit(void **state) {
    (void)state;
    for_each_backend(check_backend);
    assert_false(err_is(expertd_kernel_select("auto")));
}

static void check_choice(const struct kernel_backend *backend) {
    float_mode before = float_mode_set(FLOAT_MODE_ODD);
    err_t e = expertd_kernel_select(backend->name);
    float_mode_restore(before);
    assert_false(err_is(e));
}

static void backends_pass_their_check_in_any_mode(void **state) {
    (void)state;
    for_each_backend(check_choice);
    assert_false(err_is(expertd_kernel_select("auto")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_mode_of_the_callers_changes_a_bit),
        cmocka_unit_test(backends_pass_their_check_in_any_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
