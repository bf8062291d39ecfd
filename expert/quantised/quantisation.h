// What a checkpoint's config.json says of its quantisation: the method, the sizes of what a scale spans, the modules left out. The
// tensors decide what is there (quantised_tensors.h); this is what they are checked against. Pure over an open configuration.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISATION_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/architecture/config.h"

enum { QUANTISATION_SETTINGS_MAX = 8, QUANTISATION_METHOD_MAX = 64 };
#define QUANTISATION_WHOLE_K UINT32_MAX

// How some modules are quantised; 0: not said.
struct quantisation_setting {
    uint32_t bits;
    uint32_t group_k;          // k of a scale; QUANTISATION_WHOLE_K: all of them
    uint32_t block_n, block_k; // columns and k of a scale
};

struct quantisation {
    const struct config *config;          // NULL: config.json says nothing
    const char *section;                  // "quantization_config"
    char method[QUANTISATION_METHOD_MAX]; // quant_method; "" where it is not said
    struct quantisation_setting settings[QUANTISATION_SETTINGS_MAX];
    size_t count;             // of settings; 0: none is said
    bool zero_points_in_full; // GPTQ's second form: zero points are stored as they are, not less one
    bool in_activation_order; // GPTQ's desc_act: a k's scale is told by g_idx
};

// EXPERTD_ERR_CHECKPOINT names a key of the wrong type, a value that changes the meaning of the tensors in a way not known here, or
// more settings than are kept.
FALLIBLE quantisation_read(const struct config *config, struct quantisation *out);

// Does config.json say that the module ("model.layers.3.mlp.experts.0.up_proj") is left as it was? *entry: the words that say so,
// borrowed. Regular expressions are understood as far as they are made of letters, dots and .*; others say nothing.
bool quantisation_leaves_out(const struct quantisation *quantisation, const char *module, const char **entry);

#endif
