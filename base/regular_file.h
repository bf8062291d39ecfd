// Opening and reading files whose folder somebody else filled: never blocks on a FIFO, never touches a device, never reads past a
// bound. And making one there, which is nobody else's.
#ifndef EXPERTD_BASE_REGULAR_FILE_H
#define EXPERTD_BASE_REGULAR_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

// Opens for reading; symbolic links are followed, as a hub cache is made of them. The caller closes *fd.
// ERR_IO where it cannot be opened, ERR_CHECKPOINT where it is no regular file.
FALLIBLE regular_file_open(const char *path, int *fd, uint64_t *size);

// The whole file, with a NUL after it; the caller frees *bytes. ERR_CHECKPOINT above bytes_max (nothing is read then).
FALLIBLE regular_file_read(const char *path, uint64_t bytes_max, char **bytes, size_t *length);

// Makes a file and opens it for writing, the one that is renamed once it is whole: `path` holds the process's number. Never a file
// that was there, nor what a link leads to: what an earlier process of that number left is removed first. The caller closes *fd.
// ERR_IO says why, not the path.
FALLIBLE regular_file_make(const char *path, int *fd);

#endif
