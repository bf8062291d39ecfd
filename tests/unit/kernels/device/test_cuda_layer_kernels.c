// The kernels of a layer's operations on a simulated GPU, each against its scalar twin on the CPU, bit for bit, into poisoned
// outputs.
#include "device_pieces.h"

#include "expertd/kernels/combine.h"
#include "expertd/kernels/grouped_matmul.h"
#include "kernels/cuda/sim/runtime.h"
#include "kernels/device/device_plan.h"

static void *values_of(enum expertd_dtype dtype, size_t count, struct random *random, enum values values) {
    char *out = test_alloc(count * expertd_dtype_size(dtype) + 1);
    for (size_t i = 0; i < count; i++) {
        float value = random_f32(random, values);
        expertd_dtype_narrow(&value, 1, dtype, out + i * expertd_dtype_size(dtype));
    }
    return out;
}

// ---- products

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

static void check_row(enum expertd_dtype dtype, const void *got, const void *want, size_t count, const char *what) {
    float a[512], b[512];
    assert_true(count <= 512);
    expertd_dtype_widen(dtype, got, count, a);
    expertd_dtype_widen(dtype, want, count, b);
    assert_same_f32(a, b, count, what);
}

enum { ROWS = 150, LHS_ROWS = 50, GROUPS = 4, TILES_MAX = 32 };

struct product {
    const struct shape *s;
    size_t size, stride; // of an element; bytes of a row of the left operand
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
    const float *bias_there;
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
    o.bias_there = s->biases ? bias : NULL;
    return o;
}

static void sums_of(const struct product *p, const struct operand *o, uint32_t row, float *out) {
    const struct shape *s = p->s;
    for (uint32_t i = 0; i < s->n; i++) {
        const char *column = o->w + ((size_t)group_of(p, row) * s->n + i) * s->k * p->size;
        out[i] = dot(s->dtype, row_of(p, row), column, s->k);
    }
}

// Calls each(shape, variant) for every variant that computes the shape's dtype and takes its widths.
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
                                          .up_bias = up.bias_there,
                                          .activation = s->activation,
                                          .out = on_device(out, ROWS * out_stride),
                                          .out_stride = out_stride};
    if (s->gated) {
        args.gate = gate.matrix;
        args.gate_bias = gate.bias_there;
    }
    device_must(pieces.table->gate_up(pieces.device, &args, &error), &error);
    back(args.out);
    for (uint32_t row = 0; row < p.row_count; row++) {
        float g[512], u[512];
        char want[512 * 4];
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
                                               .out = want};
        expertd_activation_row(&twin);
        check_row(s->dtype, out + row * out_stride, want, s->n, "gate_up");
    }
    for (size_t i = p.row_count * out_stride; i < ROWS * out_stride; i++) {
        assert_int_equal((unsigned char)out[i], 0xff);
    }
    drop_pieces();
}

