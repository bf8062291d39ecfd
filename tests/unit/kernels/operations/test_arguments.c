// Invalid arguments of a C program: missing or misaligned pointers, bad strides, sizes beyond memory, a missing workspace. Each
// gives an error with the argument's name before anything is read or written.
#include "tests/unit/kernels/kernel_test.h"
#include "tests/unit/kernels/odd_mode.h"

#include "expertd/kernels/from_tensors.h"
#include "expertd/kernels/grouped_gemm.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/quantised.h"
#include "expertd/kernels/transposed_grouped_matmul.h"

enum { M = 5, K = 6, N = 70, GROUPS = 2, BYTES = 1 << 14 };

static _Alignas(64) char lhs[BYTES], rhs[BYTES], out[BYTES], existing[BYTES], panels[GROUPS][BYTES], workspace[4 << 20];
static const int32_t SIZES[GROUPS] = {2, 3};

// Valid arguments of all three operations.
struct problem {
    struct expertd_plain_weights plain;
    struct expertd_packed_weights packed;
    void *groups[GROUPS];
    struct expertd_grouped_matmul_args matmul;
    struct expertd_transposed_grouped_matmul_args transposed;
    struct expertd_grouped_gemm_args gemm;
    void *workspace;
};

static struct problem right(void) {
    struct problem p = {.plain = {.dtype = EXPERTD_DTYPE_F32, .groups = GROUPS, .k = K, .n = N, .data = rhs},
                        .packed = {.dtype = EXPERTD_DTYPE_F32, .groups = GROUPS, .k = K, .n = N, .group_bytes = BYTES},
                        .groups = {panels[0], panels[1]},
                        .workspace = workspace};
    p.matmul = (struct expertd_grouped_matmul_args){.lhs = lhs,
                                                    .lhs_stride = K,
                                                    .group_sizes = SIZES,
                                                    .num_groups = GROUPS,
                                                    .num_actual_groups = GROUPS,
                                                    .m = M,
                                                    .out = out,
                                                    .out_stride = N};
    p.transposed = (struct expertd_transposed_grouped_matmul_args){.lhs = lhs,
                                                                   .rhs = rhs,
                                                                   .lhs_dtype = EXPERTD_DTYPE_F32,
                                                                   .rhs_dtype = EXPERTD_DTYPE_F32,
                                                                   .k = K,
                                                                   .m = M,
                                                                   .n = N,
                                                                   .group_sizes = SIZES,
                                                                   .num_groups = GROUPS,
                                                                   .num_actual_groups = GROUPS,
                                                                   .out = out};
    p.gemm = (struct expertd_grouped_gemm_args){.num_groups = GROUPS,
                                                .a = {.data = lhs, .dtype = EXPERTD_DTYPE_F32, .count = M * K, .last = {.same = K}},
                                                .b = {.data = rhs, .dtype = EXPERTD_DTYPE_F32, .count = GROUPS * K * N},
                                                .out_last = {.same = N},
                                                .out = out,
                                                .out_dtype = EXPERTD_DTYPE_F32,
                                                .out_count = M * N};
    p.gemm.a.first = p.gemm.out_first = (struct expertd_gemm_dim){.ragged = SIZES, .dtype = EXPERTD_DTYPE_I32, .count = GROUPS};
    p.gemm.b.first.same = K, p.gemm.b.last.same = N;
    return p;
}

static err_t run_plain(struct problem *p) {
    p->matmul.rhs = expertd_rhs_plain(&p->plain);
    (void)expertd_grouped_matmul_workspace_bytes(&p->matmul, NULL); // must not fail for any arguments
    return expertd_grouped_matmul(&p->matmul, NULL, p->workspace);
}

static err_t run_packed(struct problem *p) {
    p->packed.data = p->groups;
    p->matmul.rhs = expertd_rhs_packed(&p->packed);
    (void)expertd_grouped_matmul_workspace_bytes(&p->matmul, NULL);
    return expertd_grouped_matmul(&p->matmul, NULL, p->workspace);
}

