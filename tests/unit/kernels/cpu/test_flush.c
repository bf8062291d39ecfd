// The flushed fma in plain C against the machine's around the flush: x86's fmas under FTZ and DAZ, and VDPBF16PS; on aarch64 what
// the kernels make of fmas and BFMLAL under FPCR.FZ.
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/cpu/common/fma_flushed.h"

// a and b so that their product lies within a few units of `c` and of 2^-126: sums that land on the boundary. One in 8 is 2^-126
// but for a product of less than a unit, which rounding may take back.
static void boundary_case(struct random *random, uint16_t *a, uint16_t *b, float *c) {
    if (random_below(random, 8) == 0) {
        *a = random_bf16(random, VALUES_TIES);
        *b = random_bf16(random, VALUES_TIES);
        *c = expertd_f32_from_bits(((uint32_t)random_next(random) & 0x80000000u) | 0x00800000u);
        return;
    }
    uint32_t a_exponent = 60 + random_below(random, 8);
    uint32_t b_exponent = 126 - a_exponent + random_below(random, 4) - 1;
    *a = (uint16_t)((random_next(random) & 0x807f) | a_exponent << 7);
    *b = (uint16_t)((random_next(random) & 0x807f) | b_exponent << 7);
    uint32_t bits = (uint32_t)random_next(random) & 0x807fffffu;
    uint32_t exponent = random_below(random, 4);
    switch (random_below(random, 4)) {
    case 0: { // what is missing to +-2^-126, give or take two units
        double missing = (random_next(random) & 1 ? 0x1p-126 : -0x1p-126) -
                         (double)expertd_f32_from_bf16(*a) * (double)expertd_f32_from_bf16(*b);
        bits = expertd_f32_bits((float)missing) + random_below(random, 5) - 2;
        exponent = 0;
        break;
    }
    case 1:
        bits = 0;
        break;
    default:
        break;
    }
    *c = expertd_f32_from_bits(bits | exponent << 23);
}

#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/common/float_mode.h"

enum { FLUSH_CASES = 2000000 };

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
    int pair = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
    return strcmp(what, "fma") == 0 ? fma : strcmp(what, "pair") == 0 && pair;
}

