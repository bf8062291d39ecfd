// `expertd-bench layer`: whole MoE layers of synthetic models, everything between hidden rows in and hidden rows out.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_LAYER_BENCH_H
#define EXPERTD_TESTS_BENCH_KERNELS_LAYER_BENCH_H

#include "tests/bench/kernels/bench_options.h"
#include "tests/bench/kernels/measure/machine.h"
#include "tests/bench/kernels/report.h"

// Adds a row for each preset, dtype, number of threads and of tokens. Tokens are drawn anew for each repetition, so that they go to
// other experts; the weights that a repetition read are taken out of the caches behind it, where the machine can (x86).
// EXPERTD_ERR_USAGE, EXPERTD_ERR_CONFIG: an unknown name; EXPERTD_ERR_NOMEM: the layer does not fit in memory, with figures.
FALLIBLE layer_bench(const struct bench_options *options, const struct machine *machine, struct report *report);

void layer_bench_list(FILE *out); // the presets

#endif
