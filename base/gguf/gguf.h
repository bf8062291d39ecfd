// Reads GGUF files, the format of llama.cpp: versions 2 and 3, little-endian. A file is mapped, and its header is checked against
// every rule of the format and against limits, because it is not trusted. Tensors get the same struct as those of safetensors
// files, so that both formats have one path from here on. Values of metadata stay in the mapped file.
// Source: ggml/docs/gguf.md, ggml/src/gguf.cpp.
#ifndef EXPERTD_BASE_GGUF_H
#define EXPERTD_BASE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/gguf/ggml_types.h"
#include "base/safetensors.h"

enum {
    GGUF_HEADER_BYTES_MAX = 256 << 20, // vocabularies make up most of it; known files have up to some 20 MB
    GGUF_PAIRS_MAX = 1 << 16,
    GGUF_KEY_BYTES_MAX = 1024,
    GGUF_DEPTH_MAX = 4, // of arrays in arrays
};

enum gguf_kind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_KINDS
};

// A value in the mapped file; a number may be misaligned.
struct gguf_value {
    enum gguf_kind kind;
    enum gguf_kind element;    // of an array
    uint64_t count;            // elements of an array, bytes of a string (which has no terminator)
    const unsigned char *data; // the number, the string's bytes, the array's first element
};

struct gguf_pair {
    const char *key; // NUL-terminated, owned by the file
    struct gguf_value value;
};

struct gguf {
    struct safetensors tensors; // sorted by name; owns the mapping. header_bytes is the offset of the tensors' data
    struct gguf_pair *pairs;    // sorted by key
    size_t count;
    char *text; // memory of the keys
};

// Does the file begin like a GGUF file? False also if it cannot be read.
bool gguf_is(const char *path);

// Maps and checks a regular file. EXPERTD_ERR_CHECKPOINT: the file violates the format; the message has the file, the key or
// tensor, and the rule. EXPERTD_ERR_IO: it cannot be read now. Allocates in proportion to the header's real size.
FALLIBLE gguf_open(const char *path, struct gguf *out);
// The same for a file in memory, which must outlive `out`.
FALLIBLE gguf_parse(const char *path, const void *bytes, uint64_t size, struct gguf *out);
void gguf_close(struct gguf *file); // legal on a zeroed struct

// NULL: there is no such key.
const struct gguf_value *gguf_find(const struct gguf *file, const char *key);

// The number, or the truth value as 0 or 1, of a value that is neither a string nor an array; integers beyond 2^53 are rounded.
// Of an array of such values: element i. False: there is no number.
bool gguf_number(const struct gguf_value *value, uint64_t i, double *out);

// Is the value an integer (not a truth value), or an array of integers?
bool gguf_is_integer(const struct gguf_value *value);

// Is the value this text?
bool gguf_is_text(const struct gguf_value *value, const char *text);

#endif
