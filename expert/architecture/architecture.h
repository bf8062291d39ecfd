// From config.json to the parameters of a layer: finds the model's row in the architecture table and evaluates it.
// Reads constant data and an open configuration; any thread.
#ifndef EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_H
#define EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/architecture/layer_params.h"

struct architecture; // a row of the table, see architecture_row.h
struct config;

// The row for config.json's `architectures` or model_type. EXPERTD_ERR_CHECKPOINT: the model is unknown (the message has the
// nearest known name), or known and not served (the message says why).
FALLIBLE architecture_find(const struct config *config, const struct architecture **out);
const char *architecture_model_type(const struct architecture *architecture); // the row's name

// The parameters of decoder layer `layer`; the number counts dense layers too. EXPERTD_ERR_CHECKPOINT names a key that is missing
// or has a value that is not supported.
FALLIBLE architecture_params(const struct architecture *architecture, const struct config *config, uint32_t layer,
                             struct layer_params *out);

// "num_experts 8, hidden_size 64, ...": config.json's keys that give the tensors' shapes, for messages. Returns text.
const char *architecture_sizes_text(const struct architecture *architecture, const struct config *config, char *text, size_t bytes);

#endif
