#include "kernels/cuda/sim/matrix.h"

#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/cuda/sim/block.h"
#include "kernels/cuda/sim/tensor_map.h"

namespace sim {

#if defined(__x86_64__)
const bool HAS_FMA = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif

namespace {

constexpr unsigned K = 16, WARPGROUP = 128;

float widen(enum dtype dtype, uint16_t value) {
    return dtype == DTYPE_F16 ? f32_from_f16(value) : f32_from_bf16(value);
}

// sums[r][c] += x[r][k] * y[k][c] over k ascending: x [rows][K], y [K][8].
void multiply_portable(const float *x, const float *y, unsigned rows, float *sums) {
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned k = 0; k < K; k++) {
            for (unsigned c = 0; c < 8; c++) {
                sums[r * 8 + c] = __builtin_fmaf(x[r * K + k], y[k * 8 + c], sums[r * 8 + c]);
            }
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void multiply_fma(const float *x, const float *y, unsigned rows, float *sums) {
    for (unsigned r = 0; r < rows; r++) {
        __m256 sum = _mm256_loadu_ps(sums + r * 8);
        for (unsigned k = 0; k < K; k++) {
            sum = _mm256_fmadd_ps(_mm256_set1_ps(x[r * K + k]), _mm256_loadu_ps(y + k * 8), sum);
        }
        _mm256_storeu_ps(sums + r * 8, sum);
    }
}

const auto multiply = HAS_FMA ? multiply_fma : multiply_portable;
#else
constexpr auto multiply = multiply_portable;
#endif

// Where a descriptor's rows lie: K-major, the 128-byte swizzle, blocks of eight rows `stride` bytes apart.
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
    enum dtype dtype;
    unsigned n, thread; // of the warpgroup
    float *acc;
    operand a, b;
    bool keep;
    uint64_t until; // what of the ordinary stores it may see
};

// Eight values lie together whatever the swizzle.
void read_row(const operation &m, const operand &o, unsigned row, float *out, unsigned out_stride) {
    for (unsigned k = 0; k < K; k += 8) {
        const uint32_t address = swizzled_128(o.start + row / 8 * o.stride + row % 8 * 128 + k * 2);
        if (is_written(address, m.until)) {
            fault("thread %u: wgmma reads what was written without fence.proxy.async", thread_number());
        }
        uint16_t values[8];
        memcpy(values, shared_pointer(address), sizeof values);
        for (unsigned i = 0; i < 8; i++) {
            out[(k + i) * out_stride] = widen(m.dtype, values[i]);
        }
    }
}

// The thread's own elements: rows row and row + 8, of each eight columns two; four times eight columns at once.
void run_wgmma(const operation &m) {
    unsigned lane = m.thread % 32, row = m.thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
    float x[2][K], y[K][8] = {}, sums[2][8] = {};
    read_row(m, m.a, row, x[0], 1);
    read_row(m, m.a, row + 8, x[1], 1);
    for (unsigned first = 0; first < m.n; first += 32) {
        unsigned count = m.n - first < 32 ? (m.n - first) / 4 : 8;
        for (unsigned c = 0; c < count; c++) {
            read_row(m, m.b, first + c / 2 * 8 + column + c % 2, &y[0][c], 8);
            for (unsigned r = 0; r < 2; r++) {
                sums[r][c] = m.keep ? m.acc[first / 2 + c / 2 * 4 + r * 2 + c % 2] : 0.0f;
            }
        }
        multiply(&x[0][0], &y[0][0], 2, &sums[0][0]);
        for (unsigned c = 0; c < count; c++) {
            for (unsigned r = 0; r < 2; r++) {
                m.acc[first / 2 + c / 2 * 4 + r * 2 + c % 2] = sums[r][c];
            }
        }
    }
}

} // namespace

void wgmma(enum dtype dtype, unsigned n, float *acc, uint64_t a, uint64_t b, int keep) {
    operation m = {dtype, n, thread_number() % WARPGROUP, acc, operand_of(a), operand_of(b), keep != 0, fenced_until()};
    queue_add(QUEUE_MULTIPLY, [m] { run_wgmma(m); });
}

// ---- mma.sync

namespace {

struct fragments {
    enum dtype dtype;
    float *acc;
    const uint32_t *a, *b;
};

void put_pair(enum dtype dtype, uint32_t pair, float *even, float *odd) {
    *even = widen(dtype, static_cast<uint16_t>(pair));
    *odd = widen(dtype, static_cast<uint16_t>(pair >> 16));
}

void multiply_warp(void *const *lanes) {
    float x[16][K], y[K][8], sums[16][8];
    for (unsigned lane = 0; lane < 32; lane++) {
        const fragments *f = static_cast<const fragments *>(lanes[lane]);
        unsigned group = lane / 4, pair = lane % 4 * 2;
        for (unsigned i = 0; i < 4; i++) { // rows group, group + 8; then the same of the upper eight k
            unsigned row = group + i % 2 * 8, k = pair + i / 2 * 8;
            put_pair(f->dtype, f->a[i], &x[row][k], &x[row][k + 1]);
            sums[group + i / 2 * 8][pair + i % 2] = f->acc[i];
        }
        for (unsigned i = 0; i < 2; i++) {
            put_pair(f->dtype, f->b[i], &y[pair + i * 8][group], &y[pair + i * 8 + 1][group]);
        }
    }
    multiply(&x[0][0], &y[0][0], 16, &sums[0][0]);
    for (unsigned lane = 0; lane < 32; lane++) {
        fragments *f = static_cast<fragments *>(lanes[lane]);
        for (unsigned i = 0; i < 4; i++) {
            f->acc[i] = sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
        }
    }
}

} // namespace

void mma_m16n8k16(enum dtype dtype, float *acc, const uint32_t *a, const uint32_t *b) {
    fragments mine = {dtype, acc, a, b};
    meet_warp("mma.sync", &mine, multiply_warp);
}

} // namespace sim
