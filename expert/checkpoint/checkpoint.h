// A Hugging Face checkpoint folder, opened: config.json, and the safetensors files that transformers' naming says hold the weights
// (model.safetensors, or model.safetensors.index.json and its shards), mapped and checked, with one sorted list of tensor names.
// Knows nothing of layers: that is layer_tensors.h. Immutable once open; any thread may read it; pages are read when touched.
#ifndef EXPERTD_EXPERT_CHECKPOINT_CHECKPOINT_H
#define EXPERTD_EXPERT_CHECKPOINT_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/safetensors.h"
#include "expert/architecture/config.h"

// Of all shards together: what is kept of them in memory, and looked through, before it is known whether they are a model's. The
// largest known (Kimi-K2 in 4 bits) has some 210000 tensors in headers of some 30 MB.
enum { CHECKPOINT_TENSORS_MAX = 1 << 20, CHECKPOINT_HEADER_BYTES_MAX = 128 << 20 };

struct checkpoint; // owns the maps, the names and the configuration

// Opens a folder. EXPERTD_ERR_CHECKPOINT names the file, the tensor and the rule broken, and says what was looked for where a file
// is missing; EXPERTD_ERR_IO where one cannot be read now. Names may be links, as in a hub cache, but no two shards are one file.
FALLIBLE checkpoint_open(const char *folder, struct checkpoint **out);
void checkpoint_close(struct checkpoint *checkpoint); // NULL is legal; every pointer into the checkpoint dies with it

// The same from memory that the caller keeps: one safetensors file, and an index where index_text is not NULL (the fuzzer's way
// in).
struct checkpoint_bytes {
    const char *config_text;
    size_t config_length;
    const char *index_text; // or NULL
    size_t index_length;
    const void *weights; // the bytes of "model.safetensors", or of "shard" where there is an index
    size_t weights_length;
};
FALLIBLE checkpoint_parse(const struct checkpoint_bytes *bytes, struct checkpoint **out);

const char *checkpoint_path(const struct checkpoint *checkpoint);            // the folder, as it was given
const struct config *checkpoint_config(const struct checkpoint *checkpoint); // config.json, whole

// All tensors of all shards, ascending by name (bytes); a name is there once.
size_t checkpoint_count(const struct checkpoint *checkpoint);
const struct safetensors_entry *checkpoint_at(const struct checkpoint *checkpoint, size_t i);
// NULL where there is none.
const struct safetensors_entry *checkpoint_find(const struct checkpoint *checkpoint, const char *name);
// The first tensor whose name is not below `name`: checkpoint_count where there is none. With a prefix, where its run begins.
size_t checkpoint_lower_bound(const struct checkpoint *checkpoint, const char *name);
// The path of the file that holds the entry, for messages.
const char *checkpoint_file_of(const struct checkpoint *checkpoint, const struct safetensors_entry *entry);

#endif
