// `expertd-bench tune`: which schedule is fastest for each shape, kept in a file on request.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_TUNE_BENCH_H
#define EXPERTD_TESTS_BENCH_KERNELS_TUNE_BENCH_H

#include "tests/bench/kernels/bench_options.h"
#include "tests/bench/kernels/measure/machine.h"

// Tries every candidate on each shape, dtype and number of threads asked for, and prints what it found: a table, or JSON. What the
// file had for other classes stays; one that is damaged or of another machine is said on standard error, and replaced.
// EXPERTD_ERR_USAGE, EXPERTD_ERR_NOMEM as kernels_bench; EXPERTD_ERR_IO where the file cannot be written.
FALLIBLE tune_bench(const struct bench_options *options, const struct machine *machine);

#endif
