// From the name of a model to its folder.
#ifndef EXPERTD_EXPERT_FILES_HUB_H
#define EXPERTD_EXPERT_FILES_HUB_H

#include <stddef.h>

#include "base/err.h"

// The folder of `model`: the path itself, or for ORG/NAME or ORG/NAME@REVISION a snapshot in `cache`, the local Hugging Face cache
// (the option hf_cache; NULL: none); for ORG/NAME:QUANT, as in ORG/NAME:Q4_K_M, a GGUF file there. A path that exists has
// precedence. Nothing is downloaded. EXPERTD_ERR_CHECKPOINT: there is none; the message names the folders that were searched.
FALLIBLE hub_resolve(const char *model, const char *cache, char *path, size_t path_bytes);

// Length of the model's name in requests: of ORG/NAME@REVISION the part before '@', of another model the complete text.
size_t hub_name_length(const char *model);

#endif
