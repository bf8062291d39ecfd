// Every variant of the plain product on a simulated GPU in bf16 and f16, over all remainders of its tiles: the scalar twin's bits,
// with poisoned outputs, and operands next to pages that fault.
#include "tests/unit/kernels/guarded.h"
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/cpu/common/tensor_core.h"
#include "kernels/cuda/sim/runtime.h"
#include "kernels/device/device_plan.h"

extern const struct expertd_device_table expertd_device_table;

static const struct expertd_device_table *const table = &expertd_device_table;
static struct expertd_device *device;

enum { GROUPS_MAX = 600, POISON = 0xff };

struct product {
    enum expertd_dtype dtype;
    enum expertd_device_variant variant;
    uint32_t groups, n, k;
    int32_t sizes[GROUPS_MAX];
    bool gather;
    enum values values;
};

// Kernels on the simulated GPU can read host memory directly.
enum { ROWS, WEIGHTS, OUT, INDEX, TILES, PIECES };

struct arrays {
    struct guarded pieces[PIECES];
    size_t stride, out_stride;
    uint32_t rows, lhs_rows, tiles;
};

static float widen(enum expertd_dtype dtype, uint16_t value) {
    return dtype == EXPERTD_DTYPE_F16 ? expertd_f32_from_f16(value) : expertd_f32_from_bf16(value);
}

static float dot(enum expertd_dtype dtype, const uint16_t *x, const uint16_t *w, size_t k) {
    return tensor_core_dot(dtype == EXPERTD_DTYPE_F16 ? &TENSOR_CORE_SM90_F16 : &TENSOR_CORE_SM90_BF16, dtype, x, w, k);
}

static void fill(const struct guarded *piece, size_t bytes, enum expertd_dtype dtype, struct random *random, enum values values) {
    for (size_t i = 0; i < bytes / 2; i++) {
        float value = random_f32(random, values);
        expertd_dtype_narrow(&value, 1, dtype, (char *)piece->data + i * 2);
    }
}

static void arrays_init(struct arrays *a, const struct product *p, int at_end) {
    struct random random = {0x9e3779b97f4a7c15u + p->n + p->k};
    *a = (struct arrays){.stride = (p->k * 2 + 15) / 16 * 16, .out_stride = (p->n * 2 + 15) / 16 * 16};
    for (uint32_t g = 0; g < p->groups; g++) {
        a->rows += (uint32_t)p->sizes[g];
    }
    a->lhs_rows = p->gather ? 7 : a->rows;
    size_t most_tiles = a->rows / device_variant_rows(p->variant) + p->groups;
    size_t bytes[PIECES] = {[ROWS] = a->lhs_rows * a->stride,
                            [WEIGHTS] = (size_t)p->groups * p->n * p->k * 2,
                            [OUT] = a->rows * a->out_stride,
                            [INDEX] = a->rows * sizeof(uint32_t),
                            [TILES] = most_tiles * sizeof(struct expertd_device_tile)};
    for (int i = 0; i < PIECES; i++) {
        a->pieces[i] = guarded_take((bytes[i] + 15) / 16 * 16, at_end);
    }
    fill(&a->pieces[ROWS], bytes[ROWS], p->dtype, &random, p->values);
    fill(&a->pieces[WEIGHTS], bytes[WEIGHTS], p->dtype, &random, p->values);
    memset(a->pieces[OUT].data, POISON, bytes[OUT]);
    for (uint32_t r = 0; r < a->rows; r++) {
        ((uint32_t *)a->pieces[INDEX].data)[r] = p->gather ? random_below(&random, a->lhs_rows) : r;
    }
    a->tiles = device_cut_tiles(p->sizes, p->groups, 0, device_variant_rows(p->variant), a->pieces[TILES].data);
}

static void arrays_deinit(struct arrays *a) {
    for (int i = 0; i < PIECES; i++) {
        guarded_free(&a->pieces[i]);
    }
}

