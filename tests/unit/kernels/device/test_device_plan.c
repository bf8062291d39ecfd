// Planning a batch's products on a device: cutting tiles that contain every row once, and choosing the variant from a layer's shape
// and its groups' rows.
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/device/device_plan.h"

enum { TILES_MAX = 400 };

enum { SIXTEEN_BITS = (1 << EXPERTD_DEVICE_VARIANTS) - (1 << EXPERTD_DEVICE_MMA_16) }; // the variants of mma.sync and wgmma

static const struct expertd_device_variants ALL = {.has = SIXTEEN_BITS, .equal = SIXTEEN_BITS, .alone = EXPERTD_DEVICE_WGMMA_128};

static void must_succeed(err_t e) {
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
}

static void tiles_hold_every_row_once_and_know_their_span(void **state) {
    (void)state;
    static const int32_t SIZES[] = {0, 1, 64, 65, 0, 2100, 7};
    static struct expertd_device_tile tiles[TILES_MAX];
    for (uint32_t tile_rows = DEVICE_TILE_ROWS_LEAST; tile_rows <= DEVICE_TILE_ROWS_MOST; tile_rows *= 2) {
        uint32_t count = device_cut_tiles(SIZES, COUNT_OF(SIZES), 5, tile_rows, tiles), at = 0, row = 5;
        for (uint32_t g = 0; g < COUNT_OF(SIZES); g++) {
            uint32_t first = at;
            for (uint32_t end = row + (uint32_t)SIZES[g]; row < end; at++) {
                assert_int_equal(tiles[at].group, g);
                assert_int_equal(tiles[at].row, row);
                assert_true(tiles[at].rows == tile_rows || row + tiles[at].rows == end);
                row += tiles[at].rows;
                assert_in_range(tiles[at].span_tiles, 1, DEVICE_SPAN_TILES);
                assert_in_range(at, tiles[at].span, tiles[at].span + tiles[at].span_tiles - 1);
                assert_int_equal((tiles[at].span - first) % DEVICE_SPAN_TILES, 0);
                assert_int_equal(tiles[tiles[at].span].group, g);
                assert_int_equal(tiles[tiles[at].span + tiles[at].span_tiles - 1].group, g);
            }
        }
        assert_int_equal(at, count);
    }
}

static void variant_names_are_parsed(void **state) {
    (void)state;
    for (int v = 0; v < EXPERTD_DEVICE_VARIANTS; v++) {
        enum expertd_device_variant read;
        must_succeed(device_variant_parse(device_variant_name((enum expertd_device_variant)v), &read));
        assert_int_equal(read, v);
        assert_in_range(device_variant_rows(read), DEVICE_TILE_ROWS_LEAST, DEVICE_TILE_ROWS_MOST);
    }
    enum expertd_device_variant read;
    assert_int_equal(device_variant_parse("wgmma_256", &read).code, EXPERTD_ERR_CONFIG);
}

static enum expertd_device_variant chosen(const struct expertd_device_variants *variants, int32_t rows, size_t groups) {
    int32_t sizes[64];
    for (size_t g = 0; g < groups; g++) {
        sizes[g] = rows;
    }
    return device_variant_for(variants, sizes, groups);
}

static void groups_that_fit_one_tile_are_read_once(void **state) {
    (void)state;
    struct expertd_device_variants layer;
    must_succeed(device_variants_of(&ALL, &(struct device_network_shape){.hidden = 2048, .width = 768}, EXPERTD_DTYPE_BF16,
                                    EXPERTD_DEVICE_VARIANTS, &layer));
    assert_int_equal(chosen(&layer, 1, 64), EXPERTD_DEVICE_WGMMA_8);
    assert_int_equal(chosen(&layer, 9, 64), EXPERTD_DEVICE_WGMMA_16);
    assert_int_equal(chosen(&layer, 60, 64), EXPERTD_DEVICE_WGMMA_64);
    assert_int_equal(chosen(&layer, 65, 64), EXPERTD_DEVICE_WGMMA_128);
    assert_int_equal(chosen(&layer, 5000, 3), EXPERTD_DEVICE_WGMMA_128);
    static const int32_t HOT[] = {1, 1, 1, 1, 1, 1, 1, 2000}; // one group has most rows
    assert_int_equal(device_variant_for(&layer, HOT, COUNT_OF(HOT)), EXPERTD_DEVICE_WGMMA_128);
    assert_int_equal(chosen(&layer, 0, 4), layer.alone); // nothing to compute
}

static void variants_not_known_to_be_equal_are_not_mixed(void **state) {
    (void)state;
    struct expertd_device_variants layer, unknown = {.has = ALL.has, .equal = 0, .alone = EXPERTD_DEVICE_WGMMA_128};
    for (int32_t rows = 1; rows < 4000; rows *= 3) {
        must_succeed(device_variants_of(&unknown, &(struct device_network_shape){.hidden = 512, .width = 512}, EXPERTD_DTYPE_BF16,
                                        EXPERTD_DEVICE_VARIANTS, &layer));
        assert_int_equal(chosen(&layer, rows, 5), EXPERTD_DEVICE_WGMMA_128);
        must_succeed(device_variants_of(&ALL, &(struct device_network_shape){.hidden = 512, .width = 512}, EXPERTD_DTYPE_BF16,
                                        EXPERTD_DEVICE_MMA_32, &layer));
        assert_int_equal(chosen(&layer, rows, 5), EXPERTD_DEVICE_MMA_32);
    }
}

