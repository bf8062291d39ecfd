// The contract's operations on plain operands on a simulated GPU, against the scalar twin of its arithmetic, bit for bit: random
// dtypes, shapes, ragged dimensions, scales, factors and existing outputs. Also group metadata against the host's.
#include "device_pieces.h"
#include "tests/unit/kernels/operations/any_operation.h"
#include "tests/unit/kernels/operations/gemm_corners.h"

#include "expertd/kernels/device_operations.h"
#include "expertd/kernels/group_metadata.h"
#include "expertd/kernels/kernel_select.h"

enum { CASES = 40 };

static struct expertd_devices devices;
static struct expertd_device_operations *operations;

static void must_succeed(err_t e) {
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
}

static int open_all(void **state) {
    (void)open_device(state);
    devices = (struct expertd_devices){.table = pieces.table, .count = 1, .all = {pieces.device}};
    must_succeed(expertd_kernel_select("scalar_sm90"));
    must_succeed(expertd_device_operations_create(&devices, 0, 64, &operations));
    return 0;
}

static int close_all(void **state) {
    expertd_device_operations_destroy(operations);
    return close_device(state);
}

// Copies host memory to the device.
static void *copied(const void *host, size_t bytes) {
    if (!host) {
        return NULL;
    }
    void *copy = test_alloc(bytes + 1);
    memcpy(copy, host, bytes);
    return on_device(copy, bytes + 1);
}

static void read_back(const void *device_args, void *got, size_t bytes) {
    memcpy(got, back(device_args), bytes);
    drop_pieces();
}

static void check_grouped_matmul(struct pool *pool) {
    struct any_matmul c;
    any_grouped_matmul(pool, &c);
    size_t size = expertd_dtype_size(c.args.out_dtype), existing = c.args.existing_out ? c.existing_count * size : 0;
    struct expertd_plain_weights rhs = c.rhs;
    struct expertd_grouped_matmul_args args = c.args;
    rhs.data = copied(rhs.data, c.rhs_count * expertd_dtype_size(rhs.dtype));
    args.rhs = expertd_rhs_plain(&rhs);
    args.lhs = copied(args.lhs, c.lhs_count * expertd_dtype_size(args.lhs_dtype));
    args.existing_out = copied(args.existing_out, existing);
    args.out = copied(c.got, c.count * size);
    must_succeed(expertd_device_grouped_matmul(operations, &args));
    read_back(args.out, c.got, c.count * size);
    assert_same(args.out_dtype, c.got, c.want, c.count, "grouped_matmul");
}

static void check_transposed(struct pool *pool) {
    struct any_transposed c;
    any_transposed_grouped_matmul(pool, &c);
    size_t bytes = c.count * expertd_dtype_size(c.args.out_dtype);
    struct expertd_transposed_grouped_matmul_args args = c.args;
    args.lhs = copied(args.lhs, c.lhs_count * expertd_dtype_size(args.lhs_dtype));
    args.rhs = copied(args.rhs, c.rhs_count * expertd_dtype_size(args.rhs_dtype));
    args.existing_out = copied(args.existing_out, args.existing_out ? bytes : 0);
    args.out = copied(c.got, bytes);
    must_succeed(expertd_device_transposed_grouped_matmul(operations, &args));
    read_back(args.out, c.got, bytes);
    assert_same(args.out_dtype, c.got, c.want, c.count, "transposed_grouped_matmul");
}

static void copy_operand(struct expertd_gemm_operand *o) {
    o->data = copied(o->data, o->count * expertd_dtype_size(o->dtype));
    o->scales = copied(o->scales, o->scale_count * expertd_dtype_size(o->scale_dtype));
}

static void check_gemm(struct pool *pool) {
    struct any_gemm c;
    any_grouped_gemm(pool, &c);
    size_t size = expertd_dtype_size(c.args.out_dtype);
    struct expertd_grouped_gemm_args args = c.args;
    copy_operand(&args.a);
    copy_operand(&args.b);
    args.c = copied(args.c, args.c_count * size);
    args.out = copied(c.got, args.out_count * size);
    must_succeed(expertd_device_grouped_gemm(operations, &args));
    read_back(args.out, c.got, args.out_count * size);
    assert_same(args.out_dtype, c.got, c.want, args.out_count, "grouped_gemm");
}

static void check_all(void (*check)(struct pool *)) {
    for (uint64_t i = 0; i < CASES; i++) {
        struct pool pool = {.random = {991 + 7919 * i}};
        check(&pool);
        pool_free(&pool);
    }
}

static void grouped_matmul_gives_the_twins_bits(void **state) {
    (void)state;
    check_all(check_grouped_matmul);
}

static void transposed_grouped_matmul_gives_the_twins_bits(void **state) {
    (void)state;
    check_all(check_transposed);
}

