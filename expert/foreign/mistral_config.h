// Mistral's params.json as a configuration with the keys of config.json, so that the architecture table applies to both. Messages
// use the file's own keys. Sources: vLLM (transformers_utils/configs/mistral.py, models/mistral_large_3.py), mistral-inference. Any
// thread. Private to expert/.
#ifndef EXPERTD_EXPERT_FOREIGN_MISTRAL_CONFIG_H
#define EXPERTD_EXPERT_FOREIGN_MISTRAL_CONFIG_H

#include "expert/config/config.h"

// Replaces *config, the open params.json. EXPERTD_ERR_CHECKPOINT: the model has no experts, a key is missing, a key of `moe` is
// unknown, or a value is one whose computation is not known; *config is then unchanged.
FALLIBLE mistral_config_make(struct config **config);

#endif
