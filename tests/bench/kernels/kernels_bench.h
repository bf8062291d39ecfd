// `expertd-bench kernels`: the grouped matmul over the shapes of shapes.h.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_KERNELS_BENCH_H
#define EXPERTD_TESTS_BENCH_KERNELS_KERNELS_BENCH_H

#include "tests/bench/kernels/bench_options.h"
#include "tests/bench/kernels/machine.h"
#include "tests/bench/kernels/report.h"

// Adds a row for each shape, dtype and number of threads asked for; progress goes to standard error.
// ERR_USAGE, ERR_CONFIG: an unknown name; ERR_NOMEM: more memory is needed than there is, with figures, before anything is
// measured.
FALLIBLE kernels_bench(const struct bench_options *options, const struct machine *machine, struct report *report);

#endif
