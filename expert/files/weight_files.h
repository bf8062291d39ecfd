// Decides which files of a folder hold the weights: those of model.safetensors.index.json, model.safetensors, or a complete set of
// numbered shards; or the same under Mistral's own names. Opens no weights. One owner. Private to expert/.
#ifndef EXPERTD_EXPERT_FILES_WEIGHT_FILES_H
#define EXPERTD_EXPERT_FILES_WEIGHT_FILES_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "expert/files/shard_index.h"

// The names of a checkpoint's files.
struct weight_form {
    const char *config; // "config.json"
    const char *single; // "model.safetensors"
    const char *index;  // "model.safetensors.index.json"
    const char *stem;   // "consolidated", of numbered shards; NULL: any but those of other forms
};
extern const struct weight_form WEIGHT_FORM_TRANSFORMERS, WEIGHT_FORM_MISTRAL;

// The form of the folder's files. Where a model lies in both, as on the hub, that of transformers; Mistral's only if the folder has
// its configuration and weights, and not both of transformers.
const struct weight_form *weight_files_form(const char *folder);

enum { WEIGHT_FILES_NOTE_MAX = 1024 };

struct weight_files {
    const struct weight_form *form; // NULL: GGUF files
    char **names;                   // [count]; owned. With an index: its files, in its order
    size_t count;
    struct shard_index index;         // count 0: there is none, or it is not used
    bool has_stray;                   // form->single exists beside an index that does not name it
    char note[WEIGHT_FILES_NOTE_MAX]; // a warning for the log about the choice; "": none
};

// EXPERTD_ERR_CHECKPOINT: no weights are found, shards are missing, or the index is invalid and there is nothing else.
FALLIBLE weight_files_find(const char *folder, const struct weight_form *form, struct weight_files *out);
void weight_files_deinit(struct weight_files *files); // legal on a zeroed struct

// For weights in memory: the files of an index, which `out` then owns, or model.safetensors alone. `out` is zeroed before.
// EXPERTD_ERR_NOMEM.
FALLIBLE weight_files_take_index(struct shard_index *index, struct weight_files *out);
FALLIBLE weight_files_take_single(struct weight_files *out);

// Does the folder have an entry of this name? A dangling link counts.
bool weight_files_has(const char *folder, const char *name);
// Can the entry be opened as far as its links go?
bool weight_files_reaches(const char *folder, const char *name);

#endif
