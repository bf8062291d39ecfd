// model.safetensors.index.json: the file that holds each tensor. Only parses the text; nothing in it is trusted, and total_size is
// ignored. Pure functions; one owner. Private to expert/.
#ifndef EXPERTD_EXPERT_FILES_SHARD_INDEX_H
#define EXPERTD_EXPERT_FILES_SHARD_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    SHARD_INDEX_BYTES_MAX = 256 << 20, // the largest known, Kimi-K2's, has 17 MB
    SHARD_INDEX_SHARDS_MAX = 4096,
};

struct shard_index_entry {
    const char *tensor; // a name that a safetensors file may have
    const char *file;   // a plain name: no '/', not "." or ".."
};

struct shard_index {
    struct shard_index_entry *entries; // ascending by tensor, unique
    size_t count;
    const char **files; // ascending, unique
    size_t file_count;
    char *text; // storage of the names
};

// EXPERTD_ERR_CHECKPOINT names the entry and the broken rule.
FALLIBLE shard_index_parse(const char *text, size_t length, struct shard_index *out);
void shard_index_deinit(struct shard_index *index); // legal on a zeroed struct

// The index of `file`, which must be in `files`.
size_t shard_index_file(const struct shard_index *index, const char *file);

#endif
