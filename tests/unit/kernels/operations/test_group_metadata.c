#include "golden_case.h"

#include "expertd/kernels/group_metadata.h"

struct metadata {
    struct expertd_group_metadata out;
    size_t capacity;
};

static struct metadata metadata_alloc(size_t m, size_t tm, size_t groups) {
    struct metadata metadata = {.capacity = tm ? expertd_group_metadata_capacity(m, tm, groups) : 0};
    metadata.out.group_offsets = test_alloc((groups + 1) * sizeof(int32_t));
    metadata.out.group_ids = test_alloc(metadata.capacity * sizeof(int32_t));
    metadata.out.m_tile_ids = test_alloc(metadata.capacity * sizeof(int32_t));
    return metadata;
}

static void metadata_free(struct metadata *metadata) {
    free(metadata->out.group_offsets);
    free(metadata->out.group_ids);
    free(metadata->out.m_tile_ids);
}

static struct expertd_group_metadata_args golden_args(const struct safetensors *file, const int32_t *sizes) {
    return (struct expertd_group_metadata_args){
        .group_sizes = sizes,
        .num_groups = golden_tensor(file, "group_sizes")->shape[0],
        .m = golden_size(file, "m"),
        .tm = golden_size(file, "tm"),
        .start_group = golden_size(file, "start_group"),
        .num_local_groups = golden_size(file, "num_nonzero_groups"),
        .visit_empty_groups = golden_flag(file, "visit_empty_groups"),
    };
}

static void assert_ints(const char *name, const int32_t *got, const struct expertd_tensor_view *want, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int32_t expected;
        memcpy(&expected, (const char *)want->data + i * sizeof expected, sizeof expected);
        if (got[i] != expected) {
            fail_msg("%s: [%zu] is %d, not %d", name, i, got[i], expected);
        }
    }
}

static int run_golden(const char *name, const struct safetensors *file) {
    int32_t *sizes = golden_copy(golden_tensor(file, "group_sizes"));
    struct expertd_group_metadata_args args = golden_args(file, sizes);
    struct metadata metadata = metadata_alloc(args.m, args.tm, args.num_groups);
    assert_false(err_is(expertd_make_group_metadata(&args, &metadata.out)));
    int32_t tiles = (int32_t)metadata.out.num_tiles;
    assert_ints(name, &tiles, golden_tensor(file, "num_tiles"), 1);
    assert_int_equal(metadata.capacity, golden_tensor(file, "group_ids")->shape[0]);
    assert_ints(name, metadata.out.group_offsets, golden_tensor(file, "group_offsets"), args.num_groups + 1);
    assert_ints(name, metadata.out.group_ids, golden_tensor(file, "group_ids"), metadata.out.num_tiles);
    assert_ints(name, metadata.out.m_tile_ids, golden_tensor(file, "m_tile_ids"), metadata.out.num_tiles);
    metadata_free(&metadata);
    free(sizes);
    return 1;
}

static void visits_are_those_of_the_goldens(void **state) {
    (void)state;
    assert_true(for_each_golden("metadata-", run_golden) >= 12);
}

static int run_error(const char *name, const struct safetensors *file) {
    int32_t *sizes = golden_copy(golden_tensor(file, "group_sizes"));
    struct expertd_group_metadata_args args = golden_args(file, sizes);
    struct metadata metadata = metadata_alloc(args.m, args.tm, args.num_groups);
    assert_int_equal(expertd_make_group_metadata(&args, &metadata.out).code, EXPERTD_ERR_INVALID);
    char want[128];
    snprintf(want, sizeof want, "INVALID_ARGUMENT:%s", expertd_err_field());
    assert_string_equal(golden_text(file, "error"), want);
    assert_non_null(name);
    metadata_free(&metadata);
    free(sizes);
    return 1;
}

static void errors_name_the_argument_of_the_goldens(void **state) {
    (void)state;
    assert_true(for_each_golden("error-metadata-", run_error) >= 1);
}

// The definition: does the group have a row in the tile?
static void check_random(struct random *random) {
    int32_t sizes[12];
    size_t groups = 1 + random_below(random, COUNT_OF(sizes)), m = 0;
    for (size_t g = 0; g < groups; g++) {
        sizes[g] = random_below(random, 3) ? (int32_t)random_below(random, 40) : 0;
        m += (size_t)sizes[g];
    }
    struct expertd_group_metadata_args args = {.group_sizes = sizes, .num_groups = groups};
    args.m = m + random_below(random, 20);
    args.tm = 1 + random_below(random, 17);
    args.start_group = random_below(random, (uint32_t)groups + 1);
    args.num_local_groups = random_below(random, (uint32_t)(groups - args.start_group) + 1);
    struct metadata metadata = metadata_alloc(args.m, args.tm, groups);
    assert_false(err_is(expertd_make_group_metadata(&args, &metadata.out)));
    size_t at = 0;
    for (size_t g = args.start_group; g < args.start_group + args.num_local_groups; g++) {
        for (size_t tile = 0; tile * args.tm < args.m; tile++) {
            size_t begin = (size_t)metadata.out.group_offsets[g], end = (size_t)metadata.out.group_offsets[g + 1];
            if (begin < end && begin < (tile + 1) * args.tm && end > tile * args.tm) {
                assert_true(at < metadata.out.num_tiles);
                assert_int_equal(metadata.out.group_ids[at], g);
                assert_int_equal(metadata.out.m_tile_ids[at], tile);
                at++;
            }
        }
    }
    assert_int_equal(at, metadata.out.num_tiles);
    metadata_free(&metadata);
}

