#include "kernels/cuda/sim/matrix.h"

#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/cpu/common/tensor_core.h"
#include "kernels/cuda/sim/block.h"
#include "kernels/cuda/sim/tensor_map.h"

namespace sim {

#if defined(__x86_64__)
const bool HAS_FMA = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif

namespace {

constexpr unsigned K = 16, WARPGROUP = 128;

float widen(enum expertd_dtype dtype, uint16_t value) {
    return dtype == EXPERTD_DTYPE_F16 ? expertd_f32_from_f16(value) : expertd_f32_from_bf16(value);
}

const tensor_core &core_of(enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_F16 ? TENSOR_CORE_SM90_F16 : TENSOR_CORE_SM90_BF16;
}

// One step for one row: sums[c] += x[k] * y[k][c] over all k; y [K][8].
void step_portable(const tensor_core &core, const float *x, const float *y, float *sums) {
    for (unsigned c = 0; c < 8; c++) {
        float column[K];
        for (unsigned k = 0; k < K; k++) {
            column[k] = y[k * 8 + c];
        }
        sums[c] = tensor_core_add(&core, x, column, sums[c]);
    }
}

// x [rows][K], y [K][8], sums [rows][8].
void multiply_portable(const tensor_core &core, const float *x, const float *y, unsigned rows, float *sums) {
    for (unsigned r = 0; r < rows; r++) {
        step_portable(core, x + r * K, y, sums + r * 8);
    }
}

#if defined(__x86_64__)
// tensor_core_add for eight columns at once.
#define AVX2 __attribute__((target("avx2,fma")))

constexpr int NOT_FINITE = 128; // the exponent of NaN and Inf

AVX2 __m256i exponents_of(__m256 values, int least) {
    const __m256i bits = _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(0x7fffffff));
    const __m256i exponents = _mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(127));
    return _mm256_blendv_epi8(_mm256_max_epi32(exponents, _mm256_set1_epi32(least)), _mm256_set1_epi32(TENSOR_CORE_ZERO),
                              _mm256_cmpeq_epi32(bits, _mm256_setzero_si256()));
}

AVX2 __m256d powers_of(__m128i exponents) {
    return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_add_epi64(_mm256_cvtepi32_epi64(exponents), _mm256_set1_epi64x(1023)), 52));
}

AVX2 __m256d cut(__m256d values) {
    return _mm256_round_pd(values, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}

struct columns {
    __m256d values[K][2];
    __m256i exponents[K], largest; // largest: over all k, for each column
};

// Adds to four of the eight columns, given the exponents. The sums are exact in double.
AVX2 __m256d add_four(const tensor_core &core, const float *x, const columns &y, unsigned half, __m128 sums, __m128i largest) {
    const __m128i down = _mm_sub_epi32(largest, _mm_set1_epi32(core.fraction_bits));
    const __m256d scale = powers_of(_mm_sub_epi32(_mm_setzero_si128(), down));
    __m256d total = cut(_mm256_mul_pd(_mm256_cvtps_pd(sums), scale));
    for (unsigned k = 0; k < K; k++) {
        const __m256d product = _mm256_mul_pd(_mm256_set1_pd(x[k]), y.values[k][half]);
        total = _mm256_add_pd(total, cut(_mm256_mul_pd(product, scale)));
    }
    return _mm256_mul_pd(_mm256_add_pd(total, _mm256_setzero_pd()), powers_of(down)); // + 0 turns -0 into +0
}

AVX2 bool step_fast(const tensor_core &core, const float *x, const columns &y, float *sums) {
    const __m256 before = _mm256_loadu_ps(sums);
    const __m256i of_sums = exponents_of(before, -126);
    __m256i largest = of_sums, widest = _mm256_max_epi32(of_sums, y.largest);
    for (unsigned k = 0; k < K; k++) {
        const int exponent = tensor_core_exponent(x[k], core.least_exponent);
        largest = _mm256_max_epi32(largest, _mm256_add_epi32(_mm256_set1_epi32(exponent), y.exponents[k]));
        widest = _mm256_max_epi32(widest, _mm256_set1_epi32(exponent));
    }
    if (_mm256_movemask_epi8(_mm256_cmpgt_epi32(widest, _mm256_set1_epi32(NOT_FINITE - 1))) != 0) {
        return false;
    }
    largest = _mm256_max_epi32(largest, _mm256_set1_epi32(TENSOR_CORE_LEAST));
    const __m256d four[2] = {
        add_four(core, x, y, 0, _mm256_castps256_ps128(before), _mm256_castsi256_si128(largest)),
        add_four(core, x, y, 1, _mm256_extractf128_ps(before, 1), _mm256_extracti128_si256(largest, 1)),
    };
    double totals[8];
    _mm256_storeu_pd(totals, four[0]);
    _mm256_storeu_pd(totals + 4, four[1]);
    for (unsigned c = 0; c < 8; c++) {
        sums[c] = tensor_core_cut(totals[c], core.sum_bits);
    }
    return true;
}

AVX2 void multiply_fast(const tensor_core &core, const float *x, const float *y, unsigned rows, float *sums) {
    columns of_y;
    of_y.largest = _mm256_set1_epi32(TENSOR_CORE_ZERO);
    for (unsigned k = 0; k < K; k++) {
        const __m256 values = _mm256_loadu_ps(y + k * 8);
        of_y.values[k][0] = _mm256_cvtps_pd(_mm256_castps256_ps128(values));
        of_y.values[k][1] = _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1));
        of_y.exponents[k] = exponents_of(values, core.least_exponent);
        of_y.largest = _mm256_max_epi32(of_y.largest, of_y.exponents[k]);
    }
    for (unsigned r = 0; r < rows; r++) {
        if (!step_fast(core, x + r * K, of_y, sums + r * 8)) {
            step_portable(core, x + r * K, y, sums + r * 8);
        }
    }
}

