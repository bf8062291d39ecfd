// A device's peak rates of multiplication and of reading memory, measured by kernels that do nothing else. For benchmarks only: a
// second symbol of the module (expertd/kernels/device.h), which expertd does not use. C and C++.
#ifndef EXPERTD_KERNELS_DEVICE_DEVICE_RATES_H
#define EXPERTD_KERNELS_DEVICE_DEVICE_RATES_H

#include "expertd/kernels/device.h"

enum { DEVICE_RATES_VERSION = 2, DEVICE_RATES_THREADS = 256, DEVICE_RATES_SINK_BYTES = 16 };

enum device_rate {
    DEVICE_RATE_FMA,       // fp32 fmas in registers
    DEVICE_RATE_MMA,       // mma.sync, bf16, operands in registers
    DEVICE_RATE_WGMMA,     // wgmma, bf16, operands in shared memory; sm_90 only
    DEVICE_RATE_WGMMA_FP8, // the same with E4M3 operands
};

struct device_rates {
    uint32_t version;
    // Floating-point operations of one block in one round; an fma counts as two.
    uint64_t (*flops)(enum device_rate kind);
    // Asynchronous, like the operations of the table. sink: DEVICE_RATES_SINK_BYTES of device memory; it is never written, but
    // keeps the compiler from removing the work.
    enum expertd_device_code (*multiply)(struct expertd_device *device, enum device_rate kind, uint32_t blocks, uint32_t rounds,
                                         void *sink, struct expertd_device_error *error);
    // from: 16-byte aligned; bytes: a multiple of 16.
    enum expertd_device_code (*read)(struct expertd_device *device, const void *from, size_t bytes, uint32_t blocks, void *sink,
                                     struct expertd_device_error *error);
};

#define DEVICE_RATES_SYMBOL "expertd_device_rates"

#endif
