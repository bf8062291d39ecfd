// What a device can do at best, measured on it by kernels that do nothing else: multiplications, and reading its memory. For
// benches alone: a second symbol of the module (device.h), which expertd does not look for. C and C++.
#ifndef EXPERTD_KERNELS_DEVICE_DEVICE_RATES_H
#define EXPERTD_KERNELS_DEVICE_DEVICE_RATES_H

#include "expertd/kernels/device.h"

enum { DEVICE_RATES_VERSION = 2, DEVICE_RATES_THREADS = 256, DEVICE_RATES_SINK_BYTES = 16 };

enum device_rate {
    DEVICE_RATE_FMA,       // fp32 fmas in registers
    DEVICE_RATE_MMA,       // mma.sync, bf16, operands in registers
    DEVICE_RATE_WGMMA,     // wgmma, bf16, operands in shared memory; sm_90 alone
    DEVICE_RATE_WGMMA_FP8, // the same by E4M3
};

struct device_rates {
    uint32_t version;
    // Multiplications of a block in a round; an fma is two.
    uint64_t (*flops)(enum device_rate kind);
    // Asynchronous, as the table's operations. sink: DEVICE_RATES_SINK_BYTES of device memory, which nothing is ever written to,
    // but the compiler does not know that.
    enum expertd_device_code (*multiply)(struct expertd_device *device, enum device_rate kind, uint32_t blocks, uint32_t rounds,
                                         void *sink, struct expertd_device_error *error);
    // bytes: a multiple of 16, from a 16-byte boundary.
    enum expertd_device_code (*read)(struct expertd_device *device, const void *from, size_t bytes, uint32_t blocks, void *sink,
                                     struct expertd_device_error *error);
};

#define DEVICE_RATES_SYMBOL "expertd_device_rates"

#endif
