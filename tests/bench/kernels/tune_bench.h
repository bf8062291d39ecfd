// `expertd-bench tune`: finds the fastest schedule for each shape, and optionally writes them to a file.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_TUNE_BENCH_H
#define EXPERTD_TESTS_BENCH_KERNELS_TUNE_BENCH_H

#include "tests/bench/kernels/bench_options.h"
#include "tests/bench/kernels/measure/machine.h"

// Tries every candidate on each requested shape, dtype and number of threads, and prints the results as a table or JSON. Entries of
// the file for other classes are kept. A file that is damaged or from another machine is reported on standard error and replaced.
// EXPERTD_ERR_USAGE, EXPERTD_ERR_NOMEM: as kernels_bench. EXPERTD_ERR_IO: the file cannot be written.
FALLIBLE tune_bench(const struct bench_options *options, const struct machine *machine);

#endif