const auto multiply = HAS_FMA ? multiply_fast : multiply_portable;
#else
constexpr auto multiply = multiply_portable;
#endif

// An operand in shared memory, from its descriptor: K-major, 128-byte swizzle, blocks of eight rows `stride` bytes apart.
struct operand {
    uint32_t start, stride;
};

operand operand_of(uint64_t descriptor) {
    if (descriptor >> 62 != 1) {
        fault("thread %u: a wgmma operand that is not swizzled by 128 bytes", thread_number());
    }
    return {static_cast<uint32_t>(descriptor & 0x3fff) << 4, static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4};
}

struct operation {
    float *acc;
    uint64_t fenced; // fence_time at the start
    operand b;
    enum expertd_dtype dtype;
    uint16_t n, thread; // thread: number in the warpgroup
    bool keep;
};

// Reads a row of K values. The swizzle keeps groups of eight values contiguous.
void read_row(const operation &m, const operand &o, unsigned row, float *out, unsigned out_stride) {
    for (unsigned k = 0; k < K; k += 8) {
        const uint32_t address = swizzled_128(o.start + row / 8 * o.stride + row % 8 * 128 + k * 2);
        if (is_unfenced(address, m.fenced)) {
            fault("thread %u: wgmma reads shared memory that was written without fence.proxy.async", thread_number());
        }
        uint16_t values[8];
        memcpy(values, shared_pointer(address), sizeof values);
        for (unsigned i = 0; i < 8; i++) {
            out[(k + i) * out_stride] = widen(m.dtype, values[i]);
        }
    }
}

// Computes the thread's elements: two rows, given as x, and two of each eight columns; 32 columns per iteration.
void run_rows(const operation &m, const float (&x)[2][K]) {
    const unsigned column = m.thread % 4u * 2;
    float y[K][8] = {}, sums[2][8] = {};
    for (unsigned first = 0; first < m.n; first += 32) {
        unsigned count = m.n - first < 32 ? (m.n - first) / 4 : 8;
        for (unsigned c = 0; c < count; c++) {
            read_row(m, m.b, first + c / 2 * 8 + column + c % 2, &y[0][c], 8);
            for (unsigned r = 0; r < 2; r++) {
                sums[r][c] = m.keep ? m.acc[first / 2 + c / 2 * 4 + r * 2 + c % 2] : 0.0f;
            }
        }
        multiply(core_of(m.dtype), &x[0][0], &y[0][0], 2, &sums[0][0]);
        for (unsigned c = 0; c < count; c++) {
            for (unsigned r = 0; r < 2; r++) {
                m.acc[first / 2 + c / 2 * 4 + r * 2 + c % 2] = sums[r][c];
            }
        }
    }
}

void run_wgmma(const operation &m, const operand &a) {
    const unsigned row = m.thread / 32u * 16 + m.thread % 32u / 4;
    float x[2][K];
    read_row(m, a, row, x[0], 1);
    read_row(m, a, row + 8, x[1], 1);
    run_rows(m, x);
}

