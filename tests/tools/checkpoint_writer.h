// Writes small Hugging Face checkpoint folders with the vendors' tensor names and config keys and seeded weights, for ./quickstart
// and for tests. The values are those of synthetic models (synthetic_fill.h): one recipe in two layouts has the same experts, and a
// folder can be compared with the synthetic model.
#ifndef EXPERTD_TESTS_TOOLS_CHECKPOINT_WRITER_H
#define EXPERTD_TESTS_TOOLS_CHECKPOINT_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct checkpoint_recipe {
    const char *architecture; // a model_type of checkpoint_architecture
    uint32_t hidden, width, experts, top_k;
    uint32_t layers; // MoE layers; some architectures have a dense layer in front of them
    uint64_t seed;
    const char *format; // of the experts' matrices, a name of checkpoint_format; NULL: BF16
};

// The shape of synthetic:tiny: 4 layers of qwen3_moe, H 256, I 128, E 16, K 4.
struct checkpoint_recipe checkpoint_recipe_default(void);

// The i-th architecture that can be written; NULL past the end.
const char *checkpoint_architecture(size_t i);

// The i-th format of the experts, for architectures with one tensor per matrix; NULL past the end.
const char *checkpoint_format(size_t i);

// Writes config.json and model.safetensors (BF16, or in the format) into `folder`, which is created if it is missing.
// EXPERTD_ERR_USAGE: an invalid recipe; EXPERTD_ERR_IO: a file cannot be written; EXPERTD_ERR_NOMEM.
FALLIBLE checkpoint_write(const char *folder, const struct checkpoint_recipe *recipe);

#endif
