#include "tests/bench/kernels/measure/peak.h"

#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

// 16 accumulators: more than latency times issue rate of any known core, and few enough for AVX2's registers (both factors are the
// same register). Separate multiplications and additions need a register for each product in flight: with 14 sums gcc kept half of
// them in memory, and the loop ran at a third of Zen 3's rate.
enum { CHAINS = 14, MADD_CHAINS_AVX2 = 10, TRIAL_ITERATIONS = 20000 };

// Keeps the compiler from removing the loops; volatile, since clang removes stores to memory that is never read.
static volatile _Atomic uint32_t sink;

// Opaque to the compiler: clang would multiply constants once and keep only additions in the loop.
static volatile const float FACTOR = 0x1p-20f;
#if defined(__x86_64__)
static volatile const int FACTORS_I8 = 0x01010101, FACTORS_I16 = 0x00010001, FACTORS_BF16 = 0x3c003c00;
#endif

static void use(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    atomic_store_explicit(&sink, bits, memory_order_relaxed);
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void fma_avx512(size_t iterations) {
    __m512 sums[CHAINS], factor = _mm512_set1_ps(FACTOR);
    UNROLL for (int c = 0; c < CHAINS; c++) {
        sums[c] = _mm512_set1_ps((float)c);
    }
    for (size_t i = 0; i < iterations; i++) {
        UNROLL for (int c = 0; c < CHAINS; c++) {
            sums[c] = _mm512_fmadd_ps(factor, factor, sums[c]);
        }
    }
    UNROLL for (int c = 0; c < CHAINS; c++) {
        use(_mm512_reduce_add_ps(sums[c]));
    }
}

__attribute__((target("avx2,fma"))) static void fma_avx2(size_t iterations) {
    __m256 sums[CHAINS], factor = _mm256_set1_ps(FACTOR);
    UNROLL for (int c = 0; c < CHAINS; c++) {
        sums[c] = _mm256_set1_ps((float)c);
    }
    for (size_t i = 0; i < iterations; i++) {
        UNROLL for (int c = 0; c < CHAINS; c++) {
            sums[c] = _mm256_fmadd_ps(factor, factor, sums[c]);
        }
    }
    UNROLL for (int c = 0; c < CHAINS; c++) {
        use(_mm256_cvtss_f32(sums[c]));
    }
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) static void dot_bf16(size_t iterations) {
    __m512 sums[CHAINS];
    __m512bh factor = (__m512bh)_mm512_set1_epi32(FACTORS_BF16);
    UNROLL for (int c = 0; c < CHAINS; c++) {
        sums[c] = _mm512_set1_ps((float)c);
    }
    for (size_t i = 0; i < iterations; i++) {
        UNROLL for (int c = 0; c < CHAINS; c++) {
            sums[c] = _mm512_dpbf16_ps(sums[c], factor, factor);
        }
    }
    UNROLL for (int c = 0; c < CHAINS; c++) {
        use(_mm512_reduce_add_ps(sums[c]));
    }
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) static void dot_int8(size_t iterations) {
    __m512i sums[CHAINS], factor = _mm512_set1_epi32(FACTORS_I8);
    UNROLL for (int c = 0; c < CHAINS; c++) {
        sums[c] = _mm512_set1_epi32(c);
    }
    for (size_t i = 0; i < iterations; i++) {
        UNROLL for (int c = 0; c < CHAINS; c++) {
            sums[c] = _mm512_dpbusd_epi32(sums[c], factor, factor);
        }
    }
    UNROLL for (int c = 0; c < CHAINS; c++) {
        use((float)_mm512_reduce_add_epi32(sums[c]));
    }
}

// Without VNNI: pairwise products of int16, and an addition.
__attribute__((target("avx512f,avx512bw"))) static void madd_avx512(size_t iterations) {
    __m512i sums[CHAINS], factor = _mm512_set1_epi32(FACTORS_I16);
    UNROLL for (int c = 0; c < CHAINS; c++) {
        sums[c] = _mm512_set1_epi32(c);
    }
    for (size_t i = 0; i < iterations; i++) {
        UNROLL for (int c = 0; c < CHAINS; c++) {
            sums[c] = _mm512_add_epi32(sums[c], _mm512_madd_epi16(sums[c], factor));
        }
    }
    UNROLL for (int c = 0; c < CHAINS; c++) {
        use((float)_mm512_reduce_add_epi32(sums[c]));
    }
}

__attribute__((target("avx2"))) static void madd_avx2(size_t iterations) {
    __m256i sums[MADD_CHAINS_AVX2], factor = _mm256_set1_epi32(FACTORS_I16);
    UNROLL for (int c = 0; c < MADD_CHAINS_AVX2; c++) {
        sums[c] = _mm256_set1_epi32(c);
    }
    for (size_t i = 0; i < iterations; i++) {
        UNROLL for (int c = 0; c < MADD_CHAINS_AVX2; c++) {
            sums[c] = _mm256_add_epi32(sums[c], _mm256_madd_epi16(sums[c], factor));
        }
    }
    UNROLL for (int c = 0; c < MADD_CHAINS_AVX2; c++) {
        use((float)_mm256_extract_epi32(sums[c], 0));
    }
}

// Eight tiles of 16 rows of 64 bytes: 4 for sums, 2 for each factor.
__attribute__((target("amx-tile"))) static void tiles_begin(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.row_bytes[t] = 64;
        config.rows[t] = 16;
    }
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
}

