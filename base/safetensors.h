// One safetensors file, mapped and checked: every rule of the format, and a bound on everything a hostile header may claim.
// In base/ because the daemon reads checkpoints with it and the client reads and writes its inputs with it.
#ifndef EXPERTD_BASE_SAFETENSORS_H
#define EXPERTD_BASE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertd/base/tensor.h"

struct safetensors_entry {
    const char *name; // NUL-terminated, owned by the file
    struct expertd_tensor_view view;
};

struct safetensors {
    char *path;
    void *map; // the whole file, read-only
    uint64_t map_bytes;
    struct safetensors_entry *entries; // sorted by name
    size_t count;
    char **metadata; // [2 * metadata_count] key, value of __metadata__
    size_t metadata_count;
    uint64_t header_bytes;
    char *text; // [header_bytes + 1] the names and the metadata lie here
};

enum {
    SAFETENSORS_HEADER_BYTES_MAX = 100000000,
    SAFETENSORS_TENSORS_MAX = 1 << 20,
    SAFETENSORS_NAME_BYTES_MAX = 512,
};

// Opens and checks. EXPERTD_ERR_CHECKPOINT names the file, the tensor and the rule broken; EXPERTD_ERR_IO where it cannot be read
// now; never a FIFO or device (they are refused before they are opened for reading). A lying header costs no large allocation.
// Types that the format knows and we do not (F4, F6, C64, ...) are checked for size and get dtype NONE: an error only for who wants
// to read them.
FALLIBLE safetensors_open(const char *path, struct safetensors *out);
// The same over memory that the caller keeps (the fuzzer's way in).
FALLIBLE safetensors_parse(const char *path, const void *bytes, uint64_t size, struct safetensors *out);
void safetensors_close(struct safetensors *file); // legal on a zeroed struct

// NULL where there is none.
const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name);
const char *safetensors_metadata(const struct safetensors *file, const char *key);

// Writes a new file (path.PID.tmp, fsync, rename): atomically or not at all. Views must be dense; names distinct.
FALLIBLE safetensors_write(const char *path, const struct safetensors_entry *entries, size_t count);

#endif
