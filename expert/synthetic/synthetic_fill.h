// The values of synthetic tensors. A value depends only on (seed, layer, expert, tensor, its index): not on threads, shards, or
// which layers are loaded. Part of every synthetic model's weights_id: for a given seed the values must never change.
// Private to expert/synthetic/.
#ifndef EXPERTD_EXPERT_SYNTHETIC_SYNTHETIC_FILL_H
#define EXPERTD_EXPERT_SYNTHETIC_SYNTHETIC_FILL_H

#include <stddef.h>
#include <stdint.h>

#include "expert/supply/supply.h"

// The key of a tensor's random bits, and the i-th 64-bit word of them (splitmix64).
uint64_t synthetic_key(uint64_t seed, uint32_t layer, uint32_t expert, enum supply_tensor tensor);
uint64_t synthetic_word(uint64_t key, uint64_t index);

// Writes the tensor [n, k] row-major in BF16: independent, uniform, symmetric values, never 0, with a standard deviation within a
// factor of 1.5 of 1 / sqrt(k) for matrices and of about 0.04 for vectors.
void synthetic_fill(uint64_t seed, uint32_t layer, uint32_t expert, enum supply_tensor tensor, size_t n, size_t k, void *out);

#endif
