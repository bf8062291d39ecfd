// Options: each field of CompilerParams has an effect or is refused by name; limits and orders are observed and change no bit.
#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/grouped_gemm.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/transposed_grouped_matmul.h"

enum { M = 40, K = 96, N = 150, GROUPS = 2 };

struct problem {
    float lhs[M * K], rhs[GROUPS * K * N], out[M * N], want[M * N];
    int32_t sizes[GROUPS];
    struct expertd_plain_weights weights;
    struct expertd_matmul_options options;
    struct expertd_grouped_matmul_args args;
    void *workspace;
};

static int make_problem(void **state) {
    struct problem *p = test_alloc(sizeof *p);
    struct random random = {5};
    *p = (struct problem){.sizes = {25, 10}, .options = expertd_matmul_options_default()};
    for (size_t i = 0; i < M * K; i++) {
        p->lhs[i] = random_f32(&random, VALUES_PLAIN);
    }
    for (size_t i = 0; i < GROUPS * K * N; i++) {
        p->rhs[i] = random_f32(&random, VALUES_PLAIN);
    }
    p->weights = (struct expertd_plain_weights){.dtype = EXPERTD_DTYPE_F32, .groups = GROUPS, .k = K, .n = N, .data = p->rhs};
    p->args = (struct expertd_grouped_matmul_args){.lhs = p->lhs,
                                                   .lhs_stride = K,
                                                   .rhs = expertd_rhs_plain(&p->weights),
                                                   .group_sizes = p->sizes,
                                                   .num_groups = GROUPS,
                                                   .num_actual_groups = GROUPS,
                                                   .m = M,
                                                   .out = p->want,
                                                   .out_stride = N,
                                                   .options = &p->options};
    p->workspace = test_alloc(expertd_grouped_matmul_workspace_bytes(&p->args, NULL) + (1 << 20));
    *state = p;
    if (err_is(expertd_grouped_matmul_reference(&p->args))) {
        return 1;
    }
    p->args.out = p->out;
    return 0;
}

static int free_problem(void **state) {
    struct problem *p = *state;
    free(p->workspace);
    free(p);
    return 0;
}

static void expect_equal_bits(struct problem *p, const char *what) {
    poison_f32(p->out, M * N);
    err_t e = expertd_grouped_matmul(&p->args, NULL, p->workspace);
    if (err_is(e)) {
        fail_msg("%s: %s", what, expertd_err_message());
    }
    assert_same_f32(p->out, p->want, M * N, what);
}

static void expect_refused(struct problem *p, const char *field) {
    p->out[0] = 42;
    assert_int_equal(expertd_grouped_matmul(&p->args, NULL, p->workspace).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), field);
    assert_true(p->out[0] == 42); // untouched
}

static void every_key_of_compiler_params_is_set_or_refused_by_name(void **state) {
    (void)state;
    static const char *const SET[][2] = {
        {"dimension_semantics", "arbitrary,parallel,arbitrary"},
        {"allow_input_fusion", "false,true"},
        {"vmem_limit_bytes", "65536"},
        {"internal_scratch_in_bytes", "1048576"},
        {"shape_invariant_numerics", "false"},
        {"fuse_transposed_lhs_in_matmul", "false"},
        {"disable_bounds_checks", "true"},
        {"flags", "kernels=scalar"},
    };
    static const char *const REFUSED[] = {
        "collective_id",
        "skip_device_barrier",
        "disable_semaphore_checks",
        "has_side_effects",
        "serialization_format",
        "kernel_type",
        "allow_collective_id_without_custom_barrier",
        "use_tc_tiling_on_sc",
        "needs_layout_passes",
        "vmem_limit",
    };
    struct expertd_compiler_params params = expertd_matmul_options_default().compiler;
    for (size_t i = 0; i < COUNT_OF(SET); i++) {
        assert_false(err_is(expertd_compiler_params_set(&params, SET[i][0], SET[i][1])));
    }
    assert_int_equal(params.dimension_semantics[0], EXPERTD_DIMENSION_ARBITRARY);
    assert_int_equal(params.dimension_semantics[1], EXPERTD_DIMENSION_PARALLEL);
    assert_false(params.allow_input_fusion[0]);
    assert_true(params.allow_input_fusion[1]);
    assert_int_equal(params.vmem_limit_bytes, 65536);
    assert_int_equal(params.internal_scratch_in_bytes, 1048576);
    assert_false(params.shape_invariant_numerics || params.fuse_transposed_lhs_in_matmul);
    assert_true(params.disable_bounds_checks);
    assert_string_equal(params.kernels, "scalar");
    for (size_t i = 0; i < COUNT_OF(REFUSED); i++) {
        assert_int_equal(expertd_compiler_params_set(&params, REFUSED[i], "1").code, EXPERTD_ERR_INVALID);
        assert_string_equal(expertd_err_field(), REFUSED[i]);
        assert_non_null(strstr(expertd_err_message(), REFUSED[i]));
    }
}