static err_t run_transposed(struct problem *p) {
    (void)expertd_transposed_grouped_matmul_workspace_bytes(&p->transposed, NULL);
    return expertd_transposed_grouped_matmul(&p->transposed, NULL, p->workspace);
}

static err_t run_gemm(struct problem *p) {
    (void)expertd_grouped_gemm_workspace_bytes(&p->gemm, NULL);
    return expertd_grouped_gemm(&p->gemm, NULL, p->workspace);
}

// Expects an error with this name and no write; afterwards `p` is valid again.
static void refused(err_t (*run)(struct problem *), struct problem *p, const char *field) {
    memset(out, 42, BYTES);
    err_t e = run(p);
    if (e.code != EXPERTD_ERR_INVALID || strcmp(expertd_err_field(), field) != 0) {
        fail_msg("%s must be named: %s of %s: %s", field, expertd_err_name(e.code), expertd_err_field(),
                 err_is(e) ? expertd_err_message() : "accepted");
    }
    assert_non_null(strstr(expertd_err_message(), field));
    for (size_t i = 0; i < BYTES; i++) {
        assert_int_equal(out[i], 42);
    }
    *p = right();
}

static void accepted(err_t (*run)(struct problem *), struct problem *p) {
    err_t e = run(p);
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
    *p = right();
}

// Reading a layout as another would give wrong numbers or read beyond the end.
static void layouts_that_are_not_read_are_refused(void **state) {
    (void)state;
    struct expertd_quantised_format format = {.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F32};
    struct problem p = right();
    p.packed.layout = EXPERTD_PACKED_LAYOUTS;
    refused(run_packed, &p, "rhs");
    p.packed.layout = EXPERTD_PACKED_SLICES, p.packed.dtype = EXPERTD_DTYPE_BF16, p.packed.format = &format;
    refused(run_packed, &p, "rhs");
    p.packed.layout = EXPERTD_PACKED_SLICES, p.packed.dtype = EXPERTD_DTYPE_I8;
    refused(run_packed, &p, "rhs");
    p.packed.layout = EXPERTD_PACKED_WIDE_SLICES, p.packed.dtype = EXPERTD_DTYPE_I8;
    refused(run_packed, &p, "rhs");
    assert_false(err_is(expertd_kernel_select("scalar")));
    p.packed.layout = EXPERTD_PACKED_SLICES;
    refused(run_packed, &p, "rhs");
    assert_non_null(strstr(expertd_err_message(), "scalar"));
    p.packed.layout = EXPERTD_PACKED_WIDE_SLICES;
    refused(run_packed, &p, "rhs");
    assert_non_null(strstr(expertd_err_message(), "packed as wide-slices, which the kernels scalar do not read"));
    assert_int_equal(expertd_packed_layout_best(EXPERTD_DTYPE_F32), EXPERTD_PACKED_PANELS);
    assert_false(err_is(expertd_kernel_select("auto")));
    for (int i = 0; i < 3; i++) {
        const enum expertd_dtype dtype = (const enum expertd_dtype[]){EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_I8}[i];
        assert_true(expertd_packed_layout_is_read(dtype, EXPERTD_PACKED_PANELS) &&
                    expertd_packed_layout_is_read(dtype, expertd_packed_layout_best(dtype)));
        assert_false(expertd_packed_layout_is_read(dtype, EXPERTD_PACKED_LAYOUTS));
    }
}

static void invalid_formats_are_refused_as_rhs(void **state) {
    (void)state;
    struct expertd_quantised_format format = {.code = EXPERTD_CODE_INT8, .scale = EXPERTD_DTYPE_F32};
    struct problem p = right();
    p.packed.dtype = EXPERTD_DTYPE_I8, p.packed.format = &format;
    refused(run_packed, &p, "rhs");
    assert_string_equal(expertd_err_message(), "rhs is quantised for rows of I8: the rows must be F32 or BF16");
    format.code = EXPERTD_CODE_COUNT, p.packed.format = &format;
    refused(run_packed, &p, "rhs");
    assert_non_null(strstr(expertd_err_message(), "format of rhs: code 7 of quantised weights is unknown"));
    format = (struct expertd_quantised_format){.code = EXPERTD_CODE_INT8, .scale = EXPERTD_DTYPE_F32, .scale_k = 40},
    p.packed.format = &format;
    refused(run_packed, &p, "rhs");
    assert_non_null(strstr(expertd_err_message(), "format of rhs: a scale of quantised weights spans 40 k"));
}

