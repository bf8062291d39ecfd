#include "tests/unit/kernels/kernel_test.h"

#include "kernels/cpu/backends.h"
#include "kernels/cpu/unpacked_k_major.h"
#include "kernels/cpu/unpacked_n_major.h"
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
    assert_string_equal(last->name, "scalar"); // everywhere
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

static void name_of_another_cpu_says_of_which(void **state) {
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
    assert_string_equal(expertd_kernel_arithmetic_name(EXPERTD_DTYPE_BF16), "cpu");
    const char *differs = "?";
    assert_null(expertd_kernel_passed_over(&differs)); // emulators that the tests know compute rightly
    assert_null(differs);
}

// A unit with another arithmetic is found out: each of the ways in which one could differ.
static void plain_bf16(const struct panel_args *args) {
    const uint16_t *panel = args->panel;
    for (size_t r = 0; r < args->rows; r++) { // even k first, nothing flushed
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

static void unsigned_i8(const struct panel_args *args) { // x + 128, and the offsets forgotten
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
    broken.bf16.panel = plain_bf16;
    assert_string_equal(backend_self_check(&broken), "bf16 sum");
    broken = backend_scalar, broken.f32.panel = unfused_f32;
    assert_string_equal(backend_self_check(&broken), "f32 sum");
    broken = backend_scalar, broken.i8.panel = unsigned_i8;
    assert_string_equal(backend_self_check(&broken), "int8 sum");
    broken = backend_scalar, broken.exp_minus = libm_exp;
    assert_string_equal(backend_self_check(&broken), "exponential");
}

// Mistakes of the kernels for groups of panels, planted in whichever backend is at hand: sums over the k before that are left out,
// always or only where they are so small that a unit whose flush is another takes the block again (NEON's once began anew then).
static const struct kernel_backend *whole;

static void call_from_zero(macrokernel *group, const struct macrokernel_args *args) {
    struct macrokernel_args call = *args;
    call.goes_on = false;
    group(&call);
}

static void forgetful_f32(const struct macrokernel_args *args) {
    call_from_zero(whole->f32.group, args);
}

static void forgetful_i8(const struct macrokernel_args *args) {
    call_from_zero(whole->i8.group, args);
}

static void forgetful_where_small(const struct macrokernel_args *args) {
    size_t count = args->rows * KERNEL_SUMS;
    float *right = test_alloc(count * sizeof *right);
    memcpy(right, args->sums, count * sizeof *right);
    struct macrokernel_args call = *args;
    call.sums = right;
    whole->bf16.group(&call);
    call_from_zero(whole->bf16.group, args);
    for (size_t i = 0; i < count; i++) {
        args->sums[i] = fabsf(right[i]) < 0x1p-125f ? args->sums[i] : right[i];
    }
    free(right);
}

// Sums of plain weights that miss their last k.
static void short_along_f32(const struct k_major_args *args) {
    struct k_major_args call = *args;
    call.k--;
    whole->f32.k_major(&call);
}

static void short_along_bf16(const struct k_major_args *args) {
    struct k_major_args call = *args;
    call.k--;
    whole->bf16.k_major(&call);
}

static void expect_mistakes_along_found(const struct kernel_backend *backend) {
    struct kernel_backend broken = *backend;
    whole = backend;
    if (backend->f32.k_major && backend->bf16.k_major) {
        broken.bf16.k_major = short_along_bf16;
        assert_string_equal(backend_self_check(&broken), "bf16 sum");
        broken = *backend, broken.f32.k_major = short_along_f32;
        assert_string_equal(backend_self_check(&broken), "f32 sum");
    }
}

// One bit of the last panel's last sum.
static void nearly_right(const struct macrokernel_args *args, const struct expertd_quantised_format *format) {
    whole->bf16.quantised_macrokernel_of(args, format);
    float *sum = args->sums + (args->rows - 1) * KERNEL_SUMS + args->count * EXPERTD_KERNEL_PANEL - 1;
    *sum = expertd_f32_from_bits(expertd_f32_bits(*sum) ^ 1);
}

static void wrong_where_kept(const struct macrokernel_args *args, const struct expertd_quantised_format *format) {
    (args->rows_cached ? nearly_right : whole->bf16.quantised_macrokernel_of)(args, format);
}

// One bit, but only where all rows are plain: kernels have ways of their own for those.
static void wrong_where_plain(const struct panel_args *args, const struct expertd_quantised_format *format) {
    whole->bf16.quantised(args, format);
    for (size_t i = 0; i < args->rows * args->k; i++) {
        const uint16_t *x = args->x[i / args->k];
        if ((x[i % args->k] & 0x7fff) < 0x100) {
            return;
        }
    }
    args->out[0] = expertd_f32_from_bits(expertd_f32_bits(args->out[0]) ^ 1);
}

static void expect_mistakes_of_groups_found(const struct kernel_backend *backend) {
    struct kernel_backend broken = *backend;
    whole = backend;
    if (backend->bf16.group) {
        broken.bf16.group = forgetful_where_small;
        assert_string_equal(backend_self_check(&broken), "bf16 sum");
    }
    broken = *backend;
    if (backend->f32.group) {
        broken.f32.group = forgetful_f32;
        assert_string_equal(backend_self_check(&broken), "f32 sum");
    }
    broken = *backend;
    if (backend->i8.group) {
        broken.i8.group = forgetful_i8;
        assert_string_equal(backend_self_check(&broken), "int8 sum");
    }
    broken = *backend;
    if (backend->bf16.quantised_macrokernel_of) {
        broken.bf16.quantised_macrokernel_of = nearly_right;
        assert_string_equal(backend_self_check(&broken), "quantised sum");
        broken.bf16.quantised_macrokernel_of = wrong_where_kept;
        assert_string_equal(backend_self_check(&broken), "quantised sum");
    }
    broken = *backend, broken.bf16.quantised = wrong_where_plain;
    assert_string_equal(backend_self_check(&broken), "quantised sum");
}

// One bit of what is packed or decoded, and of quantised weights against rows of f32.
static void wrong_pack_along(const struct pack_args *args) {
    whole->pack_k_major(args);
    ((uint8_t *)args->panels)[args->lines - 1] ^= 1;
}

static void wrong_pack_across(const struct pack_args *args) {
    whole->pack_n_major(args);
    ((uint8_t *)args->panels)[args->lines - 1] ^= 1;
}

static void wrong_decode(const struct decode_args *args) {
    whole->decode(args);
    args->dst[args->count - 1] ^= 1;
}

static void wrong_place(const struct place_args *args) {
    whole->place_codes(args);
    args->lines[0] ^= args->bits == 8;
}

static void wrong_f32_rows(const struct panel_args *args, const struct expertd_quantised_format *format) {
    whole->f32.quantised(args, format);
    float *last = &args->out[(args->rows - 1) * args->out_stride + args->columns - 1];
    *last = expertd_f32_from_bits(expertd_f32_bits(*last) ^ 1);
}

// Of weights that lie as F16 alone.
static void wrong_where_f16(const struct n_major_args *args) {
    whole->f32.n_major(args);
    if (args->dtype == EXPERTD_DTYPE_F16) {
        args->sums[0] = expertd_f32_from_bits(expertd_f32_bits(args->sums[0]) ^ 1);
    }
}

static void expect_mistakes_of_packing_found(const struct kernel_backend *backend) {
    struct kernel_backend broken = *backend;
    whole = backend;
    broken.pack_k_major = wrong_pack_along;
    assert_string_equal(backend_self_check(&broken), "packing");
    broken = *backend, broken.pack_n_major = wrong_pack_across;
    assert_string_equal(backend_self_check(&broken), "packing");
    broken = *backend, broken.decode = wrong_decode;
    assert_string_equal(backend_self_check(&broken), "packing");
    broken = *backend, broken.place_codes = wrong_place;
    assert_string_equal(backend_self_check(&broken), "packing");
    broken = *backend, broken.f32.quantised = wrong_f32_rows;
    assert_string_equal(backend_self_check(&broken), "quantised sum");
    broken = *backend;
    if (backend->f32.n_major) {
        broken.f32.n_major = wrong_where_f16;
        assert_string_equal(backend_self_check(&broken), "f32 sum");
    }
}

static void packing_that_is_wrong_fails_its_check(void **state) {
    (void)state;
    for_each_backend(expect_mistakes_of_packing_found);
}

static void group_kernel_that_forgets_its_sums_fails_its_check(void **state) {
    (void)state;
    for_each_backend(expect_mistakes_of_groups_found);
    for_each_backend(expect_mistakes_along_found);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(name_of_another_cpu_says_of_which),
        cmocka_unit_test(auto_chooses_one_that_runs_here),
        cmocka_unit_test(every_backend_of_this_cpu_passes_its_check),
        cmocka_unit_test(names_are_those_of_the_backends),
        cmocka_unit_test(unknown_name_lists_the_names),
        cmocka_unit_test(backend_with_another_arithmetic_fails_its_check),
        cmocka_unit_test(group_kernel_that_forgets_its_sums_fails_its_check),
        cmocka_unit_test(packing_that_is_wrong_fails_its_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
