// Choosing experts and combining their results on a simulated GPU, against their scalar twins on the CPU, bit for bit, with
// poisoned outputs.
#include "device_pieces.h"

#include "expertd/kernels/combine.h"

// ---- choose

// The same logits with given choices (args->chosen): fills ids with choices and checks their weights.
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
        float expected[16];
        for (uint32_t j = 0; j < routing->top_k; j++) {
            chosen[j] = (int32_t)(((t * args->columns + j) * 7 + 3) % routing->num_experts);
        }
        expertd_routing_row_chosen(routing, logits + (size_t)t * routing->num_experts, chosen, expected, scratch);
        assert_memory_equal(ids + (size_t)t * args->columns, chosen, routing->top_k * sizeof *ids);
        assert_same_f32(weights + (size_t)t * args->columns, expected, routing->top_k, "weights of given choices");
        for (uint32_t j = routing->top_k; j < args->columns; j++) {
            assert_int_equal(ids[t * args->columns + j], -1);
            assert_true(weights[t * args->columns + j] == 0.0f);
        }
    }
}

static void check_choose(const struct expertd_routing *routing, enum values values, uint64_t seed) {
    enum { CHOOSE_TOKENS = 5, EXTRA = 2 };
    struct random random = {seed};
    struct expertd_device_error error;
    uint32_t n = routing->num_experts, columns = routing->top_k + EXTRA;
    float *logits = values_of(EXPERTD_DTYPE_F32, CHOOSE_TOKENS * n, &random, values);
    for (size_t i = 0; i < n; i++) { // with ties
        logits[i] = logits[i % 3];
    }
    float *bias = values_of(EXPERTD_DTYPE_F32, n, &random, VALUES_PLAIN);
    int32_t *ids = poisoned(CHOOSE_TOKENS * columns * sizeof *ids);
    float *weights = poisoned(CHOOSE_TOKENS * columns * sizeof *weights);
    struct expertd_device_choose args = {
        .routing = *routing, .logits = on_device(logits, CHOOSE_TOKENS * n * 4), .tokens = CHOOSE_TOKENS, .columns = columns};
    struct expertd_routing with_bias = *routing;
    const float *device_bias = on_device(bias, n * 4);
    args.routing.selection_bias = routing->selection_bias ? device_bias : NULL;
    with_bias.selection_bias = routing->selection_bias ? bias : NULL;
    args.ids = on_device(ids, CHOOSE_TOKENS * columns * sizeof *ids);
    args.weights = on_device(weights, CHOOSE_TOKENS * columns * sizeof *weights);
    device_must(pieces.table->choose(pieces.device, &args, &error), &error);
    back(args.ids);
    back(args.weights);
    void *scratch = test_alloc(expertd_routing_scratch_bytes(&with_bias));
    for (size_t t = 0; t < CHOOSE_TOKENS; t++) {
        int32_t expected_ids[16];
        float expected_weights[16];
        expertd_routing_row(&with_bias, logits + t * n, expected_ids, expected_weights, scratch);
        assert_memory_equal(ids + t * columns, expected_ids, routing->top_k * sizeof *ids);
        assert_same_f32(weights + t * columns, expected_weights, routing->top_k, "weights");
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

static const float BIASED = 0; // marks a selection bias; check_choose fills in its own

static const struct expertd_routing KINDS[] = {
    {.score = EXPERTD_SCORE_SOFTMAX, .norm = EXPERTD_NORM_SUM, .scale = 1, .num_experts = 60, .top_k = 8},
    {.score = EXPERTD_SCORE_SOFTMAX, .norm = EXPERTD_NORM_NONE, .scale = 2.5f, .num_experts = 7, .top_k = 7},
    {.score = EXPERTD_SCORE_SOFTMAX,
     .order = EXPERTD_ORDER_TOPK_SCORE,
     .scale = 1,
     .num_experts = 33,
     .top_k = 4,
     .selection_bias = &BIASED},
    {.score = EXPERTD_SCORE_SIGMOID,
     .norm = EXPERTD_NORM_SUM,
     .norm_epsilon = 1e-20f,
     .scale = 2.5f,
     .num_experts = 64,
     .top_k = 6,
     .num_groups = 8,
     .top_groups = 3,
     .group_score = EXPERTD_GROUP_TOP2_SUM,
     .selection_bias = &BIASED},
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
     .selection_bias = &BIASED},
    {.score = EXPERTD_SCORE_SIGMOID, .order = EXPERTD_ORDER_TOPK_SCORE, .scale = 1, .num_experts = 16, .top_k = 1},
    {.score = EXPERTD_SCORE_SIGMOID,
     .order = EXPERTD_ORDER_TOPK_SCORE,
     .norm = EXPERTD_NORM_SUM,
     .scale = 1,
     .num_experts = 24,
     .top_k = 4,
     .selection_bias = &BIASED},
    {.score = EXPERTD_SCORE_SQRT_SOFTPLUS,
     .norm = EXPERTD_NORM_SUM,
     .norm_epsilon = 1e-20f,
     .scale = 1.5f,
     .num_experts = 48,
     .top_k = 6,
     .selection_bias = &BIASED},
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
     .selection_bias = &BIASED,
     .softcap = 3},
    {.score = EXPERTD_SCORE_SOFTMAX, .order = EXPERTD_ORDER_TOPK_SCORE, .scale = 1, .num_experts = 33, .top_k = 4, .softcap = 0.7f},
};

