// Products with quantised weights on a simulated GPU against the scalar twins, bit for bit, with poisoned outputs: every format and
// tile size, remainders in every dimension, every value of codes and scales.
#include "device_pieces.h"
#include "tests/unit/kernels/quantised_case.h"

#include "kernels/device/device_codes.h"
#include "kernels/device/device_plan.h"

enum { GROUPS = 3, SUMS_MAX = 300 };

struct shape {
    const struct expertd_quantised_format *format;
    enum expertd_dtype dtype;
    enum expertd_device_variant variant;
    int32_t sizes[GROUPS];
    size_t n, k;
    bool gather, ordered;
    enum values values;
    bool every_scale; // one-byte scales, one along K: the scale of column i has code i
};

struct operand {
    struct quantised_case group[GROUPS];
    struct expertd_device_matrix matrix;
};

static struct operand operand_of(const struct shape *s, const uint32_t *order, struct random *random) {
    struct operand o;
    const struct expertd_quantised_format held = device_codes_format(s->format);
    struct device_codes_size bytes = device_codes_bytes(&held, s->n, s->k);
    char *codes = test_alloc(GROUPS * bytes.codes), *scales = test_alloc(GROUPS * bytes.scales);
    char *zeros = test_alloc(GROUPS * bytes.zeros + 1);
    float *globals = test_alloc(GROUPS * sizeof *globals);
    for (size_t g = 0; g < GROUPS; g++) {
        quantised_case_init(&o.group[g], s->format, s->k, s->n, s->values, random);
        for (size_t i = 0; s->every_scale && i < s->n; i++) {
            o.group[g].scale_bytes[i] = (uint8_t)i;
        }
        assert_false(err_is(expertd_pack_quantised(&o.group[g].source, s->format, s->k, s->n, o.group[g].packed)));
        globals[g] = o.group[g].source.global;
        device_codes_pack(s->format, o.group[g].packed, s->n, s->k, codes + g * bytes.codes, scales + g * bytes.scales,
                          zeros + g * bytes.zeros);
    }
    bool has_globals = s->format->global != EXPERTD_GLOBAL_NONE && !s->format->scale_of_panel;
    o.matrix = (struct expertd_device_matrix){.dtype = s->dtype,
                                              .groups = GROUPS,
                                              .n = (uint32_t)s->n,
                                              .k = (uint32_t)s->k,
                                              .data = on_device(codes, GROUPS * bytes.codes),
                                              .quantised = {.format = held,
                                                            .scales = on_device(scales, GROUPS * bytes.scales),
                                                            .zeros = on_device(zeros, GROUPS * bytes.zeros),
                                                            .order = order}};
    const float *device_globals = on_device(globals, GROUPS * sizeof *globals);
    o.matrix.quantised.globals = has_globals ? device_globals : NULL;
    return o;
}

static void drop_operand(struct operand *o) {
    for (size_t g = 0; g < GROUPS; g++) {
        quantised_case_deinit(&o->group[g]);
    }
}

struct input {
    char *x;
    uint32_t *index, *order; // order [GROUPS][k]
    size_t stride, rows;
    struct expertd_device_rows rows_on_device;
    const uint32_t *device_order;
};

static struct input input_of(const struct shape *s, struct random *random) {
    struct input in = {.stride = (s->k * expertd_dtype_size(s->dtype) + 15) / 16 * 16};
    struct expertd_device_tile *tiles = test_alloc(64 * sizeof *tiles);
    size_t size = expertd_dtype_size(s->dtype);
    for (size_t g = 0; g < GROUPS; g++) {
        in.rows += (size_t)s->sizes[g];
    }
    in.x = poisoned(in.rows * in.stride); // NaN in the padding of rows, too
    in.index = test_alloc(in.rows * sizeof *in.index);
    in.order = test_alloc(GROUPS * s->k * sizeof *in.order);
    for (size_t r = 0; r < in.rows; r++) {
        in.index[r] = s->gather ? random_below(random, (uint32_t)in.rows) : (uint32_t)r;
        for (size_t k = 0; k < s->k; k++) {
            uint32_t bits = expertd_f32_bits(random_f32(random, s->values));
            memcpy(in.x + r * in.stride + k * size, (char *)&bits + 4 - size, size);
        }
    }
    for (size_t i = 0; i < GROUPS * s->k; i++) {
        in.order[i] = s->ordered ? (uint32_t)(s->k - 1 - i % s->k) : (uint32_t)(i % s->k);
    }
    in.rows_on_device =
        (struct expertd_device_rows){.dtype = s->dtype,
                                     .data = on_device(in.x, in.rows * in.stride),
                                     .stride = in.stride,
                                     .variant = s->variant,
                                     .tile_count = device_cut_tiles(s->sizes, GROUPS, 0, device_variant_rows(s->variant), tiles),
                                     .tiles = on_device(tiles, 64 * sizeof *tiles),
                                     .rows = (uint32_t)in.rows};
    const uint32_t *index = on_device(in.index, in.rows * sizeof *in.index);
    in.rows_on_device.index = s->gather ? index : NULL;
    const uint32_t *order = on_device(in.order, GROUPS * s->k * sizeof *in.order);
    in.device_order = s->ordered ? order : NULL;
    return in;
}

