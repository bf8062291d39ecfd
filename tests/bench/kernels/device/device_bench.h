// `expertd-bench kernels --device D`: grouped products on a device, compared with a loop of multiplications and a plain read there.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_DEVICE_DEVICE_BENCH_H
#define EXPERTD_TESTS_BENCH_KERNELS_DEVICE_DEVICE_BENCH_H

#include "tests/bench/kernels/bench_options.h"
#include "tests/bench/kernels/measure/device_rig.h"
#include "tests/bench/kernels/report.h"

// EXPERTD_ERR_USAGE: unknown shapes or dtypes, or shapes for which a simulated device would take hours. EXPERTD_ERR_NOMEM: the
// message has the figures.
FALLIBLE device_bench(const struct bench_options *options, struct device_rig *rig, struct report *report);

// Prints the additional names for --shape with --device, and the dtypes.
void device_bench_list(FILE *out);

#endif
