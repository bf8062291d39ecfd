// Weights packed for the grouped matmul: once at load, one block of memory per group. Blocks may lie anywhere, so that a group can
// be moved alone. Columns are packed in panels of 64, K ascending. The layout inside a block may change between versions: do not
// store packed weights in files.
#ifndef EXPERTD_KERNELS_WEIGHTS_H
#define EXPERTD_KERNELS_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// One group's unpacked matrix W[n][k] of the product y[n] = sum over k of x[k] * W[n][k], with any strides.
struct expertd_weight_source {
    const void *data;         // the element W[0][0]; may be misaligned
    enum expertd_dtype dtype; // F32, F16 or BF16; I8 only to pack as I8
    size_t n_stride;          // elements from W[n][k] to W[n+1][k]: 1 for a [k, n] tensor, 2k for interleaved gate and up rows
    size_t k_stride;          // elements from W[n][k] to W[n][k+1]
};

enum { EXPERTD_KERNEL_PANEL = 64 }; // columns of a panel

// The layout of a panel's elements. It changes the speed of a product, not its bits. Slices are micropanels; only some backends
// read them.
enum expertd_packed_layout {
    EXPERTD_PACKED_PANELS,      // [k][64], for every dtype and backend
    EXPERTD_PACKED_SLICES,      // F32 and BF16: four micropanels of [k][16]
    EXPERTD_PACKED_WIDE_SLICES, // F32 and BF16: two micropanels of [k][32]
    EXPERTD_PACKED_LAYOUTS
};

struct expertd_quantised_format;

struct expertd_packed_weights {
    enum expertd_dtype dtype; // F32, BF16 or I8. Of quantised weights: F32 or BF16, the dtype of the rows they are multiplied with
    size_t groups;            // in `data`
    size_t k, n;              // of every group
    size_t group_bytes;       // expertd_packed_group_bytes(dtype, k, n), or expertd_quantised_group_bytes(format, k, n)
    void *const *data; // [groups] one block of group_bytes per group, 64-byte aligned; borrowed. A group without rows may be NULL
    const struct expertd_quantised_format *format; // of codes and scales (quantised.h); NULL: plain elements
    enum expertd_packed_layout layout;             // that plain elements were packed in; EXPERTD_PACKED_PANELS for codes
};

// The layout that the selected backend (kernel_select.h) multiplies fastest on this CPU, and whether it reads a given layout. A
// product with a layout that the backend does not read is refused. So select the backend before you pack weights.
enum expertd_packed_layout expertd_packed_layout_best(enum expertd_dtype dtype);
bool expertd_packed_layout_is_read(enum expertd_dtype dtype, enum expertd_packed_layout layout);

// "panels", "slices", "wide-slices".
const char *expertd_packed_layout_name(enum expertd_packed_layout layout);

// Bytes of one packed group, a multiple of 64; SIZE_MAX on overflow.
size_t expertd_packed_group_bytes(enum expertd_dtype dtype, size_t k, size_t n);

// Packs one group. F32, F16 and BF16 sources are rounded once to `dtype` (F32 or BF16). I8 is packed from I8 alone, as panels.
// Other combinations abort the program. dst: expertd_packed_group_bytes, 64-byte aligned. Any thread.
void expertd_pack_weights(const struct expertd_weight_source *source, size_t k, size_t n, enum expertd_dtype dtype,
                          enum expertd_packed_layout layout, void *dst);

// The inverse of expertd_pack_weights for F32 and BF16: writes one group's matrix to dst[n][k], row-major, aligned to its dtype.
// Other weights abort the program.
void expertd_unpack_weights(const struct expertd_packed_weights *packed, size_t group, void *dst);

#ifdef __cplusplus
}
#endif

#endif
