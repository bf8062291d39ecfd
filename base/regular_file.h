// Reads and writes files in folders that are not trusted. Reading never blocks on a FIFO, never opens a device and has a size
// limit. Writing replaces a file atomically, and never changes another file.
#ifndef EXPERTD_BASE_REGULAR_FILE_H
#define EXPERTD_BASE_REGULAR_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/err.h"

// Opens a file for reading. Follows symbolic links, because a Hugging Face cache consists of them. The caller closes *fd.
// EXPERTD_ERR_CHECKPOINT: there is no readable regular file. EXPERTD_ERR_IO: another failure, which may pass (no descriptor left).
FALLIBLE regular_file_open(const char *path, int *fd, uint64_t *size);

// Reads the complete file and appends a NUL. The caller frees *bytes. EXPERTD_ERR_CHECKPOINT: the file has more than bytes_max
// bytes.
FALLIBLE regular_file_read(const char *path, uint64_t bytes_max, char **bytes, size_t *length);

// A file that is being written.
struct regular_file_new {
    int fd;          // to write to
    char *target;    // the file to replace, with links resolved; NULL if `fd` is a stream
    char *temporary; // the path of `fd`, in the same folder as the target
    struct stat old; // of the target; st_mode 0: there is none
};

// The accepted kinds of target. Opening a FIFO waits for its reader.
enum regular_file_takes { REGULAR_FILE_ONLY, REGULAR_FILE_OR_STREAM };

// Opens `path` for writing, through a symbolic link if it is one. The data goes to a temporary file in the same folder, and
// regular_file_end renames it to the target.
// Permissions: the mode, owner and group of the old file, as far as the process may set them. If it may not set the group, the new
// group gets only the permissions of others. A file that did not exist gets mode 0666 (0644 with REGULAR_FILE_ONLY) minus the
// umask. With REGULAR_FILE_OR_STREAM, a FIFO or a character device is written directly. So is a file that is this process's
// standard output or standard error, from the current position of that stream on. EXPERTD_ERR_IO: the path is a file of another
// kind, a dangling link or a mount point (which cannot be replaced), or the file cannot be created. The message has the cause, not
// the path. After OK, call regular_file_end.
FALLIBLE regular_file_begin(const char *path, enum regular_file_takes takes, struct regular_file_new *out);

// Writes all bytes. At a limit on file sizes the result is EXPERTD_ERR_IO; SIGXFSZ is blocked.
FALLIBLE regular_file_write(int fd, const void *bytes, uint64_t size);

// Finishes the file. `e` is the result of writing. If it is an error, or closing or renaming fails (EXPERTD_ERR_IO), the target
// keeps its old content and the temporary file is removed. After OK the file is on disk under its name. Returns the error.
FALLIBLE regular_file_end(struct regular_file_new *file, err_t e);

#endif
