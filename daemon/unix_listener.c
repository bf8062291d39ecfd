#include "daemon/unix_listener.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#include "base/clock.h"
#include "daemon/lockfile.h"
#include "daemon/log.h"

enum {
    BACKLOG = 128,
    ACCEPTS_A_TURN = 64, // then the loop's other handles get theirs
    LOOK_MS = 20,        // between two looks at who is still connected
    PAUSE_MS = 100,      // after running out of descriptors or memory
    HANDLES = 2,
    SEND_BUFFER_BYTES = 256 << 10,
    LOG_TEXT_MAX = 256
};

// Says a repeated complaint once a second, with how many it stands for.
struct complaint {
    int64_t next_ns;
    unsigned long held_back;
};

// A connection that was handed on. Its new owner closes it without a word; then the number is free, or another file's.
struct handed_on {
    int fd;
    dev_t device;
    ino_t inode;
};

struct unix_listener {
    uv_poll_t poll;
    uv_timer_t pause;
    unsigned closing; // handles not closed yet
    int fd;
    struct sockaddr_un address;
    char *allow_uids;
    bool bound;
    dev_t device; // of the socket file that we made
    ino_t inode;
    struct lockfile lock;
    void (*accepted)(void *context, int fd, uid_t uid);
    void *context;
    struct complaint refusals, shortages, crowds;
    struct handed_on *connections; // [max_connections], those that were open when last looked at
    unsigned max_connections, connection_count;
    int64_t look_again_ns;
    unsigned long turned_away;
};

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

// True where the complaint is due; *held_back are those since the last.
static bool is_due(struct complaint *complaint, unsigned long *held_back) {
    int64_t now_ns = clock_now_ns();
    if (now_ns < complaint->next_ns) {
        complaint->held_back++;
        return false;
    }
    *held_back = complaint->held_back;
    *complaint = (struct complaint){.next_ns = now_ns + NS_PER_S};
    return true;
}

static void refuse_peer(struct unix_listener *listener, int fd, const struct ucred *peer) {
    unsigned long held_back;
    char path[LOG_TEXT_MAX];
    if (is_due(&listener->refusals, &held_back)) {
        log_line(LOG_LEVEL_WARNING, "peer_refused", "socket=%s uid=%ld pid=%ld since_last=%lu",
                 log_quote(listener->address.sun_path, path, sizeof path), (long)peer->uid, (long)peer->pid, held_back);
    }
    close(fd);
}