static void grouped_gemm_gives_the_twins_bits(void **state) {
    (void)state;
    check_all(check_gemm);
}

static void check_corner(const struct gemm_corner *corner, struct corner_run *run) {
    size_t bytes = run->args.out_count * expertd_dtype_size(run->args.out_dtype);
    copy_operand(&run->args.a);
    copy_operand(&run->args.b);
    run->args.c = copied(run->args.c, bytes);
    run->args.out = on_device(poisoned(bytes), bytes);
    must_succeed(expertd_device_grouped_gemm(operations, &run->args));
    corner_expect(corner, run, back(run->args.out), "a device");
    drop_pieces();
}

static void corner_cases_of_grouped_gemm_have_their_results(void **state) {
    (void)state;
    static struct corner_run run;
    for (size_t i = 0; i < COUNT_OF(CORNERS); i++) {
        corner_fill(&CORNERS[i], 3, &run);
        check_corner(&CORNERS[i], &run);
    }
    for (size_t i = 0; i < COUNT_OF(SCALED_CORNERS); i++) {
        corner_fill_scaled(&SCALED_CORNERS[i], 3, &run);
        check_corner(&SCALED_CORNERS[i].of, &run);
    }
}

static void rows_are_gathered_by_index(void **state) {
    (void)state;
    enum { K = 37, N = 70, M = 9, LHS_ROWS = 5 };
    struct random random = {51};
    float *lhs = test_alloc(LHS_ROWS * K * sizeof *lhs), *weights = test_alloc(2 * K * N * sizeof *weights);
    for (size_t i = 0; i < LHS_ROWS * K; i++) {
        lhs[i] = random_f32(&random, VALUES_PLAIN);
    }
    for (size_t i = 0; i < 2 * K * N; i++) {
        weights[i] = random_f32(&random, VALUES_PLAIN);
    }
    static const uint32_t ROWS[M] = {4, 0, 0, 3, 1, 2, 4, 4, 1};
    static const int32_t SIZES[2] = {3, 4}; // two rows belong to no group
    float expected[M * N];
    struct expertd_plain_weights rhs = {.dtype = EXPERTD_DTYPE_F32, .groups = 2, .k = K, .n = N, .data = weights};
    struct expertd_grouped_matmul_args args = {.lhs = lhs,
                                               .lhs_stride = K,
                                               .lhs_rows = ROWS,
                                               .rhs = expertd_rhs_plain(&rhs),
                                               .group_sizes = SIZES,
                                               .num_groups = 2,
                                               .num_actual_groups = 2,
                                               .m = M,
                                               .out = expected,
                                               .out_stride = N};
    must_succeed(expertd_grouped_matmul_reference(&args));
    rhs.data = on_device(weights, 2 * K * N * sizeof *weights);
    args.lhs = on_device(lhs, LHS_ROWS * K * sizeof *lhs);
    args.lhs_rows = copied(ROWS, sizeof ROWS);
    args.out = on_device(poisoned(sizeof expected), sizeof expected);
    must_succeed(expertd_device_grouped_matmul(operations, &args));
    assert_same_f32(back(args.out), expected, M * N, "gathered");
    drop_pieces();
}

static void refuse(err_t e, const char *field) {
    assert_int_equal(e.code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), field);
}

// Nothing is launched: the pointers are not device memory.
static void damaged_arguments_are_refused_on_the_host(void **state) {
    (void)state;
    static const int32_t NEGATIVE[2] = {3, -1}, MANY[2] = {3, 4};
    struct expertd_plain_weights rhs = {.dtype = EXPERTD_DTYPE_BF16, .groups = 2, .k = 8, .n = 8, .data = &devices};
    struct expertd_grouped_matmul_args gmm = {.lhs = &devices,
                                              .lhs_stride = 8,
                                              .rhs = expertd_rhs_plain(&rhs),
                                              .group_sizes = NEGATIVE,
                                              .num_groups = 2,
                                              .num_actual_groups = 2,
                                              .m = 6,
                                              .out = &devices,
                                              .out_stride = 8};
    refuse(expertd_device_grouped_matmul(operations, &gmm), "group_sizes");
    gmm.group_sizes = MANY;
    refuse(expertd_device_grouped_matmul(operations, &gmm), "group_sizes");
    struct expertd_packed_weights packed = {.dtype = EXPERTD_DTYPE_BF16, .groups = 2, .k = 8, .n = 8};
    gmm.rhs = expertd_rhs_packed(&packed);
    refuse(expertd_device_grouped_matmul(operations, &gmm), "rhs");
    struct expertd_transposed_grouped_matmul_args tgmm = {.lhs = &devices,
                                                          .rhs = &devices,
                                                          .lhs_dtype = EXPERTD_DTYPE_BF16,
                                                          .rhs_dtype = EXPERTD_DTYPE_BF16,
                                                          .k = 8,
                                                          .m = 6,
                                                          .n = 8,
                                                          .group_sizes = MANY,
                                                          .num_groups = 2,
                                                          .num_actual_groups = 2,
                                                          .out = &devices};
    refuse(expertd_device_transposed_grouped_matmul(operations, &tgmm), "group_sizes");
    struct expertd_gemm_operand operand = {
        .data = &devices, .dtype = EXPERTD_DTYPE_BF16, .count = 64, .first = {.same = 8}, .last = {.same = 8}};
    struct expertd_grouped_gemm_args gemm = {.num_groups = 2,
                                             .a = operand,
                                             .b = operand,
                                             .out_first = {.same = 8},
                                             .out_last = {.same = 8},
                                             .out = &devices,
                                             .out_dtype = EXPERTD_DTYPE_F32,
                                             .out_count = 128};
    refuse(expertd_device_grouped_gemm(operations, &gemm), "a"); // the buffer holds one group only
    gemm.num_groups = 65;
    refuse(expertd_device_grouped_gemm(operations, &gemm), "num_groups");
}