// In the engine for options too, whose workspace is computed before the layout is checked.
static void invalid_layouts_are_refused_with_options_too(void **state) {
    (void)state;
    static const int LAYOUTS[] = {EXPERTD_PACKED_LAYOUTS, 0x7000000, -1};
    const struct expertd_matmul_options options = expertd_matmul_options_default();
    for (size_t i = 0; i < COUNT_OF(LAYOUTS); i++) {
        struct problem p = right();
        p.matmul.options = &options, p.packed.data = p.groups;
        p.matmul.rhs = expertd_rhs_packed(&p.packed);
        const size_t bytes = expertd_grouped_matmul_workspace_bytes(&p.matmul, NULL);
        p.packed.layout = (enum expertd_packed_layout)LAYOUTS[i];
        assert_true(expertd_grouped_matmul_workspace_bytes(&p.matmul, NULL) == bytes);
        refused(run_packed, &p, "rhs");
    }
}

static void valid_arguments_are_accepted(void **state) {
    (void)state;
    struct problem p = right();
    accepted(run_plain, &p);
    accepted(run_packed, &p);
    accepted(run_transposed, &p);
    accepted(run_gemm, &p);
}

static void grouped_matmul_names_what_is_missing_or_misaligned(void **state) {
    (void)state;
    struct problem p = right();
    err_t (*const RUNS[])(struct problem *) = {run_plain, run_packed};
    for (size_t i = 0; i < COUNT_OF(RUNS); i++) {
        p.matmul.lhs = NULL, refused(RUNS[i], &p, "lhs");
        p.matmul.lhs = lhs + 2, refused(RUNS[i], &p, "lhs");
        p.matmul.lhs_stride = K - 1, refused(RUNS[i], &p, "lhs");
        p.matmul.lhs_stride = SIZE_MAX / 2, refused(RUNS[i], &p, "lhs");
        p.matmul.group_sizes = NULL, refused(RUNS[i], &p, "group_sizes");
        p.matmul.group_sizes = (const int32_t *)(const void *)(lhs + 1), refused(RUNS[i], &p, "group_sizes");
        p.matmul.out = NULL, refused(RUNS[i], &p, "out");
        p.matmul.out = out + 1, refused(RUNS[i], &p, "out");
        p.matmul.out_stride = N - 1, refused(RUNS[i], &p, "out");
        p.matmul.out_stride = SIZE_MAX / 4, refused(RUNS[i], &p, "out");
        p.matmul.num_actual_groups = 1, refused(RUNS[i], &p, "num_actual_groups");
        p.matmul.num_actual_groups = SIZE_MAX, refused(RUNS[i], &p, "num_actual_groups");
        p.matmul.group_offset = SIZE_MAX, refused(RUNS[i], &p, "group_offset");
        p.matmul.m = SIZE_MAX, refused(RUNS[i], &p, "m");
        p.matmul.lhs_rows = (const uint32_t *)(const void *)(lhs + 2), refused(RUNS[i], &p, "lhs_rows");
    }
}

