#include "base/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

// EXPERTD_ERR_CHECKPOINT for a cause that remains when the call is repeated; EXPERTD_ERR_IO for one that may pass.
static FALLIBLE cannot_open(const char *path, int cause) {
    struct stat link;
    switch (cause) {
    case ENOENT:
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s%s", path, strerror(cause),
             lstat(path, &link) == 0 && S_ISLNK(link.st_mode) ? " (the target of this link)" : "");
    case EACCES:
    case EPERM:
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s: let uid %u read it, or run this as another user", path, strerror(cause),
             (unsigned)geteuid());
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s", path, strerror(cause));
    default:
        FAIL(EXPERTD_ERR_IO, "%s: %s", path, strerror(cause));
    }
}

FALLIBLE regular_file_open(const char *path, int *fd, uint64_t *size) {
    struct stat status;
    *fd = -1;
    *size = 0;
    // stat comes first, because opening a FIFO or a device can have side effects. O_NONBLOCK covers a file that is replaced between
    // stat and open.
    if (stat(path, &status) != 0) {
        return cannot_open(path, errno);
    }
    if (!S_ISREG(status.st_mode)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s is not a regular file", path);
    }
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (*fd < 0) {
        return cannot_open(path, errno);
    }
    if (fstat(*fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(*fd);
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s is not a regular file", path);
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
            FAIL(EXPERTD_ERR_IO, "%s", strerror(errno));
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
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s has %" PRIu64 " bytes, more than the limit of %" PRIu64, path, size, bytes_max);
    }
    char *text = malloc(size + 1);
    err_t e =
        text ? read_all(fd, text, size, length) : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %" PRIu64 " bytes", size);
    close(fd);
    if (err_is(e)) {
        free(text);
        return err_context(e, "%s", path);
    }
    *bytes = text;
    return OK;
}

// ---- writing

// The name contains the process id and the time, because two processes in different containers may have the same id and use the
// same folder. A long file name is truncated.
static FALLIBLE create_temporary(struct regular_file_new *file, mode_t mode) {
    enum { NAMES_MAX = 100, SUFFIX_MAX = 40 };
    const char *slash = strrchr(file->target, '/');
    int folder_length = slash ? (int)(slash + 1 - file->target) : 0, prefix_max = folder_length + NAME_MAX - SUFFIX_MAX;
    errno = EEXIST;
    for (int i = 0; i < NAMES_MAX && file->fd < 0 && errno == EEXIST; i++) {
        free(file->temporary);
        if (asprintf(&file->temporary, "%.*s.%ld-%08" PRIx32 ".tmp", prefix_max, file->target, (long)getpid(),
                     (uint32_t)clock_now_ns()) < 0) {
            file->temporary = NULL;
            FAIL(EXPERTD_ERR_NOMEM, "no memory for a path");
        }
        file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    }
    if (file->fd < 0) {
        FAIL(EXPERTD_ERR_IO, "%s", strerror(errno));
    }
    return OK;
}

// Copies owner, group and mode of the old file. The owner may change if the process may not set it. If it may not set the group
// either, the new file's group gets only the permissions of others.
static FALLIBLE copy_permissions(int fd, const struct stat *old) {
    mode_t mode = old->st_mode & 0777, others = mode & 07;
    if (fchown(fd, old->st_uid, old->st_gid) != 0 && fchown(fd, (uid_t)-1, old->st_gid) != 0) {
        mode = (mode & 0707) | others << 3;
    }
    if (fchmod(fd, mode) != 0) {
        FAIL(EXPERTD_ERR_IO, "%s", strerror(errno));
    }
    return OK;
}

// A rename is durable once its folder is flushed. Errors are ignored: after a crash, the name has either the old or the new
// content.
static void flush_folder(char *path) {
    char *slash = strrchr(path, '/');
    if (slash) {
        slash[slash == path] = '\0';
    }
    int fd = open(slash ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

// For example a single file that is mounted into a container.
static bool is_mount_point(const char *path) {
    struct statx status;
    return statx(AT_FDCWD, path, 0, 0, &status) == 0 && status.stx_attributes & STATX_ATTR_MOUNT_ROOT;
}

static bool is_stream(const struct stat *status) {
    return S_ISFIFO(status->st_mode) || S_ISCHR(status->st_mode);
}

// Waits for the reader of a FIFO.
static FALLIBLE open_stream(struct regular_file_new *file, const char *path) {
    struct stat status;
    file->fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (file->fd < 0) {
        FAIL(EXPERTD_ERR_IO, "%s", strerror(errno));
    }
    if (fstat(file->fd, &status) != 0 || !is_stream(&status)) {
        FAIL(EXPERTD_ERR_IO, "it was replaced by another kind of file while it was opened");
    }
    return OK;
}

// Returns standard output or error if it goes to this file, as with /dev/stdout; otherwise -1. Such a file must not be replaced:
// its output would be lost.
static int standard_stream(const struct stat *status) {
    struct stat stream;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fstat(fd, &stream) == 0 && stream.st_dev == status->st_dev && stream.st_ino == status->st_ino) {
            return fd;
        }
    }
    return -1;
}

static FALLIBLE append_to(struct regular_file_new *file, int stream) {
    file->fd = fcntl(stream, F_DUPFD_CLOEXEC, 0); // both descriptors share one file position
    if (file->fd < 0) {
        FAIL(EXPERTD_ERR_IO, "%s", strerror(errno));
    }
    return OK;
}

static FALLIBLE begin(struct regular_file_new *file, const char *path, enum regular_file_takes takes) {
    struct stat status;
    if (lstat(path, &status) != 0) {
        file->target = strdup(path); // create_temporary reports any other error of the path
    } else if (stat(path, &status) != 0) {
        FAIL(EXPERTD_ERR_IO, "it is a dangling link, which is left unchanged");
    } else if (takes == REGULAR_FILE_OR_STREAM && standard_stream(&status) >= 0) {
        return append_to(file, standard_stream(&status));
    } else if (takes == REGULAR_FILE_OR_STREAM && is_stream(&status)) {
        return open_stream(file, path);
    } else if (!S_ISREG(status.st_mode)) {
        FAIL(EXPERTD_ERR_IO, "it is %s, which is left unchanged",
             takes == REGULAR_FILE_ONLY ? "not a regular file" : "neither a regular file nor a pipe");
    } else {
        file->old = status;
        file->target = realpath(path, NULL);
    }
    if (!file->target) {
        FAIL(EXPERTD_ERR_IO, "%s", strerror(errno));
    }
    if (file->old.st_mode && is_mount_point(file->target)) {
        FAIL(EXPERTD_ERR_IO, "it is a mount point and cannot be replaced: mount its folder instead");
    }
    return create_temporary(file, file->old.st_mode ? 0600 : takes == REGULAR_FILE_ONLY ? 0644 : 0666);
}

FALLIBLE regular_file_begin(const char *path, enum regular_file_takes takes, struct regular_file_new *out) {
    *out = (struct regular_file_new){.fd = -1};
    err_t e = begin(out, path, takes);
    return err_is(e) ? regular_file_end(out, e) : OK;
}

// At a limit on file sizes, write fails with EFBIG and the kernel sends SIGXFSZ to the writing thread, which would end the process.
// The signal is blocked and discarded.
static ssize_t write_without_signal(int fd, const void *bytes, size_t size) {
    sigset_t limit, before;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &limit, &before);
    const ssize_t written = write(fd, bytes, size);
    const int error = errno;
    if (written < 0 && error == EFBIG) {
        sigtimedwait(&limit, NULL, &(struct timespec){0});
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return written;
}

FALLIBLE regular_file_write(int fd, const void *bytes, uint64_t size) {
    const char *at = bytes;
    while (size > 0) {
        ssize_t written = write_without_signal(fd, at, size);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            FAIL(EXPERTD_ERR_IO, "%s", strerror(written < 0 ? errno : ENOSPC));
        }
        at += written;
        size -= (uint64_t)written;
    }
    return OK;
}

FALLIBLE regular_file_end(struct regular_file_new *file, err_t e) {
    bool replaces = file->temporary && file->fd >= 0;
    if (!err_is(e) && replaces && file->old.st_mode) {
        e = copy_permissions(file->fd, &file->old);
    }
    if (!err_is(e) && replaces && fsync(file->fd) != 0) {
        e = err_record(EXPERTD_ERR_IO, NULL, "%s", strerror(errno));
    }
    if (file->fd >= 0 && close(file->fd) != 0 && !err_is(e)) {
        e = err_record(EXPERTD_ERR_IO, NULL, "%s", strerror(errno));
    }
    if (!err_is(e) && replaces && rename(file->temporary, file->target) != 0) {
        e = err_record(EXPERTD_ERR_IO, NULL, "%s", strerror(errno));
    }
    if (replaces && err_is(e)) {
        (void)unlink(file->temporary);
    } else if (replaces) {
        flush_folder(file->target);
    }
    free(file->temporary);
    free(file->target);
    *file = (struct regular_file_new){.fd = -1};
    return e;
}
