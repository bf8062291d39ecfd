// What of shapes, dtypes and numbers of threads a command line asks for.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_SELECTION_H
#define EXPERTD_TESTS_BENCH_KERNELS_SELECTION_H

#include "expertd/kernels/grouped_gemm.h"
#include "expertd/kernels/quantised.h"
#include "expertd/kernels/weights.h"
#include "tests/bench/kernels/bench_options.h"
#include "tests/bench/kernels/measure/machine.h"
#include "tests/bench/kernels/shapes.h"

// A kind of weights, and what multiplies them.
struct bench_dtype {
    const char *name;
    enum expertd_dtype dtype;                      // of the rows, and of the weights where there is no format
    const struct expertd_quantised_format *format; // NULL: plain elements
    bool by_request;                               // measured only where it is named
    enum expertd_dtype plain;                      // of plain operands, both alike; NONE: packed weights alone
    enum expertd_gemm_scaling scaling;             // of plain weights: grouped GEMM alone
};

enum { SELECTION_SHAPES_MAX = 32, SELECTION_DTYPES_MAX = 16 };

struct selection {
    const struct bench_shape *shapes[SELECTION_SHAPES_MAX];
    size_t num_shapes;
    const struct bench_dtype *dtypes[SELECTION_DTYPES_MAX];
    size_t num_dtypes;
    uint32_t threads[BENCH_LIST_MAX];
    size_t num_threads;
    uint64_t weights_bytes; // to rotate over
    enum bench_op op;
    bool transposed;             // plain weights
    enum bench_layout layout;    // of packed weights
    enum expertd_dtype out;      // of packed weights' results; NONE: the sums'
    struct neighbour *neighbour; // NULL: none; kernels_bench's
};

// Checks that there is memory for the largest row too, before any is measured. EXPERTD_ERR_USAGE for an unknown name,
// EXPERTD_ERR_NOMEM with figures.
FALLIBLE selection_make(const struct bench_options *options, const struct machine *machine, struct selection *out);

// How plain weights of dtype are packed then; EXPERTD_ERR_USAGE where the chosen kernels do not read it. (Codes and I8 lie as they
// do.)
FALLIBLE bench_layout_of(enum bench_layout layout, enum expertd_dtype dtype, enum expertd_packed_layout *out);

// Prints the names that --shape and --dtype take.
void selection_list(FILE *out);

#endif
