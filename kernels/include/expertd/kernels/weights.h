// Weights as the grouped matmul reads them: packed once at load, one block per group (anywhere in memory, so that one can be moved
// without the others), columns in panels, K in ascending order.
// The layout belongs to kernels/cpu; nobody else looks inside a block.
#ifndef EXPERTD_KERNELS_WEIGHTS_H
#define EXPERTD_KERNELS_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// One group's matrix as it lies in a file: W[n][k] of the product y[n] = sum over k of x[k] * W[n][k].
struct expertd_weight_source {
    const void *data;         // the element W[0][0]; may be misaligned
    enum expertd_dtype dtype; // F32, F16 or BF16; I8 where it is packed as I8
    size_t n_stride;          // elements from W[n][k] to W[n+1][k] (a transposed file has 1; interleaved rows have 2K)
    size_t k_stride;          // elements from W[n][k] to W[n][k+1]
};

enum { EXPERTD_KERNEL_PANEL = 64 }; // columns of a panel

// How a panel's elements lie. The bits of a product are the same.
enum expertd_packed_layout {
    EXPERTD_PACKED_PANELS, // [k][64]: every kernel reads them
    // Of F32 and BF16, which the kernels of some instruction sets read, on some CPUs faster:
    EXPERTD_PACKED_SLICES,      // four of [k][16]
    EXPERTD_PACKED_WIDE_SLICES, // two of [k][32]
    EXPERTD_PACKED_LAYOUTS
};

struct expertd_quantised_format;

struct expertd_packed_weights {
    enum expertd_dtype dtype; // D: EXPERTD_DTYPE_BF16 or EXPERTD_DTYPE_F32, or EXPERTD_DTYPE_I8
    size_t groups;            // held here
    size_t k, n;              // of every group
    size_t group_bytes;       // expertd_packed_group_bytes(dtype, k, n), or expertd_quantised_group_bytes
    void *const *data; // [groups] where each group lies: group_bytes, 64-byte aligned. Groups and table are the owner's; NULL: none
    const struct expertd_quantised_format
        *format;                       // of codes and scales (quantised.h), dtype being the activations'; NULL: plain elements
    enum expertd_packed_layout layout; // of plain elements, as they were packed
};

// What the chosen kernels (kernel_select.h) multiply fastest on this CPU, and whether they read a layout: a product by kernels that
// do not is refused, so choose kernels before weights are packed.
enum expertd_packed_layout expertd_packed_layout_best(enum expertd_dtype dtype);
bool expertd_packed_layout_is_read(enum expertd_dtype dtype, enum expertd_packed_layout layout);

// "panels", "slices", "wide-slices".
const char *expertd_packed_layout_name(enum expertd_packed_layout layout);

// Bytes of one packed group, a multiple of 64; SIZE_MAX where no memory has so many.
size_t expertd_packed_group_bytes(enum expertd_dtype dtype, size_t k, size_t n);

// Packs one group, each element rounded once to dtype (F32 or BF16), or as it is (I8 from I8, as panels). dst:
// expertd_packed_group_bytes, 64-byte aligned. Any thread. Another pair of dtypes ends the program: it is the caller's to know what
// it packs.
void expertd_pack_weights(const struct expertd_weight_source *source, size_t k, size_t n, enum expertd_dtype dtype,
                          enum expertd_packed_layout layout, void *dst);

// The inverse of expertd_pack_weights for F32 and BF16: one group's matrix row-major, [n][k], aligned as its elements. Of other
// weights it ends the program.
void expertd_unpack_weights(const struct expertd_packed_weights *packed, size_t group, void *dst);

#ifdef __cplusplus
}
#endif

#endif
