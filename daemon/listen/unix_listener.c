#include "daemon/listen/unix_listener.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/listen/lockfile.h"
#include "daemon/log/log.h"

enum { BACKLOG = 1024, SEND_BUFFER_BYTES = 256 << 10, LOG_TEXT_MAX = 256 };

struct unix_listener {
    struct unix_listener_options options; // path and allow_uids are valid only during unix_listener_start
    struct acceptor *acceptor;
    struct sockaddr_un address;
    char *allow_uids;
    bool bound;
    dev_t device; // identifies the socket file that this listener created
    ino_t inode;
    struct lockfile lock;
    int64_t next_refusal_ns;  // no refusal is logged before this time
    unsigned long suppressed; // refusals not logged since the last log line
};

bool unix_path_absolute(const char *path, const char *ending, char out[UNIX_PATH_BYTES_MAX]) {
    char folder[PATH_MAX] = "";
    if (path[0] != '/' && !getcwd(folder, sizeof folder)) {
        return false;
    }
    const int length = snprintf(out, UNIX_PATH_BYTES_MAX, "%s%s%s%s", folder, folder[0] ? "/" : "", path, ending);
    return length > 0 && length < UNIX_PATH_BYTES_MAX;
}

bool unix_listener_allows(const char *allow_uids, uid_t own, uid_t peer) {
    if (strcmp(allow_uids, "any") == 0) {
        return true;
    }
    if (strcmp(allow_uids, "self") == 0) {
        return peer == own || peer == 0;
    }
    for (const char *p = allow_uids; *p;) {
        char *end;
        unsigned long uid = strtoul(p, &end, 10);
        if (end == p) {
            return false;
        }
        if (uid == peer) {
            return true;
        }
        p = *end == ',' ? end + 1 : end;
    }
    return false;
}

// Logs at most one line per second, with the number of suppressed ones.
static void log_refusal(struct unix_listener *listener, const struct ucred *peer) {
    char path[LOG_TEXT_MAX];
    int64_t now_ns = clock_now_ns();
    if (now_ns < listener->next_refusal_ns) {
        listener->suppressed++;
        return;
    }
    log_line(LOG_LEVEL_WARNING, "peer_refused", "socket=%s uid=%ld pid=%ld since_last=%lu",
             log_quote(listener->address.sun_path, path, sizeof path), (long)peer->uid, (long)peer->pid, listener->suppressed);
    listener->next_refusal_ns = now_ns + NS_PER_S;
    listener->suppressed = 0;
}

static bool peer_of(int fd, struct ucred *peer) {
    socklen_t length = sizeof *peer;
    *peer = (struct ucred){.uid = (uid_t)-1, .pid = -1};
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, peer, &length) == 0 && length == sizeof *peer;
}

static bool admits(void *context, int fd) {
    struct unix_listener *listener = context;
    struct ucred peer;
    bool admitted = peer_of(fd, &peer) && unix_listener_allows(listener->allow_uids, geteuid(), peer.uid);
    if (!admitted) {
        log_refusal(listener, &peer);
    }
    return admitted;
}

// An answer that fits into the socket buffer is sent in one call. For a larger one, gRPC wakes another thread that waits for buffer
// space. The kernel doubles this value. A failure only affects speed.
static void enlarge_send_buffer(int fd) {
    int bytes = SEND_BUFFER_BYTES;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

static void on_accepted(void *context, int fd) {
    struct unix_listener *listener = context;
    struct ucred peer;
    INVARIANT(peer_of(fd, &peer)); // succeeded in admits; the credentials of a connection do not change
    enlarge_send_buffer(fd);
    listener->options.accepted(listener->options.context, fd, peer.uid);
}

// ---- start

static FALLIBLE set_address(struct unix_listener *listener, const char *path) {
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof listener->address.sun_path) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "the path of a Unix socket has 1 to %zu bytes, not %zu: %s",
             sizeof listener->address.sun_path - 1, length, path);
    }
    listener->address.sun_family = AF_UNIX;
    memcpy(listener->address.sun_path, path, length + 1);
    return OK;
}

// Whether no process listens on the socket. A program that does not use our lock file may listen on it; only ECONNREFUSED proves
// that no process does.
static bool is_stale(const struct sockaddr_un *address) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return false;
    }
    int result = connect(fd, (const struct sockaddr *)address, sizeof *address);
    int cause = errno;
    close(fd);
    return result != 0 && cause == ECONNREFUSED;
}

