// The metadata of a GGUF file as a configuration with the keys of config.json, so that the architecture table applies to both. A
// row of gguf_architectures.h gives each key of the file its key there; messages use the file's own. Any thread.
#ifndef EXPERTD_EXPERT_CONFIG_GGUF_CONFIG_H
#define EXPERTD_EXPERT_CONFIG_GGUF_CONFIG_H

#include "base/gguf/gguf.h"
#include "expert/config/config.h"

// EXPERTD_ERR_CHECKPOINT: general.architecture is unknown (the message lists the known ones), not served, or has no experts; a key
// has a value that the served computation does not have; or a key about experts is unknown. files: [count] the tensors of all
// parts.
FALLIBLE gguf_config_make(const struct gguf *first, const struct safetensors *files, size_t count, struct config **out);

#endif
