// The grouped matmul against its scalar twin, bit for bit: over shapes, groupings, shards, gathers, threads and backends.
#include "tests/unit/kernels/teams.h"

#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/tuning.h"

enum { GROUPS_MAX = 9, GUARD = 2 };

struct product {
    struct expertd_grouped_matmul_args args;
    struct expertd_packed_weights rhs;
    int32_t sizes[GROUPS_MAX];
    uint32_t *gather;
    void *lhs, *weights, **table;
    float *out;
    size_t lhs_rows, element;
};

static void fill(struct random *random, enum expertd_dtype dtype, enum values values, size_t count, void *out) {
    for (size_t i = 0; i < count; i++) {
        float value = random_f32(random, values);
        if (dtype == EXPERTD_DTYPE_F32) {
            ((float *)out)[i] = value;
        } else {
            ((uint16_t *)out)[i] = (uint16_t)(expertd_f32_bits(value) >> 16);
        }
    }
}

static size_t make_sizes(struct random *random, struct product *p, size_t groups, uint32_t rows_max) {
    size_t sum = 0;
    for (size_t g = 0; g < groups; g++) {
        p->sizes[g] = random_below(random, 4) ? (int32_t)random_below(random, rows_max) : 0;
        sum += (size_t)p->sizes[g];
    }
    return sum;
}

static void make_weights(struct random *random, struct product *p, enum expertd_dtype dtype, enum values values) {
    struct expertd_packed_weights *rhs = &p->rhs;
    size_t count = rhs->k * rhs->n;
    rhs->group_bytes = expertd_packed_group_bytes(dtype, rhs->k, rhs->n);
    rhs->layout = any_layout(dtype);
    p->weights = test_alloc(rhs->groups * rhs->group_bytes);
    rhs->data = p->table = test_alloc((rhs->groups + 1) * sizeof *p->table);
    void *plain = test_alloc(count * p->element);
    for (size_t g = 0; g < rhs->groups; g++) {
        fill(random, dtype, values, count, plain);
        struct expertd_weight_source source = {plain, dtype, rhs->k, 1};
        p->table[g] = (char *)p->weights + (rhs->groups - 1 - g) * rhs->group_bytes; // groups need not lie in order
        expertd_pack_weights(&source, rhs->k, rhs->n, dtype, rhs->layout, p->table[g]);
    }
    free(plain);
}

struct shape {
    enum expertd_dtype dtype;
    enum values values;
    size_t k, n, groups;
    uint32_t rows_max;
    int gathered;
};

static void product_init(struct random *random, const struct shape *shape, struct product *p) {
    *p = (struct product){.element = expertd_dtype_size(shape->dtype)};
    size_t sum = make_sizes(random, p, shape->groups, shape->rows_max);
    size_t offset = random_below(random, (uint32_t)shape->groups + 1);
    size_t local = random_below(random, (uint32_t)(shape->groups - offset) + 1);
    if (random_below(random, 2)) {
        offset = 0, local = shape->groups;
    }
    p->rhs = (struct expertd_packed_weights){.dtype = shape->dtype, .groups = local, .k = shape->k, .n = shape->n};
    make_weights(random, p, shape->dtype, shape->values);
    size_t m = sum + random_below(random, 60), stride = shape->k + random_below(random, 5);
    p->lhs_rows = shape->gathered ? 1 + random_below(random, 20) : m;
    p->lhs = test_alloc(p->lhs_rows * stride * p->element);
    fill(random, shape->dtype, shape->values, p->lhs_rows * stride, p->lhs);
    if (shape->gathered) {
        p->gather = test_alloc(m * sizeof *p->gather);
        for (size_t i = 0; i < m; i++) {
            p->gather[i] = random_below(random, (uint32_t)p->lhs_rows);
        }
    }
    p->out = test_alloc(m * (shape->n + GUARD) * sizeof(float));
    p->args = (struct expertd_grouped_matmul_args){
        .lhs = p->lhs,
        .lhs_stride = stride,
        .lhs_rows = p->gather,
        .rhs = expertd_rhs_packed(&p->rhs),
        .group_sizes = p->sizes,
        .num_groups = shape->groups,
        .group_offset = offset,
        .num_actual_groups = local,
        .m = m,
        .out = p->out,
        .out_stride = shape->n + GUARD,
    };
}

