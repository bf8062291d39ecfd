// expertd-bench's command line. Pure.
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
    OP_GMM_PLAIN,    // on a dense tensor
    OP_TGMM,         // transposed_grouped_matmul
    OP_GROUPED_GEMM, // ragged rows
};

// Of packed F32 and BF16.
enum bench_layout {
    LAYOUT_BEST,   // expertd_packed_layout_best
    LAYOUT_PANELS, // and on: enum expertd_packed_layout's
    LAYOUT_SLICES,
    LAYOUT_WIDE_SLICES,
};

enum { BENCH_LIST_MAX = 16 };

struct bench_options {
    enum bench_command command;
    const char *shapes;  // names with commas between them; NULL: those that a plain run measures
    const char *dtypes;  // likewise
    const char *kernels; // the backend's name
    enum bench_op op;
    bool transposed;        // plain weights as [groups, n, k]
    enum expertd_dtype out; // kernels, gmm: of the results; NONE: the sums'
    enum bench_layout layout;
    const char *cache; // tune: the file of schedules; NULL: none is kept
    uint32_t threads[BENCH_LIST_MAX];
    size_t num_threads; // 0: one entry, the CPUs of this process
    uint32_t tokens[BENCH_LIST_MAX];
    size_t num_tokens;      // layer: of a batch
    uint32_t experts;       // of a layer; 0: the preset's
    double seconds;         // of each row
    uint64_t weights_bytes; // that a row's weights rotate over; 0: four times the last-level cache, at least 1.2 GB
    bool busy_neighbour;    // kernels: each repetition again beside a thread that computes
    const char *device;     // kernels, layer: "cuda", "sim", ...; NULL: the CPU
    bool json, list, help;
};

// Strings are borrowed from argv. EXPERTD_ERR_USAGE names the word and the mend.
FALLIBLE bench_options_parse(int argc, char *const *argv, struct bench_options *out);
void bench_options_help(FILE *out);

#endif
