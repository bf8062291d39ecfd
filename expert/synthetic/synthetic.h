// Synthetic models: the real shapes and routers of today's models with seeded weights, no file. For trying, sizing and load tests.
// An element's value depends on (seed, layer, expert, tensor, its index) alone: not on threads, shards or which layers are loaded.
#ifndef EXPERTD_EXPERT_SYNTHETIC_SYNTHETIC_H
#define EXPERTD_EXPERT_SYNTHETIC_SYNTHETIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/checkpoint/supply.h"

// "synthetic:" begins the name of such a model.
bool synthetic_is(const char *model);

// Parses synthetic:PRESET[,layers=N][,experts=N][,seed=S][,format=F] into a supply, filtered as a checkpoint's layers are.
// EXPERTD_ERR_CONFIG: an unknown preset (all are listed, the nearest suggested), format (the same), key or number; more layers than
// the model has; an expert count that the preset's router cannot choose from; no wanted layer holds experts.
FALLIBLE synthetic_supply(const char *model, const struct layer_tensors_options *options, struct supply *out);

// The i-th preset's name; NULL past the end.
const char *synthetic_preset(size_t i);

// Whence all values come: the key of a tensor, and the i-th word of its random bits.
uint64_t synthetic_key(uint64_t seed, uint32_t layer, uint32_t expert, enum supply_tensor tensor);
uint64_t synthetic_word(uint64_t key, uint64_t index);

// Does the layer have this tensor?
bool synthetic_has(const struct layer_params *params, uint32_t expert, enum supply_tensor tensor);

// Writes the tensor [n, k] row-major in BF16: independent values, uniform, symmetric, never 0, with a deviation within a factor 1.5
// of 1 / sqrt(k) for matrices and of about 0.04 for vectors.
void synthetic_fill(uint64_t seed, uint32_t layer, uint32_t expert, enum supply_tensor tensor, size_t n, size_t k, void *out);

#endif