static void every_kind_of_routing_gives_the_twins_bits(void **state) {
    (void)state;
    check_kinds(KINDS, COUNT_OF(KINDS));
}

// Each lane has several experts or groups, and the best of all are often the same lane's.
static void many_experts_give_the_twins_bits(void **state) {
    (void)state;
    const struct expertd_routing kinds[] = {
        {.score = EXPERTD_SCORE_SOFTMAX, .norm = EXPERTD_NORM_SUM, .scale = 1, .num_experts = 128, .top_k = 8},
        {.score = EXPERTD_SCORE_SIGMOID,
         .norm = EXPERTD_NORM_SUM,
         .scale = 2.5f,
         .num_experts = 300,
         .top_k = 16,
         .selection_bias = &BIASED},
        {.score = EXPERTD_SCORE_SOFTMAX,
         .norm = EXPERTD_NORM_SUM,
         .scale = 1,
         .num_experts = 132,
         .top_k = 3,
         .num_groups = 66,
         .top_groups = 40,
         .group_score = EXPERTD_GROUP_TOP2_SUM,
         .selection_bias = &BIASED},
    };
    check_kinds(kinds, COUNT_OF(kinds));
}

// Needs more shared memory than the default.
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

enum { TOKENS = 4, CHOICES = 3, WIDTH = 300, RESULTS = 7, SHARED = 2 };

// The host's arrays of one case.
struct combination {
    enum expertd_dtype dtype, output;
    size_t stride, out_row; // bytes
    char *rows, *hidden, *shared, *out;
    float *weights, *bias;
    uint32_t *choice_row, *shared_rows;
    int32_t *ids;
};

static struct combination combination_of(int variant) {
    static const enum expertd_dtype OUTPUTS[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F16};
    struct random random = {0xfeedface + (uint64_t)variant};
    enum values values = variant < 6 ? VALUES_PLAIN : VALUES_ANY;
    struct combination c = {.dtype = variant % 2 ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16, .output = OUTPUTS[variant % 3]};
    size_t size = expertd_dtype_size(c.dtype);
    c.stride = (WIDTH * size + 63) / 64 * 64;
    c.out_row = WIDTH * expertd_dtype_size(c.output);
    c.rows = values_of(c.dtype, RESULTS * c.stride / size, &random, values);
    c.hidden = values_of(c.dtype, TOKENS * c.stride / size, &random, values);
    c.shared = values_of(c.dtype, SHARED * c.stride / size, &random, values);
    c.out = poisoned(TOKENS * c.out_row);
    c.weights = values_of(EXPERTD_DTYPE_F32, TOKENS * CHOICES, &random, VALUES_PLAIN);
    c.choice_row = test_alloc(TOKENS * CHOICES * 4);
    c.shared_rows = test_alloc(TOKENS * 4);
    c.ids = test_alloc(TOKENS * CHOICES * 4);
    for (uint32_t i = 0; i < TOKENS * CHOICES; i++) { // an expert's row, no choice, or the identity
        c.choice_row[i] = i % 4 < 2 ? random_below(&random, RESULTS) : UINT32_MAX;
        c.ids[i] = i % 4 == 2 ? -1 : 5;
    }
    for (uint32_t t = 0; t < TOKENS; t++) {
        c.shared_rows[t] = t % 2 ? t / 2 : UINT32_MAX;
    }
    c.bias = values_of(EXPERTD_DTYPE_F32, WIDTH, &random, values);
    return c;
}

