// model.safetensors.index.json: which tensor lies in which file of the folder. Only reads the text; trusts nothing in it,
// total_size least of all. Pure; one owner.
#ifndef EXPERTD_EXPERT_CHECKPOINT_SHARD_INDEX_H
#define EXPERTD_EXPERT_CHECKPOINT_SHARD_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    SHARD_INDEX_BYTES_MAX = 256 << 20, // Kimi-K2's, the largest known, has 17 MB
    SHARD_INDEX_SHARDS_MAX = 4096,
};

struct shard_index_entry {
    const char *tensor;
    const char *file; // a plain name: no '/', not "." or ".."
};

struct shard_index {
    struct shard_index_entry *entries; // ascending by tensor, each once
    size_t count;
    const char **files; // ascending, each once
    size_t file_count;
    char *text; // what the names point into
};

// EXPERTD_ERR_CHECKPOINT names the entry and the rule.
FALLIBLE shard_index_parse(const char *text, size_t length, struct shard_index *out);
void shard_index_deinit(struct shard_index *index); // legal on a zeroed struct

// The place of `file` in files; it must be there.
size_t shard_index_file(const struct shard_index *index, const char *file);

#endif
