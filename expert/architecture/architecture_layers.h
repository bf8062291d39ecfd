// Which decoder layers hold experts, according to config.json. The tensor names decide; config.json must agree (layout/).
// Private to expert/.
#ifndef EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_LAYERS_H
#define EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_LAYERS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { ARCHITECTURE_LAYERS_MAX = 4096 };

struct architecture;
struct config;

// The number of decoder layers, dense ones included. Layers numbered from here on belong to multi-token prediction.
// EXPERTD_ERR_CHECKPOINT: config.json has no number, or one above ARCHITECTURE_LAYERS_MAX.
FALLIBLE architecture_num_layers(const struct architecture *architecture, const struct config *config, uint32_t *out);

enum layer_kind {
    LAYER_DENSE,
    LAYER_MOE,
    LAYER_HASH_MOE,    // experts are selected by token id
    LAYER_UNSPECIFIED, // config.json does not say
};
FALLIBLE architecture_layer_kind(const struct architecture *architecture, const struct config *config, uint32_t layer,
                                 enum layer_kind *out);

// "num_hidden_layers 4, first_k_dense_replace 1": config.json's keys that say which layers hold experts, for messages. Returns
// text.
const char *architecture_layers_text(const struct architecture *architecture, const struct config *config, char *text,
                                     size_t bytes);

#endif