static void invalid_weights_are_named(void **state) {
    (void)state;
    struct problem p = right();
    p.plain.data = NULL, refused(run_plain, &p, "rhs");
    p.plain.data = rhs + 1, refused(run_plain, &p, "rhs");
    p.plain.dtype = EXPERTD_DTYPE_NONE, p.matmul.lhs_dtype = EXPERTD_DTYPE_NONE, refused(run_plain, &p, "rhs");
    p.plain.row_stride = N - 1, refused(run_plain, &p, "rhs");
    p.plain.row_stride = SIZE_MAX / 8, refused(run_plain, &p, "rhs");
    p.plain.group_stride = SIZE_MAX / 4, refused(run_plain, &p, "rhs");
    p.groups[1] = NULL, refused(run_packed, &p, "rhs");
    p.groups[0] = panels[0] + 32, refused(run_packed, &p, "rhs");
    p.packed.group_bytes = 8, refused(run_packed, &p, "rhs");
    p.packed.k = (size_t)1 << 60, p.matmul.lhs_stride = SIZE_MAX, p.packed.group_bytes = SIZE_MAX, refused(run_packed, &p, "rhs");
    p.packed.n = (size_t)1 << 62, p.packed.group_bytes = SIZE_MAX, refused(run_packed, &p, "rhs");
    p.packed.dtype = EXPERTD_DTYPE_F16, refused(run_packed, &p, "rhs");
    p.matmul.lhs_k_stride = M, refused(run_packed, &p, "lhs");
    p.matmul.rhs = expertd_rhs_packed(NULL);
    assert_int_equal(expertd_grouped_matmul(&p.matmul, NULL, workspace).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "rhs");
    p.matmul.rhs = (struct expertd_matmul_rhs){.kind = (enum expertd_rhs_kind)7, .plain = &p.plain};
    assert_int_equal(expertd_grouped_matmul(&p.matmul, NULL, workspace).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "rhs");
}

static struct expertd_matmul_tiling tiles_without_depth(void *context, size_t m, size_t k, size_t n) {
    (void)context, (void)m, (void)k, (void)n;
    return (struct expertd_matmul_tiling){1, 0, 5};
}

// Internally m and k are exchanged; the error message must show the caller's numbers.
static void a_transposed_tiling_is_shown_as_it_was_given(void **state) {
    (void)state;
    struct problem p = right();
    struct expertd_matmul_options options = expertd_matmul_options_default();
    options.tiling_of = tiles_without_depth;
    p.transposed.options = &options, refused(run_transposed, &p, "tiling");
    assert_non_null(strstr(expertd_err_message(), "(1, 0, 5)"));
}

static void a_group_without_rows_may_be_null(void **state) {
    (void)state;
    static const int32_t LAST_ALONE[GROUPS] = {0, 5};
    struct problem p = right();
    p.matmul.group_sizes = LAST_ALONE;
    p.groups[0] = NULL;
    accepted(run_packed, &p);
}

static err_t run_nowhere(struct problem *p) {
    p->matmul.rhs = expertd_rhs_packed(&p->packed); // whose data is NULL
    (void)expertd_grouped_matmul_workspace_bytes(&p->matmul, NULL);
    TRY(expertd_grouped_matmul_reference(&p->matmul));
    return expertd_grouped_matmul(&p->matmul, NULL, p->workspace);
}

// Both paths of packed weights, depending on the output.
static void operands_that_are_not_read_may_be_null(void **state) {
    (void)state;
    static const int32_t NO_ROWS[GROUPS] = {0, 0};
    static const enum expertd_dtype OUTPUTS[] = {EXPERTD_DTYPE_NONE, EXPERTD_DTYPE_BF16};
    struct problem p = right();
    for (size_t i = 0; i < COUNT_OF(OUTPUTS); i++) {
        p.matmul.out_dtype = OUTPUTS[i], p.matmul.group_sizes = NO_ROWS, accepted(run_nowhere, &p);
        p.matmul.out_dtype = OUTPUTS[i], p.matmul.out = NULL, p.packed.n = 0, accepted(run_nowhere, &p);
        memset(out, 42, BYTES);
        p.matmul.out_dtype = OUTPUTS[i], p.matmul.lhs = NULL, p.packed.k = 0, accepted(run_nowhere, &p);
        for (size_t byte = 0; byte < M * N * (i ? 2 : 4); byte++) {
            assert_int_equal(out[byte], 0); // empty sums
        }
        p.matmul.out_dtype = OUTPUTS[i], refused(run_nowhere, &p, "rhs");
    }
}

