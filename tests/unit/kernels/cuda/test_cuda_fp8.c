// FP8 by FP8 with block scales by wgmma on a simulated GPU, against the scalar twin, bit for bit: ragged groups, every remainder,
// codes of every value including NaN, poisoned outputs.
#include "device_pieces.h"

#include "tests/gpu/fp8_twin.h"

enum { GROUPS_MAX = 5, BLOCK = 128 };

struct shape {
    int32_t sizes[GROUPS_MAX];
    uint32_t groups, extra, n, k; // extra: rows past the last group
    enum values values;
};

static uint8_t *codes_of(size_t count, enum values values, struct random *random) {
    uint8_t *codes = test_alloc(count);
    for (size_t i = 0; i < count; i++) {
        uint8_t code = (uint8_t)random_next(random);
        bool nan = (code & 0x7f) == 0x7f, keep = values == VALUES_ANY && i % 97 == 0; // few NaN, so that most sums are finite
        codes[i] = nan && !keep ? code ^ 1 : code;
    }
    return codes;
}

static float *scales_of(size_t count, enum values values, struct random *random) {
    float *scales = test_alloc(count * sizeof *scales);
    for (size_t i = 0; i < count; i++) {
        scales[i] = random_f32(random, values);
    }
    return scales;
}

static size_t blocks(size_t size) {
    return (size + BLOCK - 1) / BLOCK;
}

static void check(const struct shape *s, struct random *random) {
    struct expertd_device_error error;
    size_t local = 0, a_scales, b_scales = s->groups * blocks(s->n) * blocks(s->k);
    for (uint32_t g = 0; g < s->groups; g++) {
        local += (size_t)s->sizes[g];
    }
    size_t rows = local + s->extra;
    a_scales = rows * blocks(s->k);
    uint8_t *a = codes_of(rows * s->k, s->values, random), *b = codes_of(s->groups * s->n * s->k, s->values, random);
    float *a_scale_values = scales_of(a_scales, s->values, random), *b_scale_values = scales_of(b_scales, s->values, random);
    int32_t *sizes = test_alloc(sizeof s->sizes);
    memcpy(sizes, s->sizes, sizeof s->sizes);
    uint16_t *expected = test_alloc(local * s->n * sizeof *expected + 1);
    fp8_twin(&(struct expertd_device_fp8_gemm){.a = a,
                                               .a_scales = a_scale_values,
                                               .b = b,
                                               .b_scales = b_scale_values,
                                               .sizes = sizes,
                                               .groups = s->groups,
                                               .n = s->n,
                                               .k = s->k},
             expected);
    size_t bytes = rows * s->n * sizeof *expected;
    struct expertd_device_fp8_gemm args = {.a = on_device(a, rows * s->k),
                                           .a_scales = on_device(a_scale_values, a_scales * sizeof *a_scale_values),
                                           .b = on_device(b, s->groups * s->n * s->k),
                                           .b_scales = on_device(b_scale_values, b_scales * sizeof *b_scale_values),
                                           .d = on_device(poisoned(bytes), bytes),
                                           .sizes = on_device(sizes, sizeof s->sizes),
                                           .rows = (uint32_t)rows,
                                           .groups = s->groups,
                                           .n = s->n,
                                           .k = s->k};
    device_must(pieces.table->fp8_gemm(pieces.device, &args, &error), &error);
    const uint16_t *got = back(args.d);
    for (size_t i = 0; i < rows * s->n; i++) {
        float x = expertd_f32_from_bf16(got[i]), y = i < local * s->n ? expertd_f32_from_bf16(expected[i]) : 0;
        if (i >= local * s->n) {
            assert_int_equal(got[i], 0xffff); // rows of no group are not written
        } else if (got[i] != expected[i] && !(isnan(x) && isnan(y))) {
            fail_msg("row %zu, column %zu is %a, not %a", i / s->n, i % s->n, (double)x, (double)y);
        }
    }
    free(expected);
    drop_pieces();
}

static void block_scaled_operands_give_the_twins_bits(void **state) {
    (void)state;
    struct random random = {61};
    static const struct shape SHAPES[] = {
        {{128}, 1, 0, 128, 128, VALUES_PLAIN},       {{1, 0, 130, 0, 3}, 5, 7, 136, 272, VALUES_PLAIN},
        {{65, 64, 63}, 3, 0, 264, 16, VALUES_PLAIN}, {{9, 0, 2}, 3, 1, 8, 1040, VALUES_ANY},
        {{0, 0}, 2, 3, 16, 32, VALUES_PLAIN},        {{200}, 1, 0, 120, 384, VALUES_LARGE},
    };
    for (size_t i = 0; i < COUNT_OF(SHAPES); i++) {
        check(&SHAPES[i], &random);
    }
}

static void shapes_that_the_copy_engine_does_not_support_are_refused(void **state) {
    (void)state;
    struct expertd_device_error error;
    void *memory = on_device(poisoned(4096), 4096);
    struct expertd_device_fp8_gemm args = {.a = memory,
                                           .a_scales = memory,
                                           .b = memory,
                                           .b_scales = memory,
                                           .d = memory,
                                           .sizes = memory,
                                           .rows = 8,
                                           .groups = 1,
                                           .n = 8,
                                           .k = 16};
    struct expertd_device_fp8_gemm odd = args;
    odd.n = 9;
    assert_int_equal(pieces.table->fp8_gemm(pieces.device, &odd, &error), EXPERTD_DEVICE_FAILED);
    odd = args, odd.k = 24;
    assert_int_equal(pieces.table->fp8_gemm(pieces.device, &odd, &error), EXPERTD_DEVICE_FAILED);
    odd = args, odd.groups = 513;
    assert_int_equal(pieces.table->fp8_gemm(pieces.device, &odd, &error), EXPERTD_DEVICE_FAILED);
    odd = args, odd.a = (char *)memory + 8;
    assert_int_equal(pieces.table->fp8_gemm(pieces.device, &odd, &error), EXPERTD_DEVICE_FAILED);
    drop_pieces();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_scaled_operands_give_the_twins_bits),
        cmocka_unit_test(shapes_that_the_copy_engine_does_not_support_are_refused),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