static void product_deinit(struct product *p) {
    free(p->gather), free(p->lhs), free(p->weights), free(p->table), free(p->out);
}

static void run(struct product *p, struct expertd_team *team) {
    void *scratch = test_alloc(expertd_packed_matmul_workspace_bytes(p->args.m, p->args.num_groups));
    poison_f32(p->out, p->args.m * p->args.out_stride);
    assert_false(err_is(expertd_grouped_matmul(&p->args, team, scratch)));
    free(scratch);
}

static float *reference(struct product *p) {
    size_t count = p->args.m * p->args.out_stride;
    float *want = test_alloc(count * sizeof *want);
    poison_f32(want, count); // elements after the columns must stay poisoned
    struct expertd_grouped_matmul_args args = p->args;
    args.out = want;
    assert_false(err_is(expertd_grouped_matmul_reference(&args)));
    return want;
}

static void check_shape(struct random *random, const struct shape *shape) {
    struct product p;
    product_init(random, shape, &p);
    float *want = reference(&p);
    run(&p, NULL);
    assert_same_f32(p.out, want, p.args.m * p.args.out_stride, "one thread");
    struct expertd_team *team = teams[random_below(random, COUNT_OF(teams))];
    run(&p, team);
    assert_same_f32(p.out, want, p.args.m * p.args.out_stride, "a team");
    free(want);
    product_deinit(&p);
}

static void check_backend(const struct kernel_backend *backend) {
    assert_false(err_is(expertd_kernel_select(backend->name)));
    static const size_t K[] = {0, 1, 2, 7, 64, 131, 259, 515, 1031}, N[] = {0, 1, 17, 64, 65, 128, 200};
    struct random random = {share_start(2024)};
    for (int i = 0; i < (int)share_of(CASES_OF(160)); i++) {
        struct shape shape = {
            .dtype = i % 2 ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16,
            .values = (enum values)random_below(&random, VALUES_COUNT),
            .k = K[random_below(&random, COUNT_OF(K))],
            .n = N[random_below(&random, COUNT_OF(N))],
            .groups = random_below(&random, GROUPS_MAX + 1),
            .rows_max = random_below(&random, 5) ? 14 : 130,
            .gathered = (int)random_below(&random, 2),
        };
        check_shape(&random, &shape);
    }
}

static void every_backend_team_and_grouping_gives_the_twins_bits(void **state) {
    (void)state;
    for_each_backend(check_backend);
    assert_false(err_is(expertd_kernel_select("auto")));
}

static void check_schedule(struct product *p, const struct expertd_matmul_schedule *schedule, const float *want) {
    p->args.schedule = schedule;
    for (unsigned t = 0; t < COUNT_OF(teams); t++) {
        run(p, teams[t]);
        assert_same_f32(p->out, want, p->args.m * p->args.out_stride, "a schedule");
    }
}

// All candidates of tuning, and extreme schedules that only a file can contain.
static void no_schedule_changes_a_bit(void **state) {
    (void)state;
    static const struct expertd_matmul_schedule EXTREMES[] = {{48, 1, 1}, {48, 64 << 20, 1024}, {240, 1, 1024}, {53, 4096, 3}};
    struct random random = {share_start(5)};
    for (int i = 0; i < (int)share_of(CASES_OF(60)); i++) {
        struct shape shape = {.dtype = i % 2 ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16,
                              .values = (enum values)random_below(&random, VALUES_COUNT),
                              .k = 1 + random_below(&random, 140),
                              .n = 1 + random_below(&random, 700),
                              .groups = 1 + random_below(&random, GROUPS_MAX),
                              .rows_max = i % 3 ? 8 : 300,
                              .gathered = i % 2};
        struct product p;
        product_init(&random, &shape, &p);
        float *want = reference(&p);
        struct expertd_schedule_class wanted = expertd_tuning_class(&p.args, 2);
        struct expertd_matmul_schedule schedule;
        for (size_t c = 0; expertd_schedule_candidate(&wanted, c, &schedule); c++) {
            check_schedule(&p, &schedule, want);
        }
        for (size_t e = 0; e < COUNT_OF(EXTREMES); e++) {
            assert_true(expertd_schedule_is_valid(&EXTREMES[e]));
            check_schedule(&p, &EXTREMES[e], want);
        }
        free(want);
        product_deinit(&p);
    }
}

