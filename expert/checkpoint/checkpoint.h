// An open checkpoint: a folder in Hugging Face's format (config.json, and the safetensors files: model.safetensors, or
// model.safetensors.index.json with its shards) or llama.cpp's GGUF files, mapped and validated, with one sorted list of tensor
// names. It has no notion of layers; see layout/. Immutable once open; any thread. Pages are read when they are touched.
#ifndef EXPERTD_EXPERT_CHECKPOINT_CHECKPOINT_H
#define EXPERTD_EXPERT_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/safetensors.h"
#include "expert/config/config.h"

// Limits for all shards together. They bound the memory and time spent on a folder before it is known to hold a model. The largest
// known model (Kimi-K2 in 4 bits) has some 210000 tensors in headers of some 30 MB.
enum { CHECKPOINT_TENSORS_MAX = 1 << 20, CHECKPOINT_HEADER_BYTES_MAX = 128 << 20 };

struct checkpoint; // owns the mappings, the names and the configuration

// EXPERTD_ERR_CHECKPOINT names the file, the tensor and the broken rule; for a missing file, the names that were searched.
// EXPERTD_ERR_IO: a file cannot be read at the moment. Files may be symbolic links, as in a hub cache, but two shards must not be
// the same file.
FALLIBLE checkpoint_open(const char *folder, struct checkpoint **out);
void checkpoint_close(struct checkpoint *checkpoint); // NULL is legal; invalidates every pointer into the checkpoint

// The same from the caller's memory, for the fuzzer: one safetensors file, with an index unless index_text is NULL.
struct checkpoint_bytes {
    const char *config_text;
    size_t config_length;
    const char *index_text; // or NULL
    size_t index_length;
    const void *weights; // the bytes of "model.safetensors"; with an index, of "shard"
    size_t weights_length;
};
FALLIBLE checkpoint_parse(const struct checkpoint_bytes *bytes, struct checkpoint **out);

const char *checkpoint_path(const struct checkpoint *checkpoint);            // the folder, as given to checkpoint_open
const struct config *checkpoint_config(const struct checkpoint *checkpoint); // of GGUF files: made from their metadata
bool checkpoint_is_gguf(const struct checkpoint *checkpoint);

// All tensors of all shards, in ascending byte order of their names; names are unique.
size_t checkpoint_count(const struct checkpoint *checkpoint);
const struct safetensors_entry *checkpoint_at(const struct checkpoint *checkpoint, size_t i);
const struct safetensors_entry *checkpoint_find(const struct checkpoint *checkpoint, const char *name); // NULL: none

// The index of the first tensor whose name is >= `name`; checkpoint_count: none. With a prefix as `name`: the first name that has
// it.
size_t checkpoint_lower_bound(const struct checkpoint *checkpoint, const char *name);

// The path of the file that holds the tensor, for messages.
const char *checkpoint_file_of(const struct checkpoint *checkpoint, const struct safetensors_entry *entry);

#endif