static void check_row(const struct product *p, const struct arrays *a, uint32_t row, uint32_t group) {
    uint32_t from = ((const uint32_t *)a->pieces[INDEX].data)[row];
    const uint16_t *x = (const uint16_t *)(const void *)((const char *)a->pieces[ROWS].data + from * a->stride);
    const uint16_t *w = (const uint16_t *)a->pieces[WEIGHTS].data + (size_t)group * p->n * p->k;
    const char *out = (const char *)a->pieces[OUT].data + row * a->out_stride;
    for (uint32_t c = 0; c < p->n; c++) {
        uint16_t got, narrowed;
        float expected = dot(p->dtype, x, w + (size_t)c * p->k, p->k);
        memcpy(&got, out + c * 2, sizeof got);
        expertd_dtype_narrow(&expected, 1, p->dtype, &narrowed);
        if (!same_f32(widen(p->dtype, got), widen(p->dtype, narrowed))) {
            fail_msg("%s %s, n %u, k %u: row %u of group %u, column %u: %a, not %a", expertd_dtype_name(p->dtype),
                     device_variant_name(p->variant), p->n, p->k, row, group, c, (double)widen(p->dtype, got),
                     (double)widen(p->dtype, narrowed));
        }
    }
    for (size_t i = p->n * 2; i < a->out_stride; i++) {
        assert_int_equal((unsigned char)out[i], POISON);
    }
}

static void check(const struct product *p, int at_end) {
    struct arrays a;
    struct expertd_device_error error;
    arrays_init(&a, p, at_end);
    struct expertd_device_grouped_gemm gemm = {
        .rows = {.dtype = p->dtype,
                 .data = a.pieces[ROWS].data,
                 .stride = a.stride,
                 .index = p->gather ? a.pieces[INDEX].data : NULL,
                 .variant = p->variant,
                 .tiles = a.pieces[TILES].data,
                 .tile_count = a.tiles,
                 .rows = a.rows},
        .b = {.dtype = p->dtype, .groups = p->groups, .n = p->n, .k = p->k, .data = a.pieces[WEIGHTS].data},
        .out = a.pieces[OUT].data,
        .out_stride = a.out_stride,
    };
    if (table->grouped_gemm(device, &gemm, &error) != EXPERTD_DEVICE_OK || table->wait(device, &error) != EXPERTD_DEVICE_OK) {
        fail_msg("%s, n %u, k %u: %s", device_variant_name(p->variant), p->n, p->k, error.message);
    }
    uint32_t row = 0;
    for (uint32_t g = 0; g < p->groups; g++) {
        for (int32_t r = 0; r < p->sizes[g]; r++, row++) {
            check_row(p, &a, row, g);
        }
    }
    arrays_deinit(&a);
}

static bool supports(enum expertd_device_variant variant, uint32_t k) {
    return variant < EXPERTD_DEVICE_WGMMA_8 || k % 8 == 0;
}

#define EACH(variant)                                                                                                              \
    for (enum expertd_device_variant variant = EXPERTD_DEVICE_MMA_16; variant <= EXPERTD_DEVICE_WGMMA_128; variant++)

static void every_remainder_of_rows_columns_and_k_gives_the_twins_bits(void **state) {
    (void)state;
    static const uint32_t KS[] = {8, 64, 72, 33, 328}, NS[] = {1, 8, 64, 72, 136, 260};
    EACH(variant) {
        int32_t tile = (int32_t)device_variant_rows(variant);
        for (size_t i = 0; i < COUNT_OF(KS) * COUNT_OF(NS); i++) {
            struct product p = {.dtype = i % 3 == 2 ? EXPERTD_DTYPE_F16 : EXPERTD_DTYPE_BF16,
                                .variant = variant,
                                .groups = 4,
                                .n = NS[i % COUNT_OF(NS)],
                                .k = KS[i / COUNT_OF(NS)],
                                .gather = i % 2};
            int32_t sizes[][4] = {{1, 0, tile - 1, 1}, {0, tile + 1, 0, 3}, {0, 0, 0, tile}, {tile / 2, 5, 0, 0}};
            memcpy(p.sizes, sizes[(i + i / COUNT_OF(NS)) % 4], sizeof sizes[0]);
            if (supports(variant, p.k) && takes_case()) {
                check(&p, (int)(i / 2 % 2));
            }
        }
    }
}

static void delicate_values_give_the_twins_bits(void **state) {
    (void)state;
    EACH(variant) {
        for (enum values values = VALUES_FLUSH; values < VALUES_COUNT; values++) {
            struct product p = {
                .dtype = values % 2 ? EXPERTD_DTYPE_F16 : EXPERTD_DTYPE_BF16, .variant = variant, .groups = 2, .n = 72, .k = 72};
            p.sizes[0] = 3, p.sizes[1] = 9;
            p.values = values;
            if (takes_case()) {
                check(&p, 1);
            }
        }
    }
}