static err_t run_gemm_on_team(struct problem *p) {
    struct expertd_team *team;
    assert_false(err_is(expertd_team_create(&(struct expertd_team_options){2, 0}, &team)));
    (void)expertd_grouped_gemm_workspace_bytes(&p->gemm, team);
    err_t e = expertd_grouped_gemm(&p->gemm, team, p->workspace);
    expertd_team_destroy(team);
    return e;
}

// Where m is 0, n may be any number.
static void columns_without_rows_cost_nothing(void **state) {
    (void)state;
    static const int64_t ROWS[GROUPS] = {0, 0}, COLUMNS[GROUPS] = {INT64_C(1) << 42, 3};
    const struct expertd_gemm_dim none = {.ragged = ROWS, .dtype = EXPERTD_DTYPE_I64, .count = GROUPS};
    const struct expertd_gemm_dim many = {.ragged = COLUMNS, .dtype = EXPERTD_DTYPE_I64, .count = GROUPS};
    for (int in_order = 0; in_order < 2; in_order++) {
        struct expertd_matmul_options options = expertd_matmul_options_default();
        options.compiler.dimension_semantics[1] = in_order ? EXPERTD_DIMENSION_ARBITRARY : EXPERTD_DIMENSION_PARALLEL;
        struct problem p = right();
        p.gemm.a.first = p.gemm.out_first = p.gemm.a.last = p.gemm.b.first = none;
        p.gemm.b.last = p.gemm.out_last = many;
        p.gemm.options = &options;
        accepted(run_gemm_on_team, &p);
    }
}

static void existing_out_must_be_complete_and_have_the_stride_of_out(void **state) {
    (void)state;
    struct problem p = right();
    p.matmul.existing_mode = EXPERTD_EXISTING_OVERWRITE, p.matmul.existing_stride = N, refused(run_plain, &p, "existing_out");
    p.matmul.existing_out = existing, p.matmul.existing_stride = N, refused(run_plain, &p, "existing_out");
    p.matmul.existing_mode = EXPERTD_EXISTING_ACCUMULATE, p.matmul.existing_out = existing + 2, p.matmul.existing_stride = N;
    refused(run_plain, &p, "existing_out");
    p.matmul.existing_mode = EXPERTD_EXISTING_ACCUMULATE, p.matmul.existing_out = existing, p.matmul.existing_stride = N - 1;
    refused(run_plain, &p, "existing_out");
    p.matmul.existing_mode = EXPERTD_EXISTING_OVERWRITE, p.matmul.existing_out = out, p.matmul.existing_stride = N + 1;
    refused(run_plain, &p, "existing_out");
    p.matmul.existing_mode = (enum expertd_existing_mode)3, p.matmul.existing_out = existing, p.matmul.existing_stride = N;
    refused(run_plain, &p, "existing_out");
    p.matmul.existing_mode = EXPERTD_EXISTING_OVERWRITE, p.matmul.existing_out = out, p.matmul.existing_stride = N;
    accepted(run_plain, &p);
}