// device_codes_parts; 0 where devices have no kernel.
static int parts_of(const struct expertd_quantised_format *format) {
    const struct expertd_quantised_format held = device_codes_format(format);
    return device_codes_supported(format) ? device_codes_parts(&held) : 0;
}

static size_t group_of(const struct shape *s, size_t row) {
    size_t g = 0;
    for (size_t end = (size_t)s->sizes[0]; row >= end; end += (size_t)s->sizes[++g]) {
    }
    return g;
}

static void sums_of(const struct shape *s, const struct input *in, const struct operand *o, size_t row, float *out) {
    size_t size = expertd_dtype_size(s->dtype), g = group_of(s, row);
    char *x = test_alloc(s->k * size + 1);
    for (size_t k = 0; k < s->k; k++) {
        memcpy(x + k * size, in->x + in->index[row] * in->stride + in->order[g * s->k + k] * size, size);
    }
    for (size_t n = 0; n < s->n; n++) {
        out[n] = (s->dtype == EXPERTD_DTYPE_F32 ? expertd_dot_quantised_reference : expertd_dot_quantised_sm90_reference)(
            s->format, o->group[g].packed, n, s->dtype, x, s->k);
    }
    free(x);
}

static void check_down(const struct shape *s, struct random *random) {
    struct expertd_device_error error;
    struct input in = input_of(s, random);
    struct operand down = operand_of(s, in.device_order, random);
    size_t out_stride = (s->n * expertd_dtype_size(s->dtype) + 31) / 16 * 16;
    float *bias = test_alloc(GROUPS * s->n * sizeof *bias);
    for (size_t i = 0; i < GROUPS * s->n; i++) {
        bias[i] = random_f32(random, VALUES_PLAIN);
    }
    struct expertd_device_down args = {.rows = in.rows_on_device,
                                       .down = down.matrix,
                                       .bias = on_device(bias, GROUPS * s->n * sizeof *bias),
                                       .out = on_device(poisoned(in.rows * out_stride), in.rows * out_stride),
                                       .out_stride = out_stride};
    device_must(pieces.table->down(pieces.device, &args, &error), &error);
    const char *out = back(args.out);
    for (size_t row = 0; row < in.rows; row++) {
        float sums[SUMS_MAX];
        char expected[SUMS_MAX * 4];
        sums_of(s, &in, &down, row, sums);
        for (size_t n = 0; n < s->n; n++) {
            sums[n] += bias[group_of(s, row) * s->n + n];
        }
        expertd_dtype_narrow(sums, s->n, s->dtype, expected);
        assert_same_row(s->dtype, out + row * out_stride, expected, s->n, "down");
        for (size_t i = s->n * expertd_dtype_size(s->dtype); i < out_stride; i++) {
            assert_int_equal((unsigned char)out[row * out_stride + i], 0xff); // nothing is written past the last column
        }
    }
    drop_operand(&down);
    drop_pieces();
}

static void every_format_gives_the_twins_bits_over_all_remainders(void **state) {
    (void)state;
    static const size_t DEPTHS[] = {1, 15, 16, 33, 64, 130, 131, 200, 259}, WIDTHS[] = {1, 15, 33, 64, 65};
    struct random random = {41};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        for (size_t d = f % 2; d < COUNT_OF(DEPTHS); d += 2) {
            struct shape s = {.format = &FORMATS[f],
                              .dtype = EXPERTD_DTYPE_BF16,
                              .variant = (d + f) % 4 < 2 ? EXPERTD_DEVICE_MMA_16 : EXPERTD_DEVICE_MMA_64,
                              .sizes = {(int32_t)random_below(&random, 20), 0, 1 + (int32_t)random_below(&random, 9)},
                              .n = WIDTHS[(d + f) % COUNT_OF(WIDTHS)],
                              .k = DEPTHS[d],
                              .gather = d % 3 == 0,
                              .ordered = d % 4 == 1,
                              .values = (enum values)((d + f) % VALUES_COUNT)};
            if (device_codes_supported(s.format) && takes_case()) {
                check_down(&s, &random);
            }
        }
    }
}

