// Weights as the grouped matmul reads them: packed once at load, one block per group (anywhere in memory, so that one can be moved
// without the others), columns in panels, K in ascending order.
// The layout belongs to kernels/cpu; nobody else looks inside a block.
#ifndef EXPERTD_KERNELS_WEIGHTS_H
#define EXPERTD_KERNELS_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

// One group's matrix as it lies in a file: W[n][k] of the product y[n] = sum over k of x[k] * W[n][k].
struct weight_source {
    const void *data; // the element W[0][0]; may be misaligned
    enum dtype dtype; // F32, F16 or BF16; I8 where it is packed as I8
    size_t n_stride;  // elements from W[n][k] to W[n+1][k] (a transposed file has 1; interleaved rows have 2K)
    size_t k_stride;  // elements from W[n][k] to W[n][k+1]
};

enum { KERNEL_PANEL = 64 }; // columns of a panel

// How a panel's elements lie. The bits of a product are the same.
enum packed_layout {
    PACKED_PANELS, // [k][64]: every kernel reads them
    // Of F32 and BF16, which the kernels of some instruction sets read, on some CPUs faster:
    PACKED_SLICES,      // four of [k][16]
    PACKED_WIDE_SLICES, // two of [k][32]
    PACKED_LAYOUTS
};

struct quantised_format;

struct packed_weights {
    enum dtype dtype;   // D: DTYPE_BF16 or DTYPE_F32, or DTYPE_I8
    size_t groups;      // held here
    size_t k, n;        // of every group
    size_t group_bytes; // packed_group_bytes(dtype, k, n), or quantised_group_bytes
    void *const *data; // [groups] where each group lies: group_bytes, 64-byte aligned. Groups and table are the owner's; NULL: none
    const struct quantised_format *format; // of codes and scales (quantised.h), dtype being the activations'; NULL: plain elements
    enum packed_layout layout;             // of plain elements, as they were packed
};

// What the chosen kernels (kernel_select.h) multiply fastest on this CPU, and whether they read a layout: a product by kernels that
// do not is refused, so choose kernels before weights are packed.
enum packed_layout packed_layout_best(enum dtype dtype);
bool packed_layout_is_read(enum dtype dtype, enum packed_layout layout);

// "panels", "slices", "wide-slices".
const char *packed_layout_name(enum packed_layout layout);

// Bytes of one packed group, a multiple of 64; SIZE_MAX where no memory has so many.
size_t packed_group_bytes(enum dtype dtype, size_t k, size_t n);

// Packs one group, each element rounded once to dtype (F32 or BF16), or as it is (I8 from I8, as panels). dst: packed_group_bytes,
// 64-byte aligned. Any thread. Another pair of dtypes ends the program: it is the caller's to know what it packs.
void pack_weights(const struct weight_source *source, size_t k, size_t n, enum dtype dtype, enum packed_layout layout, void *dst);

// The inverse of pack_weights for F32 and BF16: one group's matrix row-major, [n][k], aligned as its elements. Of other weights it
// ends the program.
void unpack_weights(const struct packed_weights *packed, size_t group, void *dst);

#endif
