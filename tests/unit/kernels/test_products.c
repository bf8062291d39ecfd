// The operations on plain operands against their scalar twin, bit for bit: over dtypes, shapes, ragged dimensions, scalings,
// tilings, limits, orders, teams and backends, every operand between pages that fault, every output poisoned.
#include "any_operation.h"
#include "teams.h"

enum { CASES = CASES_OF(60) };

static struct team *any_team(struct pool *pool) {
    return teams[random_below(&pool->random, COUNT_OF(teams))];
}

static void check_grouped_matmul(struct pool *pool) {
    struct any_matmul c;
    any_grouped_matmul(pool, &c);
    struct team *team = any_team(pool);
    void *workspace = test_alloc(grouped_matmul_workspace_bytes(&c.args, team));
    assert_false(err_is(grouped_matmul(&c.args, team, workspace)));
    free(workspace);
    assert_same(c.args.out_dtype, c.got, c.want, c.count, "grouped_matmul");
}

static void check_transposed(struct pool *pool) {
    struct any_transposed c;
    any_transposed_grouped_matmul(pool, &c);
    struct team *team = any_team(pool);
    void *workspace = test_alloc(transposed_grouped_matmul_workspace_bytes(&c.args, team));
    assert_false(err_is(transposed_grouped_matmul(&c.args, team, workspace)));
    free(workspace);
    assert_same(c.args.out_dtype, c.got, c.want, c.count, "transposed_grouped_matmul");
}

static void check_gemm(struct pool *pool) {
    struct any_gemm c;
    any_grouped_gemm(pool, &c);
    struct team *team = any_team(pool);
    void *workspace = test_alloc(grouped_gemm_workspace_bytes(&c.args, team));
    assert_false(err_is(grouped_gemm(&c.args, team, workspace)));
    free(workspace);
    assert_same(c.args.out_dtype, c.got, c.want, c.args.out_count, "grouped_gemm");
}

static void check_on_backend(const struct kernel_backend *backend, void (*check)(struct pool *)) {
    assert_false(err_is(kernel_select(backend->name)));
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_matmul_gives_the_twins_bits_in_every_way),
        cmocka_unit_test(transposed_grouped_matmul_gives_the_twins_bits_in_every_way),
        cmocka_unit_test(grouped_gemm_gives_the_twins_bits_in_every_way),
    };
    return cmocka_run_group_tests(tests, make_teams, destroy_teams);
}
