// Finds and opens the GGUF files of a model: one file, or the parts of a split, FILE-00001-of-00003.gguf and so on. The first
// file's metadata becomes the configuration. Private to expert/.
#ifndef EXPERTD_EXPERT_FILES_GGUF_PARTS_H
#define EXPERTD_EXPERT_FILES_GGUF_PARTS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/safetensors.h"
#include "expert/config/config.h"

enum { GGUF_PARTS_MAX = 1024, GGUF_MISSING_TEXT_MAX = 320 };

// Is `path` a GGUF file, or a folder without safetensors files that holds GGUF files? Then `file` is the model's first file.
// EXPERTD_ERR_CHECKPOINT: the folder holds several models (the message names them).
FALLIBLE gguf_parts_find(const char *path, char file[PATH_MAX], bool *found);

// The first file of the model in `folder`, or in a folder there, whose name ends in the quantisation, "Q4_K_M", in any case.
// EXPERTD_ERR_CHECKPOINT: none, or several (the message names the files that are there).
FALLIBLE gguf_parts_of_quantisation(const char *folder, const char *quantisation, char file[PATH_MAX]);

struct gguf_parts {
    struct safetensors *files; // [count], the tensors of each part that is there
    size_t count;
    struct config *config;
    char missing[GGUF_MISSING_TEXT_MAX]; // "2 of 5 parts are missing (a-00002-of-00005.gguf, ...)"; "": all tensors are there
};

// The first part must be there; others may be missing, for which the caller checks the tensors that it needs.
// EXPERTD_ERR_CHECKPOINT as gguf_open and gguf_config_make; also: a part is not the part that its name says. On success `out` is to
// be closed; its members may be taken out before.
FALLIBLE gguf_parts_open(const char *file, struct gguf_parts *out);
// The same for one file in memory, which must outlive `out`.
FALLIBLE gguf_parts_parse(const char *name, const void *bytes, size_t size, struct gguf_parts *out);
void gguf_parts_close(struct gguf_parts *parts); // legal on a zeroed struct

#endif