static void every_tile_that_holds_a_row_is_visited_once_per_group(void **state) {
    (void)state;
    struct random random = {31};
    for (int i = 0; i < 3000; i++) {
        check_random(&random);
    }
}

static err_t try_args(struct expertd_group_metadata_args args) {
    struct metadata metadata = metadata_alloc(args.m < 100 ? args.m : 100, args.tm, args.num_groups);
    err_t e = expertd_make_group_metadata(&args, &metadata.out);
    metadata_free(&metadata);
    return e;
}

static void bad_arguments_are_refused_by_name(void **state) {
    (void)state;
    int32_t negative[] = {4, -1}, huge[] = {INT32_MAX, INT32_MAX, INT32_MAX}, fine[] = {1, 2};
    assert_int_equal(try_args((struct expertd_group_metadata_args){negative, 2, 8, 4, 0, 2, false}).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "group_sizes");
    assert_int_equal(try_args((struct expertd_group_metadata_args){huge, 3, 8, 4, 0, 3, false}).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "group_sizes");
    assert_int_equal(try_args((struct expertd_group_metadata_args){fine, 2, 8, 0, 0, 2, false}).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "tm");
    assert_int_equal(try_args((struct expertd_group_metadata_args){fine, 2, (size_t)INT32_MAX + 1, 4, 0, 2, false}).code,
                     EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "m");
    assert_int_equal(try_args((struct expertd_group_metadata_args){fine, 2, 8, 4, 3, 0, false}).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "start_group");
    assert_int_equal(try_args((struct expertd_group_metadata_args){fine, 2, 8, 4, 1, SIZE_MAX, false}).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "num_nonzero_groups");
}

static void arrays_that_are_missing_are_named(void **state) {
    (void)state;
    static const int32_t SIZES[] = {3, 5};
    int32_t offsets[3], ids[8], tiles[8];
    const struct expertd_group_metadata_args args = {SIZES, 2, 8, 4, 0, 2, false}, without = {NULL, 2, 8, 4, 0, 2, false};
    struct expertd_group_metadata out = {offsets, ids, tiles, 0};
    assert_false(err_is(expertd_make_group_metadata(&args, &out)));
    assert_int_equal(expertd_make_group_metadata(&without, &out).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "group_sizes");
    const struct {
        const char *name;
        struct expertd_group_metadata out;
    } MISSING[] = {{"group_offsets", {NULL, ids, tiles, 0}},
                   {"group_ids", {offsets, NULL, tiles, 0}},
                   {"m_tile_ids", {offsets, ids, NULL, 0}}};
    for (size_t i = 0; i < COUNT_OF(MISSING); i++) {
        out = MISSING[i].out;
        assert_int_equal(expertd_make_group_metadata(&args, &out).code, EXPERTD_ERR_INVALID);
        assert_string_equal(expertd_err_field(), MISSING[i].name);
    }
    const struct expertd_group_metadata_args too_many = {SIZES, SIZE_MAX, 8, 4, 0, 2, false};
    assert_int_equal(expertd_make_group_metadata(&too_many, &out).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "num_groups");
    assert_int_equal(expertd_group_metadata_capacity(16, 0, 4), 3); // and expertd_make_group_metadata refuses the tm
}

static void empty_input_is_legal(void **state) {
    (void)state;
    int32_t empty[] = {0, 0};
    assert_int_equal(expertd_group_metadata_capacity(0, 128, 0), 0);
    assert_false(err_is(try_args((struct expertd_group_metadata_args){NULL, 0, 0, 128, 0, 0, true})));
    assert_false(err_is(try_args((struct expertd_group_metadata_args){NULL, 0, 5, 128, 0, 0, true})));
    assert_false(err_is(try_args((struct expertd_group_metadata_args){empty, 2, 0, 128, 0, 2, true})));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(visits_are_those_of_the_goldens),
        cmocka_unit_test(errors_name_the_argument_of_the_goldens),
        cmocka_unit_test(every_tile_that_holds_a_row_is_visited_once_per_group),
        cmocka_unit_test(bad_arguments_are_refused_by_name),
        cmocka_unit_test(arrays_that_are_missing_are_named),
        cmocka_unit_test(empty_input_is_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
