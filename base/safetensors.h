// Reads and writes safetensors files. A file is mapped, and its header is checked against every rule of the format and against
// limits, because it is not trusted. The daemon reads checkpoints with it; the client reads and writes tensors.
#ifndef EXPERTD_BASE_SAFETENSORS_H
#define EXPERTD_BASE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertd/base/tensor.h"

struct ggml_type;

struct safetensors_entry {
    const char *name; // NUL-terminated, owned by the file
    struct expertd_tensor_view view;
    const struct ggml_type *blocks; // of a GGUF file: the elements are codes in blocks, and view.dtype is NONE. Else NULL
};

struct safetensors {
    char *path;
    void *map; // the complete file, read-only
    uint64_t map_bytes;
    struct safetensors_entry *entries; // sorted by name
    size_t count;
    char **metadata; // [2 * metadata_count] key, value, ... of __metadata__
    size_t metadata_count;
    uint64_t header_bytes;
    char *text; // [header_bytes + 1] memory of the names and the metadata
};

enum {
    SAFETENSORS_HEADER_BYTES_MAX = 100000000,
    SAFETENSORS_TENSORS_MAX = 1 << 20,
    SAFETENSORS_NAME_BYTES_MAX = 512,
};

// Maps and checks a regular file. EXPERTD_ERR_CHECKPOINT: the file violates the format; the message has the file, the tensor and
// the rule. EXPERTD_ERR_IO: it cannot be read now. Allocates no more than the header's real size. Tensors of types without an enum
// expertd_dtype (F4, F6, C64, ...) are checked for size and have dtype NONE.
FALLIBLE safetensors_open(const char *path, struct safetensors *out);
// The same for a file in memory, which must outlive `out`.
FALLIBLE safetensors_parse(const char *path, const void *bytes, uint64_t size, struct safetensors *out);
void safetensors_close(struct safetensors *file); // legal on a zeroed struct

// EXPERTD_ERR_CHECKPOINT: the name of a tensor is empty, longer than SAFETENSORS_NAME_BYTES_MAX, or has control characters.
FALLIBLE safetensors_check_name(const char *name, size_t length);

// The index of the first entry whose name is >= `name`; count: none.
size_t safetensors_lower_bound(const struct safetensors *file, const char *name);

// Return NULL if there is no such tensor or key.
const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name);
const char *safetensors_metadata(const struct safetensors *file, const char *key);

// Writes a file atomically (regular_file_begin). Views must be dense, names distinct.
FALLIBLE safetensors_write(const char *path, const struct safetensors_entry *entries, size_t count);

#endif
