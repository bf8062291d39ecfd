// The widths of a GGUF file's experts and of its shared expert, as members of the configuration. llama.cpp takes them from its
// keys, with a fallback for most architectures where a key is absent. Here the tensors' shapes complete absent keys: they are what
// the fallback has to agree with. Private to expert/foreign/.
#ifndef EXPERTD_EXPERT_FOREIGN_GGUF_WIDTHS_H
#define EXPERTD_EXPERT_FOREIGN_GGUF_WIDTHS_H

#include "expert/config/config.h"
#include "expert/foreign/gguf_metadata.h"

// The key of the experts' width below the architecture's name.
const char *gguf_widths_key(const struct gguf_metadata *m);

// Is it a key of a shared expert, and does the architecture have one?
bool gguf_widths_is_shared_key(const struct gguf_metadata *m, const char *key);

// Writes GGUF_WIDTH_MEMBER, if a key or a tensor has it, and GGUF_SHARED_WIDTH_MEMBER, if the row has a shared expert.
// EXPERTD_ERR_CHECKPOINT: a value that is no number, or two statements about the shared expert that llama.cpp does not choose from.
FALLIBLE gguf_widths_write(const struct gguf_metadata *m);

// What messages call the two members: the key, or the tensor that has the width.
FALLIBLE gguf_widths_name(const struct gguf_metadata *m, struct config *config);

#endif