// Full tiles of 64 rows and more, K of several stages; one row more than a fragment has; scales that end inside a stage.
static void large_m_and_k_give_the_twins_bits(void **state) {
    (void)state;
    struct random random = {42};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f += 3) {
        for (int v = 0; v < 2; v++) {
            struct shape s = {.format = &FORMATS[f],
                              .dtype = EXPERTD_DTYPE_BF16,
                              .variant = v ? EXPERTD_DEVICE_MMA_64 : EXPERTD_DEVICE_MMA_16,
                              .sizes = {v ? 65 : 17, 9, 0},
                              .n = 70,
                              .k = v ? 512 : 1100,
                              .values = VALUES_PLAIN};
            if (device_codes_supported(s.format) && takes_case()) {
                check_down(&s, &random);
            }
        }
    }
}

// All formats that wgmma supports: tiles with one row, with all rows, and several tiles; column counts that are no multiple of a
// block; values of every kind; K of one stage and of more stages than the ring has.
static void formats_of_wgmma_give_the_twins_bits(void **state) {
    (void)state;
    static const size_t WIDTHS[] = {1, 63, 64, 130, 200}, DEPTHS[] = {64, 128, 192, 320, 704};
    struct random random = {48};
    size_t taken = 0;
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        for (size_t d = 0; d < 2 && parts_of(&FORMATS[f]) != 0; d++, taken++) {
            struct shape s = {.format = &FORMATS[f],
                              .dtype = EXPERTD_DTYPE_BF16,
                              .variant = f % 3 == d ? EXPERTD_DEVICE_WGMMA_64 : EXPERTD_DEVICE_WGMMA_128,
                              .sizes = {(int32_t)(1 + f), 0, d ? 130 : 7},
                              .n = WIDTHS[(f + d) % COUNT_OF(WIDTHS)],
                              .k = DEPTHS[(f / 2 + d) % COUNT_OF(DEPTHS)],
                              .gather = f % 2 == d,
                              .values = d ? (enum values)(f % VALUES_COUNT) : VALUES_PLAIN};
            if (device_codes_supported(s.format) && takes_case()) {
                check_down(&s, &random);
            }
        }
    }
    assert_int_equal(taken, 2 * 22); // 22 formats, of every code that devices hold
}

static void rows_of_f32_give_the_twins_bits(void **state) {
    (void)state;
    struct random random = {43};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        struct shape s = {.format = &FORMATS[f],
                          .dtype = EXPERTD_DTYPE_F32,
                          .variant = EXPERTD_DEVICE_FMA_64,
                          .sizes = {2, 0, (int32_t)(f % 5) * 17},
                          .n = 30 + f * 2,
                          .k = 20 + f * 11,
                          .gather = f % 2,
                          .ordered = f % 3 == 0,
                          .values = (enum values)(f % VALUES_COUNT)};
        if (device_codes_supported(s.format) && takes_case()) {
            check_down(&s, &random);
        }
    }
}

static void check_gate_up(const struct shape *s, bool gated, struct random *random) {
    struct expertd_device_error error;
    const struct expertd_activation activation =
        gated ? (struct expertd_activation){EXPERTD_ACTIVATION_SWIGLU_OAI, EXPERTD_CLAMP_NONE, 1.702f, 7}
              : (struct expertd_activation){EXPERTD_ACTIVATION_RELU2, EXPERTD_CLAMP_NONE, 0, 0};
    struct input in = input_of(s, random);
    struct operand gate = operand_of(s, in.device_order, random), up = operand_of(s, in.device_order, random);
    size_t out_stride = (s->n * expertd_dtype_size(s->dtype) + 15) / 16 * 16;
    struct expertd_device_gate_up args = {.rows = in.rows_on_device,
                                          .up = up.matrix,
                                          .activation = activation,
                                          .out = on_device(poisoned(in.rows * out_stride), in.rows * out_stride),
                                          .out_stride = out_stride};
    if (gated) {
        args.gate = gate.matrix;
    }
    device_must(pieces.table->gate_up(pieces.device, &args, &error), &error);
    const char *out = back(args.out);
    for (size_t row = 0; row < in.rows; row++) {
        float g[SUMS_MAX], u[SUMS_MAX];
        char expected[SUMS_MAX * 4];
        sums_of(s, &in, &gate, row, g);
        sums_of(s, &in, &up, row, u);
        expertd_activation_row(&(struct expertd_activation_args){
            .activation = &activation, .gate = gated ? g : NULL, .up = u, .width = s->n, .dtype = s->dtype, .out = expected});
        assert_same_row(s->dtype, out + row * out_stride, expected, s->n, "gate_up");
    }
    drop_operand(&gate);
    drop_operand(&up);
    drop_pieces();
}

