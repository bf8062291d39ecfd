#include "tests/unit/kernels/kernel_test.h"

#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/backend/unpacked_k_major.h"
#include "kernels/cpu/backend/unpacked_n_major.h"
#include "kernels/layout/pack.h"

static void every_backend_of_this_cpu_passes_its_check(void **state) {
    (void)state;
    bool usable;
    const struct kernel_backend *backend = NULL, *last = NULL;
    for (size_t i = 0; (backend = kernel_backend_at(i, &usable)); i++) {
        last = backend;
        if (usable) {
            assert_null(backend_self_check(backend));
            assert_false(err_is(expertd_kernel_select(backend->name)));
            assert_ptr_equal(kernel_selected(), backend);
        } else {
            assert_int_equal(expertd_kernel_select(backend->name).code, EXPERTD_ERR_UNAVAILABLE);
            assert_non_null(strstr(expertd_err_message(), backend->name));
        }
    }
    INVARIANT(last);
    assert_string_equal(last->name, "scalar"); // it runs everywhere
    assert_true(usable);
}

static void names_are_those_of_the_backends(void **state) {
    (void)state;
    const struct kernel_backend *backend;
    bool runs;
    bool usable;
    size_t i = 0;
    for (; (backend = kernel_backend_at(i, &runs)); i++) {
        assert_string_equal(expertd_kernel_name_at(i, &usable), backend->name);
        assert_int_equal(usable, runs);
    }
    assert_null(expertd_kernel_name_at(i, &usable));
    assert_false(err_is(expertd_kernel_select("scalar")));
    assert_string_equal(expertd_kernel_selected_name(), "scalar");
}

static void unknown_name_lists_the_names(void **state) {
    (void)state;
    assert_int_equal(expertd_kernel_select("avx1024").code, EXPERTD_ERR_CONFIG);
    assert_non_null(strstr(expertd_err_message(), "avx1024"));
    assert_non_null(strstr(expertd_err_message(), "auto"));
    assert_non_null(strstr(expertd_err_message(), "scalar"));
}

#if defined(__aarch64__)
static const char OTHER_NAME[] = "avx512vnni", OTHER_CPU[] = "x86-64";
#else
static const char OTHER_NAME[] = "neondot", OTHER_CPU[] = "aarch64";
#endif

static void name_for_another_cpu_names_that_cpu(void **state) {
    (void)state;
    assert_int_equal(expertd_kernel_select(OTHER_NAME).code, EXPERTD_ERR_UNAVAILABLE);
    assert_non_null(strstr(expertd_err_message(), OTHER_NAME));
    assert_non_null(strstr(expertd_err_message(), OTHER_CPU));
}

static void auto_chooses_one_that_runs_here(void **state) {
    (void)state;
    assert_false(err_is(expertd_kernel_select("auto")));
    bool usable;
    for (size_t i = 0; kernel_backend_at(i, &usable) != kernel_selected(); i++) {
        assert_non_null(kernel_backend_at(i, &usable));
    }
    assert_true(usable);
    const char *differs = "?";
    assert_null(expertd_kernel_passed_over(&differs)); // also in the emulators that the tests run in
    assert_null(differs);
}

static void portable_chooses_the_common_arithmetic(void **state) {
    (void)state;
    assert_false(err_is(expertd_kernel_select("portable")));
    assert_string_equal(expertd_kernel_arithmetic_name(EXPERTD_DTYPE_BF16), "cpu");
}

// The self-check must find kernels with another arithmetic. Below: each way in which one could differ.

// Even k first, and nothing is flushed.
static void even_first_ieee_bf16(const struct panel_args *args) {
    const uint16_t *panel = args->panel;
    for (size_t r = 0; r < args->rows; r++) {
        const uint16_t *x = args->x[r];
        for (size_t c = 0; c < args->columns; c++) {
            float sum = 0;
            for (size_t i = 0; i < args->k; i++) {
                sum = fmaf(expertd_f32_from_bf16(x[i]), expertd_f32_from_bf16(panel[i / 2 * 128 + 2 * c + i % 2]), sum);
            }
            args->out[r * args->out_stride + c] = sum;
        }
    }
}

static void unfused_f32(const struct panel_args *args) {
    const float *panel = args->panel;
    for (size_t r = 0; r < args->rows; r++) {
        const float *x = args->x[r];
        for (size_t c = 0; c < args->columns; c++) {
            float sum = 0;
            for (size_t i = 0; i < args->k; i++) {
                sum += x[i] * panel[i * 64 + c];
            }
            args->out[r * args->out_stride + c] = sum;
        }
    }
}

