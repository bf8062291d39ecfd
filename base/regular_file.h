// Opening and reading files whose folder somebody else filled: never blocks on a FIFO, never touches a device, never reads past a
// bound. And writing one there: whole or not at all, and no file but that one.
#ifndef EXPERTD_BASE_REGULAR_FILE_H
#define EXPERTD_BASE_REGULAR_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/err.h"

// Opens for reading; symbolic links are followed, as a hub cache is made of them. The caller closes *fd.
// EXPERTD_ERR_CHECKPOINT where no regular file is there that may be read, EXPERTD_ERR_IO where none can be opened now.
FALLIBLE regular_file_open(const char *path, int *fd, uint64_t *size);

// The whole file, with a NUL after it; the caller frees *bytes. EXPERTD_ERR_CHECKPOINT above bytes_max (nothing is read then).
FALLIBLE regular_file_read(const char *path, uint64_t bytes_max, char **bytes, size_t *length);

// A file that is being written.
struct regular_file_new {
    int fd;          // to write to
    char *place;     // the file that is replaced at the end, behind links; NULL where `fd` is a stream, written into
    char *temporary; // beside it, what `fd` is till then
    struct stat old; // of mode 0 where there is none
};

// Where the bytes may go: a FIFO's reader is waited for.
enum regular_file_takes { REGULAR_FILE_ONLY, REGULAR_FILE_OR_STREAM };

// Opens for writing what `path` will hold. A file is written beside its place, under a name that nothing has, and takes the place
// once it is whole, with the old file's mode and, where that is allowed, owner and group; of another group, that has no more than
// all have. A new one's mode is what the umask leaves of 0666, of 0644 with REGULAR_FILE_ONLY. A file that is mounted by itself
// cannot be replaced: EXPERTD_ERR_IO. A link at `path` itself is followed. With REGULAR_FILE_OR_STREAM the bytes go as they come
// into a FIFO or a character device, and into whatever this process's standard output or error goes to, a file too: behind what was
// printed there. What else lies there is left as it is. EXPERTD_ERR_IO says why, not the path. After OK, regular_file_end is due.
FALLIBLE regular_file_begin(const char *path, enum regular_file_takes takes, struct regular_file_new *out);

// All bytes, or EXPERTD_ERR_IO: of a limit on the size of files too, whatever SIGXFSZ does in this process.
FALLIBLE regular_file_write(int fd, const void *bytes, uint64_t size);

// `e` is how the writing went: on an error the place keeps what it had and nothing is left beside it. Returns that error, or
// EXPERTD_ERR_IO where the file cannot be closed or put in its place. After OK the file is on the disk, under its name.
FALLIBLE regular_file_end(struct regular_file_new *file, err_t e);

#endif