static void malformed_values_are_refused(void **state) {
    (void)state;
    static const char *const BAD[][2] = {
        {"dimension_semantics", "parallel,arbitrary"},
        {"dimension_semantics", "parallel,arbitrary,arbitrary,parallel"},
        {"dimension_semantics", "parallel,serial,parallel"},
        {"allow_input_fusion", "true"},
        {"allow_input_fusion", "true,yes"},
        {"vmem_limit_bytes", "-1"},
        {"vmem_limit_bytes", "64k"},
        {"vmem_limit_bytes", ""},
        {"vmem_limit_bytes", "99999999999999999999999"},
        {"shape_invariant_numerics", "1"},
        {"flags", "xla_cpu=1"},
        {"flags", "kernels=scalar,other=1"},
    };
    struct expertd_compiler_params params = expertd_matmul_options_default().compiler, before = params;
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        assert_int_equal(expertd_compiler_params_set(&params, BAD[i][0], BAD[i][1]).code, EXPERTD_ERR_INVALID);
        assert_string_equal(expertd_err_field(), BAD[i][0]);
        assert_memory_equal(&params, &before, sizeof params);
    }
}

static void limits_are_observed_or_refused(void **state) {
    struct problem *p = *state;
    struct expertd_compiler_params *compiler = &p->options.compiler;
    size_t untold = expertd_grouped_matmul_workspace_bytes(&p->args, NULL);
    compiler->vmem_limit_bytes = 32 << 10; // an f32 panel has 24 KiB here
    assert_true(expertd_grouped_matmul_workspace_bytes(&p->args, NULL) < untold);
    expect_equal_bits(p, "32 KiB a thread");
    compiler->vmem_limit_bytes = 24 << 10;
    expect_refused(p, "vmem_limit_bytes");
    size_t least = 0;
    assert_int_equal(sscanf(strstr(expertd_err_message(), "needs "), "needs %zu", &least), 1);
    compiler->vmem_limit_bytes = least;
    expect_equal_bits(p, "the least that is said");
    compiler->vmem_limit_bytes = least - 1;
    expect_refused(p, "vmem_limit_bytes");
    compiler->vmem_limit_bytes = 0;
    compiler->internal_scratch_in_bytes = untold;
    expect_equal_bits(p, "enough workspace");
    compiler->internal_scratch_in_bytes = untold - 1;
    expect_refused(p, "internal_scratch_in_bytes");
    compiler->internal_scratch_in_bytes = 0;
}

static void orders_tilings_and_buffers_change_no_bit(void **state) {
    struct problem *p = *state;
    struct expertd_matmul_options *options = &p->options;
    options->compiler.dimension_semantics[0] = options->compiler.dimension_semantics[1] = EXPERTD_DIMENSION_ARBITRARY;
    expect_equal_bits(p, "everything in order");
    options->compiler.dimension_semantics[2] = EXPERTD_DIMENSION_PARALLEL;
    expect_refused(p, "dimension_semantics");
    options->compiler.dimension_semantics[2] = EXPERTD_DIMENSION_ARBITRARY;
    options->compiler.dimension_semantics[0] = (enum expertd_dimension_semantics)55;
    expect_refused(p, "dimension_semantics");
    *options = expertd_matmul_options_default();
    options->tiling = (struct expertd_matmul_tiling){7, 5, 64};
    options->input_buffer_count = 1;
    expect_equal_bits(p, "small tiles");
    options->tiling.tk = 0;
    expect_refused(p, "tiling");
    options->tiling = (struct expertd_matmul_tiling){SIZE_MAX, SIZE_MAX, SIZE_MAX};
    expect_equal_bits(p, "all of it");
    *options = expertd_matmul_options_default();
    options->interpret = true;
    expect_equal_bits(p, "interpreted");
    *options = expertd_matmul_options_default();
}

static struct expertd_matmul_tiling tiles_without_columns(void *context, size_t m, size_t k, size_t n) {
    (void)n;
    *(int *)context += 1;
    return (struct expertd_matmul_tiling){m, k, 0};
}

