// The operations on plain operands against their scalar twin, bit for bit, over dtypes, shapes, ragged dimensions, scalings,
// tilings, limits, orders, teams and backends. Guard pages surround every operand; outputs are poisoned first.
#include "any_operation.h"
#include "tests/unit/kernels/teams.h"

enum { CASES = CASES_OF(60) };

static struct expertd_team *any_team(struct pool *pool) {
    return teams[random_below(&pool->random, COUNT_OF(teams))];
}

static void check_grouped_matmul(struct pool *pool) {
    struct any_matmul c;
    any_grouped_matmul(pool, &c);
    struct expertd_team *team = any_team(pool);
    void *workspace = test_alloc(expertd_grouped_matmul_workspace_bytes(&c.args, team));
    assert_false(err_is(expertd_grouped_matmul(&c.args, team, workspace)));
    free(workspace);
    assert_same(c.args.out_dtype, c.got, c.want, c.count, "grouped_matmul");
}

static void check_transposed(struct pool *pool) {
    struct any_transposed c;
    any_transposed_grouped_matmul(pool, &c);
    struct expertd_team *team = any_team(pool);
    void *workspace = test_alloc(expertd_transposed_grouped_matmul_workspace_bytes(&c.args, team));
    assert_false(err_is(expertd_transposed_grouped_matmul(&c.args, team, workspace)));
    free(workspace);
    assert_same(c.args.out_dtype, c.got, c.want, c.count, "transposed_grouped_matmul");
}

static void check_gemm(struct pool *pool) {
    struct any_gemm c;
    any_grouped_gemm(pool, &c);
    struct expertd_team *team = any_team(pool);
    void *workspace = test_alloc(expertd_grouped_gemm_workspace_bytes(&c.args, team));
    assert_false(err_is(expertd_grouped_gemm(&c.args, team, workspace)));
    free(workspace);
    assert_same(c.args.out_dtype, c.got, c.want, c.args.out_count, "grouped_gemm");
}

static void check_on_backend(const struct kernel_backend *backend, void (*check)(struct pool *)) {
    assert_false(err_is(expertd_kernel_select(backend->name)));
    for (uint64_t i = 0; i < CASES; i++) {
        if (!takes_case()) {
            continue;
        }
        struct pool pool = {.random = {991 + 7919 * i}};
        check(&pool);
        pool_free(&pool);
    }
}

static void grouped_matmul_on(const struct kernel_backend *backend) {
    check_on_backend(backend, check_grouped_matmul);
}

static void transposed_on(const struct kernel_backend *backend) {
    check_on_backend(backend, check_transposed);
}

static void gemm_on(const struct kernel_backend *backend) {
    check_on_backend(backend, check_gemm);
}

static void grouped_matmul_gives_the_twins_bits_in_every_way(void **state) {
    (void)state;
    for_each_backend(grouped_matmul_on);
}

static void transposed_grouped_matmul_gives_the_twins_bits_in_every_way(void **state) {
    (void)state;
    for_each_backend(transposed_on);
}

static void grouped_gemm_gives_the_twins_bits_in_every_way(void **state) {
    (void)state;
    for_each_backend(gemm_on);
}

// Large outputs are written with non-temporal stores, for groups with rows and without.
static void large_results_of_empty_groups_are_complete(void **state) {
    (void)state;
    enum { TOKENS = 5, K = 512, GROUPS = 3 };
    static const size_t COLUMNS[] = {512, 500};
    static const enum expertd_dtype OUT[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16};
    static const int32_t SIZES[GROUPS] = {0, TOKENS, 0};
    for (size_t i = 0; i < COUNT_OF(COLUMNS) * COUNT_OF(OUT); i++) {
        if (!takes_case()) {
            continue;
        }
        struct pool pool = {.random = {17 + i}};
        struct expertd_transposed_grouped_matmul_args args = {.lhs_dtype = EXPERTD_DTYPE_BF16,
                                                              .rhs_dtype = EXPERTD_DTYPE_BF16,
                                                              .k = K,
                                                              .m = TOKENS,
                                                              .n = COLUMNS[i / COUNT_OF(OUT)],
                                                              .group_sizes = SIZES,
                                                              .num_groups = GROUPS,
                                                              .num_actual_groups = GROUPS,
                                                              .out_dtype = OUT[i % COUNT_OF(OUT)]};
        size_t count = GROUPS * args.k * args.n;
        void *want, *got;
        args.lhs = take_elements(&pool, EXPERTD_DTYPE_BF16, K * TOKENS);
        args.rhs = take_elements(&pool, EXPERTD_DTYPE_BF16, TOKENS * args.n);
        take_answers(&pool, args.out_dtype, count, &want, &got);
        args.out = want;
        assert_false(err_is(expertd_transposed_grouped_matmul_reference(&args)));
        args.out = got;
        void *workspace = test_alloc(expertd_transposed_grouped_matmul_workspace_bytes(&args, teams[1]));
        assert_false(err_is(expertd_transposed_grouped_matmul(&args, teams[1], workspace)));
        free(workspace);
        assert_same(args.out_dtype, got, want, count, "transposed_grouped_matmul");
        pool_free(&pool);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_matmul_gives_the_twins_bits_in_every_way),
        cmocka_unit_test(transposed_grouped_matmul_gives_the_twins_bits_in_every_way),
        cmocka_unit_test(grouped_gemm_gives_the_twins_bits_in_every_way),
        cmocka_unit_test(large_results_of_empty_groups_are_complete),
    };
    return cmocka_run_group_tests(tests, make_teams, destroy_teams);
}
