// Quantised weights: codes of 4 or 8 bits with scales along K, kept so in memory and widened on the way to the multiplier.
//
// A group's matrix is one block, as with plain packed weights; packed_weights.format says how its elements are coded. Per scale,
// the product of the codes is summed from +0 as ever (bf16 activations: flushed fmas by pairs, the odd k first; f32: one IEEE fma
// per k), then sum = fma(partial, scale, sum) in IEEE arithmetic, scales in ascending k. Pairs start anew at each scale.
#ifndef EXPERTD_KERNELS_QUANTISED_H
#define EXPERTD_KERNELS_QUANTISED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/quantised_format.h"

// Where codes of one size lie: the element (n, k) is number n / 8 * n8_stride + order[n % 8] * n_stride + k / 8 * k8_stride +
// k % 8 * k_stride, counted in codes; of two 4-bit codes in a byte the first is the low one, as in little-endian words of 8.
struct code_source {
    const void *data;
    size_t n_stride, n8_stride; // plain rows: n8_stride = 8 * n_stride
    size_t k_stride, k8_stride;
    const uint8_t *order; // [8] a permutation (AWQ's 0 4 1 5 2 6 3 7); NULL: in order
    unsigned bits;        // 4 or 8
    uint8_t flip;         // xored into each: 0x80 (0x08) turns two's complement into offset binary and back
    uint8_t add;          // then added: GPTQ stores its zero points less one
};

// One group's matrix as it lies in a file. Codes are as enum weight_code says once flip and add are done.
struct quantised_source {
    struct code_source codes;
    struct code_source zeros; // data NULL: none. k counts scales; of 4 or 8 bits whatever the codes are
    const void *scales;       // in format.scale's dtype, any alignment: of column n and scale g at
    size_t scale_columns;     // (n / scale_columns) * scale_n_stride + g * scale_g_stride elements; 1 for a scale of each column
    size_t scale_n_stride, scale_g_stride;
    float global;            // of the matrix, where format.global asks for one
    const uint32_t *k_order; // [k] the k of the file that becomes the k-th here (GPTQ's g_idx: the stable sort by group);
                             // activations must then come in this order too. NULL: as it is
};

// Can it be computed with? ERR_INVALID names what cannot be and what can.
FALLIBLE quantised_check(const struct quantised_format *format);

// Bytes of one packed group, a multiple of 64. The format has passed quantised_check.
size_t quantised_group_bytes(const struct quantised_format *format, size_t k, size_t n);

// Packs one group. dst: quantised_group_bytes, 64-byte aligned. Any thread. ERR_INVALID where source and format do not fit.
FALLIBLE pack_quantised(const struct quantised_source *source, const struct quantised_format *format, size_t k, size_t n,
                        void *dst);

// The scalar twin: row x (BF16 or F32 elements) against column n of a packed group, in the arithmetic of the chosen backend.
float dot_quantised_reference(const struct quantised_format *format, const void *group, size_t n, enum dtype dtype, const void *x,
                              size_t k);
// The same in ARITHMETIC_SIM_90's.
float dot_quantised_sim90_reference(const struct quantised_format *format, const void *group, size_t n, enum dtype dtype,
                                    const void *x, size_t k);

#endif
