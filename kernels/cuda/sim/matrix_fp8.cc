#include "kernels/cuda/sim/matrix_fp8.h"

#include <cmath>

#include "kernels/cpu/common/tensor_core.h"
#include "kernels/cuda/sim/block.h"
#include "kernels/cuda/sim/tensor_map.h"

namespace sim {

namespace {

constexpr unsigned K = 32, WARPGROUP = 128;

float widen(uint8_t code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const float magnitude = (code & 0x7f) == 0x7f ? NAN
                            : exponent == 0       ? std::ldexp(static_cast<float>(fraction), -9)
                                                  : std::ldexp(static_cast<float>(fraction + 8), exponent - 10);
    return code & 0x80 ? -magnitude : magnitude;
}

// The value of each code.
struct values {
    float of[256];
    values() {
        for (unsigned code = 0; code < 256; code++) {
            of[code] = widen(static_cast<uint8_t>(code));
        }
    }
};

// An operand in shared memory, from its descriptor: blocks of eight rows of 128 bytes, `stride` bytes apart.
struct operand {
    uint32_t start, stride;
};

operand operand_of(uint64_t descriptor) {
    if (descriptor >> 62 != 1) {
        fault("thread %u: a wgmma operand that is not swizzled by 128 bytes", thread_number());
    }
    return {static_cast<uint32_t>(descriptor & 0x3fff) << 4, static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4};
}

void read_row(const operand &o, unsigned row, float *out) {
    static const values VALUES;
    for (unsigned k = 0; k < K; k++) {
        const char *at = shared_pointer(swizzled_128(o.start + row / 8 * o.stride + row % 8 * 128 + k));
        out[k] = VALUES.of[static_cast<uint8_t>(*at)];
    }
}

struct operation {
    unsigned n, thread; // thread: number in the warpgroup
    float *acc;
    operand a, b;
    bool keep;
};

// Computes the thread's elements: rows row and row + 8, and two of each eight columns.
void run(const operation &m) {
    const unsigned lane = m.thread % 32, row = m.thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
    float x[2][K], y[K];
    read_row(m.a, row, x[0]);
    read_row(m.a, row + 8, x[1]);
    for (unsigned first = 0; first < m.n; first += 8) { // eight columns give four sums: two in each row
        for (unsigned c = 0; c < 2; c++) {
            read_row(m.b, first + column + c, y);
            for (unsigned r = 0; r < 2; r++) {
                float *acc = &m.acc[first / 2 + r * 2 + c];
                *acc = tensor_core_add(&TENSOR_CORE_SM90_E4M3, x[r], y, m.keep ? *acc : 0.0f);
            }
        }
    }
}

} // namespace

void wgmma_e4m3(unsigned n, float *acc, uint64_t a, uint64_t b, int keep) {
    const operation m = {n, thread_number() % WARPGROUP, acc, operand_of(a), operand_of(b), keep != 0};
    queue_add(QUEUE_MULTIPLY, [m] { run(m); });
}

} // namespace sim
