// `expertd-bench kernels --device D`: grouped products on a device, each between a loop of multiplications and a plain read there.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_DEVICE_DEVICE_BENCH_H
#define EXPERTD_TESTS_BENCH_KERNELS_DEVICE_DEVICE_BENCH_H

#include "tests/bench/kernels/bench_options.h"
#include "tests/bench/kernels/device/device_rig.h"
#include "tests/bench/kernels/report.h"

// EXPERTD_ERR_USAGE for shapes and dtypes that there are none of, or that a simulated device would take hours for;
// EXPERTD_ERR_NOMEM with figures.
FALLIBLE device_bench(const struct bench_options *options, struct device_rig *rig, struct report *report);

// Prints the further names that --shape takes with --device, and its dtypes.
void device_bench_list(FILE *out);

#endif
