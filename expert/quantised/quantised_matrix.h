// A matrix of codes and scales as it lies in a file, in any of the orders that quantisers write, and the one order that everything
// after the file is done in: rows of codes, least k first, a scale's k together. Digests, packing and widening start from there.
// Pure functions; any thread. A matrix borrows from its checkpoint, its rows from that and from the caller's staging memory.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISED_MATRIX_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISED_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertd/kernels/quantised.h"

struct digest;
struct safetensors_entry;

struct byte_range {
    const void *data;
    size_t bytes;
};

enum { QUANTISED_RANGES = 5 };

struct quantised_matrix {
    struct expertd_quantised_format format;
    struct expertd_code_words codes; // data NULL: the matrix is not quantised
    struct expertd_code_words zeros; // k counts scales
    const void *scales;              // as struct expertd_quantised_source's
    size_t scale_columns, scale_n_stride, scale_g_stride;
    const void *global; // one element, for format.global
    enum expertd_dtype global_dtype;
    const void *scale_of_k; // I32 [k], may be misaligned: the scale of each k in the file's order; NULL: in order
    bool ordered;           // k are packed scale by scale, and the activations must follow; else scale_of_k has to be in order
    const char *stored;     // what the layout is called: "GPTQ"
    // for messages; NULL of weights that are generated
    const struct safetensors_entry *scales_tensor, *global_tensor, *zeros_tensor;
    size_t ranges; // of the file: what is read, a tensor each
    struct byte_range range[QUANTISED_RANGES];
};

// The matrix [n, k] in rows, ready to be packed.
struct quantised_rows {
    struct expertd_quantised_format format;
    struct expertd_quantised_source source; // rows of codes: k_stride 1; zeros, if any, as bytes [n][scales]; k_order NULL
    size_t scales;                          // along K
    const uint32_t *order;                  // [k] the k of the file that is the i-th here; NULL: the same
    size_t odd_scales;                      // that are NaN or Inf: they are computed with, and make what they multiply so
    bool odd_global;                        // so is the global one, which is not among them
    size_t zeros_of_16;                     // of 4 bits that are stored less one, as 15: not all that write such files mean 16
};

// Scales along k.
size_t quantised_scales(const struct expertd_quantised_format *format, size_t k);

// Bytes of staging memory that quantised_rows_take needs.
size_t quantised_rows_bytes(const struct quantised_matrix *matrix, size_t n, size_t k);

// EXPERTD_ERR_CHECKPOINT: scales are divided by 0, a zero point is beyond its codes, or scale_of_k does not tell every scale's k.
// staging: 64-byte aligned.
FALLIBLE quantised_rows_take(const struct quantised_matrix *matrix, size_t n, size_t k, void *staging, struct quantised_rows *out);

// Codes, zero points, scales, the global scale and the order, row by row.
void quantised_rows_digest(const struct quantised_rows *rows, size_t n, size_t k, struct digest *digest);

// Every weight as code times scale, rounded to fp32 and then to dtype (F32 or BF16), in the file's order of k. out: [n, k].
void quantised_rows_widen(const struct quantised_rows *rows, size_t n, size_t k, enum expertd_dtype dtype, void *out);

// Bytes of codes, scales and zero points as stored.
uint64_t quantised_stored_bytes(const struct quantised_matrix *matrix, size_t n, size_t k);

// Rows first, first + step, ... of a matrix of whole rows. EXPERTD_ERR_CHECKPOINT where a block of scales would be cut.
FALLIBLE quantised_take_rows(const struct quantised_matrix *whole, size_t first, size_t step, struct quantised_matrix *out);

bool quantised_same_format(const struct quantised_matrix *a, const struct quantised_matrix *b);

enum { QUANTISED_NAME_MAX = 48 };

// "fp8_block128", "mxfp4", "int4_group32_zero_ordered" into text, for people; returns text.
const char *quantised_name(const struct quantised_matrix *matrix, char text[QUANTISED_NAME_MAX]);

// The same for ids: every field that tells what a code is worth.
void quantised_digest_format(const struct quantised_matrix *matrix, struct digest *digest);

#endif
