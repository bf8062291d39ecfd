// The metadata of an open GGUF file below its architecture's name, and its values as JSON; the shapes of its tensors, where they
// complete the metadata. Messages name a key as the file has it. Private to expert/foreign/.
#ifndef EXPERTD_EXPERT_FOREIGN_GGUF_METADATA_H
#define EXPERTD_EXPERT_FOREIGN_GGUF_METADATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "base/gguf/gguf.h"
#include "expert/foreign/gguf_architectures.h"

enum {
    GGUF_NAME_MAX = 64,      // of an architecture
    GGUF_FULL_KEY_MAX = 256, // "qwen3moe.expert_count"
    GGUF_VALUE_TEXT_MAX = 96,
    GGUF_LAYERS_MAX = 4096, // of which values are derived, and elements of a list
};

struct gguf_metadata {
    const struct gguf *file;         // the first part; borrowed
    const struct safetensors *files; // [count], the parts that are there; borrowed
    size_t count;
    bool complete; // all parts are there
    const char *path;
    char name[GGUF_NAME_MAX];            // general.architecture
    const struct gguf_architecture *row; // of the table, for which all of its conditions hold
    FILE *json;                          // the members so far
};

// "qwen3moe.expert_count" into `out`; returns it.
const char *gguf_metadata_key(const struct gguf_metadata *m, const char *key, char out[GGUF_FULL_KEY_MAX]);

// NULL: the file has no such key below the architecture's name.
const struct gguf_value *gguf_metadata_find(const struct gguf_metadata *m, const char *key);

// The value for messages: "0.5", "a list of 2 that begins with 0.5", "a text". Returns `out`.
const char *gguf_metadata_text(const struct gguf_value *value, char out[GGUF_VALUE_TEXT_MAX]);

// A number that is no list; absent: *out stays. EXPERTD_ERR_CHECKPOINT: a list, a text; gguf_metadata_integer: a fraction.
FALLIBLE gguf_metadata_number(const struct gguf_metadata *m, const char *key, double *out, bool *found);
FALLIBLE gguf_metadata_integer(const struct gguf_metadata *m, const char *key, double *out, bool *found);
// The number, or the greatest of a list by layer.
FALLIBLE gguf_metadata_greatest(const struct gguf_metadata *m, const char *key, double *out, bool *found);

// Writes ", "row": value"; "a.b" is the member b of a. EXPERTD_ERR_CHECKPOINT: not a finite number, or a list of such numbers.
FALLIBLE gguf_metadata_write(const struct gguf_metadata *m, const char *row, const char *key, const struct gguf_value *value);

// NULL: no part has the tensor.
const struct safetensors_entry *gguf_metadata_tensor(const struct gguf_metadata *m, const char *name);
// Does a tensor's name begin so? "blk.2."
bool gguf_metadata_has_tensor(const struct gguf_metadata *m, const char *prefix);

#endif