// An answer that fits into the socket's buffer leaves in one call; past it gRPC wakes a thread of its own to wait for room. The
// kernel doubles the number. Best effort: without it answers are as right.
static void widen(int fd) {
    int bytes = SEND_BUFFER_BYTES;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

static bool is_open(const struct handed_on *connection) {
    struct stat there;
    return fstat(connection->fd, &there) == 0 && there.st_dev == connection->device && there.st_ino == connection->inode;
}

// A flood makes one look at all of them in LOOK_MS, no more.
static bool has_room(struct unix_listener *listener) {
    int64_t now_ns = clock_now_ns();
    if (listener->connection_count < listener->max_connections) {
        return true;
    }
    if (now_ns < listener->look_again_ns) {
        return false;
    }
    listener->look_again_ns = now_ns + LOOK_MS * (int64_t)NS_PER_MS;
    unsigned open = 0;
    for (unsigned i = 0; i < listener->connection_count; i++) {
        if (is_open(&listener->connections[i])) {
            listener->connections[open++] = listener->connections[i];
        }
    }
    listener->connection_count = open;
    return open < listener->max_connections;
}

static void turn_away(struct unix_listener *listener, int fd) {
    unsigned long held_back;
    char path[LOG_TEXT_MAX];
    listener->turned_away++;
    if (is_due(&listener->crowds, &held_back)) {
        log_line(LOG_LEVEL_WARNING, "connections_full", "socket=%s max_connections=%u since_last=%lu",
                 log_quote(listener->address.sun_path, path, sizeof path), listener->max_connections, held_back);
    }
    close(fd);
}

static void hand_on(struct unix_listener *listener, int fd, uid_t uid) {
    struct stat there;
    if (listener->max_connections > 0) {
        if (!has_room(listener) || fstat(fd, &there) != 0) {
            turn_away(listener, fd);
            return;
        }
        listener->connections[listener->connection_count++] = (struct handed_on){fd, there.st_dev, there.st_ino};
    }
    listener->accepted(listener->context, fd, uid);
}

unsigned long unix_listener_turned_away(const struct unix_listener *listener) {
    return listener ? listener->turned_away : 0;
}

static void take_peer(struct unix_listener *listener, int fd) {
    struct ucred peer = {.uid = (uid_t)-1, .pid = -1};
    socklen_t length = sizeof peer;
    bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && length == sizeof peer;
    if (known && unix_listener_allows(listener->allow_uids, geteuid(), peer.uid)) {
        hand_on(listener, fd, peer.uid);
    } else {
        refuse_peer(listener, fd, &peer);
    }
}

static void on_readable(uv_poll_t *poll, int status, int events);

static void on_pause_over(uv_timer_t *timer) {
    struct unix_listener *listener = timer->data;
    uv_poll_start(&listener->poll, UV_READABLE, on_readable);
}

// Out of descriptors the connection stays in the backlog, and the poll would say so without end: look away for a while.
static void pause_accepting(struct unix_listener *listener, int cause) {
    unsigned long held_back;
    char path[LOG_TEXT_MAX], text[LOG_TEXT_MAX];
    if (is_due(&listener->shortages, &held_back)) {
        log_line(LOG_LEVEL_ERROR, "accept_failed", "socket=%s cause=%s since_last=%lu",
                 log_quote(listener->address.sun_path, path, sizeof path), log_quote(strerror(cause), text, sizeof text),
                 held_back);
    }
    uv_poll_stop(&listener->poll);
    uv_timer_start(&listener->pause, on_pause_over, PAUSE_MS, 0);
}

static bool is_of_the_peer(int cause) {
    return cause == EINTR || cause == ECONNABORTED || cause == EPROTO;
}

static void on_readable(uv_poll_t *poll, int status, int events) {
    struct unix_listener *listener = poll->data;
    (void)events;
    if (status < 0) {
        pause_accepting(listener, -status);
        return;
    }
    // `accepted` may stop the listener: its descriptor is -1 then.
    for (int i = 0; i < ACCEPTS_A_TURN && listener->fd >= 0; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            widen(fd);
            take_peer(listener, fd);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (!is_of_the_peer(errno)) {
            pause_accepting(listener, errno);
            return;
        }
    }
}

// ---- start

static FALLIBLE set_address(struct unix_listener *listener, const char *path) {
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof listener->address.sun_path) {
        FAIL(ERR_UNAVAILABLE, "the path of a Unix socket has 1 to %zu bytes, not %zu: %s", sizeof listener->address.sun_path - 1,
             length, path);
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
        FAIL(ERR_UNAVAILABLE, "%s exists and is not a socket: remove it, or choose another path", path);
    }
    if (!is_dead(address)) {
        FAIL(ERR_UNAVAILABLE, "another program listens on %s: stop it, or choose another path", path);
    }
    if (unlink(path) != 0 && errno != ENOENT) {
        FAIL(ERR_UNAVAILABLE, "cannot replace the stale socket %s: %s", path, strerror(errno));
    }
    return OK;
}

