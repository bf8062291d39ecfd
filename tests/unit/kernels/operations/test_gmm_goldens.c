// The golden files of grouped_matmul that packed kernels can compute: F32 by F32 and BF16 by BF16, without existing_out.
#include "golden_case.h"

#include "expertd/kernels/grouped_matmul.h"

struct golden {
    const char *name;
    const struct expertd_tensor_view *lhs, *rhs, *sizes, *out;
    struct expertd_packed_weights weights;
    void **table;
    double atol, rtol;
};

static int is_ours(const struct safetensors *file) {
    const struct expertd_tensor_view *lhs = golden_tensor(file, "lhs"), *rhs = golden_tensor(file, "rhs");
    return lhs->dtype == rhs->dtype && (lhs->dtype == EXPERTD_DTYPE_F32 || lhs->dtype == EXPERTD_DTYPE_BF16) &&
           !golden_tensor(file, "existing_out");
}

static void pack(struct golden *g, int transposed, enum expertd_packed_layout layout) {
    INVARIANT(g->rhs);
    const uint64_t *shape = g->rhs->shape; // [L, k, n], or [L, n, k]
    size_t k = shape[transposed ? 2 : 1], n = shape[transposed ? 1 : 2];
    enum expertd_dtype dtype = g->rhs->dtype;
    g->weights =
        (struct expertd_packed_weights){dtype, shape[0], k, n, expertd_packed_group_bytes(dtype, k, n), NULL, NULL, layout};
    g->weights.data = g->table = test_alloc((shape[0] + 1) * sizeof *g->table);
    for (size_t i = 0; i < shape[0]; i++) {
        struct expertd_weight_source source = {(const char *)g->rhs->data + i * k * n * expertd_dtype_size(dtype), dtype,
                                               transposed ? k : 1, transposed ? 1 : n};
        g->table[i] = test_alloc(g->weights.group_bytes);
        expertd_pack_weights(&source, k, n, dtype, g->weights.layout, g->table[i]);
    }
}

static void compare(const struct golden *g, const float *sums) {
    size_t count = g->out->shape[0] * g->out->shape[1];
    float *want = test_alloc(count * sizeof *want), *got = test_alloc(count * sizeof *got);
    void *narrow = test_alloc(g->out->bytes);
    expertd_dtype_narrow(sums, count, g->out->dtype, narrow); // the one rounding to the output dtype
    expertd_dtype_widen(g->out->dtype, narrow, count, got);
    expertd_dtype_widen(g->out->dtype, g->out->data, count, want);
    for (size_t i = 0; i < count; i++) {
        int same = isnan(want[i]) ? isnan(got[i]) : got[i] == want[i];
        if (!same && !(fabs((double)got[i] - (double)want[i]) <= g->atol + g->rtol * fabs((double)want[i]))) {
            fail_msg("%s: [%zu] is %g, not %g", g->name, i, (double)got[i], (double)want[i]);
        }
    }
    free(want), free(got), free(narrow);
}

static void run_layout(const char *name, const struct safetensors *file, enum expertd_packed_layout layout) {
    struct golden g = {name,
                       golden_tensor(file, "lhs"),
                       golden_tensor(file, "rhs"),
                       golden_tensor(file, "group_sizes"),
                       golden_tensor(file, "out"),
                       {0},
                       NULL,
                       0,
                       0};
    g.atol = strtod(golden_text(file, "atol"), NULL);
    g.rtol = strtod(golden_text(file, "rtol"), NULL);
    pack(&g, golden_flag(file, "transpose_rhs"), layout);
    void *lhs = golden_copy(g.lhs);
    int32_t *sizes = golden_copy(g.sizes);
    size_t m = g.lhs->shape[0], groups = g.sizes->shape[0];
    float *out = test_alloc(m * g.weights.n * sizeof *out);
    poison_f32(out, m * g.weights.n);
    struct expertd_grouped_matmul_args args = {.lhs = lhs,
                                               .lhs_stride = g.weights.k,
                                               .rhs = expertd_rhs_packed(&g.weights),
                                               .group_sizes = sizes,
                                               .num_groups = groups,
                                               .group_offset = golden_size(file, "group_offset"),
                                               .num_actual_groups = g.weights.groups,
                                               .m = m,
                                               .out = out,
                                               .out_stride = g.weights.n};
    void *scratch = test_alloc(expertd_packed_matmul_workspace_bytes(m, groups));
    assert_false(err_is(expertd_grouped_matmul(&args, NULL, scratch)));
    compare(&g, out);
    for (size_t i = 0; i < g.weights.groups; i++) {
        free(g.table[i]);
    }
    free(g.table), free(lhs), free(sizes), free(out), free(scratch);
}

static int run_golden(const char *name, const struct safetensors *file) {
    if (!is_ours(file)) {
        return 0;
    }
    for (size_t layout = 0; layout < EXPERTD_PACKED_LAYOUTS; layout++) {
        if (expertd_packed_layout_is_read(golden_tensor(file, "rhs")->dtype, (enum expertd_packed_layout)layout)) {
            run_layout(name, file, (enum expertd_packed_layout)layout);
        }
    }
    return 1;
}

static void packed_products_are_within_the_bounds_of_the_goldens(void **state) {
    (void)state;
    assert_true(for_each_golden("gmm-", run_golden) >= 15);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(packed_products_are_within_the_bounds_of_the_goldens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
