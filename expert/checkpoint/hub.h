// From the name of a model to its folder.
#ifndef EXPERTD_EXPERT_CHECKPOINT_HUB_H
#define EXPERTD_EXPERT_CHECKPOINT_HUB_H

#include <stddef.h>

#include "base/err.h"

// The folder of `model`: the path itself, or for ORG/NAME the newest snapshot in `cache`, the local Hugging Face cache
// ($HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub; NULL: none). Nothing is downloaded.
// EXPERTD_ERR_CHECKPOINT: there is none; the message names the folders that were searched.
FALLIBLE hub_resolve(const char *model, const char *cache, char *path, size_t path_bytes);

#endif
