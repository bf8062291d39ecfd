// A matrix of codes and scales, in any layout that quantisers write, and its conversion to one layout: rows of K-contiguous codes,
// sorted by scale. Digests, packing and widening start from those rows. Pure functions; any thread. A matrix borrows from its
// checkpoint; rows borrow from the matrix and from the staging memory.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISED_MATRIX_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISED_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertd/kernels/quantised.h"

struct digest;
struct ggml_format;
struct safetensors_entry;

struct byte_range {
    const void *data;
    size_t bytes;
    size_t expert_stride; // bytes to the next expert's range, where a tensor holds all experts; 0: all have the same
};

// Codes of MLX: a weight is code * scale + bias, with codes from 0. In memory they are UINT4 (up to 4 bits) or INT8, and the minima
// are the negated biases. Codes of 8 bits are held less 128: their minima are -(bias + 128 * scale), in F32.
struct affine_source {
    unsigned bits;            // of a code in the file, whose rows are streams of bits; 0: another format
    enum expertd_dtype dtype; // of scales and biases in the file: F32, F16 or BF16
    const void *biases;       // indexed like the scales
};

enum { QUANTISED_RANGES = 5 };

struct quantised_matrix {
    struct expertd_quantised_format format;
    struct expertd_code_words codes; // data NULL: the matrix is not quantised
    // Of a GGUF file: codes, scales and minima are interleaved in blocks, the first at codes.data, and the other fields of codes
    // and scales are unused, but n_stride is the k of a row. NULL: they are tensors of their own.
    const struct ggml_format *blocks;
    struct affine_source affine;     // bits other than codes.bits: the codes are to be unpacked
    struct expertd_code_words zeros; // zero points; its k counts scales
    // Zero points of codes that config.json calls symmetric, as stored; not subtracted. All must be unused_middle, or one less if
    // unused_may_be_less_one, or 0 if unused_may_be_zero.
    struct expertd_code_words unused_zeros; // data NULL: there are none
    uint8_t unused_middle;
    bool unused_may_be_less_one, unused_may_be_zero;
    bool zeros_are_doubted;     // config.json does not say whether the codes are symmetric
    bool is_symmetric;          // config.json, or what its quantiser means by an absent key, says that there are no zero points
    const char *symmetric_text; // "quantization_config.sym is true", for messages; NULL: config.json has no such key
    const char *ordered_key;    // of config.json, for messages; NULL: it has no such key
    bool order_is_actorder;     // the key is actorder, not desc_act
    const void *scales;         // with the columns and strides below: see struct expertd_quantised_source
    size_t scale_columns, scale_first, scale_n_stride, scale_g_stride;
    size_t scale_restart; // rows after which a block of scales begins anew, before the matrix is split; 0: none
    const void *global;   // one element, for format.global
    enum expertd_dtype global_dtype;
    size_t global_columns;  // rows of the matrix that share a global scale, where it has several; 0: all
    const void *scale_of_k; // I32 [k], may be misaligned: the scale of each k in the file's order (g_idx); NULL: consecutive groups
    bool ordered;           // pack k sorted by scale, and permute the activations; false: scale_of_k must be consecutive groups
    const char *stored;     // the format's name on disk: "GPTQ"
    // for messages; NULL in generated weights
    const struct safetensors_entry *scales_tensor, *global_tensor, *zeros_tensor;
    const struct safetensors_entry *original_shape; // two integers of I32 or I64; NULL: none
    size_t original_n; // rows of the tensor, which may hold gate and up; must be the first integer; k must be the second
    size_t ranges;     // number of parts of the file that are read, one for each tensor
    struct byte_range range[QUANTISED_RANGES];
};

// The matrix [n, k] in rows, ready to be packed.
struct quantised_rows {
    struct expertd_quantised_format format;
    struct expertd_quantised_source source; // codes with k_stride 1; zero points, if any, as bytes [n][scales]; k_order NULL
    size_t scales;                          // number of scales of a row
    // [n][scales] of affine codes of 8 bits: the minima of the stored codes, from 0 to 255; those of `source` are of codes less
    // 128. NULL: the codes are held as they are stored.
    const float *stored_minima;
    size_t inexact_minima;     // of `source`, which fp32 does not hold exactly
    const uint32_t *order;     // [k] element i is the index in the file of the i-th k here; NULL: the same order
    size_t not_finite_scales;  // scales and minima that are NaN or infinite; they are used as they are
    bool global_is_not_finite; // the global scale is NaN or infinite; not counted above
    size_t zeros_of_16;        // 4-bit zero points stored as 15 and read as 16; some quantisers mean another value
};