static void gate_and_up_of_every_format_give_the_twins_bits(void **state) {
    (void)state;
    struct random random = {44};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        struct shape s = {.format = &FORMATS[f],
                          .dtype = f % 5 == 4 ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16,
                          .variant = f % 5 == 4 ? EXPERTD_DEVICE_FMA_64
                                     : f % 2    ? EXPERTD_DEVICE_MMA_16
                                                : EXPERTD_DEVICE_MMA_64,
                          .sizes = {1, 0, 3 + (int32_t)f},
                          .n = 40 + f * 3,
                          .k = 100 + f * 13,
                          .gather = f % 2,
                          .ordered = f % 3 == 1,
                          .values = f % 4 ? VALUES_PLAIN : VALUES_ANY};
        if (device_codes_supported(s.format) && takes_case()) {
            check_gate_up(&s, f % 7 != 6, &random);
        }
    }
}

// A block has 64 columns of both operands, or 128 of up alone.
static void gate_and_up_by_wgmma_give_the_twins_bits(void **state) {
    (void)state;
    static const size_t WIDTHS[] = {40, 64, 70, 129};
    struct random random = {49};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        struct shape s = {.format = &FORMATS[f],
                          .dtype = EXPERTD_DTYPE_BF16,
                          .variant = f % 5 == 2 ? EXPERTD_DEVICE_WGMMA_64 : EXPERTD_DEVICE_WGMMA_128,
                          .sizes = {f % 6 == 0 ? 129 : 33, 1, 2},
                          .n = WIDTHS[f % COUNT_OF(WIDTHS)],
                          .k = 64 + f % 3 * 64,
                          .gather = f % 2,
                          .values = f % 4 ? VALUES_PLAIN : VALUES_ANY};
        if (parts_of(s.format) != 0 && takes_case()) {
            check_gate_up(&s, f % 7 != 6, &random);
        }
    }
}

// Each code, multiplied by 1 with a scale of 1, has exactly its value, including NaN, Inf, subnormals and -128.
static void every_code_has_its_value(void **state) {
    (void)state;
    static const struct expertd_quantised_format CODES_ALONE[] = {
        {EXPERTD_CODE_E4M3, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 0},
        {EXPERTD_CODE_E5M2, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 0},
        {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 0},
        {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 0},
        {EXPERTD_CODE_INT8, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 0}};
    enum { N = 256, K = 16 };
    for (size_t f = 0; f < COUNT_OF(CODES_ALONE); f++) {
        struct random random = {45};
        struct expertd_device_error error;
        struct shape s = {
            &CODES_ALONE[f], EXPERTD_DTYPE_BF16, EXPERTD_DEVICE_MMA_16, {1, 1, 1}, N, K, false, false, VALUES_PLAIN, false};
        struct input in = input_of(&s, &random);
        for (size_t i = 0; i < in.rows * in.stride / 2; i++) {
            ((uint16_t *)(void *)in.x)[i] = i % (in.stride / 2) == 0 ? 0x3f80 : 0;
        }
        struct operand o = operand_of(&s, NULL, &random);
        drop_operand(&o);
        int codes_at = 0;
        while (pieces.on_device[codes_at] != o.matrix.data) {
            codes_at++;
        }
        uint8_t *codes = pieces.host[codes_at];
        memset(codes, CODES_ALONE[f].code == EXPERTD_CODE_INT4 ? 0x88 : 0, pieces.bytes[codes_at]);
        for (size_t n = 0; n < N; n++) {
            unsigned shift;
            size_t at = device_code_at(CODES_ALONE[f].code, device_codes_units(CODES_ALONE[f].code, K), n, 0, &shift);
            bool nibble = device_codes_bits(CODES_ALONE[f].code) == 4;
            codes[at] = nibble ? (uint8_t)((codes[at] & ~(15u << shift)) | (n % 16) << shift) : (uint8_t)n;
        }
        int scales_at = 0;
        while (pieces.on_device[scales_at] != o.matrix.quantised.scales) {
            scales_at++;
        }
        for (size_t i = 0; i < N; i++) {
            ((float *)pieces.host[scales_at])[i] = 1.0f;
        }
        for (int i = 0; i < pieces.count; i++) {
            if (pieces.on_device[i]) {
                device_must(pieces.table->copy(pieces.device, EXPERTD_DEVICE_UPLOAD, pieces.on_device[i], pieces.host[i],
                                               pieces.bytes[i], &error),
                            &error);
            }
        }
        struct expertd_device_down args = {.rows = in.rows_on_device,
                                           .down = o.matrix,
                                           .out = on_device(poisoned(in.rows * N * 2), in.rows * N * 2),
                                           .out_stride = N * 2};
        device_must(pieces.table->down(pieces.device, &args, &error), &error);
        const uint16_t *out = back(args.out);
        for (size_t n = 0; n < N; n++) {
            static const float E2M1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
            float expected = CODES_ALONE[f].code == EXPERTD_CODE_E4M3   ? expertd_f32_from_e4m3((uint8_t)n)
                             : CODES_ALONE[f].code == EXPERTD_CODE_E5M2 ? expertd_f32_from_e5m2((uint8_t)n)
                             : CODES_ALONE[f].code == EXPERTD_CODE_E2M1 ? (n & 8 ? -E2M1[n & 7] : E2M1[n & 7])
                             : CODES_ALONE[f].code == EXPERTD_CODE_INT4 ? (float)(n % 16) - 8
                                                                        : (float)(int8_t)n;
            float got = expertd_f32_from_bf16(out[n]) + 0.0f; // a sum from +0 is never -0
            expected += 0.0f;
            assert_same_f32(&got, &expected, 1, "code");
        }
        drop_pieces();
    }
}