// More groups than a table in shared memory could hold, and spans of several tiles.
static void many_groups_and_long_groups_give_the_twins_bits(void **state) {
    (void)state;
    EACH(variant) {
        struct product many = {.dtype = EXPERTD_DTYPE_BF16, .variant = variant, .groups = GROUPS_MAX, .n = 8, .k = 8};
        for (uint32_t g = 0; g < GROUPS_MAX; g++) {
            many.sizes[g] = g % 3 == 0;
        }
        check(&many, 1);
        struct product long_group = {.dtype = EXPERTD_DTYPE_BF16, .variant = variant, .groups = 2, .n = 264, .k = 8};
        long_group.sizes[0] = (int32_t)device_variant_rows(variant) * (DEVICE_SPAN_TILES + 1) + 1;
        long_group.sizes[1] = 1;
        check(&long_group, 0);
    }
}

static void empty_groups_write_nothing(void **state) {
    (void)state;
    EACH(variant) {
        struct product none = {.dtype = EXPERTD_DTYPE_BF16, .variant = variant, .groups = 3, .n = 64, .k = 64};
        check(&none, 1);
    }
}

// The tile list may be longer than tile_count: a batch may use only its beginning.
static void a_shortened_tile_list_is_respected(void **state) {
    (void)state;
    EACH(variant) {
        struct product p = {.dtype = EXPERTD_DTYPE_BF16, .variant = variant, .groups = 1, .n = 136, .k = 64};
        struct arrays a;
        struct expertd_device_error error;
        uint32_t tile = device_variant_rows(variant), used = tile + 1; // the first of four tiles and one row of the second
        p.sizes[0] = (int32_t)tile * 4;
        arrays_init(&a, &p, 1);
        struct expertd_device_grouped_gemm gemm = {
            .rows = {.dtype = EXPERTD_DTYPE_BF16,
                     .data = a.pieces[ROWS].data,
                     .stride = a.stride,
                     .variant = variant,
                     .tiles = a.pieces[TILES].data,
                     .tile_count = 2,
                     .rows = used},
            .b = {.dtype = EXPERTD_DTYPE_BF16, .groups = 1, .n = p.n, .k = p.k, .data = a.pieces[WEIGHTS].data},
            .out = a.pieces[OUT].data,
            .out_stride = a.out_stride};
        assert_int_equal(table->grouped_gemm(device, &gemm, &error), EXPERTD_DEVICE_OK);
        assert_int_equal(table->wait(device, &error), EXPERTD_DEVICE_OK);
        for (uint32_t row = 0; row < used; row++) {
            check_row(&p, &a, row, 0);
        }
        for (size_t i = used * a.out_stride; i < tile * 4 * a.out_stride; i++) {
            assert_int_equal(((unsigned char *)a.pieces[OUT].data)[i], POISON);
        }
        arrays_deinit(&a);
    }
}

static void shapes_that_the_copy_engine_does_not_support_are_refused(void **state) {
    (void)state;
    for (enum expertd_device_variant variant = EXPERTD_DEVICE_WGMMA_8; variant <= EXPERTD_DEVICE_WGMMA_128; variant++) {
        struct product p = {.dtype = EXPERTD_DTYPE_BF16, .variant = variant, .groups = 1, .n = 8, .k = 60};
        struct arrays a;
        struct expertd_device_error error;
        p.sizes[0] = 4;
        arrays_init(&a, &p, 1);
        struct expertd_device_grouped_gemm gemm = {
            .rows =
                {.dtype = EXPERTD_DTYPE_BF16, .data = a.pieces[ROWS].data, .stride = a.stride, .variant = variant, .tile_count = 1},
            .b = {.dtype = EXPERTD_DTYPE_BF16, .groups = 1, .n = p.n, .k = p.k, .data = a.pieces[WEIGHTS].data}};
        assert_int_equal(table->grouped_gemm(device, &gemm, &error), EXPERTD_DEVICE_FAILED);
        arrays_deinit(&a);
    }
}

static int open_device(void **state) {
    (void)state;
    struct expertd_device_error error;
    return table->open(0, &device, &error) == EXPERTD_DEVICE_OK ? 0 : -1;
}

static int close_device(void **state) {
    (void)state;
    table->close(device);
    return sim_allocations() == 0 ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_remainder_of_rows_columns_and_k_gives_the_twins_bits),
        cmocka_unit_test(delicate_values_give_the_twins_bits),
        cmocka_unit_test(many_groups_and_long_groups_give_the_twins_bits),
        cmocka_unit_test(empty_groups_write_nothing),
        cmocka_unit_test(a_shortened_tile_list_is_respected),
        cmocka_unit_test(shapes_that_the_copy_engine_does_not_support_are_refused),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