operation operation_of(enum expertd_dtype dtype, unsigned n, float *acc, uint64_t b, int keep) {
    return {
        acc,      fence_time(), operand_of(b), dtype, static_cast<uint16_t>(n), static_cast<uint16_t>(thread_number() % WARPGROUP),
        keep != 0};
}

} // namespace

void wgmma(enum expertd_dtype dtype, unsigned n, float *acc, uint64_t a, uint64_t b, int keep) {
    const operation m = operation_of(dtype, n, acc, b, keep);
    const operand first = operand_of(a);
    queue_add(QUEUE_MULTIPLY, [m, first] { run_wgmma(m, first); });
}

// ---- the first operand in registers

namespace {

// Rows row and row + 8 of the first operand, as pairs of k. Lane l holds pairs l % 4 and l % 4 + 4.
struct two_rows {
    uint32_t pairs[2][K / 2];
};

struct registers {
    const uint32_t *a;
    two_rows *out;
};

void collect_rows(void *const *lanes) {
    for (unsigned lane = 0; lane < 32; lane++) {
        two_rows *out = static_cast<const registers *>(lanes[lane])->out;
        for (unsigned i = 0; i < 16; i++) {
            out->pairs[i % 2][i / 8 * 4 + i / 2 % 4] =
                static_cast<const registers *>(lanes[lane / 4 * 4 + i / 2 % 4])->a[i / 8 * 2 + i % 2];
        }
    }
}

void run_registers(const operation &m, const uint32_t *a, const two_rows &rows) {
    float x[2][K];
    for (unsigned i = 0; i < 4; i++) {
        if (a[i] != rows.pairs[i % 2][i / 2 * 4 + m.thread % 4u]) {
            fault("thread %u: registers that wgmma reads were written before it was waited for", thread_number());
        }
    }
    for (unsigned i = 0; i < K; i++) {
        const uint32_t pair = rows.pairs[i / 8][i % 8];
        x[i / 8][i % 8 * 2] = widen(m.dtype, static_cast<uint16_t>(pair));
        x[i / 8][i % 8 * 2 + 1] = widen(m.dtype, static_cast<uint16_t>(pair >> 16));
    }
    run_rows(m, x);
}

} // namespace

void wgmma_registers(unsigned n, float *acc, const uint32_t *a, uint64_t b, int keep) {
    two_rows rows;
    registers operands = {a, &rows};
    sync_lanes("wgmma", &operands, collect_rows);
    const operation m = operation_of(EXPERTD_DTYPE_BF16, n, acc, b, keep);
    queue_add(QUEUE_MULTIPLY, [m, a, rows] { run_registers(m, a, rows); });
}

// ---- mma.sync

namespace {

struct fragments {
    enum expertd_dtype dtype;
    float *acc;
    const uint32_t *a, *b;
};

void put_pair(enum expertd_dtype dtype, uint32_t pair, float *even, float *odd) {
    *even = widen(dtype, static_cast<uint16_t>(pair));
    *odd = widen(dtype, static_cast<uint16_t>(pair >> 16));
}

void multiply_warp(void *const *lanes) {
    const enum expertd_dtype dtype = static_cast<const fragments *>(lanes[0])->dtype;
    float x[16][K], y[K][8], sums[16][8];
    for (unsigned lane = 0; lane < 32; lane++) {
        const fragments *f = static_cast<const fragments *>(lanes[lane]);
        unsigned group = lane / 4, pair = lane % 4 * 2;
        for (unsigned i = 0; i < 4; i++) { // rows group and group + 8 at the lower, then the upper eight k
            unsigned row = group + i % 2 * 8, k = pair + i / 2 * 8;
            put_pair(f->dtype, f->a[i], &x[row][k], &x[row][k + 1]);
            sums[group + i / 2 * 8][pair + i % 2] = f->acc[i];
        }
        for (unsigned i = 0; i < 2; i++) {
            put_pair(f->dtype, f->b[i], &y[pair + i * 8][group], &y[pair + i * 8 + 1][group]);
        }
    }
    multiply(core_of(dtype), &x[0][0], &y[0][0], 16, &sums[0][0]);
    for (unsigned lane = 0; lane < 32; lane++) {
        fragments *f = static_cast<fragments *>(lanes[lane]);
        for (unsigned i = 0; i < 4; i++) {
            f->acc[i] = sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
        }
    }
}

} // namespace

void mma_m16n8k16(enum expertd_dtype dtype, float *acc, const uint32_t *a, const uint32_t *b) {
    fragments operands = {dtype, acc, a, b};
    sync_lanes("mma.sync", &operands, multiply_warp);
}

} // namespace sim