static void a_tiling_from_a_function_is_checked_too(void **state) {
    struct problem *p = *state;
    int calls = 0;
    p->options.tiling_of = tiles_without_columns;
    p->options.tiling_context = &calls;
    expect_refused(p, "tiling");
    assert_true(calls > 0);
    p->options = expertd_matmul_options_default();
}

static struct expertd_matmul_tiling larger_each_time(void *context, size_t m, size_t k, size_t n) {
    size_t calls = ++*(size_t *)context;
    assert_true(m == M && k == K && n == N);
    return (struct expertd_matmul_tiling){calls, calls, 64 * calls};
}

static void a_tiling_function_is_called_once_per_operation(void **state) {
    struct problem *p = *state;
    size_t calls = 0;
    p->options.tiling_of = larger_each_time;
    p->options.tiling_context = &calls;
    (void)expertd_grouped_matmul_workspace_bytes(&p->args, NULL);
    assert_int_equal(calls, 1);
    expect_equal_bits(p, "another tiling each time");
    assert_int_equal(calls, 2);
    p->options = expertd_matmul_options_default();
}

static struct expertd_matmul_tiling note_sizes(void *context, size_t m, size_t k, size_t n) {
    memcpy(context, (size_t[]){m, k, n}, 3 * sizeof(size_t));
    return (struct expertd_matmul_tiling){0};
}

static void a_tiling_function_gets_the_operations_own_sizes(void **state) {
    struct problem *p = *state;
    size_t seen[3] = {0};
    p->options.tiling_of = note_sizes;
    p->options.tiling_context = seen;
    struct expertd_transposed_grouped_matmul_args args = {.lhs = p->lhs,
                                                          .lhs_transposed = true,
                                                          .rhs = p->rhs,
                                                          .rhs_stride = N,
                                                          .lhs_dtype = EXPERTD_DTYPE_F32,
                                                          .rhs_dtype = EXPERTD_DTYPE_F32,
                                                          .k = K,
                                                          .m = M,
                                                          .n = N,
                                                          .group_sizes = p->sizes,
                                                          .num_groups = GROUPS,
                                                          .num_actual_groups = GROUPS,
                                                          .options = &p->options};
    (void)expertd_transposed_grouped_matmul_workspace_bytes(&args, NULL);
    assert_true(seen[0] == M && seen[1] == K && seen[2] == N);
    p->options = expertd_matmul_options_default();
}

static void input_fusion_is_refused_only_where_it_is_needed(void **state) {
    struct problem *p = *state;
    p->options.compiler.allow_input_fusion[0] = false; // f32 rows are read in place
    expect_equal_bits(p, "lhs in place");
    uint32_t rows[M];
    for (uint32_t i = 0; i < M; i++) {
        rows[i] = i;
    }
    p->args.lhs_rows = rows;
    expect_refused(p, "allow_input_fusion");
    p->args.lhs_rows = NULL;
    p->options = expertd_matmul_options_default();
    p->options.compiler.allow_input_fusion[1] = false;
    expect_refused(p, "allow_input_fusion");
    p->options = expertd_matmul_options_default();
}

static void flags_hold_the_backend(void **state) {
    struct problem *p = *state;
    p->options.compiler.kernels = kernel_selected()->name;
    expect_equal_bits(p, "the selected backend");
    p->options.compiler.kernels = "none such";
    expect_refused(p, "flags");
    p->options = expertd_matmul_options_default();
}

static void bounds_checks_can_be_left_out(void **state) {
    struct problem *p = *state;
    p->args.existing_out = p->out; // refused by the check, harmless without it
    expect_refused(p, "existing_out");
    p->options.compiler.disable_bounds_checks = true;
    expect_equal_bits(p, "unchecked");
    p->args.existing_out = NULL;
    p->options = expertd_matmul_options_default();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_of_compiler_params_is_set_or_refused_by_name),
        cmocka_unit_test(malformed_values_are_refused),
        cmocka_unit_test(limits_are_observed_or_refused),
        cmocka_unit_test(orders_tilings_and_buffers_change_no_bit),
        cmocka_unit_test(a_tiling_from_a_function_is_checked_too),
        cmocka_unit_test(a_tiling_function_is_called_once_per_operation),
        cmocka_unit_test(a_tiling_function_gets_the_operations_own_sizes),
        cmocka_unit_test(input_fusion_is_refused_only_where_it_is_needed),
        cmocka_unit_test(flags_hold_the_backend),
        cmocka_unit_test(bounds_checks_can_be_left_out),
    };
    return cmocka_run_group_tests(tests, make_problem, free_problem);
}