// Each 8-bit scale, including 0 and 255 of E8M0, with and without a global scale, gives the twin's bits.
static void every_scale_has_its_value(void **state) {
    (void)state;
    static const struct expertd_quantised_format BYTES[] = {
        {EXPERTD_CODE_E4M3, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, false, 32},
        {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E4M3, EXPERTD_GLOBAL_MULTIPLY, false, false, false, 32},
        {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E4M3, EXPERTD_GLOBAL_DIVIDE, false, false, false, 32}};
    for (size_t f = 0; f < COUNT_OF(BYTES) * 2; f++) {
        struct random random = {47};
        bool wide = f % 2;
        struct shape s = {.format = &BYTES[f / 2],
                          .dtype = wide ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16,
                          .variant = wide ? EXPERTD_DEVICE_FMA_64 : EXPERTD_DEVICE_MMA_16,
                          .sizes = {1, 0, 2},
                          .n = 256,
                          .k = 32,
                          .every_scale = true,
                          .values = VALUES_PLAIN};
        if (device_codes_supported(s.format) && takes_case()) {
            check_down(&s, &random);
        }
    }
}

static void operands_of_different_formats_are_refused(void **state) {
    (void)state;
    struct random random = {46};
    struct expertd_device_error error;
    struct shape s = {&FORMATS[11], EXPERTD_DTYPE_BF16, EXPERTD_DEVICE_MMA_64, {1, 2, 3}, 16, 64, false, false, VALUES_PLAIN,
                      false};
    struct input in = input_of(&s, &random);
    struct operand gate = operand_of(&s, NULL, &random);
    struct expertd_device_gate_up args = {.rows = in.rows_on_device,
                                          .up = gate.matrix,
                                          .gate = gate.matrix,
                                          .out = on_device(poisoned(6 * 32), 6 * 32),
                                          .out_stride = 32};
    args.gate.quantised.format.scale_k = 64;
    assert_int_equal(pieces.table->gate_up(pieces.device, &args, &error), EXPERTD_DEVICE_FAILED);
    args.gate = gate.matrix;
    args.rows.variant = EXPERTD_DEVICE_WGMMA_8; // there is no such kernel for quantised weights
    assert_int_equal(pieces.table->gate_up(pieces.device, &args, &error), EXPERTD_DEVICE_FAILED);
    const unsigned char *out = back(args.out);
    for (size_t i = 0; i < 6 * 32; i++) {
        assert_int_equal(out[i], 0xff);
    }
    drop_operand(&gate);
    drop_pieces();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_gives_the_twins_bits_over_all_remainders),
        cmocka_unit_test(large_m_and_k_give_the_twins_bits),
        cmocka_unit_test(formats_of_wgmma_give_the_twins_bits),
        cmocka_unit_test(rows_of_f32_give_the_twins_bits),
        cmocka_unit_test(gate_and_up_of_every_format_give_the_twins_bits),
        cmocka_unit_test(gate_and_up_by_wgmma_give_the_twins_bits),
        cmocka_unit_test(every_code_has_its_value),
        cmocka_unit_test(every_scale_has_its_value),
        cmocka_unit_test(operands_of_different_formats_are_refused),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
