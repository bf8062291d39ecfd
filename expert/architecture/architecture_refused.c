// Architectures that are known and not served, with the reason that the error message gives.
#include "expert/architecture/architecture_table.h"

static const struct architecture ROWS[] = {
    {
        .model_types = {"nllb-moe", "switch_transformers"},
        .classes = {"NllbMoeForConditionalGeneration", "SwitchTransformersForConditionalGeneration"},
        .refusal = "its experts have a capacity, so a token's output depends on the other tokens",
    },
    {
        .model_types = {"zaya"},
        .classes = {"ZayaForCausalLM"},
        .refusal = "its router needs the state of the layer before, which a request does not carry",
    },
    {
        .model_types = {"ernie4_5_vl_moe", "ernie4_5_moe_vl"},
        .classes = {"Ernie4_5_VLMoeForConditionalGeneration", "Ernie4_5_VL_MoeForConditionalGeneration"},
        .refusal = "its router needs each token's type (text or image), which a request does not carry",
    },
};

const struct architecture *const ARCHITECTURES_REFUSED = ROWS;
const size_t ARCHITECTURE_REFUSED_COUNT = sizeof ROWS / sizeof *ROWS;