static void check_metadata(const struct expertd_group_metadata_args *args) {
    struct expertd_device_error error;
    size_t capacity = expertd_group_metadata_capacity(args->m, args->tm, args->num_groups);
    struct expertd_group_metadata expected = {test_alloc((args->num_groups + 1) * 4), test_alloc(capacity * 4 + 4),
                                              test_alloc(capacity * 4 + 4), 0};
    must_succeed(expertd_make_group_metadata(args, &expected));
    struct expertd_device_group_metadata device_args = {
        .sizes = copied(args->group_sizes, args->num_groups * 4),
        .groups = (uint32_t)args->num_groups,
        .rows = (uint32_t)args->m,
        .tile_rows = (uint32_t)args->tm,
        .first_group = (uint32_t)args->start_group,
        .local_groups = (uint32_t)args->num_local_groups,
        .visit_empty = args->visit_empty_groups,
        .offsets = on_device(poisoned((args->num_groups + 1) * 4), (args->num_groups + 1) * 4),
        .ids = on_device(poisoned(capacity * 4 + 4), capacity * 4 + 4),
        .tiles = on_device(poisoned(capacity * 4 + 4), capacity * 4 + 4),
        .tile_count = on_device(poisoned(4), 4)};
    device_must(pieces.table->group_metadata(pieces.device, &device_args, &error), &error);
    assert_memory_equal(back(device_args.offsets), expected.group_offsets, (args->num_groups + 1) * 4);
    assert_int_equal(*(int32_t *)back(device_args.tile_count), expected.num_tiles);
    const int32_t *ids = back(device_args.ids), *tiles = back(device_args.tiles);
    for (size_t i = 0; i <= capacity; i++) {
        assert_int_equal(ids[i], i < expected.num_tiles ? expected.group_ids[i] : -1); // entries past the last tile are not written
        assert_int_equal(tiles[i], i < expected.num_tiles ? expected.m_tile_ids[i] : -1);
    }
    drop_pieces();
    free(expected.group_offsets), free(expected.group_ids), free(expected.m_tile_ids);
}

static void group_metadata_equals_the_hosts(void **state) {
    (void)state;
    enum { GROUPS_MOST = 700 };
    struct random random = {52};
    static const size_t GROUPS[] = {0, 1, 3, 17, 255, 256, 257, GROUPS_MOST}, TILES[] = {1, 8, 64, 128};
    for (size_t i = 0; i < COUNT_OF(GROUPS) * COUNT_OF(TILES); i++) {
        int32_t sizes[GROUPS_MOST];
        struct expertd_group_metadata_args args = {.group_sizes = sizes,
                                                   .num_groups = GROUPS[i / COUNT_OF(TILES)],
                                                   .tm = TILES[i % COUNT_OF(TILES)],
                                                   .visit_empty_groups = random_below(&random, 2)};
        for (size_t g = 0; g < args.num_groups; g++) {
            sizes[g] = random_below(&random, 3) ? (int32_t)random_below(&random, 150) : 0;
            args.m += (size_t)sizes[g];
        }
        args.m += random_below(&random, 2) * random_below(&random, 90);
        args.start_group = random_below(&random, (uint32_t)args.num_groups + 1);
        args.num_local_groups = random_below(&random, (uint32_t)(args.num_groups - args.start_group) + 1);
        check_metadata(&args);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_matmul_gives_the_twins_bits), cmocka_unit_test(transposed_grouped_matmul_gives_the_twins_bits),
        cmocka_unit_test(grouped_gemm_gives_the_twins_bits),   cmocka_unit_test(corner_cases_of_grouped_gemm_have_their_results),
        cmocka_unit_test(rows_are_gathered_by_index),          cmocka_unit_test(damaged_arguments_are_refused_on_the_host),
        cmocka_unit_test(group_metadata_equals_the_hosts),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
