// A tensor in a file, as the command line names it: FILE.npy, FILE.safetensors:NAME, or FILE.safetensors with one tensor in it.
#ifndef EXPERTD_CLIENT_EXPERTCTL_FILES_TENSOR_FILE_H
#define EXPERTD_CLIENT_EXPERTCTL_FILES_TENSOR_FILE_H

#include <stdbool.h>

#include "base/safetensors.h"
#include "client/expertctl/files/npy.h"
#include "expertd/base/tensor.h"

struct tensor_file {
    struct expertd_tensor_view view; // into one of the files below, which own it
    char *path;
    struct npy npy;
    struct safetensors safetensors;
};

// Splits `spec`; path is the caller's to free, *tensor points into spec, NULL where no tensor is named. EXPERTD_ERR_USAGE for any
// other ending.
FALLIBLE tensor_file_split(const char *spec, char **path, const char **tensor);

// Of one that can be split so: does its file hold NumPy's words?
bool tensor_file_is_npy(const char *spec);

// `as`: what the bits of a NumPy word are (bf16 in <u2, F8 in |u1); NONE: as the file says. EXPERTD_ERR_USAGE, EXPERTD_ERR_IO,
// EXPERTD_ERR_CHECKPOINT name the file, the tensor and the mend. On error *out is closed.
FALLIBLE tensor_file_open(const char *spec, enum expertd_dtype as, struct tensor_file *out);
void tensor_file_close(struct tensor_file *file); // legal on a zeroed struct

// A new file, whole or not at all, over an old one. In a safetensors file the tensor is called "output" unless `spec` says
// otherwise.
FALLIBLE tensor_file_save(const char *spec, const struct expertd_tensor_view *view);

#endif
