// Quantised weights: codes of 4 or 8 bits with scales along K, kept so in memory and widened on the way to the multiplier.
//
// A group's matrix is one block, as with plain packed weights; packed_weights.format says how its elements are coded. Per scale,
// the product of the codes is summed from +0 as ever (bf16 activations: flushed fmas by pairs, the odd k first; f32: one IEEE fma
// per k; under another arithmetic than "cpu" as that one sums bf16), then sum = fma(partial, scale, sum) in IEEE arithmetic, scales
// in ascending k. Pairs and steps start anew at each scale.
#ifndef EXPERTD_KERNELS_QUANTISED_H
#define EXPERTD_KERNELS_QUANTISED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/err.h"
#include "expertd/kernels/quantised_format.h"

#ifdef __cplusplus
extern "C" {
#endif

// Codes in words of `word` codes: (n, k) is code number n / word * n_word_stride + order[n % word] * n_stride +
// k / word * k_word_stride + k % word * k_stride; of two 4-bit codes in a byte the first is the low one, as in little-endian words.
// Rows of plain codes: any word, n_word_stride = word * n_stride, k_stride 1, k_word_stride = word.
struct expertd_code_words {
    const void *data; // any alignment; NULL: there are none
    unsigned bits;    // 4 or 8
    size_t word;      // a power of two
    size_t n_stride, n_word_stride, k_stride, k_word_stride;
    const uint8_t *order; // [word] a permutation (AWQ's 0 4 1 5 2 6 3 7); NULL: in order
    uint8_t flip;         // xored into each: 0x80 (0x08) turns two's complement into offset binary and back
    uint8_t add;          // then added: GPTQ stores its zero points less one
};

// One group's matrix as it lies in a file. Codes are as enum expertd_weight_code says once flip and add are done.
struct expertd_quantised_source {
    struct expertd_code_words codes;
    struct expertd_code_words zeros; // data NULL: none. k counts scales; of 4 or 8 bits whatever the codes are
    const void *scales;              // in format.scale's dtype, any alignment: of column n and scale g at
    size_t scale_columns; // (n / scale_columns) * scale_n_stride + g * scale_g_stride elements; 1 for a scale of each column
    size_t scale_n_stride, scale_g_stride;
    float global;            // of the matrix, where format.global asks for one
    const uint32_t *k_order; // [k] the k of the file that becomes the k-th here (GPTQ's g_idx: the stable sort by group);
                             // activations must then come in this order too. NULL: as it is
};

// Can it be computed with? EXPERTD_ERR_INVALID names what cannot be and what can.
EXPERTD_FALLIBLE expertd_quantised_check(const struct expertd_quantised_format *format);

// Bytes of one packed group, a multiple of 64; SIZE_MAX where no memory has so many. The format has passed expertd_quantised_check.
size_t expertd_quantised_group_bytes(const struct expertd_quantised_format *format, size_t k, size_t n);

// Packs one group. dst: expertd_quantised_group_bytes, 64-byte aligned. Any thread. EXPERTD_ERR_INVALID where source and format do
// not fit.
EXPERTD_FALLIBLE expertd_pack_quantised(const struct expertd_quantised_source *source,
                                        const struct expertd_quantised_format *format, size_t k, size_t n, void *dst);

// Code (n, k), after flip and add.
static inline uint8_t expertd_quantised_code(const struct expertd_code_words *c, size_t n, size_t k) {
    unsigned log2 = (unsigned)__builtin_ctzll(c->word);
    size_t n_in = n & (c->word - 1), k_in = k & (c->word - 1);
    size_t of_n = (n >> log2) * c->n_word_stride + (c->order ? c->order[n_in] : n_in) * c->n_stride;
    size_t index = of_n + (k >> log2) * c->k_word_stride + k_in * c->k_stride;
    const uint8_t *data = (const uint8_t *)c->data;
    unsigned code = c->bits == 8 ? data[index] : (unsigned)data[index / 2] >> (index % 2 * 4) & 15u;
    return (uint8_t)((code ^ c->flip) + c->add);
}

// The codes as rows[n] of ceil(k * bits / 8) bytes, in order, a spare nibble 0. Any thread.
void expertd_quantised_codes_as_rows(const struct expertd_code_words *codes, size_t n, size_t k, uint8_t *rows);

// The same with k in an order (struct expertd_quantised_source's k_order). scratch: expertd_quantised_sorting_bytes, 64-byte
// aligned.
void expertd_quantised_codes_as_sorted_rows(const struct expertd_code_words *codes, const uint32_t *k_order, size_t n, size_t k,
                                            void *scratch, uint8_t *rows);
size_t expertd_quantised_sorting_bytes(const struct expertd_code_words *codes, size_t k);

// The codes as bytes [n][k], as expertd_quantised_code gives them.
void expertd_quantised_codes_as_bytes(const struct expertd_code_words *codes, size_t n, size_t k, uint8_t *bytes);

// The scalar twin: row x (BF16 or F32 elements) against column n of a packed group, in the arithmetic of the chosen backend.
float expertd_dot_quantised_reference(const struct expertd_quantised_format *format, const void *group, size_t n,
                                      enum expertd_dtype dtype, const void *x, size_t k);
// The same in ARITHMETIC_CPU_AMX's, and in ARITHMETIC_SM_90's.
float expertd_dot_quantised_amx_reference(const struct expertd_quantised_format *format, const void *group, size_t n,
                                          enum expertd_dtype dtype, const void *x, size_t k);
float expertd_dot_quantised_sm90_reference(const struct expertd_quantised_format *format, const void *group, size_t n,
                                           enum expertd_dtype dtype, const void *x, size_t k);

#ifdef __cplusplus
}
#endif

#endif