static void gate_and_up_give_the_twins_bits(void **state) {
    (void)state;
    const struct shape shapes[] = {
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
        {EXPERTD_DTYPE_BF16,
         {0, 2, 0, 9},
         10,
         33,
         true,
         true,
         false,
         {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_AFTER, 0, 2},
         VALUES_ANY},
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
        {EXPERTD_DTYPE_F32,
         {3, 66, 0, 5},
         70,
         37,
         true,
         true,
         true,
         {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_NONE, 0, 0},
         VALUES_PLAIN},
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
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        EACH_VARIANT(&shapes[i], variant) {
            if (takes_case()) {
                check_gate_up(&shapes[i], variant);
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
    const float *scale_there = on_device(scale, ROWS * sizeof(float));
    struct expertd_device_down args = {.rows = p.rows,
                                       .down = down.matrix,
                                       .bias = down.bias_there,
                                       .row_scale = scaled ? scale_there : NULL,
                                       .out = on_device(out, ROWS * out_stride),
                                       .out_stride = out_stride};
    device_must(pieces.table->down(pieces.device, &args, &error), &error);
    back(args.out);
    for (uint32_t row = 0; row < p.row_count; row++) {
        float sums[512];
        char want[512 * 4];
        sums_of(&p, &down, row, sums);
        for (uint32_t i = 0; i < s->n; i++) {
            sums[i] = s->biases ? sums[i] + down.bias[(size_t)group_of(&p, row) * s->n + i] : sums[i];
            sums[i] = scaled ? scale[row] * sums[i] : sums[i];
        }
        expertd_dtype_narrow(sums, s->n, s->dtype, want);
        check_row(s->dtype, out + row * out_stride, want, s->n, "down");
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
        s.dtype = EXPERTD_DTYPE_F32; // of the router
        struct product wide = p;
        wide.size = sizeof(float);
        struct operand router = operand_of(&wide, &random);
        float *out = poisoned(66 * 70 * sizeof *out);
        struct expertd_device_logits args = {
            .rows = p.rows, .weights = router.matrix, .bias = router.bias_there, .out = on_device(out, 66 * 70 * sizeof *out)};
        device_must(pieces.table->logits(pieces.device, &args, &error), &error);
        back(args.out);
        for (uint32_t row = 0; row < p.row_count; row++) {
            float x[64], want[70];
            expertd_dtype_widen(d ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16, row_of(&p, row), s.k, x);
            for (uint32_t i = 0; i < s.n; i++) {
                want[i] = expertd_dot_f32_reference(x, (const float *)(const void *)router.w + i * s.k, 1, s.k) + router.bias[i];
            }
            assert_same_f32(out + row * s.n, want, s.n, "logits");
        }
        drop_pieces();
    }
}

// ---- routing

// The same logits where a token's choices are somebody else's: ids and weights, which the first call filled, are written over.
static void check_chosen(struct expertd_device_choose *args, const struct expertd_routing *routing, const float *logits,
                         int32_t *ids, float *weights, void *scratch) {
    struct expertd_device_error error;
    size_t bytes = args->tokens * args->columns * sizeof *ids;
    for (uint32_t i = 0; i < args->tokens * args->columns; i++) {
        ids[i] = (int32_t)((i * 7 + 3) % routing->num_experts);
    }
    memset(weights, 0xff, bytes);
    device_must(pieces.table->copy(pieces.device, EXPERTD_DEVICE_UPLOAD, args->ids, ids, bytes, &error), &error);
    device_must(pieces.table->copy(pieces.device, EXPERTD_DEVICE_UPLOAD, args->weights, weights, bytes, &error), &error);
    args->chosen = 1;
    device_must(pieces.table->choose(pieces.device, args, &error), &error);
    back(args->ids);
    back(args->weights);
    for (uint32_t t = 0; t < args->tokens; t++) {
        int32_t chosen[16];
        float want[16];
        for (uint32_t j = 0; j < routing->top_k; j++) {
            chosen[j] = (int32_t)(((t * args->columns + j) * 7 + 3) % routing->num_experts);
        }
        expertd_routing_row_chosen(routing, logits + (size_t)t * routing->num_experts, chosen, want, scratch);
        assert_memory_equal(ids + (size_t)t * args->columns, chosen, routing->top_k * sizeof *ids);
        assert_same_f32(weights + (size_t)t * args->columns, want, routing->top_k, "weights of given choices");
        for (uint32_t j = routing->top_k; j < args->columns; j++) {
            assert_int_equal(ids[t * args->columns + j], -1);
            assert_true(weights[t * args->columns + j] == 0.0f);
        }
    }
}

static void check_choose(const struct expertd_routing *routing, enum values values, uint64_t seed) {
    enum { TOKENS = 5, EXTRA = 2 };
    struct random random = {seed};
    struct expertd_device_error error;
    uint32_t n = routing->num_experts, columns = routing->top_k + EXTRA;
    float *logits = values_of(EXPERTD_DTYPE_F32, TOKENS * n, &random, values);
    for (size_t i = 0; i < n; i++) { // ties
        logits[i] = logits[i % 3];
    }
    float *bias = values_of(EXPERTD_DTYPE_F32, n, &random, VALUES_PLAIN);
    int32_t *ids = poisoned(TOKENS * columns * sizeof *ids);
    float *weights = poisoned(TOKENS * columns * sizeof *weights);
    struct expertd_device_choose args = {
        .routing = *routing, .logits = on_device(logits, TOKENS * n * 4), .tokens = TOKENS, .columns = columns};
    struct expertd_routing with_bias = *routing;
    const float *bias_there = on_device(bias, n * 4);
    args.routing.selection_bias = routing->selection_bias ? bias_there : NULL;
    with_bias.selection_bias = routing->selection_bias ? bias : NULL;
    args.ids = on_device(ids, TOKENS * columns * sizeof *ids);
    args.weights = on_device(weights, TOKENS * columns * sizeof *weights);
    device_must(pieces.table->choose(pieces.device, &args, &error), &error);
    back(args.ids);
    back(args.weights);
    void *scratch = test_alloc(expertd_routing_scratch_bytes(&with_bias));
    for (size_t t = 0; t < TOKENS; t++) {
        int32_t want_ids[16];
        float want_weights[16];
        expertd_routing_row(&with_bias, logits + t * n, want_ids, want_weights, scratch);
        assert_memory_equal(ids + t * columns, want_ids, routing->top_k * sizeof *ids);
        assert_same_f32(weights + t * columns, want_weights, routing->top_k, "weights");
        for (size_t j = routing->top_k; j < columns; j++) {
            assert_int_equal(ids[t * columns + j], -1);
            assert_true(weights[t * columns + j] == 0.0f);
        }
    }
    if (routing->score != EXPERTD_SCORE_SPARSEMIXER) {
        check_chosen(&args, &with_bias, logits, ids, weights, scratch);
    }
    free(scratch);
    drop_pieces();
}

static void check_kinds(const struct expertd_routing *kinds, size_t count) {
    for (size_t i = 0; i < count; i++) {
        assert_false(err_is(expertd_routing_check(&kinds[i])));
        for (enum values values = 0; values < VALUES_COUNT; values++) {
            if (takes_case()) {
                check_choose(&kinds[i], values, 0x1234567 + i);
            }
        }
    }
}

static void every_kind_of_routing_gives_the_twins_bits(void **state) {
    (void)state;
    const float biased = 0; // only that there is one: the test has its own
    const struct expertd_routing kinds[] = {
        {.score = EXPERTD_SCORE_SOFTMAX, .norm = EXPERTD_NORM_SUM, .scale = 1, .num_experts = 60, .top_k = 8},
        {.score = EXPERTD_SCORE_SOFTMAX, .norm = EXPERTD_NORM_NONE, .scale = 2.5f, .num_experts = 7, .top_k = 7},
        {.score = EXPERTD_SCORE_SOFTMAX,
         .order = EXPERTD_ORDER_TOPK_SCORE,
         .scale = 1,
         .num_experts = 33,
         .top_k = 4,
         .selection_bias = &biased},
        {.score = EXPERTD_SCORE_SIGMOID,
         .norm = EXPERTD_NORM_SUM,
         .norm_epsilon = 1e-20f,
         .scale = 2.5f,
         .num_experts = 64,
         .top_k = 6,
         .num_groups = 8,
         .top_groups = 3,
         .group_score = EXPERTD_GROUP_TOP2_SUM,
         .selection_bias = &biased},
        {.score = EXPERTD_SCORE_SOFTMAX,
         .norm = EXPERTD_NORM_NONE,
         .scale = 16,
         .num_experts = 40,
         .top_k = 6,
         .num_groups = 8,
         .top_groups = 4,
         .group_score = EXPERTD_GROUP_MAX},
        {.score = EXPERTD_SCORE_SIGMOID,
         .norm = EXPERTD_NORM_SUM,
         .scale = 2.5f,
         .num_experts = 40,
         .top_k = 6,
         .num_groups = 8,
         .top_groups = 3,
         .group_score = EXPERTD_GROUP_TOP2_SUM,
         .masked_groups_are_zero = 1,
         .selection_bias = &biased},
        {.score = EXPERTD_SCORE_SIGMOID, .order = EXPERTD_ORDER_TOPK_SCORE, .scale = 1, .num_experts = 16, .top_k = 1},
        {.score = EXPERTD_SCORE_SIGMOID,
         .order = EXPERTD_ORDER_TOPK_SCORE,
         .norm = EXPERTD_NORM_SUM,
         .scale = 1,
         .num_experts = 24,
         .top_k = 4,
         .selection_bias = &biased},
        {.score = EXPERTD_SCORE_SQRT_SOFTPLUS,
         .norm = EXPERTD_NORM_SUM,
         .norm_epsilon = 1e-20f,
         .scale = 1.5f,
         .num_experts = 48,
         .top_k = 6,
         .selection_bias = &biased},
        {.score = EXPERTD_SCORE_SOFTMAX,
         .norm = EXPERTD_NORM_SUM_MAX,
         .norm_epsilon = 1e-12f,
         .scale = 1,
         .num_experts = 64,
         .top_k = 6},
        {.score = EXPERTD_SCORE_SOFTMAX, .norm = EXPERTD_NORM_P, .norm_p = 1, .scale = 1, .num_experts = 16, .top_k = 4},
        {.score = EXPERTD_SCORE_SOFTMAX, .norm = EXPERTD_NORM_P, .norm_p = 2, .scale = 1, .num_experts = 16, .top_k = 4},
        {.score = EXPERTD_SCORE_SPARSEMIXER, .scale = 1, .jitter = 0.01f, .num_experts = 16, .top_k = 2},
        {.score = EXPERTD_SCORE_SIGMOID,
         .norm = EXPERTD_NORM_SUM,
         .scale = 1,
         .num_experts = 24,
         .top_k = 4,
         .selection_bias = &biased,
         .softcap = 3},
        {.score = EXPERTD_SCORE_SOFTMAX,
         .order = EXPERTD_ORDER_TOPK_SCORE,
         .scale = 1,
         .num_experts = 33,
         .top_k = 4,
         .softcap = 0.7f},
    };
    check_kinds(kinds, COUNT_OF(kinds));
}

// Lanes have many experts, or groups, each, and the best of them again and again.
static void many_experts_give_the_twins_bits(void **state) {
    (void)state;
    const float biased = 0; // as above
    const struct expertd_routing kinds[] = {
        {.score = EXPERTD_SCORE_SOFTMAX, .norm = EXPERTD_NORM_SUM, .scale = 1, .num_experts = 128, .top_k = 8},
        {.score = EXPERTD_SCORE_SIGMOID,
         .norm = EXPERTD_NORM_SUM,
         .scale = 2.5f,
         .num_experts = 300,
         .top_k = 16,
         .selection_bias = &biased},
        {.score = EXPERTD_SCORE_SOFTMAX,
         .norm = EXPERTD_NORM_SUM,
         .scale = 1,
         .num_experts = 132,
         .top_k = 3,
         .num_groups = 66,
         .top_groups = 40,
         .group_score = EXPERTD_GROUP_TOP2_SUM,
         .selection_bias = &biased},
    };
    check_kinds(kinds, COUNT_OF(kinds));
}

// More shared memory than a kernel gets unasked.
static void thousands_of_experts_give_the_twins_bits(void **state) {
    (void)state;
    const struct expertd_routing kind = {.score = EXPERTD_SCORE_SOFTMAX,
                                         .norm = EXPERTD_NORM_SUM,
                                         .scale = 1,
                                         .num_experts = EXPERTD_ROUTING_EXPERTS_MAX,
                                         .top_k = 8};
    check_kinds(&kind, 1);
}

// ---- combine

static void combine_gives_the_twins_bits(void **state) {
    (void)state;
    enum { TOKENS = 4, CHOICES = 3, WIDTH = 300, RESULTS = 7, SHARED = 2 };
    static const enum expertd_dtype OUTPUTS[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F16};
    for (int variant = 0; variant < 12; variant++) {
        struct random random = {0xfeedface + (uint64_t)variant};
        struct expertd_device_error error;
        enum expertd_dtype dtype = variant % 2 ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16, output = OUTPUTS[variant % 3];
        enum values values = variant < 6 ? VALUES_PLAIN : VALUES_ANY;
        size_t size = expertd_dtype_size(dtype), stride = (WIDTH * size + 63) / 64 * 64,
               out_row = WIDTH * expertd_dtype_size(output);
        char *rows = values_of(dtype, RESULTS * stride / size, &random, values),
             *hidden = values_of(dtype, TOKENS * stride / size, &random, values);
        char *shared = values_of(dtype, SHARED * stride / size, &random, values), *out = poisoned(TOKENS * out_row);
        float *weights = values_of(EXPERTD_DTYPE_F32, TOKENS * CHOICES, &random, VALUES_PLAIN);
        uint32_t *choice_row = test_alloc(TOKENS * CHOICES * 4), *shared_rows = test_alloc(TOKENS * 4);
        int32_t *ids = test_alloc(TOKENS * CHOICES * 4);
        for (uint32_t i = 0; i < TOKENS * CHOICES; i++) { // an expert's row, none, or the identity
            choice_row[i] = i % 4 < 2 ? random_below(&random, RESULTS) : UINT32_MAX;
            ids[i] = i % 4 == 2 ? -1 : 5;
        }
        for (uint32_t t = 0; t < TOKENS; t++) {
            shared_rows[t] = t % 2 ? t / 2 : UINT32_MAX;
        }
        struct expertd_device_combine args = {
            .width = WIDTH, .tokens = TOKENS, .choices = CHOICES, .dtype = dtype, .stride = stride};
        args.rows = on_device(rows, RESULTS * stride);
        args.hidden = on_device(hidden, TOKENS * stride);
        args.shared = on_device(shared, SHARED * stride);
        args.choice_row = on_device(choice_row, TOKENS * CHOICES * 4);
        args.ids = on_device(ids, TOKENS * CHOICES * 4);
        args.shared_rows = on_device(shared_rows, TOKENS * 4);
        const float *weights_there = on_device(weights, TOKENS * CHOICES * 4);
        args.weights = variant % 4 == 3 ? NULL : weights_there;
        float *bias = values_of(EXPERTD_DTYPE_F32, WIDTH, &random, values);
        const float *bias_there = on_device(bias, WIDTH * sizeof *bias);
        args.bias = variant % 3 == 1 ? bias_there : NULL;
        args.averaged = variant % 4 == 2;
        args.routed_scale = variant % 5 ? 1.0f : 2.5f;
        args.output_dtype = output;
        args.out = on_device(out, TOKENS * out_row);
        device_must(pieces.table->combine(pieces.device, &args, &error), &error);
        back(args.out);
        for (size_t t = 0; t < TOKENS; t++) {
            const void *found[CHOICES];
            char want[WIDTH * 4];
            for (size_t c = 0; c < CHOICES; c++) {
                size_t i = t * CHOICES + c;
                found[c] = choice_row[i] != UINT32_MAX ? rows + choice_row[i] * stride : ids[i] < 0 ? NULL : hidden + t * stride;
            }
            struct expertd_combine_args twin = {.width = WIDTH,
                                                .choices = CHOICES,
                                                .rows = found,
                                                .weights = args.weights ? weights + t * CHOICES : NULL,
                                                .dtype = dtype,
                                                .routed_scale = args.routed_scale,
                                                .shared = shared_rows[t] == UINT32_MAX ? NULL : shared + shared_rows[t] * stride,
                                                .bias = args.bias ? bias : NULL,
                                                .averaged = args.averaged,
                                                .output_dtype = output,
                                                .out = want};
            expertd_combine_row(&twin);
            check_row(output, out + t * out_row, want, WIDTH, "combine");
        }
        drop_pieces();
    }
}

static int close_and_count(void **state) {
    close_device(state);
    return sim_allocations() == 0 ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gate_and_up_give_the_twins_bits),  cmocka_unit_test(down_gives_the_twins_bits),
        cmocka_unit_test(logits_give_the_twins_bits),       cmocka_unit_test(every_kind_of_routing_gives_the_twins_bits),
        cmocka_unit_test(many_experts_give_the_twins_bits), cmocka_unit_test(thousands_of_experts_give_the_twins_bits),
        cmocka_unit_test(combine_gives_the_twins_bits),
    };
    return cmocka_run_group_tests(tests, open_device, close_and_count);
}
