// The tensor names of MoE blocks that the rows of the architecture table refer to. Constant data. Private to expert/.
#ifndef EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_NAMES_H
#define EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_NAMES_H

#include "expert/architecture/architecture_row.h"

extern const struct tensor_names NAMES_MLP, NAMES_MLP_GATED_SHARED, NAMES_BLOCK_SPARSE_MOE, NAMES_GRANITE, NAMES_GPT_OSS,
    NAMES_FEED_FORWARD_ROUTER, NAMES_LFM2, NAMES_HUNYUAN, NAMES_DBRX, NAMES_ERNIE, NAMES_LONGCAT, NAMES_EXAONE, NAMES_NEMOTRON,
    NAMES_BAILING, NAMES_AFMOE, NAMES_HY_V3, NAMES_STEP, NAMES_MISTRAL_LARGE, NAMES_KIMI_LINEAR, NAMES_LAGUNA, NAMES_DEEPSEEK_V4,
    NAMES_GEMMA4, NAMES_KOLIBRI, NAMES_JETMOE, NAMES_ARIA;

// llama.cpp's names, for all architectures; without the shared expert's, for rows with parallel_mlp.
extern const struct tensor_names NAMES_GGUF, NAMES_GGUF_PARALLEL_MLP;

#endif
