// Synthetic codes and scales in the formats of published checkpoints. As for plain values, an element depends only on (seed, layer,
// expert, tensor, its index), and must never change for a given seed. Private to expert/synthetic/.
#ifndef EXPERTD_EXPERT_SYNTHETIC_SYNTHETIC_QUANTISED_H
#define EXPERTD_EXPERT_SYNTHETIC_SYNTHETIC_QUANTISED_H

#include <stddef.h>
#include <stdint.h>

#include "expert/quantised/quantised_matrix.h"
#include "expert/supply/supply.h"

struct synthetic_format; // a row of the table of formats

// The i-th format's name, as Describe reports it; NULL past the end.
const char *synthetic_format_name(size_t i);
const struct synthetic_format *synthetic_format_find(const char *name, size_t length); // NULL: unknown

// A matrix [n, k] in the format, without data.
void synthetic_describe_codes(const struct synthetic_format *format, size_t n, size_t k, struct quantised_matrix *out);

// Bytes of its codes, scales and zero points.
size_t synthetic_codes_bytes(const struct quantised_matrix *matrix, size_t n, size_t k);

// Writes them to `out` (64-byte aligned) and points the matrix there. The codes are approximately uniform, and none is NaN. The
// standard deviation of the weights is within a factor of two of 1 / sqrt(k).
struct synthetic_tensor {
    uint64_t seed;
    uint32_t layer, expert;
    enum supply_tensor tensor;
    size_t n, k;
};
void synthetic_fill_codes(const struct synthetic_tensor *tensor, struct quantised_matrix *matrix, void *out);

#endif
