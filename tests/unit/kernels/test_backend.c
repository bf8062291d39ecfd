#include "kernel_test.h"

#include "kernels/cpu/backends.h"

static void every_backend_of_this_cpu_passes_its_check(void **state) {
    (void)state;
    int usable;
    const struct kernel_backend *backend = NULL, *last = NULL;
    for (size_t i = 0; (backend = kernel_backend_at(i, &usable)); i++) {
        last = backend;
        if (usable) {
            assert_null(backend_self_check(backend));
            assert_false(err_is(kernel_select(backend->name)));
            assert_ptr_equal(kernel_selected(), backend);
        } else {
            assert_int_equal(kernel_select(backend->name).code, ERR_UNAVAILABLE);
            assert_non_null(strstr(err_message(), backend->name));
        }
    }
    INVARIANT(last);
    assert_string_equal(last->name, "scalar"); // everywhere
    assert_true(usable);
}

static void unknown_name_lists_the_names(void **state) {
    (void)state;
    assert_int_equal(kernel_select("avx1024").code, ERR_CONFIG);
    assert_non_null(strstr(err_message(), "avx1024"));
    assert_non_null(strstr(err_message(), "auto"));
    assert_non_null(strstr(err_message(), "scalar"));
}

#if defined(__aarch64__)
static const char OTHER_NAME[] = "avx512vnni", OTHER_CPU[] = "x86-64";
#else
static const char OTHER_NAME[] = "neondot", OTHER_CPU[] = "aarch64";
#endif

static void name_of_another_cpu_says_of_which(void **state) {
    (void)state;
    assert_int_equal(kernel_select(OTHER_NAME).code, ERR_UNAVAILABLE);
    assert_non_null(strstr(err_message(), OTHER_NAME));
    assert_non_null(strstr(err_message(), OTHER_CPU));
}

static void auto_chooses_one_that_runs_here(void **state) {
    (void)state;
    assert_false(err_is(kernel_select("auto")));
    int usable;
    for (size_t i = 0; kernel_backend_at(i, &usable) != kernel_selected(); i++) {
        assert_non_null(kernel_backend_at(i, &usable));
    }
    assert_true(usable);
    assert_string_equal(kernel_arithmetic_name(DTYPE_BF16), "cpu");
}

// A unit with another arithmetic is found out: each of the ways in which one could differ.
static void plain_bf16(const struct panel_args *args) {
    const uint16_t *panel = args->panel;
    for (size_t r = 0; r < args->rows; r++) { // even k first, nothing flushed
        const uint16_t *x = args->x[r];
        for (size_t c = 0; c < args->columns; c++) {
            float sum = 0;
            for (size_t i = 0; i < args->k; i++) {
                sum = fmaf(f32_from_bf16(x[i]), f32_from_bf16(panel[i / 2 * 128 + 2 * c + i % 2]), sum);
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

static void unsigned_i8(const struct panel_i8_args *args) { // x + 128, and the offsets forgotten
    struct panel_i8_args plain = *args;
    backend_scalar.panel_i8(&plain);
    const int32_t *offsets = args->panel;
    for (size_t c = 0; c < args->columns; c++) {
        args->out[c] -= offsets[c];
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
    broken.panel_bf16 = plain_bf16;
    assert_string_equal(backend_self_check(&broken), "bf16 sum");
    broken = backend_scalar, broken.panel_f32 = unfused_f32;
    assert_string_equal(backend_self_check(&broken), "f32 sum");
    broken = backend_scalar, broken.panel_i8 = unsigned_i8;
    assert_string_equal(backend_self_check(&broken), "int8 sum");
    broken = backend_scalar, broken.exp_minus = libm_exp;
    assert_string_equal(backend_self_check(&broken), "exponential");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(name_of_another_cpu_says_of_which),
        cmocka_unit_test(auto_chooses_one_that_runs_here),
        cmocka_unit_test(every_backend_of_this_cpu_passes_its_check),
        cmocka_unit_test(unknown_name_lists_the_names),
        cmocka_unit_test(backend_with_another_arithmetic_fails_its_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
