// `expertd-bench kernels`: the grouped matmul over the shapes of shapes.h.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_KERNELS_BENCH_H
#define EXPERTD_TESTS_BENCH_KERNELS_KERNELS_BENCH_H

#include "tests/bench/kernels/bench_options.h"
#include "tests/bench/kernels/measure/machine.h"
#include "tests/bench/kernels/report.h"

// Adds a row for each requested shape, dtype and number of threads; prints progress to standard error.
// EXPERTD_ERR_USAGE, EXPERTD_ERR_CONFIG: an unknown name. EXPERTD_ERR_NOMEM, before anything is measured: not enough
// memory; the message has the figures.
FALLIBLE kernels_bench(const struct bench_options *options, const struct machine *machine, struct report *report);

#endif