static FALLIBLE bind_and_listen(struct unix_listener *listener, unsigned mode) {
    const char *path = listener->address.sun_path;
    listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener->fd < 0) {
        FAIL(ERR_UNAVAILABLE, "cannot make a Unix socket: %s", strerror(errno));
    }
    // bind takes the descriptor's mode less the umask, so the file is never wider than asked; chmod gives back what the umask
    // took, before listen lets the first peer in.
    if (fchmod(listener->fd, mode) != 0 ||
        bind(listener->fd, (struct sockaddr *)&listener->address, sizeof listener->address) != 0) {
        FAIL(ERR_UNAVAILABLE, "cannot bind %s: %s", path, strerror(errno));
    }
    listener->bound = true;
    struct stat made = {0};
    int looked = lstat(path, &made);
    listener->device = made.st_dev;
    listener->inode = made.st_ino;
    if (looked != 0 || chmod(path, mode) != 0 || listen(listener->fd, BACKLOG) != 0) {
        FAIL(ERR_UNAVAILABLE, "cannot listen on %s: %s", path, strerror(errno));
    }
    return OK;
}

static FALLIBLE open_socket(struct unix_listener *listener, const struct unix_listener_options *options) {
    TRY(set_address(listener, options->path));
    char lock_path[sizeof listener->address.sun_path + sizeof ".lock"];
    snprintf(lock_path, sizeof lock_path, "%s.lock", options->path);
    TRY_IN(lockfile_take(lock_path, &listener->lock), "cannot listen on %s", options->path);
    TRY(clear_path(&listener->address));
    unsigned by_rule = strcmp(options->allow_uids, "self") == 0 ? 0600 : 0666;
    return bind_and_listen(listener, options->mode ? options->mode : by_rule);
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

static void close_files(struct unix_listener *listener) {
    if (listener->fd >= 0) {
        close(listener->fd);
        listener->fd = -1;
    }
    remove_socket(listener);
    lockfile_release(&listener->lock);
}

static void free_listener(struct unix_listener *listener) {
    free(listener->connections);
    free(listener->allow_uids);
    free(listener);
}

static void on_closed(uv_handle_t *handle) {
    struct unix_listener *listener = handle->data;
    if (--listener->closing == 0) {
        free_listener(listener);
    }
}

static FALLIBLE start_polling(struct unix_listener *listener, uv_loop_t *loop) {
    int result = uv_poll_init(loop, &listener->poll, listener->fd);
    if (result != 0) {
        FAIL(ERR_UNAVAILABLE, "cannot watch %s: %s", listener->address.sun_path, uv_strerror(result));
    }
    uv_timer_init(loop, &listener->pause);
    listener->poll.data = listener->pause.data = listener;
    uv_poll_start(&listener->poll, UV_READABLE, on_readable);
    return OK;
}

FALLIBLE unix_listener_start(const struct unix_listener_options *options, struct unix_listener **out) {
    *out = NULL;
    struct unix_listener *listener = calloc(1, sizeof *listener);
    if (!listener) {
        FAIL(ERR_NOMEM, "no memory for a listener");
    }
    listener->fd = -1;
    listener->accepted = options->accepted;
    listener->context = options->context;
    err_t e = OK;
    listener->allow_uids = strdup(options->allow_uids);
    listener->max_connections = options->max_connections;
    listener->connections = calloc((size_t)options->max_connections + 1, sizeof *listener->connections);
    if (!listener->allow_uids || !listener->connections) {
        e = err_record(ERR_NOMEM, NULL, "no memory for a listener");
        goto out;
    }
    TRY_OUT(e, open_socket(listener, options));
    TRY_OUT(e, start_polling(listener, options->loop));
    *out = listener;
    return OK;
out:
    close_files(listener);
    free_listener(listener);
    return e;
}

void unix_listener_stop(struct unix_listener *listener) {
    if (!listener || listener->closing) {
        return;
    }
    listener->closing = HANDLES;
    uv_poll_stop(&listener->poll); // before its descriptor goes
    close_files(listener);
    uv_close((uv_handle_t *)&listener->poll, on_closed);
    uv_close((uv_handle_t *)&listener->pause, on_closed);
}
