// `expertd-bench pack`: what loading does with a matrix between the file's bytes and the panels: codes into rows, the digest, and
// packing.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_PACK_BENCH_H
#define EXPERTD_TESTS_BENCH_KERNELS_PACK_BENCH_H

#include "tests/bench/kernels/bench_options.h"
#include "tests/bench/kernels/measure/machine.h"
#include "tests/bench/kernels/report.h"

// Adds a row for each form of source and number of threads asked for. Sources and what is packed rotate over more than any cache
// holds. EXPERTD_ERR_USAGE: an unknown name; EXPERTD_ERR_NOMEM.
FALLIBLE pack_bench(const struct bench_options *options, const struct machine *machine, struct report *report);

void pack_bench_list(FILE *out); // the forms

#endif
