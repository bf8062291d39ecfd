// One device under measurement, a GPU or a simulated one, with its peak rates and memory to read. Owned by one thread.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_MEASURE_DEVICE_RIG_H
#define EXPERTD_TESTS_BENCH_KERNELS_MEASURE_DEVICE_RIG_H

#include "expertd/kernels/devices.h"
#include "kernels/device/device_rates.h"
#include "tests/bench/kernels/measure/measure.h"

struct device_rig {
    struct expertd_devices *devices; // one device
    const struct device_rates *rates;
    bool simulated;
    char name[EXPERTD_DEVICE_NAME_MAX + 64]; // for the report's backend
    enum device_rate bf16;                   // the fastest instruction for bf16
    void *sink, *region;                     // device memory
    size_t region_bytes;
    size_t read_at; // offset in the region: a read continues where the last one ended, so that it misses the caches
};

// text: "cuda", "cuda:1", "sim". EXPERTD_ERR_UNAVAILABLE: the message says what is missing. EXPERTD_ERR_USAGE: more
// than one device.
FALLIBLE device_rig_open(const char *text, struct device_rig *out);
void device_rig_close(struct device_rig *rig); // legal on a zeroed struct

// The peak rates for struct measured, in operations per second, measured over about span_ns. `rig` is a struct device_rig. A
// failing device ends the program.
double device_rig_peak_bf16(void *rig, int64_t span_ns);
double device_rig_peak_f32(void *rig, int64_t span_ns);
double device_rig_peak_fp8(void *rig, int64_t span_ns); // two E4M3 operands; the device must have wgmma
const char *device_rig_peak_name(const struct device_rig *rig, enum expertd_dtype dtype);

// The duration of a plain read of `bytes` bytes.
int64_t device_rig_read_ns(struct device_rig *rig, double bytes);

FALLIBLE device_rig_wait(const struct device_rig *rig);

#endif
