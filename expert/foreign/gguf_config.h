// The metadata of a GGUF file as a configuration with the keys of config.json, so that the architecture table applies to both. A
// row of gguf_architectures.h gives each key of the file its key there; messages use the file's own. Any thread.
#ifndef EXPERTD_EXPERT_FOREIGN_GGUF_CONFIG_H
#define EXPERTD_EXPERT_FOREIGN_GGUF_CONFIG_H

#include "base/gguf/gguf.h"
#include "expert/config/config.h"

// The tensors of the model's parts.
struct gguf_config_parts {
    const struct safetensors *files; // [count]; the first is that of the metadata
    size_t count;
    bool complete; // false: other parts are missing
};

// EXPERTD_ERR_CHECKPOINT: general.architecture is unknown (the message lists the known ones), not served, or has no experts; a key
// has a value that the served computation does not have; or a key about experts is unknown.
FALLIBLE gguf_config_make(const struct gguf *first, const struct gguf_config_parts *parts, struct config **out);

#endif