static void transposed_grouped_matmul_names_what_is_missing_or_misaligned(void **state) {
    (void)state;
    struct problem p = right();
    p.transposed.lhs = NULL, refused(run_transposed, &p, "lhs");
    p.transposed.lhs = lhs + 3, refused(run_transposed, &p, "lhs");
    p.transposed.lhs_stride = M - 1, refused(run_transposed, &p, "lhs");
    p.transposed.rhs = NULL, refused(run_transposed, &p, "rhs");
    p.transposed.rhs_stride = N - 1, refused(run_transposed, &p, "rhs");
    p.transposed.rhs_transposed = true, p.transposed.rhs_stride = M - 1, refused(run_transposed, &p, "rhs");
    p.transposed.group_sizes = NULL, refused(run_transposed, &p, "group_sizes");
    p.transposed.group_sizes = (const int32_t *)1, refused(run_transposed, &p, "group_sizes"); // an address that cannot be read
    p.transposed.num_groups = p.transposed.num_actual_groups = SIZE_MAX, refused(run_transposed, &p, "group_sizes");
    p.transposed.out = NULL, refused(run_transposed, &p, "out");
    p.transposed.out = out + 2, refused(run_transposed, &p, "out");
    p.transposed.existing_mode = EXPERTD_EXISTING_ACCUMULATE, refused(run_transposed, &p, "existing_out");
    p.transposed.num_actual_groups = GROUPS + 1, refused(run_transposed, &p, "num_actual_groups");
    p.transposed.group_offset = SIZE_MAX, refused(run_transposed, &p, "group_offset");
    p.transposed.k = SIZE_MAX / 8, p.transposed.m = 0, p.transposed.group_sizes = (const int32_t[GROUPS]){0};
    refused(run_transposed, &p, "out");
    p.transposed.k = SIZE_MAX, p.transposed.m = 0, p.transposed.group_sizes = (const int32_t[GROUPS]){0};
    refused(run_transposed, &p, "out");
}

static void grouped_gemm_names_what_is_missing_or_misaligned(void **state) {
    (void)state;
    static const float ONE = 1;
    struct problem p = right();
    p.gemm.a.data = NULL, refused(run_gemm, &p, "a");
    p.gemm.a.data = lhs + 2, refused(run_gemm, &p, "a");
    p.gemm.b.data = NULL, refused(run_gemm, &p, "b");
    p.gemm.out = NULL, refused(run_gemm, &p, "out");
    p.gemm.out = out + 2, refused(run_gemm, &p, "out");
    p.gemm.a.first.ragged = lhs + 2, refused(run_gemm, &p, "a_first_dims");
    p.gemm.a.first.ragged = NULL, refused(run_gemm, &p, "a_first_dims");
    p.gemm.a.first.count = 1, refused(run_gemm, &p, "a_first_dims");
    p.gemm.a.scaling = (enum expertd_gemm_scaling)77, refused(run_gemm, &p, "scaling_a");
    p.gemm.b.scaling = (enum expertd_gemm_scaling) - 1, refused(run_gemm, &p, "scaling_b");
    p.gemm.a.dtype = (enum expertd_dtype)200, refused(run_gemm, &p, "a");
    p.gemm.a.dtype = EXPERTD_DTYPE_I32, refused(run_gemm, &p, "a");
    p.gemm.b.dtype = EXPERTD_DTYPE_I32, refused(run_gemm, &p, "b");
    p.gemm.b.dtype = EXPERTD_DTYPE_U8, refused(run_gemm, &p, "b");
    p.gemm.b.dtype = EXPERTD_DTYPE_F8_E5M2, refused(run_gemm, &p, "scaling_b");
    p.gemm.b.first.same = SIZE_MAX, refused(run_gemm, &p, "b");
    p.gemm.beta = &ONE, p.gemm.beta_count = 1, p.gemm.c = existing + 1, p.gemm.c_count = M * N, refused(run_gemm, &p, "c");
    p.gemm.beta = &ONE, p.gemm.beta_count = 1, refused(run_gemm, &p, "c");
    p.gemm.alpha = (const float *)(const void *)(lhs + 2), p.gemm.alpha_count = 1, refused(run_gemm, &p, "alpha");
    const struct expertd_gemm_dim nothing = {.same = 0};
    p.gemm.a.first = p.gemm.a.last = p.gemm.b.first = p.gemm.b.last = p.gemm.out_first = p.gemm.out_last = nothing;
    p.gemm.num_groups = SIZE_MAX, refused(run_gemm, &p, "num_groups");
}

