// The command line of expertd-bench.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_BENCH_OPTIONS_H
#define EXPERTD_TESTS_BENCH_KERNELS_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "expertd/base/dtype.h"

enum bench_command { BENCH_NONE, BENCH_KERNELS, BENCH_LAYER, BENCH_TUNE, BENCH_PACK };

enum bench_op {
    OP_GMM,          // grouped_matmul on packed weights
    OP_GMM_PLAIN,    // grouped_matmul on a dense tensor
    OP_TGMM,         // transposed_grouped_matmul
    OP_GROUPED_GEMM, // ragged grouped_gemm
};

// The layout of packed F32 and BF16 weights.
enum bench_layout {
    LAYOUT_BEST,   // expertd_packed_layout_best
    LAYOUT_PANELS, // from here on as enum expertd_packed_layout
    LAYOUT_SLICES,
    LAYOUT_WIDE_SLICES,
};

enum { BENCH_LIST_MAX = 16 };

struct bench_options {
    enum bench_command command;
    const char *shapes;  // comma-separated names; NULL: the default shapes
    const char *dtypes;  // likewise
    const char *kernels; // the backend's name
    enum bench_op op;
    bool transposed;        // plain weights as [groups, n, k]
    enum expertd_dtype out; // kernels, gmm: dtype of the results; NONE: that of the sums
    enum bench_layout layout;
    const char *cache; // tune: the file for the schedules; NULL: none
    uint32_t threads[BENCH_LIST_MAX];
    size_t num_threads; // 0: one entry, the number of CPUs of this process
    uint32_t tokens[BENCH_LIST_MAX];
    size_t num_tokens;      // layer: batch sizes
    uint32_t experts;       // layer: number of experts; 0: that of the preset
    double seconds;         // per row
    uint64_t weights_bytes; // size of the pool of weights of a row; 0: four times the last-level cache, at least 1.2 GB
    bool busy_neighbour;    // kernels: repeat each repetition beside a busy thread
    const char *device;     // kernels, layer: "cuda", "sim", ...; NULL: the CPU
    bool json, list, help;
};

// Strings are borrowed from argv. EXPERTD_ERR_USAGE: the message names the bad word and the correction.
FALLIBLE bench_options_parse(int argc, char *const *argv, struct bench_options *out);
void bench_options_help(FILE *out);

#endif
