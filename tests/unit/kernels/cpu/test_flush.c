// fma_flushed.h compared with the machine around the flush: on x86 with fmas under FTZ and DAZ, and with VDPBF16PS; on aarch64 with
// the kernels' handling of fmas and BFMLAL under FPCR.FZ.
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/cpu/common/fma_flushed.h"

// Operands whose sum is near 2^-126: the product is within a few units of the last place of c and of 2^-126. In one case of 8, c is
// +-2^-126 and the product is less than a unit, so that rounding may restore 2^-126.
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
    case 0: { // the difference to +-2^-126, plus or minus two units
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

static int sets_the_flag(float a, float b, float c) {
    return fmaf(a, b, c) == 0; // not used: x86 has no such flag
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

#include "bfmlal.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/neon/vector_neon.h"

enum { FLUSH_CASES = 300000 }; // fewer, because they run in an emulator

// *c is the addend and the result: in memory, so that the compiler does not move the fma across a change of mode.
static __attribute__((noinline)) void fma_plain(float a, float b, float *c) {
    *c = vgetq_lane_f32(vec_fma(vdupq_n_f32(a), vdupq_n_f32(b), vdupq_n_f32(*c)), 0);
}

static __attribute__((noinline)) void fma_exact(float a, float b, float *c) {
    *c = vgetq_lane_f32(vec_fma_flushed(vdupq_n_f32(a), vdupq_n_f32(b), vdupq_n_f32(*c)), 0);
}

static int sets_the_flag(float a, float b, float c) {
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    fma_plain(a, b, &c);
    int seen = float_flush_seen();
    float_mode_restore(before);
    return seen;
}

// The repeated fma must always be correct; if the flag is not set, the first one must be too.
static float fma_hardware(float a, float b, float c) {
    float plain = c, exact = c;
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    fma_plain(a, b, &plain);
    bool seen = float_flush_seen();
    fma_exact(a, b, &exact);
    float_mode_restore(before);
    if (!seen && !same_f32(plain, exact)) {
        fail_msg("fma(%a, %a, %a): %a, not %a, but no flush was flagged", (double)a, (double)b, (double)c, (double)plain,
                 (double)exact);
    }
    return exact;
}

// BFMLALT and BFMLALB must equal two fmas, in value and in the flag.
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

static int sets_the_flag(float a, float b, float c) {
    return fmaf(a, b, c) == 0;
}
#endif

struct counts {
    size_t flushed;  // results that are 0 where IEEE's are not
    size_t boundary; // those of them for which IEEE gives 2^-126
    size_t rounded;  // results that are tiny before rounding and 2^-126 after it
};

static void check_fma(uint16_t a, uint16_t b, float c, struct counts *counts) {
    float want = fma_hardware(expertd_f32_from_bf16(a), expertd_f32_from_bf16(b), c);
    float got = fma_flushed(expertd_f32_from_bf16(a), expertd_f32_from_bf16(b), c);
    if (!same_f32(got, want)) {
        fail_msg("fma(%04x, %04x, %08x): %08x, the machine has %08x", a, b, expertd_f32_bits(c), expertd_f32_bits(got),
                 expertd_f32_bits(want));
    }
    float ieee = fmaf(expertd_f32_from_bf16(a), expertd_f32_from_bf16(b), c);
    bool reaches = fabsf(ieee) == 0x1p-126f;
    double least = fabs((double)expertd_f32_from_bf16(a) * (double)expertd_f32_from_bf16(b) + (double)c);
    counts->flushed += want == 0 && ieee != 0;
    counts->boundary += want == 0 && reaches;
    counts->rounded += want != 0 && reaches && least < 0x1p-126;
}

static void flushed_fma_is_the_machines_around_the_flush(void **state) {
    (void)state;
    if (!has("fma")) {
        skip();
    }
    struct random random = {12345};
    struct counts counts = {0};
    for (size_t i = 0; i < share_of(FLUSH_CASES); i++) {
        uint16_t a, b;
        float c;
        boundary_case(&random, &a, &b, &c);
        check_fma(a, b, c, &counts);
    }
    assert_true(counts.flushed > share_of(FLUSH_CASES) / 100); // enough cases are near the boundary
    assert_true(counts.boundary > share_of(100));
    assert_true(counts.rounded > share_of(100));
}

static void flushed_fma_is_the_machines_for_any_operands(void **state) {
    (void)state;
    if (!has("fma")) {
        skip();
    }
    struct random random = {777};
    struct counts counts = {0};
    for (size_t i = 0; i < share_of(FLUSH_CASES); i++) {
        enum values values = (enum values)random_below(&random, VALUES_COUNT);
        check_fma(random_bf16(&random, values), random_bf16(&random, values), random_f32(&random, values), &counts);
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

// Hand-computed cases; they need no hardware.
static void flush_sees_tininess_after_rounding(void **state) {
    (void)state;
    float least = 0x1p-126f;
    // exactly 2^-126 is not flushed
    assert_true(same_f32(fma_flushed(0x1p-63f, 0x1p-63f, 0.0f), least));
    // 2^-126 - 2^-134: a product of bf16, tiny and exact, is flushed to a 0 of its sign
    assert_true(same_f32(fma_flushed(0x1.fep-64f, 0x1p-63f, 0.0f), 0.0f));
    assert_true(same_f32(fma_flushed(-0x1.fep-64f, 0x1p-63f, 0.0f), -0.0f));
    // 2^-126 + c with a subnormal c: c counts as 0
    assert_true(same_f32(fma_flushed(0x1p-63f, 0x1p-63f, -0x1p-149f), least));
    // 2^-126 - 2^-151 is a tie at 24 bits and rounds to 2^-126; 2^-126 - 3 * 2^-152 does not
    assert_true(same_f32(fma_flushed(-0x1p-75f, 0x1p-76f, 0x1p-126f), least));
    assert_true(same_f32(fma_flushed(-0x1.8p-75f, 0x1p-76f, 0x1p-126f), 0.0f));
    assert_true(same_f32(fma_flushed(0x1.8p-75f, 0x1p-76f, -0x1p-126f), -0.0f));
    // subnormal operands count as 0 of the same sign
    assert_true(same_f32(fma_flushed(expertd_f32_from_bits(0x00400000u), 0x1p100f, 0.0f), 0.0f));
    assert_true(isnan(fma_flushed(expertd_f32_from_bits(0x00400000u), INFINITY, 0.0f)));
}

// If the flag were set for other results, too many blocks would be computed twice.
static void only_a_flushed_result_sets_the_flag(void **state) {
    (void)state;
    if (!has("flag")) {
        skip();
    }
    assert_true(sets_the_flag(0x1p-63f, 0x1p-64f, 0.0f));
    assert_true(sets_the_flag(-0x1p-75f, 0x1p-76f, 0x1p-126f));
    assert_false(sets_the_flag(0.0f, 3.0f, 0.0f));
    assert_false(sets_the_flag(0x1p-63f, 0x1p-63f, 0.0f));          // 2^-126
    assert_false(sets_the_flag(0x1p-63f, 0x1p-63f, -0x1p-126f));    // an exact 0
    assert_false(sets_the_flag(0x1p-149f, 1.0f, 1.0f));             // a flushed operand
    assert_false(sets_the_flag(0x1.8p0f, 0x1.000002p0f, 0x1p-30f)); // inexact
    assert_false(sets_the_flag(0x1p127f, 0x1p127f, 0.0f));          // Inf
    assert_false(sets_the_flag(INFINITY, 0.0f, 0.0f));              // NaN
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flush_sees_tininess_after_rounding),
        cmocka_unit_test(only_a_flushed_result_sets_the_flag),
        cmocka_unit_test(flushed_fma_is_the_machines_around_the_flush),
        cmocka_unit_test(flushed_fma_is_the_machines_for_any_operands),
        cmocka_unit_test(two_flushed_fmas_odd_first_are_the_machines_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
