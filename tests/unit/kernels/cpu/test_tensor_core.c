// tensor_core.h's model of a Hopper GPU's tensor cores compared with recorded outputs of an H200.
#include "tests/unit/kernels/cuda/sm_90_products.h"
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/cpu/common/tensor_core.h"

static void check(const struct tensor_core *core, enum expertd_dtype dtype, const void *x, const void *w, uint32_t before,
                  uint32_t after, size_t index) {
    float factors[TENSOR_CORE_PRODUCTS_MAX], weights[TENSOR_CORE_PRODUCTS_MAX];
    expertd_dtype_widen(dtype, x, core->products, factors);
    expertd_dtype_widen(dtype, w, core->products, weights);
    float got = tensor_core_add(core, factors, weights, expertd_f32_from_bits(before)), want = expertd_f32_from_bits(after);
    if (expertd_f32_bits(got) != after && !(isnan(got) && isnan(want))) {
        fail_msg("%s, case %zu: %a, not %a", expertd_dtype_name(dtype), index, (double)got, (double)want);
    }
}

static void every_bit_is_the_gpus(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(SM_90_BF16); i++) {
        check(&TENSOR_CORE_SM90_BF16, EXPERTD_DTYPE_BF16, SM_90_BF16[i].x, SM_90_BF16[i].w, SM_90_BF16[i].before,
              SM_90_BF16[i].after, i);
    }
    for (size_t i = 0; i < COUNT_OF(SM_90_F16); i++) {
        check(&TENSOR_CORE_SM90_F16, EXPERTD_DTYPE_F16, SM_90_F16[i].x, SM_90_F16[i].w, SM_90_F16[i].before, SM_90_F16[i].after, i);
    }
    for (size_t i = 0; i < COUNT_OF(SM_90_E4M3); i++) {
        check(&TENSOR_CORE_SM90_E4M3, EXPERTD_DTYPE_F8_E4M3, SM_90_E4M3[i].x, SM_90_E4M3[i].w, SM_90_E4M3[i].before,
              SM_90_E4M3[i].after, i);
    }
}

// Models with one bit more or less, or with half of the products at once, fail some of the cases: the cases distinguish them.
static void another_core_has_other_bits(void **state) {
    (void)state;
    static const struct tensor_core OTHERS[] = {{16, 24, 23, -126}, {16, 26, 23, -126}, {16, 25, 22, -126}, {8, 25, 23, -126}};
    for (size_t o = 0; o < COUNT_OF(OTHERS); o++) {
        size_t unlike = 0;
        for (size_t i = 0; i < COUNT_OF(SM_90_BF16); i++) {
            float x[16], w[16], sum = expertd_f32_from_bits(SM_90_BF16[i].before);
            expertd_dtype_widen(EXPERTD_DTYPE_BF16, SM_90_BF16[i].x, 16, x);
            expertd_dtype_widen(EXPERTD_DTYPE_BF16, SM_90_BF16[i].w, 16, w);
            for (size_t k = 0; k < 16; k += OTHERS[o].products) {
                sum = tensor_core_add(&OTHERS[o], x + k, w + k, sum);
            }
            unlike += expertd_f32_bits(sum) != SM_90_BF16[i].after;
        }
        assert_true(unlike > 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_is_the_gpus),
        cmocka_unit_test(another_core_has_other_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
