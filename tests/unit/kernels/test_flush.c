// The flushed fma in plain C against the machine's: fmas under FTZ and DAZ, and VDPBF16PS, around the flush.
#include "kernel_test.h"

#include "kernels/cpu/fma_flushed.h"

enum { FLUSH_CASES = 2000000 };

// a and b so that their product lies within a few units of `c` and of 2^-126: sums that land on the boundary.
static void boundary_case(struct random *random, uint16_t *a, uint16_t *b, float *c) {
    uint32_t a_exponent = 60 + random_below(random, 8);
    uint32_t b_exponent = 126 - a_exponent + random_below(random, 4) - 1;
    *a = (uint16_t)((random_next(random) & 0x807f) | a_exponent << 7);
    *b = (uint16_t)((random_next(random) & 0x807f) | b_exponent << 7);
    uint32_t bits = (uint32_t)random_next(random) & 0x807fffffu;
    uint32_t exponent = random_below(random, 4);
    switch (random_below(random, 4)) {
    case 0: { // what is missing to +-2^-126, give or take two units
        double missing = (random_next(random) & 1 ? 0x1p-126 : -0x1p-126) - (double)f32_from_bf16(*a) * (double)f32_from_bf16(*b);
        bits = f32_bits((float)missing) + random_below(random, 5) - 2;
        exponent = 0;
        break;
    }
    case 1:
        bits = 0;
        break;
    default:
        break;
    }
    *c = f32_from_bits(bits | exponent << 23);
}

#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/float_mode.h"

__attribute__((target("avx2,fma"), noinline)) static float fma_hardware(float a, float b, float c) {
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    __m128 sum = _mm_set_ss(c);
    __asm__ volatile("vfmadd231ss %2, %1, %0" : "+x"(sum) : "x"(_mm_set_ss(a)), "x"(_mm_set_ss(b)));
    float_mode_restore(before);
    return _mm_cvtss_f32(sum);
}

__attribute__((target("avx512f,avx512bf16"))) static float pair_hardware(uint32_t x, uint32_t w, float c) {
    __m512 sum = _mm512_dpbf16_ps(_mm512_set1_ps(c), (__m512bh)_mm512_set1_epi32((int)x), (__m512bh)_mm512_set1_epi32((int)w));
    return _mm512_cvtss_f32(sum);
}

static int has(const char *what) {
    int fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return strcmp(what, "fma") == 0 ? fma : __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
}
#else
static float fma_hardware(float a, float b, float c) {
    return a * b + c;
}

static float pair_hardware(uint32_t x, uint32_t w, float c) {
    return (float)x * (float)w + c;
}

static int has(const char *what) {
    return what == NULL;
}
#endif

static void check_fma(uint16_t a, uint16_t b, float c, size_t *flushed, size_t *boundary) {
    float want = fma_hardware(f32_from_bf16(a), f32_from_bf16(b), c);
    float got = fma_flushed(f32_from_bf16(a), f32_from_bf16(b), c);
    if (!same_f32(got, want)) {
        fail_msg("fma(%04x, %04x, %08x): %08x, the machine has %08x", a, b, f32_bits(c), f32_bits(got), f32_bits(want));
    }
    float ieee = fmaf(f32_from_bf16(a), f32_from_bf16(b), c);
    *flushed += want == 0 && ieee != 0;
    *boundary += want == 0 && fabsf(ieee) == 0x1p-126f;
}

static void flushed_fma_is_the_machines_around_the_flush(void **state) {
    (void)state;
    if (!has("fma")) {
        skip();
    }
    struct random random = {12345};
    size_t flushed = 0, boundary = 0;
    for (size_t i = 0; i < FLUSH_CASES; i++) {
        uint16_t a, b;
        float c;
        boundary_case(&random, &a, &b, &c);
        check_fma(a, b, c, &flushed, &boundary);
    }
    assert_true(flushed > FLUSH_CASES / 100); // the cases are where they should be
    assert_true(boundary > 100);              // results that IEEE rounds up to 2^-126 and the flush does not
}

static void flushed_fma_is_the_machines_for_any_operands(void **state) {
    (void)state;
    if (!has("fma")) {
        skip();
    }
    struct random random = {777};
    size_t flushed = 0, boundary = 0;
    for (size_t i = 0; i < FLUSH_CASES; i++) {
        enum values values = (enum values)random_below(&random, VALUES_COUNT);
        check_fma(random_bf16(&random, values), random_bf16(&random, values), random_f32(&random, values), &flushed, &boundary);
    }
}

static void two_flushed_fmas_odd_first_are_vdpbf16ps(void **state) {
    (void)state;
    if (!has("dpbf16")) {
        skip();
    }
    struct random random = {4242};
    for (size_t i = 0; i < FLUSH_CASES; i++) {
        uint16_t x[2], w[2];
        float c;
        boundary_case(&random, &x[1], &w[1], &c);
        enum values values = (enum values)random_below(&random, VALUES_COUNT);
        x[0] = random_bf16(&random, i % 2 ? VALUES_FLUSH : values);
        w[0] = random_bf16(&random, i % 2 ? VALUES_FLUSH : values);
        float want = pair_hardware(x[0] | (uint32_t)x[1] << 16, w[0] | (uint32_t)w[1] << 16, c);
        float got = fma_flushed(f32_from_bf16(x[1]), f32_from_bf16(w[1]), c);
        got = fma_flushed(f32_from_bf16(x[0]), f32_from_bf16(w[0]), got);
        if (!same_f32(got, want)) {
            fail_msg("x %04x %04x w %04x %04x c %08x: %08x, the machine has %08x", x[0], x[1], w[0], w[1], f32_bits(c),
                     f32_bits(got), f32_bits(want));
        }
    }
}

// No hardware needed: worked by hand.
static void flush_sees_tininess_after_rounding(void **state) {
    (void)state;
    float least = 0x1p-126f;
    // exactly 2^-126 stays
    assert_true(same_f32(fma_flushed(0x1p-63f, 0x1p-63f, 0.0f), least));
    // 2^-126 - 2^-134: a bf16 product, tiny and exact: flushed, keeping its sign
    assert_true(same_f32(fma_flushed(0x1.fep-64f, 0x1p-63f, 0.0f), 0.0f));
    assert_true(same_f32(fma_flushed(-0x1.fep-64f, 0x1p-63f, 0.0f), -0.0f));
    // 2^-126 + c with c subnormal: c is taken as zero
    assert_true(same_f32(fma_flushed(0x1p-63f, 0x1p-63f, -0x1p-149f), least));
    // 2^-126 - 2^-151 is a tie at 24 bits and goes to 2^-126; 2^-126 - 3 * 2^-152 does not
    assert_true(same_f32(fma_flushed(-0x1p-75f, 0x1p-76f, 0x1p-126f), least));
    assert_true(same_f32(fma_flushed(-0x1.8p-75f, 0x1p-76f, 0x1p-126f), 0.0f));
    assert_true(same_f32(fma_flushed(0x1.8p-75f, 0x1p-76f, -0x1p-126f), -0.0f));
    // subnormal operands are zeros of their sign
    assert_true(same_f32(fma_flushed(f32_from_bits(0x00400000u), 0x1p100f, 0.0f), 0.0f));
    assert_true(isnan(fma_flushed(f32_from_bits(0x00400000u), INFINITY, 0.0f)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flush_sees_tininess_after_rounding),
        cmocka_unit_test(flushed_fma_is_the_machines_around_the_flush),
        cmocka_unit_test(flushed_fma_is_the_machines_for_any_operands),
        cmocka_unit_test(two_flushed_fmas_odd_first_are_vdpbf16ps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
