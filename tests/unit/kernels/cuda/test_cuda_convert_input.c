// Converting callers' rows to the compute dtype on a simulated GPU: the CPU's bits, with poisoned outputs.
#include "device_pieces.h"

#include "kernels/rows/convert.h"

enum { SCALE_COLUMNS = 128 };
enum scales { SCALES_NONE, SCALES_ONE, SCALES_ROWS, SCALES_BLOCKS };

static float scale_at(const float *scales, enum scales kind, size_t row, size_t column, size_t blocks) {
    return kind == SCALES_ONE ? scales[0] : kind == SCALES_ROWS ? scales[row] : scales[row * blocks + column / SCALE_COLUMNS];
}

static void twin_row(enum expertd_dtype from, enum expertd_dtype to, const char *row, size_t width, const float *row_scales,
                     char *out) {
    if (from == to) {
        memcpy(out, row, width * expertd_dtype_size(to));
        return;
    }
    float *wide = test_alloc(width * sizeof *wide);
    convert_widen(from, row, width, wide);
    for (size_t i = 0; row_scales && i < width; i++) {
        wide[i] *= row_scales[i];
    }
    convert_narrow(wide, width, to, out);
    free(wide);
}

// Rows with every 8-bit and 16-bit code, or with fp32 values of all kinds.
static char *raw_rows(enum expertd_dtype dtype, size_t count) {
    struct random random = {0x2545f4914f6cdd1du};
    char *out = test_alloc(count * expertd_dtype_size(dtype));
    for (size_t i = 0; i < count; i++) {
        uint16_t code = (uint16_t)i;
        float value = random_f32(&random, VALUES_ANY);
        if (dtype == EXPERTD_DTYPE_F32) {
            memcpy(out + i * sizeof value, &value, sizeof value);
        } else {
            memcpy(out + i * expertd_dtype_size(dtype), &code, expertd_dtype_size(dtype));
        }
    }
    return out;
}

static void check(enum expertd_dtype from, enum expertd_dtype to, size_t rows, size_t width, enum scales kind) {
    struct expertd_device_error error;
    struct random random = {0x9e3779b97f4a7c15u};
    size_t blocks = (width + SCALE_COLUMNS - 1) / SCALE_COLUMNS, stride = width * expertd_dtype_size(to) + 64;
    char *raw = raw_rows(from, rows * width), *out = poisoned(rows * stride);
    float *scales = test_alloc(rows * blocks * sizeof *scales);
    for (size_t i = 0; i < rows * blocks; i++) {
        scales[i] = random_f32(&random, VALUES_PLAIN);
    }
    const float *device_scales = on_device(scales, rows * blocks * sizeof *scales);
    struct expertd_device_convert_input args = {
        .from = from,
        .to = to,
        .rows = (uint32_t)rows,
        .width = (uint32_t)width,
        .data = on_device(raw, rows * width * expertd_dtype_size(from)),
        .scales = kind == SCALES_NONE ? NULL : device_scales,
        .scale_columns = kind == SCALES_ROWS     ? 1
                         : kind == SCALES_BLOCKS ? (uint32_t)blocks
                                                 : 0,
        .out = on_device(out, rows * stride),
        .stride = stride,
    };
    device_must(pieces.table->convert_input(pieces.device, &args, &error), &error);
    back(args.out);
    float *row_scales = test_alloc(width * sizeof *row_scales);
    char *expected = test_alloc(width * expertd_dtype_size(to));
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; kind != SCALES_NONE && i < width; i++) {
            row_scales[i] = scale_at(scales, kind, row, i, blocks);
        }
        twin_row(from, to, raw + row * width * expertd_dtype_size(from), width, kind == SCALES_NONE ? NULL : row_scales, expected);
        assert_memory_equal(out + row * stride, expected, width * expertd_dtype_size(to));
        for (size_t i = width * expertd_dtype_size(to); i < stride; i++) { // nothing is written between rows
            assert_int_equal((unsigned char)out[row * stride + i], 0xff);
        }
    }
    free(row_scales);
    free(expected);
    drop_pieces();
}

static void every_element_has_the_cpus_bits(void **state) {
    (void)state;
    static const enum expertd_dtype FROM[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_F16, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F8_E4M3,
                                              EXPERTD_DTYPE_F8_E5M2};
    for (size_t i = 0; i < COUNT_OF(FROM); i++) {
        check(FROM[i], EXPERTD_DTYPE_BF16, 256, 256, SCALES_NONE);
        check(FROM[i], EXPERTD_DTYPE_F32, 256, 256, SCALES_NONE);
        check(FROM[i], EXPERTD_DTYPE_BF16, 3, 37, SCALES_NONE);
        check(FROM[i], EXPERTD_DTYPE_F32, 1, 1, SCALES_NONE);
    }
}

static void scales_multiply_their_elements(void **state) {
    (void)state;
    for (enum scales kind = SCALES_ONE; kind <= SCALES_BLOCKS; kind++) {
        for (size_t width = 127; width < 260; width += 65) { // one scale, two scales, and a remainder of a third
            check(EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_BF16, 5, width, kind);
            check(EXPERTD_DTYPE_F8_E5M2, EXPERTD_DTYPE_F32, 5, width, kind);
        }
    }
}

static void no_rows_need_no_launch(void **state) {
    (void)state;
    struct expertd_device_error error;
    struct expertd_device_convert_input none = {.from = EXPERTD_DTYPE_F32, .to = EXPERTD_DTYPE_BF16, .width = 8};
    uint64_t launches = pieces.table->calls("cudaLaunchKernel");
    device_must(pieces.table->convert_input(pieces.device, &none, &error), &error);
    assert_int_equal(pieces.table->calls("cudaLaunchKernel"), launches);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_has_the_cpus_bits),
        cmocka_unit_test(scales_multiply_their_elements),
        cmocka_unit_test(no_rows_need_no_launch),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
