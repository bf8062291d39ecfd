// The products of a layer on a simulated GPU (gate and up, down, router logits), each against its scalar twin on the CPU, bit for
// bit, with poisoned outputs.
#include "device_pieces.h"

#include "expertd/kernels/grouped_matmul.h"
#include "kernels/device/device_plan.h"

struct shape {
    enum expertd_dtype dtype;
    int32_t sizes[4];
    uint32_t n, k;
    bool gather, gated, biases;
    struct expertd_activation activation;
    enum values values;
};

static float dot(enum expertd_dtype dtype, const void *x, const void *w, size_t k) {
    return dtype == EXPERTD_DTYPE_F32 ? expertd_dot_f32_reference(x, w, 1, k) : expertd_dot_bf16_sm90_reference(x, w, 1, k);
}

enum { ROWS = 150, LHS_ROWS = 50, GROUPS = 4, TILES_MAX = 32 };

struct product {
    const struct shape *s;
    size_t size, stride; // bytes of an element, and of a row of the left operand
    char *x;
    uint32_t *index;
    struct expertd_device_tile *tiles;
    struct expertd_device_rows rows;
    uint32_t row_count;
};

static struct product product_of(const struct shape *s, enum expertd_device_variant variant, struct random *random) {
    struct product p = {.s = s, .size = expertd_dtype_size(s->dtype)};
    p.stride = (s->k * p.size + 15) / 16 * 16;
    size_t lhs_rows = s->gather ? LHS_ROWS : ROWS;
    p.x = values_of(s->dtype, lhs_rows * p.stride / p.size, random, s->values);
    p.index = test_alloc(ROWS * sizeof *p.index);
    p.tiles = test_alloc(TILES_MAX * sizeof *p.tiles);
    uint32_t tiles = device_cut_tiles(s->sizes, GROUPS, 0, device_variant_rows(variant), p.tiles);
    assert_true(tiles <= TILES_MAX);
    for (uint32_t g = 0; g < GROUPS; g++) {
        p.row_count += (uint32_t)s->sizes[g];
    }
    assert_true(p.row_count <= ROWS);
    for (uint32_t r = 0; r < ROWS; r++) {
        p.index[r] = s->gather ? random_below(random, LHS_ROWS) : r;
    }
    p.rows = (struct expertd_device_rows){.dtype = s->dtype,
                                          .data = on_device(p.x, lhs_rows * p.stride),
                                          .stride = p.stride,
                                          .variant = variant,
                                          .tiles = on_device(p.tiles, TILES_MAX * sizeof *p.tiles),
                                          .tile_count = tiles,
                                          .rows = p.row_count};
    const uint32_t *index = on_device(p.index, ROWS * sizeof *p.index);
    p.rows.index = s->gather ? index : NULL;
    return p;
}

static const void *row_of(const struct product *p, uint32_t row) {
    return p->x + p->index[row] * p->stride;
}

static uint32_t group_of(const struct product *p, uint32_t row) {
    uint32_t group = 0, end = (uint32_t)p->s->sizes[0];
    while (row >= end) {
        end += (uint32_t)p->s->sizes[++group];
    }
    return group;
}

struct operand {
    char *w;
    float *bias;
    struct expertd_device_matrix matrix;
    const float *device_bias;
};

static struct operand operand_of(const struct product *p, struct random *random) {
    const struct shape *s = p->s;
    size_t count = (size_t)GROUPS * s->n * s->k;
    struct operand o = {.w = values_of(s->dtype, count, random, s->values), .bias = test_alloc(GROUPS * s->n * sizeof(float))};
    for (size_t i = 0; i < GROUPS * s->n; i++) {
        o.bias[i] = random_f32(random, VALUES_PLAIN);
    }
    o.matrix = (struct expertd_device_matrix){
        .dtype = s->dtype, .groups = GROUPS, .n = s->n, .k = s->k, .data = on_device(o.w, count * p->size)};
    const float *bias = on_device(o.bias, GROUPS * s->n * sizeof(float));
    o.device_bias = s->biases ? bias : NULL;
    return o;
}

static void sums_of(const struct product *p, const struct operand *o, uint32_t row, float *out) {
    const struct shape *s = p->s;
    for (uint32_t i = 0; i < s->n; i++) {
        const char *column = o->w + ((size_t)group_of(p, row) * s->n + i) * s->k * p->size;
        out[i] = dot(s->dtype, row_of(p, row), column, s->k);
    }
}

