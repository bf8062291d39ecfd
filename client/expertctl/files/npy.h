// Reads and writes NumPy .npy files (format versions 1 and 2; dense, C order, little-endian). Only the client's tools use them. A
// file is untrusted input: it is mapped and checked, and no allocation depends on its header.
#ifndef EXPERTD_CLIENT_EXPERTCTL_FILES_NPY_H
#define EXPERTD_CLIENT_EXPERTCTL_FILES_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertd/base/tensor.h"

enum { NPY_DESCR_MAX = 8 };

struct npy {
    // Points into the map. NumPy has no bf16 and no F8 type: their bits are stored as <u2 or V2 (U16 here) and |u1 or V1 (U8), and
    // the caller must know the real dtype.
    struct expertd_tensor_view view;
    char descr[NPY_DESCR_MAX]; // the file's descr, such as "<f4"
    void *map;                 // the whole file, read-only; NULL after npy_parse
    uint64_t map_bytes;
};

// `path` is borrowed until npy_close. EXPERTD_ERR_IO: the file cannot be read. EXPERTD_ERR_CHECKPOINT names the file, the cause and
// the NumPy call that converts the array: another version, Fortran order, big-endian, structured or object arrays, or a shape that
// does not match the file's length.
FALLIBLE npy_open(const char *path, struct npy *out);
// The same over memory that the caller keeps; `path` is for messages.
FALLIBLE npy_parse(const char *path, const void *bytes, uint64_t size, struct npy *out);
void npy_close(struct npy *file); // legal on a zeroed struct

// Writes a new file and renames it (path.PID.tmp, fsync, rename), so no partial file is ever visible. `view` is dense; BF16 is
// written as <u2, F8 as |u1.
FALLIBLE npy_write(const char *path, const struct expertd_tensor_view *view);

#endif
