#include "daemon/listen/lockfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES_MAX = 16, PID_TEXT_MAX = 24 };

static FALLIBLE refuse_held(int fd, const char *path) {
    char pid[PID_TEXT_MAX] = "";
    ssize_t length = pread(fd, pid, sizeof pid - 1, 0);
    size_t digits = length > 0 ? strspn(pid, "0123456789") : 0;
    pid[digits] = '\0';
    // The same process id: this process holds the lock, or a process in another PID namespace does.
    bool own = digits && strtol(pid, NULL, 10) == (long)getpid();
    FAIL(EXPERTD_ERR_UNAVAILABLE, "process %s%s holds %s: stop it, or choose another address", digits ? pid : "(unknown)",
         own ? " (this process has the same id: do two of its addresses have this path?)" : "", path);
}

// Whether the locked file is still the file at the path: its last holder may have removed it between open and flock.
static bool is_current(int fd, const char *path) {
    struct stat held, named;
    return fstat(fd, &held) == 0 && lstat(path, &named) == 0 && held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

static FALLIBLE write_pid(int fd, const char *path) {
    char pid[PID_TEXT_MAX];
    int length = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, pid, (size_t)length, 0) != length) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot write %s: %s", path, strerror(errno));
    }
    return OK;
}

// *taken: the file is locked and current. Not taken and no error: the file was removed meanwhile; try again.
static FALLIBLE try_lock(int fd, const char *path, bool *taken) {
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) {
            return refuse_held(fd, path);
        }
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot lock %s: %s", path, strerror(errno));
    }
    *taken = is_current(fd, path);
    return *taken ? write_pid(fd, path) : OK;
}

FALLIBLE lockfile_take(const char *path, struct lockfile *out) {
    *out = (struct lockfile){0};
    for (int i = 0; i < TRIES_MAX; i++) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) {
            FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot create the lock file %s: %s", path, strerror(errno));
        }
        bool taken = false;
        err_t e = try_lock(fd, path, &taken);
        char *copy = taken && !err_is(e) ? strdup(path) : NULL;
        if (copy) {
            *out = (struct lockfile){.path = copy, .fd = fd};
            return OK;
        }
        close(fd);
        if (err_is(e)) {
            return e;
        }
        if (taken) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory for the path %s", path);
        }
    }
    FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot keep the lock file %s: another program removes it again and again", path);
}

void lockfile_release(struct lockfile *lock) {
    if (!lock->path) {
        return;
    }
    // Remove the file while it is still locked. A process that has it open finds out in is_current.
    if (is_current(lock->fd, lock->path)) {
        unlink(lock->path);
    }
    close(lock->fd);
    free(lock->path);
    *lock = (struct lockfile){0};
}