// The same through the table in use.
static void a_schedule_from_the_table_changes_no_bit(void **state) {
    (void)state;
    struct random random = {6};
    struct shape shape = {.dtype = EXPERTD_DTYPE_BF16, .k = 40, .n = 300, .groups = 3, .rows_max = 20};
    struct product p;
    product_init(&random, &shape, &p);
    float *want = reference(&p);
    static struct expertd_tuning_table table;
    table.count = 0;
    struct expertd_tuning_entry entry = {.found_for = expertd_tuning_class(&p.args, 2), .schedule = {48, 1, 64}};
    assert_true(expertd_tuning_put(&table, &entry));
    expertd_tuning_use(&table);
    run(&p, teams[1]);
    expertd_tuning_use(NULL);
    assert_same_f32(p.out, want, p.args.m * p.args.out_stride, "tuned");
    free(want);
    product_deinit(&p);
}

// `before` gives each trial an output of its own.
struct deal {
    struct expertd_grouped_matmul_args *args;
    float *outs[2];
    size_t count;
};

static void next_deal(void *context) {
    struct deal *deal = context;
    deal->args->out = deal->outs[deal->count++ > 0];
}

static void tuning_tries_every_candidate_and_leaves_the_right_bits(void **state) {
    (void)state;
    struct random random = {8};
    struct shape shape = {.dtype = EXPERTD_DTYPE_F32, .k = 33, .n = 200, .groups = 4, .rows_max = 60};
    struct product p;
    product_init(&random, &shape, &p);
    float *want = reference(&p);
    void *scratch = test_alloc(expertd_packed_matmul_workspace_bytes(p.args.m, p.args.num_groups));
    float *first = test_alloc(p.args.m * p.args.out_stride * sizeof *first);
    struct deal deal = {.args = &p.args, .outs = {first, p.out}};
    struct expertd_tuning_job job = {.args = &p.args, .team = teams[1], .scratch = scratch, .before = next_deal, .context = &deal};
    struct expertd_tuning_trial trial;
    poison_f32(p.out, p.args.m * p.args.out_stride);
    poison_f32(first, p.args.m * p.args.out_stride);
    assert_false(err_is(expertd_tuning_measure(&job, &trial)));
    assert_same_f32(first, want, p.args.m * p.args.out_stride, "the first trial");
    assert_same_f32(p.out, want, p.args.m * p.args.out_stride, "after the trials");
    free(first);
    assert_true(trial.candidates >= 4 && trial.rounds >= 3);
    assert_int_equal(deal.count, trial.candidates * trial.rounds + 1);
    assert_true(expertd_schedule_is_valid(&trial.best) && trial.best_s > 0 && trial.best_s <= trial.heuristic_s);
    p.args.group_offset = 99;
    assert_int_equal(expertd_tuning_measure(&job, &trial).code, EXPERTD_ERR_INVALID);
    free(scratch);
    free(want);
    product_deinit(&p);
}

// One group with many rows is split by rows; all remainders modulo 6 and 48.
static void splitting_one_group_with_many_rows_changes_no_bit(void **state) {
    (void)state;
    enum { ROWS_MAX = 200, K = 33, N = 70 };
    struct random random = {77};
    struct product p = {.element = 2, .rhs = {.dtype = EXPERTD_DTYPE_BF16, .groups = 1, .k = K, .n = N}};
    make_weights(&random, &p, EXPERTD_DTYPE_BF16, VALUES_PLAIN);
    p.lhs = test_alloc(ROWS_MAX * K * 2);
    p.out = test_alloc(ROWS_MAX * N * sizeof(float));
    fill(&random, EXPERTD_DTYPE_BF16, VALUES_PLAIN, ROWS_MAX * K, p.lhs);
    for (size_t rows = 1; rows <= ROWS_MAX; rows += rows < 60 ? 1 : 23) {
        p.sizes[0] = (int32_t)rows;
        p.args = (struct expertd_grouped_matmul_args){.lhs = p.lhs,
                                                      .lhs_stride = K,
                                                      .rhs = expertd_rhs_packed(&p.rhs),
                                                      .group_sizes = p.sizes,
                                                      .num_groups = 1,
                                                      .num_actual_groups = 1,
                                                      .m = rows,
                                                      .out = p.out,
                                                      .out_stride = N};
        float *want = reference(&p);
        run(&p, teams[3]);
        assert_same_f32(p.out, want, rows * N, "split");
        free(want);
    }
    product_deinit(&p);
}

