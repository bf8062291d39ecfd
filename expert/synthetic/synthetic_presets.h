// The table of synthetic presets: shapes and routers as in the models' own config.json. Private to synthetic*.c.
#ifndef EXPERTD_EXPERT_SYNTHETIC_SYNTHETIC_PRESETS_H
#define EXPERTD_EXPERT_SYNTHETIC_SYNTHETIC_PRESETS_H

#include <stddef.h>

#include "expert/architecture/architecture.h"

struct synthetic_preset {
    const char *name;
    const char *model_type;
    const char *block;          // the module that holds the experts, as the vendor names it: "mlp"
    uint32_t first_layer;       // dense layers before it
    uint32_t layers;            // MoE layers
    struct layer_params params; // layer 0, routing.num_experts 0: filled in from num_experts
};

extern const struct synthetic_preset SYNTHETIC_PRESETS[];
extern const size_t SYNTHETIC_PRESET_COUNT;

#endif
