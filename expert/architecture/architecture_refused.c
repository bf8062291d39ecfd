// Models that are known and not served, and why: their names are enough.
#include "expert/architecture/architecture_table.h"

static const struct architecture ROWS[] = {
    {
        .model_types = {"nllb-moe", "switch_transformers"},
        .classes = {"NllbMoeForConditionalGeneration", "SwitchTransformersForConditionalGeneration"},
        .refusal = "its experts have a capacity, which makes a token's answer depend on the other tokens",
    },
    {
        .model_types = {"zaya"},
        .classes = {"ZayaForCausalLM"},
        .refusal = "its router needs the state of the layer before, which a call does not carry",
    },
    {
        .model_types = {"ernie4_5_vl_moe", "ernie4_5_moe_vl"},
        .classes = {"Ernie4_5_VLMoeForConditionalGeneration", "Ernie4_5_VL_MoeForConditionalGeneration"},
        .refusal = "its router needs each token's type (text or image), which a call does not carry",
    },
};

const struct architecture *const ARCHITECTURES_REFUSED = ROWS;
const size_t ARCHITECTURE_REFUSED_COUNT = sizeof ROWS / sizeof *ROWS;