// Large outputs are written with non-temporal stores, except for partial cache lines.
static void an_output_larger_than_a_cache_is_complete(void **state) {
    (void)state;
    enum { ROWS = 4201, K = 3, N_ALIGNED = 64, N_ODD = 70 };
    static const size_t COLUMNS[] = {N_ALIGNED, N_ODD};
    struct random random = {78};
    for (size_t i = 0; i < COUNT_OF(COLUMNS); i++) {
        size_t n = COLUMNS[i];
        struct product p = {.element = 2, .rhs = {.dtype = EXPERTD_DTYPE_BF16, .groups = 1, .k = K, .n = n}, .sizes = {ROWS}};
        make_weights(&random, &p, EXPERTD_DTYPE_BF16, VALUES_PLAIN);
        p.lhs = test_alloc(ROWS * K * 2);
        p.out = aligned_alloc(64, (ROWS * n * sizeof(float) + 63) / 64 * 64);
        assert_non_null(p.out);
        fill(&random, EXPERTD_DTYPE_BF16, VALUES_PLAIN, ROWS * K, p.lhs);
        p.args = (struct expertd_grouped_matmul_args){.lhs = p.lhs,
                                                      .lhs_stride = K,
                                                      .rhs = expertd_rhs_packed(&p.rhs),
                                                      .group_sizes = p.sizes,
                                                      .num_groups = 1,
                                                      .num_actual_groups = 1,
                                                      .m = ROWS,
                                                      .out = p.out,
                                                      .out_stride = n};
        float *want = reference(&p);
        run(&p, teams[3]);
        assert_same_f32(p.out, want, ROWS * n, "streamed");
        free(want);
        product_deinit(&p);
    }
}

// A row has the same bits alone, among rows of NaN and Inf, and in groups of other sizes.
static void bits_of_a_row_depend_on_no_neighbour(void **state) {
    (void)state;
    enum { K = 67, N = 80, ROWS = 25 };
    struct random random = {11};
    uint16_t *plain = test_alloc(K * N * 2), *lhs = test_alloc(ROWS * K * 2);
    void *packed = test_alloc(expertd_packed_group_bytes(EXPERTD_DTYPE_BF16, K, N));
    struct expertd_packed_weights rhs = {
        EXPERTD_DTYPE_BF16, 1, K, N, expertd_packed_group_bytes(EXPERTD_DTYPE_BF16, K, N), &packed, NULL, EXPERTD_PACKED_PANELS};
    fill(&random, EXPERTD_DTYPE_BF16, VALUES_PLAIN, K * N, plain);
    expertd_pack_weights(&(struct expertd_weight_source){plain, EXPERTD_DTYPE_BF16, K, 1}, K, N, EXPERTD_DTYPE_BF16,
                         EXPERTD_PACKED_PANELS, packed);
    fill(&random, EXPERTD_DTYPE_BF16, VALUES_PLAIN, ROWS * K, lhs);
    float alone[ROWS][N], together[ROWS][N];
    void *scratch = test_alloc(expertd_packed_matmul_workspace_bytes(ROWS, 1));
    int32_t size = 1;
    struct expertd_grouped_matmul_args args = {.lhs = lhs,
                                               .lhs_stride = K,
                                               .rhs = expertd_rhs_packed(&rhs),
                                               .group_sizes = &size,
                                               .num_groups = 1,
                                               .num_actual_groups = 1,
                                               .m = 1,
                                               .out = alone[0],
                                               .out_stride = N};
    for (size_t r = 0; r < ROWS; r++) {
        args.lhs = lhs + r * K;
        args.out = alone[r];
        assert_false(err_is(expertd_grouped_matmul(&args, NULL, scratch)));
    }
    for (size_t r = 0; r < ROWS; r += 3) { // every third becomes NaN and Inf
        fill(&random, EXPERTD_DTYPE_BF16, VALUES_ANY, K, lhs + r * K);
        lhs[r * K + 5] = 0x7fc0, lhs[r * K + 6] = 0xff80;
    }
    size = ROWS;
    args.lhs = lhs, args.m = ROWS, args.out = together[0];
    assert_false(err_is(expertd_grouped_matmul(&args, teams[1], scratch)));
    for (size_t r = 0; r < ROWS; r++) {
        if (r % 3 == 0) {
            assert_true(isnan(together[r][0]));
        } else {
            assert_memory_equal(together[r], alone[r], sizeof alone[r]);
        }
    }
    free(plain), free(lhs), free(packed), free(scratch);
}

