// Writes small Hugging Face checkpoint folders with the vendors' tensor names and config keys, and seeded weights: what
// ./quickstart serves and what tests load. The values are those of synthetic models (synthetic_fill), so that the same recipe
// written in two layouts holds the same experts, and a folder can be compared with its synthetic twin.
#ifndef EXPERTD_TESTS_TOOLS_CHECKPOINT_WRITER_H
#define EXPERTD_TESTS_TOOLS_CHECKPOINT_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct checkpoint_recipe {
    const char *architecture; // a model_type of checkpoint_architecture
    uint32_t hidden, width, experts, top_k;
    uint32_t layers; // MoE layers; a dense one lies before them where the architecture begins so
    uint64_t seed;
    const char *format; // of the experts' matrices, as checkpoint_format says; NULL: BF16
};

// H 256, I 128, E 16, K 4, 4 layers of qwen3_moe: synthetic:tiny's shape.
struct checkpoint_recipe checkpoint_recipe_default(void);

// The i-th architecture that can be written; NULL past the end.
const char *checkpoint_architecture(size_t i);

// The i-th format that experts can be written in, where they have a tensor per matrix; NULL past the end.
const char *checkpoint_format(size_t i);

// Writes config.json and model.safetensors (BF16, or as the format says) into `folder`, which is made where it is missing.
// EXPERTD_ERR_USAGE for a recipe that makes no model; EXPERTD_ERR_IO where a file cannot be written; EXPERTD_ERR_NOMEM.
FALLIBLE checkpoint_write(const char *folder, const struct checkpoint_recipe *recipe);

#endif
