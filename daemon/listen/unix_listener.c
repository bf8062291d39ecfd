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
#include "daemon/process/log.h"

enum { BACKLOG = 1024, SEND_BUFFER_BYTES = 256 << 10, LOG_TEXT_MAX = 256 };

struct unix_listener {
    struct unix_listener_options options; // path and allow_uids are our own
    struct acceptor *acceptor;
    struct sockaddr_un address;
    char *allow_uids;
    bool bound;
    dev_t device; // of the socket file that we made
    ino_t inode;
    struct lockfile lock;
    int64_t next_refusal_ns; // when one may be told again
    unsigned long untold;    // refusals since the last that was
};

bool unix_path_whole(const char *path, const char *ending, char out[UNIX_PATH_BYTES_MAX]) {
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

// Told once a second, with how many it stands for.
static void tell_refusal(struct unix_listener *listener, const struct ucred *peer) {
    char path[LOG_TEXT_MAX];
    int64_t now_ns = clock_now_ns();
    if (now_ns < listener->next_refusal_ns) {
        listener->untold++;
        return;
    }
    log_line(LOG_LEVEL_WARNING, "peer_refused", "socket=%s uid=%ld pid=%ld since_last=%lu",
             log_quote(listener->address.sun_path, path, sizeof path), (long)peer->uid, (long)peer->pid, listener->untold);
    listener->next_refusal_ns = now_ns + NS_PER_S;
    listener->untold = 0;
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
        tell_refusal(listener, &peer);
    }
    return admitted;
}

// An answer that fits into the socket's buffer leaves in one call; past it gRPC wakes a thread of its own to wait for room. The
// kernel doubles the number. Best effort: without it answers are as right.
static void widen(int fd) {
    int bytes = SEND_BUFFER_BYTES;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

static void on_accepted(void *context, int fd) {
    struct unix_listener *listener = context;
    struct ucred peer;
    INVARIANT(peer_of(fd, &peer)); // it was when it came, and is the same as then
    widen(fd);
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

// Whether a process listens there that knows nothing of our lock: only a refused connection says that nobody does.
static bool is_dead(const struct sockaddr_un *address) {
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
    struct stat there;
    if (lstat(path, &there) != 0) {
        return OK; // what else is wrong with the path, bind says
    }
    if (!S_ISSOCK(there.st_mode)) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "%s exists and is not a socket: remove it, or choose another path", path);
    }
    if (!is_dead(address)) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "another program listens on %s: stop it, or choose another path", path);
    }
    if (unlink(path) != 0 && errno != ENOENT) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot replace the stale socket %s: %s", path, strerror(errno));
    }
    return OK;
}

// On error there is no descriptor.
static FALLIBLE bind_and_listen(struct unix_listener *listener, unsigned mode, int *out) {
    const char *path = listener->address.sun_path;
    int fd = *out = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot make a Unix socket: %s", strerror(errno));
    }
    // bind takes the descriptor's mode less the umask, so the file is never wider than asked; chmod gives back what the umask
    // took, before listen lets the first peer in.
    err_t e = OK;
    struct stat made = {0};
    if (fchmod(fd, mode) != 0 || bind(fd, (struct sockaddr *)&listener->address, sizeof listener->address) != 0) {
        e = err_record(EXPERTD_ERR_UNAVAILABLE, NULL, "cannot bind %s: %s", path, strerror(errno));
        goto out;
    }
    listener->bound = true;
    int looked = lstat(path, &made);
    listener->device = made.st_dev;
    listener->inode = made.st_ino;
    if (looked != 0 || chmod(path, mode) != 0 || listen(fd, BACKLOG) != 0) {
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
    unsigned by_rule = strcmp(options->allow_uids, "self") == 0 ? 0600 : 0666;
    return bind_and_listen(listener, options->mode ? options->mode : by_rule, fd);
}

// Only what is still ours: a path that somebody replaced is theirs.
static void remove_socket(struct unix_listener *listener) {
    struct stat there;
    if (listener->bound && lstat(listener->address.sun_path, &there) == 0 && there.st_dev == listener->device &&
        there.st_ino == listener->inode) {
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
        acceptor_stop(listener->acceptor); // calls nobody back from here
        free_listener(listener);
    }
}

struct acceptor_counts unix_listener_counts(struct unix_listener *listener) {
    return acceptor_counts(listener ? listener->acceptor : NULL);
}
