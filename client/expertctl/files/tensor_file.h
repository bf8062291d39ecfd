// A tensor in a file, named as on the command line: FILE.npy, FILE.safetensors:NAME, or FILE.safetensors if it holds one tensor.
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

// Splits `spec`. The caller frees *path; *tensor points into spec, NULL if no tensor is named. EXPERTD_ERR_USAGE for any other file
// extension.
FALLIBLE tensor_file_split(const char *spec, char **path, const char **tensor);

// True if `spec`, which tensor_file_split accepts, names a .npy file.
bool tensor_file_is_npy(const char *spec);

// as: the real dtype of integers that hold other bits (bf16 in <u2, F8 in |u1); NONE: the file's dtype. EXPERTD_ERR_USAGE,
// EXPERTD_ERR_IO and EXPERTD_ERR_CHECKPOINT name the file, the tensor and the remedy. On error *out is closed.
FALLIBLE tensor_file_open(const char *spec, enum expertd_dtype as, struct tensor_file *out);
void tensor_file_close(struct tensor_file *file); // legal on a zeroed struct

// Writes a new file, which replaces an old one when it is complete. In a safetensors file the tensor is named "output" unless
// `spec` names it.
FALLIBLE tensor_file_save(const char *spec, const struct expertd_tensor_view *view);

#endif
