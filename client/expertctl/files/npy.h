// One NumPy .npy file (format versions 1 and 2), mapped and checked: dense, C order, little-endian. For the client's tools only;
// the daemon never reads one. The file is hostile input: nothing is allocated by what its header claims.
#ifndef EXPERTD_CLIENT_EXPERTCTL_FILES_NPY_H
#define EXPERTD_CLIENT_EXPERTCTL_FILES_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertd/base/tensor.h"

enum { NPY_DESCR_MAX = 8 };

struct npy {
    // Into the map. NumPy knows no bf16 and no F8: their bits come as <u2 or V2 (U16 here) and |u1 or V1 (U8), and it is the reader
    // who knows what they are.
    struct expertd_tensor_view view;
    char descr[NPY_DESCR_MAX]; // "<f4", as the file says it
    void *map;                 // the whole file, read-only; NULL after npy_parse
    uint64_t map_bytes;
};

// `path` is borrowed until npy_close. EXPERTD_ERR_IO where it cannot be read now; EXPERTD_ERR_CHECKPOINT names the file, the rule
// that it breaks and the call that mends it: another version, Fortran order, big-endian, structured or object arrays, a shape that
// is not the file's length.
FALLIBLE npy_open(const char *path, struct npy *out);
// The same over memory that the caller keeps; `path` is for messages.
FALLIBLE npy_parse(const char *path, const void *bytes, uint64_t size, struct npy *out);
void npy_close(struct npy *file); // legal on a zeroed struct

// Writes a new file (path.PID.tmp, fsync, rename): whole or not at all. `view` is dense; BF16 is written as <u2, F8 as |u1.
FALLIBLE npy_write(const char *path, const struct expertd_tensor_view *view);

#endif
