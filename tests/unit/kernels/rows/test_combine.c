// The combine of every backend, bit for bit against the formula in docs/numerics.md ("One MoE layer").
#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/combine.h"

enum { WIDTH_MAX = 530, CHOICES_MAX = 5 };

struct operands {
    float rows[CHOICES_MAX][WIDTH_MAX], shared[WIDTH_MAX], weights[CHOICES_MAX], bias[WIDTH_MAX];
    uint8_t narrow_rows[CHOICES_MAX][WIDTH_MAX * 4], narrow_shared[WIDTH_MAX * 4];
    const void *pointers[CHOICES_MAX];
};

static void fill(struct random *random, enum expertd_dtype dtype, struct operands *x) {
    for (size_t j = 0; j < CHOICES_MAX; j++) {
        for (size_t i = 0; i < WIDTH_MAX; i++) {
            x->rows[j][i] = random_f32(random, i % 13 == 0 ? VALUES_ANY : i % 5 == 0 ? VALUES_SUBNORMAL : VALUES_PLAIN);
            x->shared[i] = random_f32(random, VALUES_PLAIN);
        }
        expertd_dtype_narrow(x->rows[j], WIDTH_MAX, dtype, x->narrow_rows[j]);
        expertd_dtype_widen(dtype, x->narrow_rows[j], WIDTH_MAX, x->rows[j]); // the rounded values, which the combine reads
        x->weights[j] = random_f32(random, j == 3 ? VALUES_SUBNORMAL : VALUES_PLAIN);
        x->pointers[j] = random_below(random, 4) ? x->narrow_rows[j] : NULL; // a dropped choice
    }
    for (size_t i = 0; i < WIDTH_MAX; i++) {
        x->bias[i] = random_f32(random, i % 7 == 0 ? VALUES_SUBNORMAL : VALUES_PLAIN);
    }
    expertd_dtype_narrow(x->shared, WIDTH_MAX, dtype, x->narrow_shared);
    expertd_dtype_widen(dtype, x->narrow_shared, WIDTH_MAX, x->shared);
}

static float formula(const struct expertd_combine_args *args, const struct operands *x, size_t i) {
    float sum = 0.0f;
    for (size_t j = 0; j < args->choices; j++) {
        if (args->rows[j]) {
            sum = args->weights ? fmaf(args->weights[j], x->rows[j][i], sum) : sum + x->rows[j][i];
        }
    }
    sum = args->routed_scale == 1 ? sum : sum * args->routed_scale;
    sum = args->shared ? sum + x->shared[i] : sum;
    sum = args->bias ? sum + x->bias[i] : sum;
    return args->averaged ? sum * 0.5f : sum;
}

static void check(const struct kernel_backend *backend, struct expertd_combine_args args, const struct operands *x) {
    size_t size = expertd_dtype_size(args.output_dtype);
    uint8_t *memory = test_alloc(args.width * size + 1), *out = memory + 1; // misaligned
    memset(out, 0xff, args.width * size);
    args.out = out;
    backend->combine(&args);
    float exact[WIDTH_MAX], want[WIDTH_MAX], got[WIDTH_MAX];
    for (size_t i = 0; i < args.width; i++) {
        exact[i] = formula(&args, x, i);
    }
    uint8_t *narrow = test_alloc(args.width * size);
    expertd_dtype_narrow(exact, args.width, args.output_dtype, narrow);
    expertd_dtype_widen(args.output_dtype, narrow, args.width, want);
    expertd_dtype_widen(args.output_dtype, out, args.width, got);
    assert_same_f32(got, want, args.width, backend->name);
    free(memory), free(narrow);
}

static void check_backend(const struct kernel_backend *backend) {
    static const enum expertd_dtype D[] = {EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F32},
                                    OUT[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F16};
    static const size_t WIDTHS[] = {0, 1, 15, 64, 255, 256, 257, WIDTH_MAX};
    static struct operands x;
    struct random random = {91};
    for (size_t i = 0; i < 400; i++) {
        enum expertd_dtype dtype = D[i % COUNT_OF(D)];
        fill(&random, dtype, &x);
        struct expertd_combine_args args = {
            .width = WIDTHS[random_below(&random, COUNT_OF(WIDTHS))],
            .choices = random_below(&random, CHOICES_MAX + 1),
            .rows = x.pointers,
            .weights = random_below(&random, 3) ? x.weights : NULL,
            .dtype = dtype,
            .routed_scale = random_below(&random, 2) ? 1.0f : 2.5f,
            .shared = random_below(&random, 2) ? x.narrow_shared : NULL,
            .bias = random_below(&random, 3) ? NULL : x.bias,
            .averaged = random_below(&random, 3) == 0,
            .output_dtype = OUT[random_below(&random, COUNT_OF(OUT))],
        };
        check(backend, args, &x);
    }
}

static void every_backend_adds_in_the_order_of_the_choices(void **state) {
    (void)state;
    for_each_backend(check_backend);
}

static void order_of_choices_shows_in_the_bits(void **state) {
    (void)state;
    float big = 0x1p25f, one = 1, minus = -0x1p25f, weights[3] = {1, 1, 1}, out;
    const void *first[3] = {&big, &minus, &one}, *last[3] = {&big, &one, &minus};
    struct expertd_combine_args args = {.width = 1,
                                        .choices = 3,
                                        .rows = first,
                                        .weights = weights,
                                        .dtype = EXPERTD_DTYPE_F32,
                                        .routed_scale = 1,
                                        .output_dtype = EXPERTD_DTYPE_F32};
    args.out = &out;
    expertd_combine_row(&args);
    assert_true(out == 1);
    args.rows = last;
    expertd_combine_row(&args);
    assert_true(out == 0);
}

static void no_choices_give_plus_zero(void **state) {
    (void)state;
    float weights[2] = {-1, -1}, out = 7;
    const void *rows[2] = {NULL, NULL};
    expertd_combine_row(&(struct expertd_combine_args){.width = 1,
                                                       .choices = 2,
                                                       .rows = rows,
                                                       .weights = weights,
                                                       .dtype = EXPERTD_DTYPE_F32,
                                                       .routed_scale = 1,
                                                       .output_dtype = EXPERTD_DTYPE_F32,
                                                       .out = &out});
    assert_true(same_f32(out, 0.0f));
}

// The mean is of the whole sum, and the bias is added after the shared row: another order would give another value here.
static void averaging_is_the_last_step(void **state) {
    (void)state;
    float row = 0x1p25f, weight = 1, shared = -0x1p25f, bias = 3, out;
    const void *rows[1] = {&row};
    expertd_combine_row(&(struct expertd_combine_args){.width = 1,
                                                       .choices = 1,
                                                       .rows = rows,
                                                       .weights = &weight,
                                                       .dtype = EXPERTD_DTYPE_F32,
                                                       .routed_scale = 1,
                                                       .shared = &shared,
                                                       .bias = &bias,
                                                       .averaged = 1,
                                                       .output_dtype = EXPERTD_DTYPE_F32,
                                                       .out = &out});
    assert_true(out == 1.5f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_backend_adds_in_the_order_of_the_choices),
        cmocka_unit_test(order_of_choices_shows_in_the_bits),
        cmocka_unit_test(no_choices_give_plus_zero),
        cmocka_unit_test(averaging_is_the_last_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