// Products of x + 128 without the offsets.
static void unsigned_i8(const struct panel_args *args) {
    struct panel_args plain = *args;
    backend_scalar.i8.panel(&plain);
    const int32_t *offsets = args->panel;
    int32_t *out = (int32_t *)args->out;
    for (size_t c = 0; c < args->columns; c++) {
        out[c] -= offsets[c];
    }
}

static void libm_exp(const float *x, float shift, size_t count, float *out) {
    for (size_t i = 0; i < count; i++) {
        out[i] = (float)exp((double)(x[i] - shift));
    }
}

static void backend_with_another_arithmetic_fails_its_check(void **state) {
    (void)state;
    struct kernel_backend broken = backend_scalar;
    assert_null(backend_self_check(&broken));
    broken.bf16.panel = even_first_ieee_bf16;
    assert_string_equal(backend_self_check(&broken), "bf16 sum");
    broken = backend_scalar, broken.f32.panel = unfused_f32;
    assert_string_equal(backend_self_check(&broken), "f32 sum");
    broken = backend_scalar, broken.i8.panel = unsigned_i8;
    assert_string_equal(backend_self_check(&broken), "int8 sum");
    broken = backend_scalar, broken.exp_minus = libm_exp;
    assert_string_equal(backend_self_check(&broken), "exponential");
}

// Mistakes planted into the macrokernels of each backend: the sums over the preceding k are dropped, always or only where they are
// small. (A NEON kernel once dropped them when it repeated a block because of a flush.)
static const struct kernel_backend *correct;

static void call_from_zero(macrokernel *group, const struct macrokernel_args *args) {
    struct macrokernel_args call = *args;
    call.accumulate = false;
    group(&call);
}

static void drops_sums_f32(const struct macrokernel_args *args) {
    call_from_zero(correct->f32.macrokernel, args);
}

static void drops_sums_i8(const struct macrokernel_args *args) {
    call_from_zero(correct->i8.macrokernel, args);
}

static void drops_small_sums(const struct macrokernel_args *args) {
    size_t count = args->rows * KERNEL_SUMS;
    float *right = test_alloc(count * sizeof *right);
    memcpy(right, args->sums, count * sizeof *right);
    struct macrokernel_args call = *args;
    call.sums = right;
    correct->bf16.macrokernel(&call);
    call_from_zero(correct->bf16.macrokernel, args);
    for (size_t i = 0; i < count; i++) {
        args->sums[i] = fabsf(right[i]) < 0x1p-125f ? args->sums[i] : right[i];
    }
    free(right);
}

// Kernels for unpacked weights that leave out the last k.
static void short_k_major_f32(const struct k_major_args *args) {
    struct k_major_args call = *args;
    call.k--;
    correct->f32.k_major(&call);
}

static void short_k_major_bf16(const struct k_major_args *args) {
    struct k_major_args call = *args;
    call.k--;
    correct->bf16.k_major(&call);
}

static void expect_k_major_mistakes_found(const struct kernel_backend *backend) {
    struct kernel_backend broken = *backend;
    correct = backend;
    if (backend->f32.k_major && backend->bf16.k_major) {
        broken.bf16.k_major = short_k_major_bf16;
        assert_string_equal(backend_self_check(&broken), "bf16 sum");
        broken = *backend, broken.f32.k_major = short_k_major_f32;
        assert_string_equal(backend_self_check(&broken), "f32 sum");
    }
}

// One wrong bit, in the last panel's last sum.
static void one_bit_wrong(const struct macrokernel_args *args, const struct expertd_quantised_format *format) {
    correct->bf16.quantised_large_m(args, format);
    float *sum = args->sums + (args->rows - 1) * KERNEL_SUMS + args->count * EXPERTD_KERNEL_PANEL - 1;
    *sum = expertd_f32_from_bits(expertd_f32_bits(*sum) ^ 1);
}

static void wrong_with_cached_rows(const struct macrokernel_args *args, const struct expertd_quantised_format *format) {
    (args->rows_cached ? one_bit_wrong : correct->bf16.quantised_large_m)(args, format);
}

// One wrong bit, only if all rows are plain: many kernels have faster code for such rows.
static void wrong_for_plain_rows(const struct panel_args *args, const struct expertd_quantised_format *format) {
    correct->bf16.quantised(args, format);
    for (size_t i = 0; i < args->rows * args->k; i++) {
        const uint16_t *x = args->x[i / args->k];
        if ((x[i % args->k] & 0x7fff) < 0x100) {
            return;
        }
    }
    args->out[0] = expertd_f32_from_bits(expertd_f32_bits(args->out[0]) ^ 1);
}

