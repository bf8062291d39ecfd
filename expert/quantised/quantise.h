// Quantises plain weights while they are loaded (--quantize): a matrix of F32, F16 or BF16 becomes codes and scales. Codes are
// rounded to nearest, ties to even. Pure functions; any thread.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISE_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISE_H

#include <stddef.h>

#include "base/err.h"
#include "expert/quantised/quantised_matrix.h"
#include "expertd/kernels/weights.h"

// A row of the table. A scale belongs to the weights of one block; amax is the greatest magnitude in the block.
//   fp8    E4M3, blocks of 128 x 128, scale amax / 448 in F32
//   int8   -127 to 127, groups of 128 k, scale amax / 127 in F32
//   int4   -8 to 7, groups of 32 k, scale -w / 8 in BF16, w being the weight with the magnitude amax: that weight gets code -8
//   mxfp4  E2M1, groups of 32 k, scale 2^(floor(log2 amax) - 2) as E8M0: the conversion of the OCP Microscaling Formats
//          specification 1.0, section 6.3; magnitudes above 6 scales become 6 scales
struct quantise_format;

const struct quantise_format *quantise_find(const char *name); // "fp8", "int8", "int4", "mxfp4"; NULL: unknown

const char *quantise_name(const struct quantise_format *format);        // as quantise_find takes it
const char *quantise_stored_name(const struct quantise_format *format); // as quantised_name: "fp8_block128"
const struct expertd_quantised_format *quantise_codes(const struct quantise_format *format);

// Bytes of staging memory, 64-byte aligned, that quantise_rows needs.
size_t quantise_staging_bytes(const struct quantise_format *format, size_t n, size_t k);

// Quantises source [n, k]. `out` points into the staging memory. EXPERTD_ERR_CHECKPOINT: a weight is NaN or infinite; the message
// has its position.
FALLIBLE quantise_rows(const struct quantise_format *format, const struct expertd_weight_source *source, size_t n, size_t k,
                       void *staging, struct quantised_rows *out);

#endif