__attribute__((target("amx-tile,amx-bf16"))) static void amx_bf16(size_t iterations) {
    tiles_begin();
    for (size_t i = 0; i < iterations; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}

__attribute__((target("amx-tile,amx-int8"))) static void amx_int8(size_t iterations) {
    tiles_begin();
    for (size_t i = 0; i < iterations; i++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
}

static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

// Linux grants tile state to processes that request it (Documentation/arch/x86/xstate.rst), from Linux 5.16 on.
static bool has_amx(unsigned feature_bit) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18, AMX_TILE_BIT = 24 };
    unsigned eax, ebx, ecx, edx;
    __asm__("cpuid" : "=a"(eax), "=b"(ebx), "=c"(ecx), "=d"(edx) : "a"(7), "c"(0));
    return (edx >> AMX_TILE_BIT & 1) && (edx >> feature_bit & 1) &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

static void fma_portable(size_t iterations) {
    const float factor = FACTOR;
    float sums[CHAINS * 4] = {0};
    for (size_t i = 0; i < iterations; i++) {
        for (int c = 0; c < CHAINS * 4; c++) {
            sums[c] = __builtin_fmaf(factor, factor, sums[c]);
        }
    }
    for (int c = 0; c < CHAINS * 4; c++) {
        use(sums[c]);
    }
}

struct loop {
    void (*run)(size_t iterations);
    double operations; // per iteration
};

static struct loop fma_loop(void) {
#if defined(__x86_64__)
    if (has_avx512()) {
        return (struct loop){fma_avx512, 2.0 * 16 * CHAINS};
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return (struct loop){fma_avx2, 2.0 * 8 * CHAINS};
    }
#endif
    return (struct loop){fma_portable, 2.0 * 4 * CHAINS};
}

#if defined(__x86_64__)
static struct loop madd_loop(void) {
    if (has_avx512()) {
        return (struct loop){madd_avx512, 4.0 * 16 * CHAINS};
    }
    if (__builtin_cpu_supports("avx2")) {
        return (struct loop){madd_avx2, 4.0 * 8 * MADD_CHAINS_AVX2};
    }
    return (struct loop){NULL, 0};
}
#endif

// run is NULL if the machine lacks the instruction.
static struct loop loop_of(enum peak_kind kind) {
    enum { AMX_BF16_BIT = 22, AMX_INT8_BIT = 25 };
    switch (kind) {
    case PEAK_FMA_F32:
        return fma_loop();
#if defined(__x86_64__)
    case PEAK_VDPBF16PS:
        return (struct loop){has_avx512() && __builtin_cpu_supports("avx512bf16") ? dot_bf16 : NULL, 4.0 * 16 * CHAINS};
    case PEAK_VPDPBUSD:
        return (struct loop){has_avx512() && __builtin_cpu_supports("avx512vnni") ? dot_int8 : NULL, 8.0 * 16 * CHAINS};
    case PEAK_VPMADDWD:
        return madd_loop();
    case PEAK_AMX_BF16:
        return (struct loop){has_amx(AMX_BF16_BIT) ? amx_bf16 : NULL, 4 * 2.0 * 16 * 16 * 32};
    case PEAK_AMX_INT8:
        return (struct loop){has_amx(AMX_INT8_BIT) ? amx_int8 : NULL, 4 * 2.0 * 16 * 16 * 64};
#endif
    default:
        return (struct loop){NULL, 0};
    }
}

const char *peak_name(enum peak_kind kind) {
    static const char *const NAMES[] = {"FMA", "VDPBF16PS", "VPDPBUSD", "VPMADDWD", "TDPBF16PS", "TDPBSSD"};
    return NAMES[kind];
}

bool peak_usable(enum peak_kind kind) {
    return loop_of(kind).run != NULL;
}

struct peak_job {
    struct loop loop;
    size_t iterations;
};

static void run_loop(void *context, size_t task, unsigned thread) {
    (void)task;
    (void)thread;
    const struct peak_job *job = context;
    job->loop.run(job->iterations);
}

static int64_t timed(struct peak_job *job, struct expertd_team *team) {
    int64_t start_ns = clock_now_ns();
    expertd_team_run(team, expertd_team_threads(team), run_loop, job);
    int64_t span_ns = clock_now_ns() - start_ns;
    return span_ns > 0 ? span_ns : 1;
}

double peak_rate(enum peak_kind kind, struct expertd_team *team, int64_t span_ns) {
    struct peak_job job = {.loop = loop_of(kind), .iterations = TRIAL_ITERATIONS};
    INVARIANT(job.loop.run);
    int64_t trial_ns = timed(&job, team);
    job.iterations = (size_t)((double)TRIAL_ITERATIONS * (double)span_ns / (double)trial_ns) + 1;
    int64_t spent_ns = timed(&job, team);
    return job.loop.operations * (double)job.iterations * expertd_team_threads(team) / (double)spent_ns * NS_PER_S;
}