// Loops over every variant that computes the shape's dtype and supports its k.
#define EACH_VARIANT(s, variant)                                                                                                   \
    for (enum expertd_device_variant variant = (s)->dtype == EXPERTD_DTYPE_F32 ? EXPERTD_DEVICE_FMA_16 : EXPERTD_DEVICE_MMA_16;    \
         variant <= ((s)->dtype == EXPERTD_DTYPE_F32 ? EXPERTD_DEVICE_FMA_64                                                       \
                     : (s)->k % 8 == 0               ? EXPERTD_DEVICE_WGMMA_128                                                    \
                                                     : EXPERTD_DEVICE_MMA_64);                                                                   \
         variant++)

static void check_gate_up(const struct shape *s, enum expertd_device_variant variant) {
    struct random random = {0x2545f4914f6cdd1du};
    struct expertd_device_error error;
    struct product p = product_of(s, variant, &random);
    struct operand gate = operand_of(&p, &random), up = operand_of(&p, &random);
    size_t out_stride = (s->n * p.size + 15) / 16 * 16;
    char *out = poisoned(ROWS * out_stride);
    struct expertd_device_gate_up args = {.rows = p.rows,
                                          .up = up.matrix,
                                          .up_bias = up.device_bias,
                                          .activation = s->activation,
                                          .out = on_device(out, ROWS * out_stride),
                                          .out_stride = out_stride};
    if (s->gated) {
        args.gate = gate.matrix;
        args.gate_bias = gate.device_bias;
    }
    device_must(pieces.table->gate_up(pieces.device, &args, &error), &error);
    back(args.out);
    for (uint32_t row = 0; row < p.row_count; row++) {
        float g[512], u[512];
        char expected[512 * 4];
        sums_of(&p, &gate, row, g);
        sums_of(&p, &up, row, u);
        size_t at = (size_t)group_of(&p, row) * s->n;
        struct expertd_activation_args twin = {.activation = &s->activation,
                                               .gate = s->gated ? g : NULL,
                                               .up = u,
                                               .gate_bias = s->gated && s->biases ? gate.bias + at : NULL,
                                               .up_bias = s->biases ? up.bias + at : NULL,
                                               .width = s->n,
                                               .dtype = s->dtype,
                                               .out = expected};
        expertd_activation_row(&twin);
        assert_same_row(s->dtype, out + row * out_stride, expected, s->n, "gate_up");
    }
    for (size_t i = p.row_count * out_stride; i < ROWS * out_stride; i++) {
        assert_int_equal((unsigned char)out[i], 0xff);
    }
    drop_pieces();
}

static const struct shape GATE_UP_SHAPES[] = {
    {EXPERTD_DTYPE_BF16,
     {80, 0, 3, 64},
     72,
     80,
     true,
     true,
     true,
     {EXPERTD_ACTIVATION_SWIGLU_OAI, EXPERTD_CLAMP_NONE, 1.702f, 7},
     VALUES_PLAIN},
    {EXPERTD_DTYPE_BF16,
     {1, 65, 0, 0},
     64,
     64,
     false,
     true,
     false,
     {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_NONE, 0, 0},
     VALUES_PLAIN},
    {EXPERTD_DTYPE_BF16,
     {0, 2, 0, 9},
     10,
     33,
     true,
     true,
     true,
     {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_BEFORE, 0, 2},
     VALUES_PLAIN},
    {EXPERTD_DTYPE_BF16, {0, 2, 0, 9}, 10, 33, true, true, false, {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_AFTER, 0, 2}, VALUES_ANY},
    {EXPERTD_DTYPE_BF16,
     {5, 0, 0, 0},
     40,
     48,
     false,
     false,
     false,
     {EXPERTD_ACTIVATION_RELU2, EXPERTD_CLAMP_NONE, 0, 0},
     VALUES_PLAIN},
    {EXPERTD_DTYPE_BF16,
     {5, 0, 2, 0},
     40,
     48,
     false,
     true,
     false,
     {EXPERTD_ACTIVATION_GELU_TANH, EXPERTD_CLAMP_NONE, 0, 0},
     VALUES_PLAIN},
    {EXPERTD_DTYPE_BF16,
     {9, 0, 1, 0},
     140,
     24,
     true,
     true,
     false,
     {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_NONE, 0, 0},
     VALUES_FLUSH},
    {EXPERTD_DTYPE_F32, {3, 66, 0, 5}, 70, 37, true, true, true, {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_NONE, 0, 0}, VALUES_PLAIN},
    {EXPERTD_DTYPE_F32,
     {9, 0, 1, 0},
     24,
     80,
     false,
     true,
     false,
     {EXPERTD_ACTIVATION_SWIGLU_OAI, EXPERTD_CLAMP_NONE, 1.702f, 7},
     VALUES_ANY},
    {EXPERTD_DTYPE_F32,
     {2, 0, 1, 0},
     24,
     80,
     false,
     false,
     true,
     {EXPERTD_ACTIVATION_RELU2, EXPERTD_CLAMP_NONE, 0, 0},
     VALUES_SUBNORMAL},
};