static FALLIBLE clear_path(const struct sockaddr_un *address) {
    const char *path = address->sun_path;
    struct stat st;
    if (lstat(path, &st) != 0) {
        return OK; // bind reports any other error of the path
    }
    if (!S_ISSOCK(st.st_mode)) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "%s exists and is not a socket: remove it, or choose another path", path);
    }
    if (!is_stale(address)) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "another program listens on %s: stop it, or choose another path", path);
    }
    if (unlink(path) != 0 && errno != ENOENT) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot replace the stale socket %s: %s", path, strerror(errno));
    }
    return OK;
}

// On error no descriptor is open.
static FALLIBLE bind_and_listen(struct unix_listener *listener, unsigned mode, int *out) {
    const char *path = listener->address.sun_path;
    int fd = *out = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot create a Unix socket: %s", strerror(errno));
    }
    // bind creates the file with the descriptor's mode minus the umask, so it never has more permissions than requested. chmod
    // restores the bits that the umask removed, before listen admits the first peer.
    err_t e = OK;
    struct stat made = {0};
    if (fchmod(fd, mode) != 0 || bind(fd, (struct sockaddr *)&listener->address, sizeof listener->address) != 0) {
        e = err_record(EXPERTD_ERR_UNAVAILABLE, NULL, "cannot bind %s: %s", path, strerror(errno));
        goto out;
    }
    listener->bound = true;
    int stat_result = lstat(path, &made);
    listener->device = made.st_dev;
    listener->inode = made.st_ino;
    if (stat_result != 0 || chmod(path, mode) != 0 || listen(fd, BACKLOG) != 0) {
        e = err_record(EXPERTD_ERR_UNAVAILABLE, NULL, "cannot listen on %s: %s", path, strerror(errno));
        goto out;
    }
    return OK;
out:
    close(fd);
    return e;
}

static FALLIBLE open_socket(struct unix_listener *listener, int *fd) {
    const struct unix_listener_options *options = &listener->options;
    TRY(set_address(listener, options->path));
    char lock_path[sizeof listener->address.sun_path + sizeof ".lock"];
    snprintf(lock_path, sizeof lock_path, "%s.lock", options->path);
    TRY_IN(lockfile_take(lock_path, &listener->lock), "cannot listen on %s", options->path);
    TRY(clear_path(&listener->address));
    unsigned default_mode = strcmp(options->allow_uids, "self") == 0 ? 0600 : 0666;
    return bind_and_listen(listener, options->mode ? options->mode : default_mode, fd);
}

// Removes the socket file unless another program has replaced it.
static void remove_socket(struct unix_listener *listener) {
    struct stat st;
    if (listener->bound && lstat(listener->address.sun_path, &st) == 0 && st.st_dev == listener->device &&
        st.st_ino == listener->inode) {
        unlink(listener->address.sun_path);
    }
    listener->bound = false;
}

static void free_listener(struct unix_listener *listener) {
    remove_socket(listener);
    lockfile_release(&listener->lock);
    free(listener->allow_uids);
    free(listener);
}

static FALLIBLE start(struct unix_listener *listener) {
    struct acceptor_options accept = {.loop = listener->options.loop,
                                      .name = listener->options.path,
                                      .max_connections = listener->options.max_connections,
                                      .max_silent = listener->options.max_silent,
                                      .silent_ns = listener->options.silent_ns,
                                      .admits = admits,
                                      .accepted = on_accepted,
                                      .context = listener};
    int fd = -1;
    TRY(open_socket(listener, &fd));
    return acceptor_start(&accept, fd, &listener->acceptor);
}

FALLIBLE unix_listener_start(const struct unix_listener_options *options, struct unix_listener **out) {
    *out = NULL;
    struct unix_listener *listener = calloc(1, sizeof *listener);
    char *allow_uids = strdup(options->allow_uids);
    if (!listener || !allow_uids) {
        free(listener);
        free(allow_uids);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a listener");
    }
    listener->options = *options;
    listener->allow_uids = allow_uids;
    err_t e = start(listener);
    if (err_is(e)) {
        free_listener(listener);
        return e;
    }
    *out = listener;
    return OK;
}

void unix_listener_refuse(struct unix_listener *listener) {
    if (listener) {
        acceptor_refuse(listener->acceptor);
        remove_socket(listener);
        lockfile_release(&listener->lock);
    }
}

void unix_listener_hang_up(struct unix_listener *listener) {
    acceptor_hang_up(listener ? listener->acceptor : NULL);
}

void unix_listener_stop(struct unix_listener *listener) {
    if (listener) {
        acceptor_stop(listener->acceptor); // makes no callbacks afterwards
        free_listener(listener);
    }
}

struct acceptor_counts unix_listener_counts(struct unix_listener *listener) {
    return acceptor_counts(listener ? listener->acceptor : NULL);
}
