#include "base/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

FALLIBLE regular_file_open(const char *path, int *fd, uint64_t *size) {
    struct stat status;
    *fd = -1;
    *size = 0;
    // What stat says comes first, since opening a FIFO or a device may itself do something; O_NONBLOCK is for what may take the
    // file's place in between.
    if (stat(path, &status) != 0) {
        FAIL(ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
        FAIL(ERR_CHECKPOINT, "%s is no regular file", path);
    }
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (*fd < 0) {
        FAIL(ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (fstat(*fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(*fd);
        FAIL(ERR_CHECKPOINT, "%s is no regular file", path);
    }
    *size = (uint64_t)status.st_size;
    return OK;
}

static FALLIBLE read_all(int fd, char *bytes, size_t size, size_t *length) {
    *length = 0;
    while (*length < size) {
        ssize_t got = read(fd, bytes + *length, size - *length);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            FAIL(ERR_IO, "%s", strerror(errno));
        }
        if (got == 0) {
            break;
        }
        *length += (size_t)got;
    }
    bytes[*length] = '\0';
    return OK;
}

FALLIBLE regular_file_read(const char *path, uint64_t bytes_max, char **bytes, size_t *length) {
    int fd;
    uint64_t size;
    *bytes = NULL;
    TRY(regular_file_open(path, &fd, &size));
    if (size > bytes_max) {
        close(fd);
        FAIL(ERR_CHECKPOINT, "%s has %" PRIu64 " bytes, at most %" PRIu64 " are read", path, size, bytes_max);
    }
    char *text = malloc(size + 1);
    err_t e = text ? read_all(fd, text, size, length) : err_record(ERR_NOMEM, NULL, "no memory for %" PRIu64 " bytes", size);
    close(fd);
    if (err_is(e)) {
        free(text);
        return err_context(e, "%s", path);
    }
    *bytes = text;
    return OK;
}

FALLIBLE regular_file_make(const char *path, int *fd) {
    (void)unlink(path);
    *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*fd < 0) {
        FAIL(ERR_IO, "%s", strerror(errno));
    }
    return OK;
}