static struct expertd_device_combine combine_args_of(const struct combination *c, int variant) {
    struct expertd_device_combine args = {
        .width = WIDTH, .tokens = TOKENS, .choices = CHOICES, .dtype = c->dtype, .stride = c->stride, .output_dtype = c->output};
    args.rows = on_device(c->rows, RESULTS * c->stride);
    args.hidden = on_device(c->hidden, TOKENS * c->stride);
    args.shared = on_device(c->shared, SHARED * c->stride);
    args.choice_row = on_device(c->choice_row, TOKENS * CHOICES * 4);
    args.ids = on_device(c->ids, TOKENS * CHOICES * 4);
    args.shared_rows = on_device(c->shared_rows, TOKENS * 4);
    const float *weights = on_device(c->weights, TOKENS * CHOICES * 4), *bias = on_device(c->bias, WIDTH * sizeof *bias);
    args.weights = variant % 4 == 3 ? NULL : weights;
    args.bias = variant % 3 == 1 ? bias : NULL;
    args.averaged = variant % 4 == 2;
    args.routed_scale = variant % 5 ? 1.0f : 2.5f;
    args.out = on_device(c->out, TOKENS * c->out_row);
    return args;
}

static void check_combined_token(const struct combination *c, const struct expertd_device_combine *args, size_t token) {
    const void *found[CHOICES];
    char expected[WIDTH * 4];
    for (size_t choice = 0; choice < CHOICES; choice++) {
        size_t i = token * CHOICES + choice;
        found[choice] = c->choice_row[i] != UINT32_MAX ? c->rows + c->choice_row[i] * c->stride
                        : c->ids[i] < 0                ? NULL
                                                       : c->hidden + token * c->stride;
    }
    uint32_t shared_row = c->shared_rows[token];
    struct expertd_combine_args twin = {.width = WIDTH,
                                        .choices = CHOICES,
                                        .rows = found,
                                        .weights = args->weights ? c->weights + token * CHOICES : NULL,
                                        .dtype = c->dtype,
                                        .routed_scale = args->routed_scale,
                                        .shared = shared_row == UINT32_MAX ? NULL : c->shared + shared_row * c->stride,
                                        .bias = args->bias ? c->bias : NULL,
                                        .averaged = args->averaged,
                                        .output_dtype = c->output,
                                        .out = expected};
    expertd_combine_row(&twin);
    assert_same_row(c->output, c->out + token * c->out_row, expected, WIDTH, "combine");
}

static void combine_gives_the_twins_bits(void **state) {
    (void)state;
    for (int variant = 0; variant < 12; variant++) {
        struct expertd_device_error error;
        struct combination c = combination_of(variant);
        struct expertd_device_combine args = combine_args_of(&c, variant);
        device_must(pieces.table->combine(pieces.device, &args, &error), &error);
        back(args.out);
        for (size_t token = 0; token < TOKENS; token++) {
            check_combined_token(&c, &args, token);
        }
        drop_pieces();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_routing_gives_the_twins_bits),
        cmocka_unit_test(many_experts_give_the_twins_bits),
        cmocka_unit_test(thousands_of_experts_give_the_twins_bits),
        cmocka_unit_test(combine_gives_the_twins_bits),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
