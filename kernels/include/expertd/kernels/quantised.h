// Quantised weights: codes of 4 or 8 bits with scales per group of K. They stay coded in memory; kernels widen them during the
// product.
//
// A group's matrix is packed into one block, like other packed weights; expertd_packed_weights.format describes its codes. Sums:
// per scale group a partial sum of row x codes from +0, then sum = fma(partial, scale, sum) in IEEE arithmetic, groups in ascending
// k. The partial sum follows the selected arithmetic: bf16 rows under "cpu" take two flushed fmas per pair of k, the odd k first;
// f32 rows take one IEEE fma per k. Pairs and steps of k start anew in each scale group.
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

// The codes of a matrix [n, k] in a file's layout. Code (n, k) is number
//
//   (n / word) * n_word_stride + order[n % word] * n_stride + (k / word) * k_word_stride + (k % word) * k_stride
//
// Strides count codes. Of two 4-bit codes in a byte, the first is in the low nibble. For plain rows of codes: any word,
// n_word_stride = word * n_stride, k_stride = 1, k_word_stride = word.
struct expertd_code_words {
    const void *data; // any alignment; NULL: no codes
    unsigned bits;    // 4 or 8
    size_t word;      // codes of a word, a power of two
    size_t n_stride, n_word_stride, k_stride, k_word_stride;
    const uint8_t *order; // [word] a permutation, such as AWQ's 0 4 1 5 2 6 3 7; NULL: in order
    uint8_t flip;         // each code is XORed with it: 0x80 (0x08) converts two's complement to offset binary and back
    uint8_t add;          // then added to each code: GPTQ stores zero points minus one
};

// One group's matrix in a file's layout. After flip and add, codes are as enum expertd_weight_code defines them.
struct expertd_quantised_source {
    struct expertd_code_words codes;
    struct expertd_code_words zeros; // zero points [n, scale groups], of 4 or 8 bits; data NULL: none
    const void *scales;              // in format.scale, any alignment: that of column n and scale group g is element
    size_t scale_columns;            // ((scale_first + n) / scale_columns) * scale_n_stride + g * scale_g_stride; 1: one per column
    size_t scale_first;              // columns of the first scale's block that precede column 0; below scale_columns
    size_t scale_n_stride, scale_g_stride;
    float global;            // the matrix's global scale, where format.global is not EXPERTD_GLOBAL_NONE
    const uint32_t *k_order; // [k] the file's k for each packed k (GPTQ's g_idx: the stable sort by group); the rows must then be
                             // permuted in the same way. NULL: the file's order
};

// Can this library compute with the format? EXPERTD_ERR_INVALID names the unsupported field and what is supported.
EXPERTD_FALLIBLE expertd_quantised_check(const struct expertd_quantised_format *format);

// Bytes of one packed group, a multiple of 64; SIZE_MAX on overflow. The format must have passed expertd_quantised_check.
size_t expertd_quantised_group_bytes(const struct expertd_quantised_format *format, size_t k, size_t n);

// Packs one group. dst: expertd_quantised_group_bytes, 64-byte aligned. Any thread. EXPERTD_ERR_INVALID where source and format do
// not fit together.
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

// Writes the codes as n rows of ceil(k * bits / 8) bytes, k ascending; a spare nibble is 0. Any thread.
void expertd_quantised_codes_as_rows(const struct expertd_code_words *codes, size_t n, size_t k, uint8_t *rows);

// The same with k permuted as k_order of struct expertd_quantised_source. scratch: expertd_quantised_sorting_bytes, 64-byte
// aligned.
void expertd_quantised_codes_as_sorted_rows(const struct expertd_code_words *codes, const uint32_t *k_order, size_t n, size_t k,
                                            void *scratch, uint8_t *rows);
size_t expertd_quantised_sorting_bytes(const struct expertd_code_words *codes, size_t k);

// Writes one byte per code, [n][k], with the values of expertd_quantised_code.
void expertd_quantised_codes_as_bytes(const struct expertd_code_words *codes, size_t n, size_t k, uint8_t *bytes);

// The scalar twin: row x[k] (BF16 or F32) times column n of a packed group, in the arithmetic of the selected backend.
float expertd_dot_quantised_reference(const struct expertd_quantised_format *format, const void *group, size_t n,
                                      enum expertd_dtype dtype, const void *x, size_t k);
// The same in the arithmetic "cpu_amx" and in "sm_90".
float expertd_dot_quantised_amx_reference(const struct expertd_quantised_format *format, const void *group, size_t n,
                                          enum expertd_dtype dtype, const void *x, size_t k);
float expertd_dot_quantised_sm90_reference(const struct expertd_quantised_format *format, const void *group, size_t n,
                                           enum expertd_dtype dtype, const void *x, size_t k);

#ifdef __cplusplus
}
#endif

#endif
