// Packs and unpacks F32 and BF16 weights: every dtype, layout and stride, on every backend.
#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/weights.h"

struct pack_case {
    enum expertd_dtype from, to;
    size_t n, k, n_stride, k_stride;
    size_t misaligned; // bytes
    enum expertd_packed_layout layout;
};

// The file's element [n][k].
static float element(const struct pack_case *c, const uint8_t *data, size_t n, size_t k) {
    float value;
    expertd_dtype_widen(c->from, data + (n * c->n_stride + k * c->k_stride) * expertd_dtype_size(c->from), 1, &value);
    return value;
}

static float packed_element(const struct pack_case *c, const void *packed, size_t n, size_t k) {
    size_t width = c->layout == EXPERTD_PACKED_SLICES        ? 16
                   : c->layout == EXPERTD_PACKED_WIDE_SLICES ? 32
                                                             : 64,
           slice = n / width, column = n % width;
    if (c->to == EXPERTD_DTYPE_F32) {
        return ((const float *)packed)[(slice * c->k + k) * width + column];
    }
    size_t pairs = (c->k + 1) / 2;
    return expertd_f32_from_bf16(((const uint16_t *)packed)[((slice * pairs + k / 2) * width + column) * 2 + k % 2]);
}

static float rounded(enum expertd_dtype to, float value) {
    return to == EXPERTD_DTYPE_F32 ? value : expertd_f32_from_bf16(expertd_bf16_from_f32(value));
}

static void check_unpacked(const struct pack_case *c, const uint8_t *data, void *packed) {
    struct expertd_packed_weights weights = {
        .dtype = c->to, .groups = 1, .k = c->k, .n = c->n, .data = &packed, .layout = c->layout};
    void *plain = test_alloc(c->n * c->k * expertd_dtype_size(c->to) + 1);
    expertd_unpack_weights(&weights, 0, plain);
    for (size_t i = 0; i < c->n * c->k; i++) {
        float got = c->to == EXPERTD_DTYPE_F32 ? ((const float *)plain)[i] : expertd_f32_from_bf16(((const uint16_t *)plain)[i]);
        assert_true(same_f32(got, rounded(c->to, element(c, data, i / c->k, i % c->k))));
    }
    free(plain);
}

static void check_case(const struct pack_case *c, struct random *random) {
    size_t last = (c->n ? (c->n - 1) * c->n_stride : 0) + (c->k ? (c->k - 1) * c->k_stride : 0);
    size_t bytes = c->n && c->k ? (last + 1) * expertd_dtype_size(c->from) : 0;
    uint8_t *memory = test_alloc(bytes + c->misaligned), *data = memory + c->misaligned;
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)random_next(random);
    }
    size_t packed_bytes = expertd_packed_group_bytes(c->to, c->k, c->n);
    assert_int_equal(packed_bytes % 64, 0);
    uint8_t *packed = test_alloc(packed_bytes);
    memset(packed, 0xff, packed_bytes); // NaN everywhere
    struct expertd_weight_source source = {data, c->from, c->n_stride, c->k_stride};
    expertd_pack_weights(&source, c->k, c->n, c->to, c->layout, packed);
    size_t rows = c->to == EXPERTD_DTYPE_F32 ? c->k : (c->k + 1) / 2 * 2;
    for (size_t n = 0; n < (c->n + 63) / 64 * 64; n++) {
        for (size_t k = 0; k < rows; k++) {
            float want = n < c->n && k < c->k ? rounded(c->to, element(c, data, n, k)) : 0.0f;
            float got = packed_element(c, packed, n, k);
            if (!same_f32(got, want)) {
                fail_msg("%s to %s, [%zu, %zu], strides %zu, %zu: [%zu][%zu] is %a, not %a", expertd_dtype_name(c->from),
                         expertd_dtype_name(c->to), c->n, c->k, c->n_stride, c->k_stride, n, k, (double)got, (double)want);
            }
        }
    }
    check_unpacked(c, data, packed);
    free(memory);
    free(packed);
}

static void check_elements(const struct kernel_backend *backend) {
    assert_false(err_is(expertd_kernel_select(backend->name)));
    static const enum expertd_dtype FROM[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_F16, EXPERTD_DTYPE_BF16},
                                    TO[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16};
    static const size_t N[] = {0, 1, 63, 64, 65, 130}, K[] = {0, 1, 2, 63, 64, 65, 129, 257};
    struct random random = {8};
    for (size_t i = 0; i < COUNT_OF(FROM) * COUNT_OF(TO) * COUNT_OF(N) * COUNT_OF(K); i++) {
        if (!takes_case()) {
            continue;
        }
        size_t n = N[i % COUNT_OF(N)], k = K[i / COUNT_OF(N) % COUNT_OF(K)];
        enum expertd_dtype from = FROM[i / COUNT_OF(N) / COUNT_OF(K) % COUNT_OF(FROM)];
        enum expertd_dtype to = TO[i / COUNT_OF(N) / COUNT_OF(K) / COUNT_OF(FROM)];
        const struct pack_case cases[] = {
            {from, to, n, k, k, 1, 0, EXPERTD_PACKED_PANELS},         // [N, K]
            {from, to, n, k, 1, n, 1, EXPERTD_PACKED_PANELS},         // [K, N], misaligned
            {from, to, n, k, 2 * k, 1, 3, EXPERTD_PACKED_PANELS},     // rows interleaved with another matrix's
            {from, to, n, k, 2, 2 * n + 1, 2, EXPERTD_PACKED_PANELS}, // columns interleaved, transposed
            {from, to, n, k, k + 5, 1, 0, EXPERTD_PACKED_PANELS},     // rows of a wider matrix
        };
        for (size_t c = 0; c < COUNT_OF(cases); c++) {
            for (size_t layout = 0; layout < EXPERTD_PACKED_LAYOUTS; layout++) {
                struct pack_case as = cases[c];
                as.layout = (enum expertd_packed_layout)layout;
                check_case(&as, &random);
            }
        }
    }
}

static void every_element_is_packed_and_rounded_once(void **state) {
    (void)state;
    for_each_backend(check_elements);
    assert_false(err_is(expertd_kernel_select("auto")));
}

static void f16_subnormals_and_f32_ties_keep_their_value(void **state) {
    (void)state;
    uint16_t subnormal[1] = {0x0001}; // 2^-24
    uint16_t packed[2 * 64];
    struct expertd_weight_source source = {subnormal, EXPERTD_DTYPE_F16, 1, 1};
    expertd_pack_weights(&source, 1, 1, EXPERTD_DTYPE_BF16, EXPERTD_PACKED_PANELS, packed);
    assert_true(same_f32(expertd_f32_from_bf16(packed[0]), 0x1p-24f));
    float ties[2] = {0x1.01p0f, 0x1.03p0f}; // ties: to even, down and up
    source = (struct expertd_weight_source){ties, EXPERTD_DTYPE_F32, 2, 1};
    expertd_pack_weights(&source, 2, 1, EXPERTD_DTYPE_BF16, EXPERTD_PACKED_PANELS, packed);
    assert_true(same_f32(expertd_f32_from_bf16(packed[0]), 0x1p0f));
    assert_true(same_f32(expertd_f32_from_bf16(packed[1]), 0x1.04p0f));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_packed_and_rounded_once),
        cmocka_unit_test(f16_subnormals_and_f32_ties_keep_their_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