// The operation's result for these factors in each floating-point mode of the caller.
static void factors_are_refused(const float *alpha, const float *beta, enum expertd_dtype dtype, const char *field,
                                const char *words) {
    static const float_mode MODES[] = {FLOAT_MODE_IEEE, FLOAT_MODE_FLUSHED, FLOAT_MODE_ODD, FLOAT_MODE_TRAPPING};
    for (size_t i = 0; i < COUNT_OF(MODES); i++) {
        struct problem p = right();
        p.gemm.alpha = alpha, p.gemm.beta = beta;
        p.gemm.alpha_count = p.gemm.beta_count = 1;
        if (dtype == EXPERTD_DTYPE_I32) {
            p.gemm.a.dtype = p.gemm.b.dtype = EXPERTD_DTYPE_I8, p.gemm.out_dtype = EXPERTD_DTYPE_I32;
        }
        float_mode before = float_mode_set(MODES[i]);
        err_t e = run_gemm(&p);
        float_mode_restore(before);
        assert_int_equal(e.code, EXPERTD_ERR_INVALID);
        assert_string_equal(expertd_err_field(), field);
        assert_non_null(strstr(expertd_err_message(), words));
    }
}

// Some callers flush subnormals, others trap signalling NaN.
static void factors_are_checked_alike_in_any_mode_of_the_caller(void **state) {
    (void)state;
    const float tiny = 0x1p-140f, signalling = expertd_f32_from_bits(0x7fa00000u), one = 1;
    factors_are_refused(&one, &tiny, EXPERTD_DTYPE_F32, "c", "c is missing");
    factors_are_refused(&one, &signalling, EXPERTD_DTYPE_F32, "c", "c is missing");
    factors_are_refused(&one, &tiny, EXPERTD_DTYPE_I32, "beta",
                        "beta of group 0 is 7.17464814e-43: with an I32 output it must be an integer");
    factors_are_refused(&signalling, NULL, EXPERTD_DTYPE_I32, "alpha",
                        "alpha of group 0 is nan: with an I32 output it must be an integer");
}

static void factors_of_integer_outputs_are_integers_in_int32_range(void **state) {
    (void)state;
    static const float INTEGERS[] = {0, -0.0f, 1, -1, 3, 0x1p22f + 1, 0x1p23f + 1, 0x1p24f - 1, -0x1p30f, 0x1p31f - 128, -0x1p31f};
    static const float OTHERS[] = {0.5f,    -0.75f,         1.5f,    1.0000001f, 0x1p22f + 0.5f, 0x1p-149f,
                                   0x1p31f, -0x1p31f - 256, 0x1p40f, INFINITY,   -INFINITY,      NAN};
    struct problem p = right();
    for (size_t i = 0; i < COUNT_OF(INTEGERS); i++) {
        p.gemm.a.dtype = p.gemm.b.dtype = EXPERTD_DTYPE_I8, p.gemm.out_dtype = EXPERTD_DTYPE_I32;
        p.gemm.alpha = p.gemm.beta = &INTEGERS[i], p.gemm.alpha_count = p.gemm.beta_count = 1;
        p.gemm.c = existing, p.gemm.c_count = M * N;
        accepted(run_gemm, &p);
    }
    for (size_t i = 0; i < COUNT_OF(OTHERS); i++) {
        factors_are_refused(&OTHERS[i], NULL, EXPERTD_DTYPE_I32, "alpha", "alpha of group 0 is");
    }
}

static void huge_sizes_do_not_wrap(void **state) {
    (void)state;
    static const struct expertd_quantised_format MXFP4 = {
        EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, false, 32};
    const size_t huge = (size_t)1 << 60;
    assert_true(expertd_packed_group_bytes(EXPERTD_DTYPE_F32, huge, 1) == SIZE_MAX);
    assert_true(expertd_packed_group_bytes(EXPERTD_DTYPE_BF16, SIZE_MAX, 1) == SIZE_MAX);
    assert_true(expertd_packed_group_bytes(EXPERTD_DTYPE_I8, 1, SIZE_MAX) == SIZE_MAX);
    assert_true(expertd_quantised_group_bytes(&MXFP4, huge, 1 << 20) == SIZE_MAX);
    assert_true(expertd_quantised_group_bytes(&MXFP4, 1 << 20, huge) == SIZE_MAX);
    assert_true(expertd_packed_matmul_workspace_bytes(0, (size_t)1 << 62) == SIZE_MAX);
    assert_int_equal(expertd_packed_group_bytes(EXPERTD_DTYPE_I8, 5, 65), 2 * (64 * sizeof(int32_t) + 8 * 64));
    assert_int_equal(expertd_packed_group_bytes(EXPERTD_DTYPE_BF16, 5, 64), 6 * 64 * 2);
}