static void gate_and_up_give_the_twins_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(GATE_UP_SHAPES); i++) {
        EACH_VARIANT(&GATE_UP_SHAPES[i], variant) {
            if (takes_case()) {
                check_gate_up(&GATE_UP_SHAPES[i], variant);
            }
        }
    }
}

static void check_down(const struct shape *s, enum expertd_device_variant variant, bool scaled) {
    struct random random = {0x9e3779b97f4a7c15u};
    struct expertd_device_error error;
    struct product p = product_of(s, variant, &random);
    struct operand down = operand_of(&p, &random);
    float *scale = values_of(EXPERTD_DTYPE_F32, ROWS, &random, VALUES_PLAIN);
    size_t out_stride = (s->n * p.size + 15) / 16 * 16;
    char *out = poisoned(ROWS * out_stride);
    const float *device_scale = on_device(scale, ROWS * sizeof(float));
    struct expertd_device_down args = {.rows = p.rows,
                                       .down = down.matrix,
                                       .bias = down.device_bias,
                                       .row_scale = scaled ? device_scale : NULL,
                                       .out = on_device(out, ROWS * out_stride),
                                       .out_stride = out_stride};
    device_must(pieces.table->down(pieces.device, &args, &error), &error);
    back(args.out);
    for (uint32_t row = 0; row < p.row_count; row++) {
        float sums[512];
        char expected[512 * 4];
        sums_of(&p, &down, row, sums);
        for (uint32_t i = 0; i < s->n; i++) {
            sums[i] = s->biases ? sums[i] + down.bias[(size_t)group_of(&p, row) * s->n + i] : sums[i];
            sums[i] = scaled ? scale[row] * sums[i] : sums[i];
        }
        expertd_dtype_narrow(sums, s->n, s->dtype, expected);
        assert_same_row(s->dtype, out + row * out_stride, expected, s->n, "down");
    }
    drop_pieces();
}

static void down_gives_the_twins_bits(void **state) {
    (void)state;
    const struct shape shapes[] = {
        {EXPERTD_DTYPE_BF16, {129, 1, 0, 20}, 300, 96, false, false, true, {0}, VALUES_PLAIN},
        {EXPERTD_DTYPE_BF16, {3, 1, 0, 7}, 65, 31, true, false, false, {0}, VALUES_ANY},
        {EXPERTD_DTYPE_F32, {3, 1, 0, 70}, 65, 31, false, false, true, {0}, VALUES_PLAIN},
        {EXPERTD_DTYPE_F32, {3, 1, 0, 7}, 8, 100, true, false, false, {0}, VALUES_SUBNORMAL},
    };
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        EACH_VARIANT(&shapes[i], variant) {
            if (takes_case()) {
                check_down(&shapes[i], variant, i % 2);
            }
        }
    }
}

static void logits_give_the_twins_bits(void **state) {
    (void)state;
    for (int trial = 0; trial < 4; trial++) {
        bool d = trial % 2;
        struct random random = {0x853c49e6748fea9bu};
        struct expertd_device_error error;
        struct shape s = {d ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16, {66}, 70, 50, true, false, true, {0}, VALUES_PLAIN};
        struct product p = product_of(&s, trial < 2 ? EXPERTD_DEVICE_FMA_16 : EXPERTD_DEVICE_FMA_64, &random);
        s.dtype = EXPERTD_DTYPE_F32; // the dtype of the router's weights
        struct product wide = p;
        wide.size = sizeof(float);
        struct operand router = operand_of(&wide, &random);
        float *out = poisoned(66 * 70 * sizeof *out);
        struct expertd_device_logits args = {
            .rows = p.rows, .weights = router.matrix, .bias = router.device_bias, .out = on_device(out, 66 * 70 * sizeof *out)};
        device_must(pieces.table->logits(pieces.device, &args, &error), &error);
        back(args.out);
        for (uint32_t row = 0; row < p.row_count; row++) {
            float x[64], expected[70];
            expertd_dtype_widen(d ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16, row_of(&p, row), s.k, x);
            for (uint32_t i = 0; i < s.n; i++) {
                expected[i] =
                    expertd_dot_f32_reference(x, (const float *)(const void *)router.w + i * s.k, 1, s.k) + router.bias[i];
            }
            assert_same_f32(out + row * s.n, expected, s.n, "logits");
        }
        drop_pieces();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gate_and_up_give_the_twins_bits),
        cmocka_unit_test(down_gives_the_twins_bits),
        cmocka_unit_test(logits_give_the_twins_bits),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
