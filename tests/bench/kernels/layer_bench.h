// `expertd-bench layer`: whole MoE layers of synthetic models, from input rows to output rows.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_LAYER_BENCH_H
#define EXPERTD_TESTS_BENCH_KERNELS_LAYER_BENCH_H

#include "tests/bench/kernels/bench_options.h"
#include "tests/bench/kernels/measure/machine.h"
#include "tests/bench/kernels/report.h"

// Adds a row for each preset, dtype, number of threads and number of tokens. Each repetition uses other tokens, so that they go to
// other experts. The weights that a repetition has read are flushed from the caches, on x86. EXPERTD_ERR_USAGE, EXPERTD_ERR_CONFIG:
// an unknown name. EXPERTD_ERR_NOMEM: the layer does not fit in memory; the message has the figures.
FALLIBLE layer_bench(const struct bench_options *options, const struct machine *machine, struct report *report);

void layer_bench_list(FILE *out); // prints the presets

#endif
