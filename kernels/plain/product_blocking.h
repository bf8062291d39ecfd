// Block sizes of a run of the engine, and the scratch of one thread that follows from them. Private to kernels/plain.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_BLOCKING_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_BLOCKING_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/products/panel_kernels.h"
#include "kernels/products/product.h"

// The greatest m, n and k of the groups, and the tiling for these sizes (product_tiling).
struct product_limits {
    size_t m, n, k;
    struct expertd_matmul_tiling tiling;
};

// A call multiplies call_rows rows by call_panels panels over k_block elements of K.
struct product_blocking {
    enum expertd_dtype sum;    // product_sum_dtype
    bool by_macrokernel;       // by kernels that take several panels; only they allow blocks of K
    bool scaled_blocks;        // partial sums per scale group of K, each closed with its scales
    size_t call_panels;        // at most
    size_t panel_bytes;        // of one packed panel over k_block, in scratch; 0: B was packed at load
    size_t k_block;            // k of a block
    size_t row_bytes;          // of one converted row over k_block, in scratch; 0: rows are read in place
    size_t call_rows;          // at most
    size_t sums_rows;          // rows whose sums stay in scratch while the blocks of K pass
    size_t sums_stride;        // floats from row to row of the sums
    size_t unpacked_rows;      // spans of at most this many rows read B in place, without packing; 0: all spans pack
    size_t unpacked_row_bytes; // of such a row, converted, over all of K; 0: k_block at a time, or no conversion
};

enum {
    UNPACKED_ROWS_MAX = 32,                  // with more rows, packing pays
    UNPACKED_COLUMNS = 1024,                 // of a call: longer contiguous reads are faster
    UNPACKED_STRIDE = UNPACKED_COLUMNS + 80, // floats from row to row of sums: a multiple of a page would alias loads with stores
};

// The kernels for B's panels.
struct panel_kernels product_panel_kernels(const struct product *product);

struct product_blocking product_blocking_of(const struct product *product, const struct product_limits *limits);

// One thread's scratch, in parts.
struct thread_scratch {
    char *panels;   // [call_panels] packed by this thread
    char *rows;     // converted rows
    float *sums;    // [sums_rows, sums_stride], or [unpacked_rows, UNPACKED_STRIDE]
    float *partial; // [call_rows, sums_stride] partial sums of one scale group
    void *kernel;   // KERNEL_SCRATCH_BYTES for the macrokernels
};

size_t thread_scratch_bytes(const struct product_blocking *blocks);

// base: thread_scratch_bytes, 64-byte aligned.
struct thread_scratch thread_scratch_at(const struct product_blocking *blocks, char *base);

#endif
