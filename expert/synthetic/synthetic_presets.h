// The table of synthetic presets: shapes and routers from the models' config.json. Private to expert/synthetic/.
#ifndef EXPERTD_EXPERT_SYNTHETIC_SYNTHETIC_PRESETS_H
#define EXPERTD_EXPERT_SYNTHETIC_SYNTHETIC_PRESETS_H

#include <stddef.h>

#include "expert/architecture/layer_params.h"

struct synthetic_preset {
    const char *name;
    const char *model_type;
    const char *block;          // the vendor's name of the module that holds the experts: "mlp"
    uint32_t first_layer;       // the number of dense layers in front
    uint32_t layers;            // MoE layers
    struct layer_params params; // without layer and routing.num_experts, which synthetic.c sets
};

extern const struct synthetic_preset SYNTHETIC_PRESETS[];
extern const size_t SYNTHETIC_PRESET_COUNT;

#endif
