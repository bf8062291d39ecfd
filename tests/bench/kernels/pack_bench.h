// `expertd-bench pack`: the loading of a matrix from the file's bytes to panels: unpacking codes, digest and packing.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_PACK_BENCH_H
#define EXPERTD_TESTS_BENCH_KERNELS_PACK_BENCH_H

#include "tests/bench/kernels/bench_options.h"
#include "tests/bench/kernels/measure/machine.h"
#include "tests/bench/kernels/report.h"

// Adds a row for each requested form of source and number of threads. Sources and results rotate over more memory than any cache
// holds. EXPERTD_ERR_USAGE: an unknown name. EXPERTD_ERR_NOMEM.
FALLIBLE pack_bench(const struct bench_options *options, const struct machine *machine, struct report *report);

void pack_bench_list(FILE *out); // prints the forms

#endif
