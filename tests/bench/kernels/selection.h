// The shapes, dtypes and numbers of threads that the command line selects.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_SELECTION_H
#define EXPERTD_TESTS_BENCH_KERNELS_SELECTION_H

#include "expertd/kernels/grouped_gemm.h"
#include "expertd/kernels/quantised.h"
#include "expertd/kernels/weights.h"
#include "tests/bench/kernels/bench_options.h"
#include "tests/bench/kernels/measure/machine.h"
#include "tests/bench/kernels/shapes.h"

// A kind of weights and rows.
struct bench_dtype {
    const char *name;
    enum expertd_dtype dtype;                      // of the rows, and of the weights if they are not quantised
    const struct expertd_quantised_format *format; // NULL: not quantised
    bool by_request;                               // measured only if it is named
    enum expertd_dtype plain;                      // of both plain operands; NONE: packed weights only
    enum expertd_gemm_scaling scaling;             // of plain weights, for grouped GEMM only
};

enum { SELECTION_SHAPES_MAX = 32, SELECTION_DTYPES_MAX = 32 };

struct selection {
    const struct bench_shape *shapes[SELECTION_SHAPES_MAX];
    size_t num_shapes;
    const struct bench_dtype *dtypes[SELECTION_DTYPES_MAX];
    size_t num_dtypes;
    uint32_t threads[BENCH_LIST_MAX];
    size_t num_threads;
    uint64_t weights_bytes; // size of the pool of weights
    enum bench_op op;
    bool transposed;             // plain weights as [groups, n, k]
    enum bench_layout layout;    // of packed weights
    enum expertd_dtype out;      // dtype of the results with packed weights; NONE: that of the sums
    struct neighbour *neighbour; // NULL: none; owned by kernels_bench
};

// EXPERTD_ERR_USAGE: an unknown name.
FALLIBLE selection_make(const struct bench_options *o, const struct machine *machine, struct selection *s);

// The layout of packed weights of the dtype. EXPERTD_ERR_USAGE: the selected kernels do not support it. Codes and I8 have
// only one layout.
FALLIBLE bench_layout_of(enum bench_layout layout, enum expertd_dtype dtype, enum expertd_packed_layout *out);

// Prints the names for --shape and --dtype.
void selection_list(FILE *out);

#endif