// Bytes of a row of `count` codes.
static inline size_t quantised_row_bytes(unsigned bits, size_t count) {
    return bits == 8 ? count : (count + 1) / 2;
}

// Number of scales of a row of k codes.
size_t quantised_scales(const struct expertd_quantised_format *format, size_t k);

// Bytes of staging memory that quantised_rows_take needs.
size_t quantised_rows_bytes(const struct quantised_matrix *matrix, size_t n, size_t k);

// Converts the matrix to rows. EXPERTD_ERR_CHECKPOINT: the global scale divides by 0, a zero point is out of range, scale_of_k
// is inconsistent, or the zero points contradict config.json. staging: 64-byte aligned.
FALLIBLE quantised_rows_take(const struct quantised_matrix *matrix, size_t n, size_t k, void *staging, struct quantised_rows *out);

// The stored scale of scale row `row`, scale group g.
static inline const void *quantised_rows_scale_at(const struct quantised_rows *rows, size_t row, size_t g) {
    const struct expertd_quantised_source *source = &rows->source;
    size_t index = row * source->scale_n_stride + g * source->scale_g_stride;
    return (const char *)source->scales + index * expertd_dtype_size(rows->format.scale);
}

// EXPERTD_ERR_CHECKPOINT: the rows can be widened, but not packed, since a minimum is not exact.
FALLIBLE quantised_rows_check_minima(const struct quantised_rows *rows);

// Adds codes, zero points, scales, minima, the global scale and the order to the digest, row by row.
void quantised_rows_digest(const struct quantised_rows *rows, size_t n, size_t k, struct digest *digest);

// The scale of codes (row, k) of scale group g, with the global scale: as quantised_rows_widen multiplies it.
float quantised_rows_scale(const struct quantised_rows *rows, size_t row, size_t g);

// out[n][k] = (code - zero point) * scale - minimum, rounded to fp32 and then to dtype (F32 or BF16), in the file's order of k.
void quantised_rows_widen(const struct quantised_rows *rows, size_t n, size_t k, enum expertd_dtype dtype, void *out);

// Bytes of codes, scales, minima and zero points as stored.
uint64_t quantised_stored_bytes(const struct quantised_matrix *matrix, size_t n, size_t k);

// Sets *out to the rows first, first + step, ... of `all`. EXPERTD_ERR_CHECKPOINT: other rows share their words or scale blocks.
FALLIBLE quantised_take_rows(const struct quantised_matrix *all, size_t first, size_t step, struct quantised_matrix *out);

// Splits the n rows of `all` into gate and up: gate's rows first, or alternating. Both get one format. Errors as above.
FALLIBLE quantised_split(const struct quantised_matrix *all, size_t n, bool alternating, struct quantised_matrix *gate,
                         struct quantised_matrix *up);

bool quantised_same_format(const struct quantised_matrix *a, const struct quantised_matrix *b);

// Private to expert/quantised/: the steps of quantised_rows_take for affine codes. Rows of K-contiguous codes, of codes.bits.
void quantised_affine_codes(const struct quantised_matrix *matrix, size_t n, size_t k, uint8_t *rows);
// Scales and minima, [n][scales] in format.scale; stored: [n][scales] as struct quantised_rows has them, or NULL. Returns the
// number of minima that are not exact.
size_t quantised_affine_scales(const struct quantised_matrix *matrix, size_t n, size_t scales, void *out, void *minima,
                               float *stored);

enum { QUANTISED_NAME_MAX = 48 };

// "fp8_block128", "mxfp4", "int4_group32_zero_ordered" into text, for messages; returns text.
const char *quantised_name(const struct quantised_matrix *matrix, char text[QUANTISED_NAME_MAX]);

// Adds every field of the format on which the value of a code depends, for ids.
void quantised_digest_format(const struct quantised_matrix *matrix, struct digest *digest);

#endif