static const struct expertd_quantised_format
    MXFP4 = {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, false, 32},
    ODD = {EXPERTD_CODE_INT8, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 272};

static void shapes_that_wgmma_does_not_support_go_to_mma(void **state) {
    (void)state;
    struct expertd_device_variants layer;
    static const struct device_network_shape SHAPES[] = {{510, 512, NULL, NULL, false},   {512, 9, NULL, NULL, false},
                                                         {512, 512, &ODD, &MXFP4, false}, {512, 512, &MXFP4, &ODD, false},
                                                         {512, 32, &MXFP4, NULL, false},  {32, 512, NULL, &MXFP4, false},
                                                         {512, 512, &MXFP4, &MXFP4, true}};
    for (size_t i = 0; i < COUNT_OF(SHAPES); i++) {
        must_succeed(device_variants_of(&ALL, &SHAPES[i], EXPERTD_DTYPE_BF16, EXPERTD_DEVICE_VARIANTS, &layer));
        for (int32_t rows = 1; rows < 4000; rows *= 3) {
            enum expertd_device_variant v = chosen(&layer, rows, 4);
            assert_in_range(v, EXPERTD_DEVICE_MMA_16, EXPERTD_DEVICE_MMA_64);
        }
        assert_int_equal(layer.alone, EXPERTD_DEVICE_MMA_64);
    }
    assert_int_equal(layer.has, 1u << EXPERTD_DEVICE_MMA_16 | 1u << EXPERTD_DEVICE_MMA_64); // the variants of quantised weights
    must_succeed(device_variants_of(&ALL, &SHAPES[2], EXPERTD_DTYPE_BF16, EXPERTD_DEVICE_MMA_16, &layer));
    assert_int_equal(chosen(&layer, 4000, 4), EXPERTD_DEVICE_MMA_16);
    must_succeed(device_variants_of(&ALL, &SHAPES[2], EXPERTD_DTYPE_BF16, EXPERTD_DEVICE_WGMMA_128,
                                    &layer)); // does not apply to quantised weights
    assert_int_equal(layer.has, 1u << EXPERTD_DEVICE_MMA_16 | 1u << EXPERTD_DEVICE_MMA_64);
    assert_int_equal(device_variants_of(&ALL, &SHAPES[0], EXPERTD_DTYPE_BF16, EXPERTD_DEVICE_WGMMA_64, &layer).code,
                     EXPERTD_ERR_CONFIG);
    assert_non_null(strstr(expertd_err_message(), "multiples of 8"));
    must_succeed(device_variants_of(&ALL, &SHAPES[0], EXPERTD_DTYPE_F32, EXPERTD_DEVICE_WGMMA_64,
                                    &layer)); // does not apply to layers in f32
    assert_true(layer.equal != 0);
}

static void quantised_weights_go_to_wgmma_for_large_m(void **state) {
    (void)state;
    struct expertd_device_variants layer, none = {.has = 1u << EXPERTD_DEVICE_MMA_64, .equal = 0, .alone = EXPERTD_DEVICE_MMA_64};
    static const struct device_network_shape BOTH = {512, 192, &MXFP4, &MXFP4, false}, ONE = {512, 192, &MXFP4, NULL, false};
    must_succeed(device_variants_of(&ALL, &BOTH, EXPERTD_DTYPE_BF16, EXPERTD_DEVICE_VARIANTS, &layer));
    assert_int_equal(layer.has, 1u << EXPERTD_DEVICE_MMA_16 | 1u << EXPERTD_DEVICE_MMA_64 | 1u << EXPERTD_DEVICE_WGMMA_64 |
                                    1u << EXPERTD_DEVICE_WGMMA_128);
    assert_int_equal(chosen(&layer, 1, 64), EXPERTD_DEVICE_MMA_16);
    assert_int_equal(chosen(&layer, 16, 64), EXPERTD_DEVICE_MMA_16);
    assert_int_equal(chosen(&layer, 512, 16), EXPERTD_DEVICE_WGMMA_128);
    must_succeed(device_variants_of(&ALL, &ONE, EXPERTD_DTYPE_BF16, EXPERTD_DEVICE_WGMMA_128, &layer)); // down is not quantised
    assert_int_equal(chosen(&layer, 1, 4), EXPERTD_DEVICE_WGMMA_128);
    must_succeed(device_variants_of(&ALL, &BOTH, EXPERTD_DTYPE_BF16, EXPERTD_DEVICE_WGMMA_32,
                                    &layer)); // does not apply to quantised weights
    assert_int_equal(chosen(&layer, 1, 4), EXPERTD_DEVICE_MMA_16);
    must_succeed(device_variants_of(&none, &BOTH, EXPERTD_DTYPE_BF16, EXPERTD_DEVICE_VARIANTS, &layer));
    assert_int_equal(chosen(&layer, 512, 16), EXPERTD_DEVICE_MMA_64);
    must_succeed(device_variants_of(&ALL, &BOTH, EXPERTD_DTYPE_F32, EXPERTD_DEVICE_WGMMA_128, &layer));
    assert_int_equal(layer.has, 1u << EXPERTD_DEVICE_FMA_64);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_hold_every_row_once_and_know_their_span),
        cmocka_unit_test(variant_names_are_parsed),
        cmocka_unit_test(groups_that_fit_one_tile_are_read_once),
        cmocka_unit_test(variants_not_known_to_be_equal_are_not_mixed),
        cmocka_unit_test(shapes_that_wgmma_does_not_support_go_to_mma),
        cmocka_unit_test(quantised_weights_go_to_wgmma_for_large_m),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