static int notes_a_flush(float a, float b, float c) {
    return fmaf(a, b, c) == 0; // nothing is noted here
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

#include "bfmlal.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/neon/vector_neon.h"

enum { FLUSH_CASES = 300000 }; // an emulator's pace

// Through memory, so that they stay between the changes of mode; *c is the addend and the result.
static __attribute__((noinline)) void fma_plain(float a, float b, float *c) {
    *c = vgetq_lane_f32(vec_fma(vdupq_n_f32(a), vdupq_n_f32(b), vdupq_n_f32(*c)), 0);
}

static __attribute__((noinline)) void fma_exact(float a, float b, float *c) {
    *c = vgetq_lane_f32(vec_fma_flushed(vdupq_n_f32(a), vdupq_n_f32(b), vdupq_n_f32(*c)), 0);
}

static int notes_a_flush(float a, float b, float c) {
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    fma_plain(a, b, &c);
    int seen = float_flush_seen();
    float_mode_restore(before);
    return seen;
}

// What is done again is always right, and what is not done again need not be.
static float fma_hardware(float a, float b, float c) {
    float plain = c, exact = c;
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    fma_plain(a, b, &plain);
    bool seen = float_flush_seen();
    fma_exact(a, b, &exact);
    float_mode_restore(before);
    if (!seen && !same_f32(plain, exact)) {
        fail_msg("fma(%a, %a, %a): %a, not %a, but nothing seemed flushed", (double)a, (double)b, (double)c, (double)plain,
                 (double)exact);
    }
    return exact;
}

// BFMLALT and BFMLALB are two fmas, by value and by what they note.
static float pair_hardware(uint32_t x, uint32_t w, float c) {
    float pair = c, fmas = c;
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    bfmlal_pair(x, w, &pair);
    bool seen = float_flush_seen();
    float_flush_watch();
    fma_plain(expertd_f32_from_bf16((uint16_t)(x >> 16)), expertd_f32_from_bf16((uint16_t)(w >> 16)), &fmas);
    fma_plain(expertd_f32_from_bf16((uint16_t)x), expertd_f32_from_bf16((uint16_t)w), &fmas);
    bool fmas_seen = float_flush_seen();
    float_mode_restore(before);
    if (!same_f32(pair, fmas) || seen != fmas_seen) {
        fail_msg("x %08x w %08x c %a: BFMLAL %a (flushed: %d), FMLA %a (%d)", x, w, (double)c, (double)pair, seen, (double)fmas,
                 fmas_seen);
    }
    float odd = fma_hardware(expertd_f32_from_bf16((uint16_t)(x >> 16)), expertd_f32_from_bf16((uint16_t)(w >> 16)), c);
    float exact = fma_hardware(expertd_f32_from_bf16((uint16_t)x), expertd_f32_from_bf16((uint16_t)w), odd);
    return seen ? exact : pair;
}

static int has(const char *what) {
    return strcmp(what, "pair") != 0 || (getauxval(AT_HWCAP2) & HWCAP2_BF16);
}
#else
enum { FLUSH_CASES = 1 };

static float fma_hardware(float a, float b, float c) {
    return a * b + c;
}

static float pair_hardware(uint32_t x, uint32_t w, float c) {
    return (float)x * (float)w + c;
}

static int has(const char *what) {
    return what == NULL;
}

static int notes_a_flush(float a, float b, float c) {
    return fmaf(a, b, c) == 0;
}
#endif

// Results that are 0 where IEEE's are not, those of them that IEEE brings to 2^-126, and those that stay 2^-126 by rounding.
struct met {
    size_t flushed, boundary, rounded;
};

static void check_fma(uint16_t a, uint16_t b, float c, struct met *met) {
    float want = fma_hardware(expertd_f32_from_bf16(a), expertd_f32_from_bf16(b), c);
    float got = fma_flushed(expertd_f32_from_bf16(a), expertd_f32_from_bf16(b), c);
    if (!same_f32(got, want)) {
        fail_msg("fma(%04x, %04x, %08x): %08x, the machine has %08x", a, b, expertd_f32_bits(c), expertd_f32_bits(got),
                 expertd_f32_bits(want));
    }
    float ieee = fmaf(expertd_f32_from_bf16(a), expertd_f32_from_bf16(b), c);
    bool reaches = fabsf(ieee) == 0x1p-126f;
    double least = fabs((double)expertd_f32_from_bf16(a) * (double)expertd_f32_from_bf16(b) + (double)c);
    met->flushed += want == 0 && ieee != 0;
    met->boundary += want == 0 && reaches;
    met->rounded += want != 0 && reaches && least < 0x1p-126;
}

static void flushed_fma_is_the_machines_around_the_flush(void **state) {
    (void)state;
    if (!has("fma")) {
        skip();
    }
    struct random random = {12345};
    struct met met = {0};
    for (size_t i = 0; i < share_of(FLUSH_CASES); i++) {
        uint16_t a, b;
        float c;
        boundary_case(&random, &a, &b, &c);
        check_fma(a, b, c, &met);
    }
    assert_true(met.flushed > share_of(FLUSH_CASES) / 100); // the cases are where they should be
    assert_true(met.boundary > share_of(100));
    assert_true(met.rounded > share_of(100));
}

static void flushed_fma_is_the_machines_for_any_operands(void **state) {
    (void)state;
    if (!has("fma")) {
        skip();
    }
    struct random random = {777};
    struct met met = {0};
    for (size_t i = 0; i < share_of(FLUSH_CASES); i++) {
        enum values values = (enum values)random_below(&random, VALUES_COUNT);
        check_fma(random_bf16(&random, values), random_bf16(&random, values), random_f32(&random, values), &met);
    }
}

static void two_flushed_fmas_odd_first_are_the_machines_pair(void **state) {
    (void)state;
    if (!has("pair")) {
        skip();
    }
    struct random random = {4242};
    for (size_t i = 0; i < share_of(FLUSH_CASES); i++) {
        uint16_t x[2], w[2];
        float c;
        boundary_case(&random, &x[1], &w[1], &c);
        enum values values = (enum values)random_below(&random, VALUES_COUNT);
        x[0] = random_bf16(&random, i % 2 ? VALUES_FLUSH : values);
        w[0] = random_bf16(&random, i % 2 ? VALUES_FLUSH : values);
        float want = pair_hardware(x[0] | (uint32_t)x[1] << 16, w[0] | (uint32_t)w[1] << 16, c);
        float got = fma_flushed(expertd_f32_from_bf16(x[1]), expertd_f32_from_bf16(w[1]), c);
        got = fma_flushed(expertd_f32_from_bf16(x[0]), expertd_f32_from_bf16(w[0]), got);
        if (!same_f32(got, want)) {
            fail_msg("x %04x %04x w %04x %04x c %08x: %08x, the machine has %08x", x[0], x[1], w[0], w[1], expertd_f32_bits(c),
                     expertd_f32_bits(got), expertd_f32_bits(want));
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
    assert_true(same_f32(fma_flushed(expertd_f32_from_bits(0x00400000u), 0x1p100f, 0.0f), 0.0f));
    assert_true(isnan(fma_flushed(expertd_f32_from_bits(0x00400000u), INFINITY, 0.0f)));
}

// Else every block would be summed twice.
static void only_a_flushed_result_is_noted(void **state) {
    (void)state;
    if (!has("note")) {
        skip();
    }
    assert_true(notes_a_flush(0x1p-63f, 0x1p-64f, 0.0f));
    assert_true(notes_a_flush(-0x1p-75f, 0x1p-76f, 0x1p-126f));
    assert_false(notes_a_flush(0.0f, 3.0f, 0.0f));
    assert_false(notes_a_flush(0x1p-63f, 0x1p-63f, 0.0f));          // 2^-126
    assert_false(notes_a_flush(0x1p-63f, 0x1p-63f, -0x1p-126f));    // an exact 0
    assert_false(notes_a_flush(0x1p-149f, 1.0f, 1.0f));             // an operand's
    assert_false(notes_a_flush(0x1.8p0f, 0x1.000002p0f, 0x1p-30f)); // inexact
    assert_false(notes_a_flush(0x1p127f, 0x1p127f, 0.0f));          // Inf
    assert_false(notes_a_flush(INFINITY, 0.0f, 0.0f));              // NaN
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flush_sees_tininess_after_rounding),
        cmocka_unit_test(only_a_flushed_result_is_noted),
        cmocka_unit_test(flushed_fma_is_the_machines_around_the_flush),
        cmocka_unit_test(flushed_fma_is_the_machines_for_any_operands),
        cmocka_unit_test(two_flushed_fmas_odd_first_are_the_machines_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
