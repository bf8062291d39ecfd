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

// What lies there, or does not, or is not ours to read, stays so when it is tried again; that nothing can be opened now does not.
static FALLIBLE cannot_open(const char *path, int cause) {
    struct stat link;
    switch (cause) {
    case ENOENT:
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s%s", path, strerror(cause),
             lstat(path, &link) == 0 && S_ISLNK(link.st_mode) ? ", where this link leads" : "");
    case EACCES:
    case EPERM:
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s: let user %u read it", path, strerror(cause), (unsigned)geteuid());
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
    // What stat says comes first, since opening a FIFO or a device may itself do something; O_NONBLOCK is for what may take the
    // file's place in between.
    if (stat(path, &status) != 0) {
        return cannot_open(path, errno);
    }
    if (!S_ISREG(status.st_mode)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s is no regular file", path);
    }
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (*fd < 0) {
        return cannot_open(path, errno);
    }
    if (fstat(*fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(*fd);
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s is no regular file", path);
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
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s has %" PRIu64 " bytes, at most %" PRIu64 " are read", path, size, bytes_max);
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

// Processes of one number may share a folder, from containers of their own: so the moment is part of the name. Of a long one the
// end is left out.
static FALLIBLE make_temporary(struct regular_file_new *file, mode_t mode) {
    enum { NAMES_MAX = 100, SUFFIX_MAX = 40 };
    const char *slash = strrchr(file->place, '/');
    int before = slash ? (int)(slash + 1 - file->place) : 0, kept = before + NAME_MAX - SUFFIX_MAX;
    errno = EEXIST;
    for (int i = 0; i < NAMES_MAX && file->fd < 0 && errno == EEXIST; i++) {
        free(file->temporary);
        if (asprintf(&file->temporary, "%.*s.%ld-%08" PRIx32 ".tmp", kept, file->place, (long)getpid(), (uint32_t)clock_now_ns()) <
            0) {
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

// An old file's owner, group and mode. A folder of ours may hold another's file: it is ours from now on, and still its group's. In
// a group that we may not give it to, ours is not to have what that had, only what all have.
static FALLIBLE take_after(int fd, const struct stat *old) {
    mode_t mode = old->st_mode & 0777, of_others = mode & 07;
    if (fchown(fd, old->st_uid, old->st_gid) != 0 && fchown(fd, (uid_t)-1, old->st_gid) != 0) {
        mode = (mode & 0707) | of_others << 3;
    }
    if (fchmod(fd, mode) != 0) {
        FAIL(EXPERTD_ERR_IO, "%s", strerror(errno));
    }
    return OK;
}

// The rename itself is on the disk once its folder is. One that cannot be flushed may lose the new file, never the old content.
static void flush_folder(char *place) {
    char *slash = strrchr(place, '/');
    if (slash) {
        slash[slash == place] = '\0';
    }
    int fd = open(slash ? place : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

// A single file that is mounted into a container, say.
static bool is_mounted(const char *place) {
    struct statx status;
    return statx(AT_FDCWD, place, 0, 0, &status) == 0 && status.stx_attributes & STATX_ATTR_MOUNT_ROOT;
}

static bool is_written_into(const struct stat *status) {
    return S_ISFIFO(status->st_mode) || S_ISCHR(status->st_mode);
}

// A FIFO waits here for its reader, as it does for any program.
static FALLIBLE open_in_place(struct regular_file_new *file, const char *path) {
    struct stat status;
    file->fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (file->fd < 0) {
        FAIL(EXPERTD_ERR_IO, "%s", strerror(errno));
    }
    if (fstat(file->fd, &status) != 0 || !is_written_into(&status)) {
        FAIL(EXPERTD_ERR_IO, "another file took its place");
    }
    return OK;
}

// The descriptor of this process that goes to that file, as that of /dev/stdout does; -1: none. Replaced, it would be gone with all
// that was and will be printed there.
static int standard_stream(const struct stat *status) {
    struct stat stream;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fstat(fd, &stream) == 0 && stream.st_dev == status->st_dev && stream.st_ino == status->st_ino) {
            return fd;
        }
    }
    return -1;
}

static FALLIBLE write_behind(struct regular_file_new *file, int stream) {
    file->fd = fcntl(stream, F_DUPFD_CLOEXEC, 0); // one position for both
    if (file->fd < 0) {
        FAIL(EXPERTD_ERR_IO, "%s", strerror(errno));
    }
    return OK;
}

static FALLIBLE begin(struct regular_file_new *file, const char *path, enum regular_file_takes takes) {
    struct stat status;
    if (lstat(path, &status) != 0) {
        file->place = strdup(path); // what else is wrong shows when the file beside it is made
    } else if (stat(path, &status) != 0) {
        FAIL(EXPERTD_ERR_IO, "it is a link to nothing, and is left as it is");
    } else if (takes == REGULAR_FILE_OR_STREAM && standard_stream(&status) >= 0) {
        return write_behind(file, standard_stream(&status));
    } else if (takes == REGULAR_FILE_OR_STREAM && is_written_into(&status)) {
        return open_in_place(file, path);
    } else if (!S_ISREG(status.st_mode)) {
        FAIL(EXPERTD_ERR_IO, "it is %s, and is left as it is",
             takes == REGULAR_FILE_ONLY ? "no file" : "neither a file nor a pipe");
    } else {
        file->old = status;
        file->place = realpath(path, NULL);
    }
    if (!file->place) {
        FAIL(EXPERTD_ERR_IO, "%s", strerror(errno));
    }
    if (file->old.st_mode && is_mounted(file->place)) {
        FAIL(EXPERTD_ERR_IO, "it is mounted by itself, and so cannot be replaced: mount its folder");
    }
    return make_temporary(file, file->old.st_mode ? 0600 : takes == REGULAR_FILE_ONLY ? 0644 : 0666);
}

FALLIBLE regular_file_begin(const char *path, enum regular_file_takes takes, struct regular_file_new *out) {
    *out = (struct regular_file_new){.fd = -1};
    err_t e = begin(out, path, takes);
    return err_is(e) ? regular_file_end(out, e) : OK;
}

// A limit on the size of files is this write's error, EFBIG, and not the end of the process: its signal, which comes to the thread
// that writes, is taken back.
static ssize_t write_unsignalled(int fd, const void *bytes, size_t size) {
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
        ssize_t written = write_unsignalled(fd, at, size);
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
        e = take_after(file->fd, &file->old);
    }
    if (!err_is(e) && replaces && fsync(file->fd) != 0) {
        e = err_record(EXPERTD_ERR_IO, NULL, "%s", strerror(errno));
    }
    if (file->fd >= 0 && close(file->fd) != 0 && !err_is(e)) {
        e = err_record(EXPERTD_ERR_IO, NULL, "%s", strerror(errno));
    }
    if (!err_is(e) && replaces && rename(file->temporary, file->place) != 0) {
        e = err_record(EXPERTD_ERR_IO, NULL, "%s", strerror(errno));
    }
    if (replaces && err_is(e)) {
        (void)unlink(file->temporary);
    } else if (replaces) {
        flush_folder(file->place);
    }
    free(file->temporary);
    free(file->place);
    *file = (struct regular_file_new){.fd = -1};
    return e;
}
