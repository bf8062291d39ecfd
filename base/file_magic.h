// Recognises a file of another kind by its first bytes: an error page, a pointer or an archive in the place of weights or JSON.
#ifndef EXPERTD_BASE_FILE_MAGIC_H
#define EXPERTD_BASE_FILE_MAGIC_H

#include <stddef.h>

#include "base/err.h"

enum { FILE_MAGIC_BYTES = 512 }; // no more bytes are looked at

struct file_magic {
    const char *what; // "it is an HTML page, not the file itself"
    const char *mend; // "download it again"
};

// The kind of a file that begins with these bytes; NULL: not recognised, as GGUF, safetensors and JSON files are not.
const struct file_magic *file_magic_find(const void *bytes, size_t length);

// EXPERTD_ERR_CHECKPOINT: the file is recognised. The message has what it is and the remedy; the caller adds the path.
FALLIBLE file_magic_check(const void *bytes, size_t length);

// The same for a file that must hold binary data: text is refused too, with its beginning.
FALLIBLE file_magic_check_binary(const void *bytes, size_t length);

#endif
