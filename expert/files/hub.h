// From the name of a model to its folder.
#ifndef EXPERTD_EXPERT_FILES_HUB_H
#define EXPERTD_EXPERT_FILES_HUB_H

#include <stddef.h>

#include "base/err.h"

// The folder of `model`: the path itself, or for ORG/NAME or ORG/NAME@REVISION a snapshot in `cache`, the local Hugging Face cache
// (the option hf_cache; NULL: none); for ORG/NAME:QUANT, as in ORG/NAME:Q4_K_M or ORG/NAME@REVISION:Q4_K_M, a GGUF file there. A
// path that exists has precedence. Nothing is downloaded. EXPERTD_ERR_CHECKPOINT: there is none; the message names the folders that
// were searched.
FALLIBLE hub_resolve(const char *model, const char *cache, char *path, size_t path_bytes);

// The model's name in requests: ORG/NAME and ORG/NAME:QUANT without their @REVISION; of another model the complete text.
void hub_model_name(const char *model, char *out, size_t out_bytes);

#endif