static void expect_error(const struct expertd_grouped_matmul_args *args, const char *field) {
    _Alignas(64) char scratch[1024];
    ((float *)args->out)[0] = 42;
    assert_int_equal(expertd_grouped_matmul(args, NULL, scratch).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), field);
    assert_int_equal(expertd_grouped_matmul_reference(args).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), field);
    assert_true(((float *)args->out)[0] == 42); // untouched
}

static void errors_name_the_argument_and_leave_the_output(void **state) {
    (void)state;
    float lhs[8 * 4] = {0}, out[8 * 2];
    _Alignas(64) float packed[3 * 4 * 64] = {0};
    void *groups[] = {packed, packed + 4 * 64, packed + 2 * 4 * 64};
    struct expertd_packed_weights rhs = {EXPERTD_DTYPE_F32, 3, 4, 2, 4 * 64 * 4, groups, NULL, EXPERTD_PACKED_PANELS};
    int32_t sizes[3] = {3, 2, 3};
    const struct expertd_grouped_matmul_args good = {.lhs = lhs,
                                                     .lhs_stride = 4,
                                                     .rhs = expertd_rhs_packed(&rhs),
                                                     .group_sizes = sizes,
                                                     .num_groups = 3,
                                                     .num_actual_groups = 3,
                                                     .m = 8,
                                                     .out = out,
                                                     .out_stride = 2};
    _Alignas(64) char scratch[1024];
    assert_true(expertd_packed_matmul_workspace_bytes(8, 3) <= sizeof scratch);
    assert_false(err_is(expertd_grouped_matmul(&good, NULL, scratch)));
    struct expertd_grouped_matmul_args bad = good;
    bad.lhs_stride = 3;
    expect_error(&bad, "lhs");
    bad = good, bad.m = 7;
    expect_error(&bad, "group_sizes");
    bad = good, bad.group_offset = 1;
    expect_error(&bad, "group_offset");
    bad = good, bad.group_offset = 1, bad.num_actual_groups = 2;
    expect_error(&bad, "num_actual_groups");
    bad = good, bad.out_stride = 1;
    expect_error(&bad, "out");
    const struct expertd_matmul_schedule small_m_rows = {EXPERTD_SCHEDULE_CALL_ROWS_MIN - 1, 1, 1};
    bad = good, bad.schedule = &small_m_rows;
    expect_error(&bad, "schedule");
    sizes[1] = -1;
    expect_error(&good, "group_sizes");
    sizes[1] = 2, rhs.dtype = EXPERTD_DTYPE_F16;
    expect_error(&good, "rhs");
    rhs.dtype = EXPERTD_DTYPE_F32, rhs.group_bytes = 4;
    expect_error(&good, "rhs");
    rhs.group_bytes = 4 * 64 * 4;
    sizes[0] = sizes[1] = sizes[2] = INT32_MAX; // the sum exceeds 32 bits
    expect_error(&good, "group_sizes");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_backend_team_and_grouping_gives_the_twins_bits),
        cmocka_unit_test(no_schedule_changes_a_bit),
        cmocka_unit_test(a_schedule_from_the_table_changes_no_bit),
        cmocka_unit_test(tuning_tries_every_candidate_and_leaves_the_right_bits),
        cmocka_unit_test(splitting_one_group_with_many_rows_changes_no_bit),
        cmocka_unit_test(an_output_larger_than_a_cache_is_complete),
        cmocka_unit_test(bits_of_a_row_depend_on_no_neighbour),
        cmocka_unit_test(errors_name_the_argument_and_leave_the_output),
    };
    return cmocka_run_group_tests(tests, make_teams, destroy_teams);
}