static void a_missing_workspace_is_refused(void **state) {
    (void)state;
    err_t (*const RUNS[])(struct problem *) = {run_plain, run_packed, run_transposed, run_gemm};
    struct problem p = right();
    for (size_t i = 0; i < COUNT_OF(RUNS); i++) {
        p.workspace = NULL, refused(RUNS[i], &p, "workspace");
        p.workspace = workspace + 32, refused(RUNS[i], &p, "workspace");
    }
    struct expertd_matmul_options interpret = expertd_matmul_options_default();
    interpret.interpret = true;
    p.transposed.options = &interpret, p.workspace = NULL, accepted(run_transposed, &p);
}

static void tensors_with_other_bytes_than_their_shape_are_refused(void **state) {
    (void)state;
    char text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    assert_string_equal(expertd_tensor_shape_text(&(uint64_t){7}, 4096, text), "[4096 dimensions]"); // the shape has one entry only
    struct expertd_tensor_view a = {EXPERTD_DTYPE_F32, 2, {M, K}, lhs, M * K * sizeof(float)};
    struct expertd_tensor_view b = {EXPERTD_DTYPE_F32, 3, {GROUPS, K, N}, rhs, GROUPS * K * N * sizeof(float)};
    struct expertd_tensor_view sizes = {EXPERTD_DTYPE_I32, 1, {GROUPS}, SIZES, sizeof SIZES};
    struct expertd_grouped_matmul_tensors tensors = {.lhs = &a, .rhs = &b, .group_sizes = &sizes};
    struct expertd_plain_weights plain;
    struct expertd_grouped_matmul_args args;
    assert_false(err_is(expertd_grouped_matmul_from_tensors(&tensors, &plain, &args)));
    b.bytes--;
    assert_int_equal(expertd_grouped_matmul_from_tensors(&tensors, &plain, &args).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "rhs");
    b.bytes++;
    sizes.bytes = 4;
    assert_int_equal(expertd_grouped_matmul_from_tensors(&tensors, &plain, &args).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "group_sizes");
    sizes.bytes = sizeof SIZES;
    a.shape[0] = (uint64_t)1 << 62, a.shape[1] = 8; // the product is 0 modulo 2^64
    assert_int_equal(expertd_grouped_matmul_from_tensors(&tensors, &plain, &args).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "lhs");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_arguments_are_accepted),
        cmocka_unit_test(layouts_that_are_not_read_are_refused),
        cmocka_unit_test(invalid_layouts_are_refused_with_options_too),
        cmocka_unit_test(invalid_formats_are_refused_as_rhs),
        cmocka_unit_test(grouped_matmul_names_what_is_missing_or_misaligned),
        cmocka_unit_test(invalid_weights_are_named),
        cmocka_unit_test(a_transposed_tiling_is_shown_as_it_was_given),
        cmocka_unit_test(a_group_without_rows_may_be_null),
        cmocka_unit_test(operands_that_are_not_read_may_be_null),
        cmocka_unit_test(columns_without_rows_cost_nothing),
        cmocka_unit_test(existing_out_must_be_complete_and_have_the_stride_of_out),
        cmocka_unit_test(transposed_grouped_matmul_names_what_is_missing_or_misaligned),
        cmocka_unit_test(grouped_gemm_names_what_is_missing_or_misaligned),
        cmocka_unit_test(factors_are_checked_alike_in_any_mode_of_the_caller),
        cmocka_unit_test(factors_of_integer_outputs_are_integers_in_int32_range),
        cmocka_unit_test(huge_sizes_do_not_wrap),
        cmocka_unit_test(a_missing_workspace_is_refused),
        cmocka_unit_test(tensors_with_other_bytes_than_their_shape_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
