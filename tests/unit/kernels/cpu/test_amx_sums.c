// The arithmetic of TDPBF16PS on hand-computed vectors: in the reference, in the scalar backend, and with AMX if this CPU has it.
// test_panels compares the three over all shapes and values.
#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/weights.h"
#include "kernels/cpu/backend/backends.h"

enum {
    ONE = 0x3f80,
    MINUS_ONE = 0xbf80,
    BIG = 0x4e80,        // 2^30
    TINY = 0x0080,       // 2^-126
    ABOVE_TINY = 0x00c0, // 1.5 * 2^-126
    SUBNORMAL = 0x0040,  // 2^-127
    INFINITE = 0x7f80,
    K_MAX = 66,
};

struct sum {
    uint16_t x[K_MAX], w[K_MAX];
    size_t k;
    float want;
};

static const struct kernel_backend *amx_here(void) {
    bool usable;
    const struct kernel_backend *backend;
    for (size_t i = 0; (backend = kernel_backend_at(i, &usable)); i++) {
        if (strcmp(backend->name, "amx") == 0 && usable) {
            return backend;
        }
    }
    return NULL;
}

static void check_backend(const struct kernel_backend *backend, const struct sum *s) {
    _Alignas(64) uint16_t panel[K_MAX * EXPERTD_KERNEL_PANEL];
    float out[1] = {NAN};
    const void *rows[1] = {s->x};
    expertd_pack_weights(&(struct expertd_weight_source){s->w, EXPERTD_DTYPE_BF16, s->k, 1}, s->k, 1, EXPERTD_DTYPE_BF16,
                         EXPERTD_PACKED_PANELS, panel);
    struct panel_args args = {rows, 1, panel, s->k, out, EXPERTD_KERNEL_PANEL, 1};
    backend->bf16.panel(&args);
    assert_same_f32(out, &s->want, 1, backend->name);
}

static void check(const struct sum *s) {
    float reference = expertd_dot_bf16_amx_reference(s->x, s->w, 1, s->k);
    assert_same_f32(&reference, &s->want, 1, "the reference");
    check_backend(&backend_scalar_amx, s);
    if (amx_here()) {
        check_backend(amx_here(), s);
    }
}

static void even_and_odd_k_meet_after_32(void **state) {
    (void)state;
    // Even k: 2^30 - 2^30. Odd k: 1 + 1, which sums of pairs would have lost in 2^30.
    check(&(struct sum){{BIG, ONE, BIG, ONE}, {ONE, ONE, MINUS_ONE, ONE}, 4, 2.0f});
    // All at even k: the 1 is lost within the step ...
    check(&(struct sum){{BIG, 0, ONE, 0, BIG, 0}, {ONE, 0, ONE, 0, MINUS_ONE, 0}, 6, 0.0f});
    // ... but not if 2^30 - 2^30 are in the previous step.
    struct sum next = {.k = 34, .want = 1.0f};
    next.x[0] = next.x[2] = BIG, next.w[0] = ONE, next.w[2] = MINUS_ONE, next.x[32] = next.w[32] = ONE;
    check(&next);
    // From step to step the sum is rounded: 2^31 + 1.
    struct sum lost = {.k = 33, .want = 0x1p31f};
    lost.x[0] = lost.x[1] = BIG, lost.w[0] = lost.w[1] = ONE;
    lost.x[32] = lost.w[32] = ONE;
    check(&lost);
}

static void every_step_flushes(void **state) {
    (void)state;
    check(&(struct sum){{SUBNORMAL}, {BIG}, 1, 0.0f}); // DAZ; else it would be 2^-97
    check(&(struct sum){{TINY}, {0x3f00}, 1, 0.0f});   // a product of 2^-127
    check(&(struct sum){{TINY}, {ONE}, 1, 0x1p-126f});
    // Even sum 2^-126, odd sum -1.5 * 2^-126: even + odd is flushed to -0, which is added to +0.
    check(&(struct sum){{TINY, ABOVE_TINY}, {ONE, MINUS_ONE}, 2, 0.0f});
    // The same values in two steps: adding the second to the sum is flushed to -0 ...
    struct sum minus = {.k = 33, .want = -0.0f};
    minus.x[0] = TINY, minus.w[0] = ONE, minus.x[32] = ABOVE_TINY, minus.w[32] = MINUS_ONE;
    check(&minus);
    // ... and the next step's +0 makes it +0.
    minus.k = 65, minus.want = 0.0f;
    check(&minus);
}

static void inf_and_nan_pass_through(void **state) {
    (void)state;
    check(&(struct sum){{INFINITE}, {ONE}, 1, INFINITY});
    check(&(struct sum){{INFINITE, INFINITE}, {ONE, MINUS_ONE}, 2, NAN});
    check(&(struct sum){{INFINITE}, {0}, 1, NAN});
    check(&(struct sum){{0x7f7f, 0x7f7f}, {BIG, BIG}, 2, INFINITY}); // overflow
    check(&(struct sum){{ONE, 0x7fc1}, {ONE, ONE}, 2, NAN});
}

static void numerics_id_tells_the_arithmetic(void **state) {
    (void)state;
    assert_false(err_is(expertd_kernel_select("scalar_amx")));
    assert_string_equal(expertd_kernel_arithmetic_name(EXPERTD_DTYPE_BF16), "cpu_amx");
    assert_string_equal(expertd_kernel_arithmetic_name(EXPERTD_DTYPE_F32), "cpu"); // f32 sums have the same bits everywhere
    assert_false(err_is(expertd_kernel_select_arithmetic("cpu")));
    assert_string_equal(expertd_kernel_arithmetic_name(EXPERTD_DTYPE_BF16), "cpu");
    assert_false(err_is(expertd_kernel_select_arithmetic("cpu_amx")));
    assert_string_equal(expertd_kernel_arithmetic_name(EXPERTD_DTYPE_BF16), "cpu_amx");
    assert_ptr_equal(kernel_selected(), amx_here() ? amx_here() : &backend_scalar_amx);
    assert_int_equal(expertd_kernel_select_arithmetic("sm_80").code, EXPERTD_ERR_UNAVAILABLE); // its arithmetic is not known
    assert_false(err_is(expertd_kernel_select("portable")));
    assert_string_equal(expertd_kernel_arithmetic_name(EXPERTD_DTYPE_BF16), "cpu");
    assert_false(err_is(expertd_kernel_select("auto")));
    if (amx_here()) {
        assert_ptr_equal(kernel_selected(), amx_here());
    }
    assert_string_equal(expertd_kernel_arithmetic_name(EXPERTD_DTYPE_BF16), amx_here() ? "cpu_amx" : "cpu");
}

static void amx_is_tested_on_this_cpu(void **state) {
    (void)state;
    if (!amx_here()) {
        print_message("no AMX on this CPU: only its scalar twin was tested\n");
        skip();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(even_and_odd_k_meet_after_32), cmocka_unit_test(every_step_flushes),
        cmocka_unit_test(inf_and_nan_pass_through),     cmocka_unit_test(numerics_id_tells_the_arithmetic),
        cmocka_unit_test(amx_is_tested_on_this_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
