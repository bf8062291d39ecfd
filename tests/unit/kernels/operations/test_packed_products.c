// Packed weights (elements, int8, quantised) with the features that serving does not use: other output dtypes, existing_out,
// options, limits, orders, callers' thread pools. Compared with the scalar twin bit for bit.
#include "any_operation.h"
#include "tests/unit/kernels/quantised_case.h"
#include "tests/unit/kernels/teams.h"

enum { CASES = CASES_OF(100) };

struct packed_case {
    struct expertd_packed_weights weights;
    struct quantised_case quantised[GROUPS_MAX]; // of equal formats
    void *groups[GROUPS_MAX];
    bool is_quantised;
};

static void pack_quantised_groups(struct pool *pool, struct packed_case *c) {
    const struct expertd_quantised_format *format = &FORMATS[random_below(&pool->random, COUNT_OF(FORMATS))];
    enum values values = (enum values)random_below(&pool->random, VALUES_COUNT);
    struct expertd_packed_weights *w = &c->weights;
    w->format = format;
    w->group_bytes = expertd_quantised_group_bytes(format, w->k, w->n);
    for (size_t g = 0; g < w->groups; g++) {
        quantised_case_init(&c->quantised[g], format, w->k, w->n, values, &pool->random);
        c->groups[g] = c->quantised[g].packed;
    }
}

static void pack_plain_groups(struct pool *pool, struct packed_case *c) {
    struct expertd_packed_weights *w = &c->weights;
    w->group_bytes = expertd_packed_group_bytes(w->dtype, w->k, w->n);
    w->layout = any_layout(w->dtype);
    for (size_t g = 0; g < w->groups; g++) {
        struct expertd_weight_source source = {take_elements(pool, w->dtype, w->k * w->n), w->dtype, w->k, 1};
        c->groups[g] = test_alloc(w->group_bytes + 1);
        expertd_pack_weights(&source, w->k, w->n, w->dtype, w->layout, c->groups[g]);
    }
}

static void packed_case_init(struct pool *pool, size_t groups, struct packed_case *c) {
    static const enum expertd_dtype DTYPES[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_I8};
    c->weights = (struct expertd_packed_weights){.groups = groups, .k = any_size(pool), .n = any_size(pool), .data = c->groups};
    c->is_quantised = random_below(&pool->random, 2);
    c->weights.dtype = DTYPES[random_below(&pool->random, c->is_quantised ? 2 : 3)];
    (c->is_quantised ? pack_quantised_groups : pack_plain_groups)(pool, c);
}

static void packed_case_deinit(struct packed_case *c) {
    for (size_t g = 0; g < c->weights.groups; g++) {
        if (c->is_quantised) {
            quantised_case_deinit(&c->quantised[g]);
        } else {
            free(c->groups[g]);
        }
    }
}

// Sometimes gathers rows through an index. Returns the number of rows in lhs.
static size_t any_gather(struct pool *pool, struct expertd_grouped_matmul_args *args) {
    if (random_below(&pool->random, 2) || !args->m) {
        return args->m;
    }
    size_t rows = 1 + random_below(&pool->random, (uint32_t)args->m);
    uint32_t *index = take(pool, args->m * sizeof *index);
    for (size_t i = 0; i < args->m; i++) {
        index[i] = random_below(&pool->random, (uint32_t)rows);
    }
    args->lhs_rows = index;
    return rows;
}

static void any_packed_args(struct pool *pool, const struct expertd_packed_weights *w, const struct grouping *g,
                            struct expertd_grouped_matmul_args *args) {
    *args = (struct expertd_grouped_matmul_args){.rhs = expertd_rhs_packed(w),
                                                 .group_sizes = g->sizes,
                                                 .num_groups = g->groups,
                                                 .group_offset = g->offset,
                                                 .num_actual_groups = g->local,
                                                 .m = g->m,
                                                 .lhs_stride = w->k + random_below(&pool->random, 9),
                                                 .out_stride = w->n,
                                                 .existing_stride = w->n};
    args->out_dtype = w->dtype == EXPERTD_DTYPE_I8 && random_below(&pool->random, 2) ? EXPERTD_DTYPE_I32 : any_float(pool);
    size_t rows = any_gather(pool, args);
    args->lhs = take_elements(pool, w->dtype, span_of(rows, w->k, args->lhs_stride));
    args->existing_mode = (enum expertd_existing_mode)random_below(&pool->random, 3);
    if (args->existing_mode) {
        args->existing_out = take_existing(pool, args->out_dtype, g->m * w->n);
    }
}

static void check_case(struct pool *pool) {
    struct grouping g = any_grouping(pool);
    struct packed_case c;
    struct expertd_grouped_matmul_args args;
    struct expertd_matmul_options options = any_options(pool);
    void *want, *got;
    packed_case_init(pool, g.local, &c);
    any_packed_args(pool, &c.weights, &g, &args);
    args.options = random_below(&pool->random, 4) ? &options : NULL;
    size_t count = g.m * c.weights.n;
    take_answers(pool, args.out_dtype, count, &want, &got);
    args.out = want;
    must_pass_check(expertd_grouped_matmul_reference(&args));
    args.out = got;
    struct expertd_team *team = random_below(&pool->random, 4) ? teams[random_below(&pool->random, COUNT_OF(teams))] : NULL;
    void *workspace = test_alloc(expertd_grouped_matmul_workspace_bytes(&args, team) + 1);
    must_pass_check(expertd_grouped_matmul(&args, team, workspace));
    free(workspace);
    assert_same(args.out_dtype, got, want, count, c.is_quantised ? "quantised" : "packed");
    packed_case_deinit(&c);
}

static void check_backend(const struct kernel_backend *backend) {
    assert_false(err_is(expertd_kernel_select(backend->name)));
    for (uint64_t i = 0; i < CASES; i++) {
        if (!takes_case()) {
            continue;
        }
        struct pool pool = {.random = {31337 + 104729 * i}};
        check_case(&pool);
        pool_free(&pool);
    }
}

static void packed_weights_give_the_twins_bits_in_every_way(void **state) {
    (void)state;
    for_each_backend(check_backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_weights_give_the_twins_bits_in_every_way),
    };
    return cmocka_run_group_tests(tests, make_teams, destroy_teams);
}
