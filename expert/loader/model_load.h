// Loads a model: from a checkpoint folder, the local Hugging Face cache, or a synthetic preset.
#ifndef EXPERTD_EXPERT_LOADER_MODEL_LOAD_H
#define EXPERTD_EXPERT_LOADER_MODEL_LOAD_H

#include "base/err.h"
#include "expert/loader/model_options.h"
#include "expert/model/model.h"

// EXPERTD_ERR_CHECKPOINT (the message names the file, the tensor and the rule), EXPERTD_ERR_CONFIG (an unknown preset or layer
// range, more shards than experts), EXPERTD_ERR_NOMEM (the message has the figures). On success `out` is to be released by
// model_deinit.
FALLIBLE model_load(const struct model_options *options, struct model *out);

#endif