static void expect_macrokernel_mistakes_found(const struct kernel_backend *backend) {
    struct kernel_backend broken = *backend;
    correct = backend;
    if (backend->bf16.macrokernel) {
        broken.bf16.macrokernel = drops_small_sums;
        assert_string_equal(backend_self_check(&broken), "bf16 sum");
    }
    broken = *backend;
    if (backend->f32.macrokernel) {
        broken.f32.macrokernel = drops_sums_f32;
        assert_string_equal(backend_self_check(&broken), "f32 sum");
    }
    broken = *backend;
    if (backend->i8.macrokernel) {
        broken.i8.macrokernel = drops_sums_i8;
        assert_string_equal(backend_self_check(&broken), "int8 sum");
    }
    broken = *backend;
    if (backend->bf16.quantised_large_m) {
        broken.bf16.quantised_large_m = one_bit_wrong;
        assert_string_equal(backend_self_check(&broken), "quantised sum");
        broken.bf16.quantised_large_m = wrong_with_cached_rows;
        assert_string_equal(backend_self_check(&broken), "quantised sum");
    }
    broken = *backend, broken.bf16.quantised = wrong_for_plain_rows;
    assert_string_equal(backend_self_check(&broken), "quantised sum");
}

// One wrong bit in packing, in decoding, and in f32 rows by quantised weights.
static void wrong_pack_k_major(const struct pack_args *args) {
    correct->pack_k_major(args);
    ((uint8_t *)args->panels)[args->lines - 1] ^= 1;
}

static void wrong_pack_n_major(const struct pack_args *args) {
    correct->pack_n_major(args);
    ((uint8_t *)args->panels)[args->lines - 1] ^= 1;
}

static void wrong_decode(const struct decode_args *args) {
    correct->decode(args);
    args->dst[args->count - 1] ^= 1;
}

static void wrong_place(const struct place_args *args) {
    correct->place_codes(args);
    args->lines[0] ^= args->bits == 8;
}

static void wrong_f32_rows(const struct panel_args *args, const struct expertd_quantised_format *format) {
    correct->f32.quantised(args, format);
    float *last = &args->out[(args->rows - 1) * args->out_stride + args->columns - 1];
    *last = expertd_f32_from_bits(expertd_f32_bits(*last) ^ 1);
}

// One wrong bit, only for F16 weights.
static void wrong_for_f16(const struct n_major_args *args) {
    correct->f32.n_major(args);
    if (args->dtype == EXPERTD_DTYPE_F16) {
        args->sums[0] = expertd_f32_from_bits(expertd_f32_bits(args->sums[0]) ^ 1);
    }
}

static void expect_packing_mistakes_found(const struct kernel_backend *backend) {
    struct kernel_backend broken = *backend;
    correct = backend;
    broken.pack_k_major = wrong_pack_k_major;
    assert_string_equal(backend_self_check(&broken), "packing");
    broken = *backend, broken.pack_n_major = wrong_pack_n_major;
    assert_string_equal(backend_self_check(&broken), "packing");
    broken = *backend, broken.decode = wrong_decode;
    assert_string_equal(backend_self_check(&broken), "packing");
    broken = *backend, broken.place_codes = wrong_place;
    assert_string_equal(backend_self_check(&broken), "packing");
    broken = *backend, broken.f32.quantised = wrong_f32_rows;
    assert_string_equal(backend_self_check(&broken), "quantised sum");
    broken = *backend;
    if (backend->f32.n_major) {
        broken.f32.n_major = wrong_for_f16;
        assert_string_equal(backend_self_check(&broken), "f32 sum");
    }
}

static void packing_that_is_wrong_fails_its_check(void **state) {
    (void)state;
    for_each_backend(expect_packing_mistakes_found);
}

static void macrokernel_that_drops_its_sums_fails_its_check(void **state) {
    (void)state;
    for_each_backend(expect_macrokernel_mistakes_found);
    for_each_backend(expect_k_major_mistakes_found);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(name_for_another_cpu_names_that_cpu),
        cmocka_unit_test(auto_chooses_one_that_runs_here),
        cmocka_unit_test(portable_chooses_the_common_arithmetic),
        cmocka_unit_test(every_backend_of_this_cpu_passes_its_check),
        cmocka_unit_test(names_are_those_of_the_backends),
        cmocka_unit_test(unknown_name_lists_the_names),
        cmocka_unit_test(backend_with_another_arithmetic_fails_its_check),
        cmocka_unit_test(macrokernel_that_drops_its_sums_fails_its_check),
        cmocka_unit_test(packing_that_is_wrong_fails_its_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
