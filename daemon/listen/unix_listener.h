// Listens on a Unix socket with an acceptor (acceptor.h). The user id of each peer is checked before its connection is handed over.
// Loop thread only.
#ifndef EXPERTD_DAEMON_LISTEN_UNIX_LISTENER_H
#define EXPERTD_DAEMON_LISTEN_UNIX_LISTENER_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "daemon/listen/acceptor.h"

enum { UNIX_PATH_BYTES_MAX = 108 }; // bytes of the path of a Unix socket, including the terminator

// Writes the absolute path of `path` followed by `ending` to `out`. False: the result is too long for a socket.
bool unix_path_absolute(const char *path, const char *ending, char out[UNIX_PATH_BYTES_MAX]);

struct unix_listener;

struct unix_listener_options {
    void *loop;               // uv_loop_t *, untyped so that libuv stays in .c files
    const char *path;         // at most 107 bytes; the lock file is PATH.lock
    const char *allow_uids;   // a checked value of --allow-uids; copied
    unsigned max_connections; // these three as in struct acceptor_options
    unsigned max_silent;
    int64_t silent_ns;
    unsigned mode; // of the socket file; 0: 0600 if allow_uids is "self", otherwise 0666, and only the user id is checked
    // A connected, non-blocking, close-on-exec socket, owned by the callee.
    void (*accepted)(void *context, int fd, uid_t uid);
    void *context;
};

// Binds and listens before it returns. Replaces the socket file of a daemon that has died. EXPERTD_ERR_UNAVAILABLE: another process
// uses the path (the message has the process id of a daemon), the path exists and is no socket, or the folder is not writable.
FALLIBLE unix_listener_start(const struct unix_listener_options *options, struct unix_listener **out);
// The following call the acceptor function of the same name. NULL is legal.
void unix_listener_refuse(struct unix_listener *listener); // also removes the socket file and the lock file
void unix_listener_hang_up(struct unix_listener *listener);
void unix_listener_stop(struct unix_listener *listener); // also removes both files and frees the listener
struct acceptor_counts unix_listener_counts(struct unix_listener *listener);

// Whether a process of user `own` with this `allow_uids` admits a peer of user `peer`. "self" admits the same user and root. Pure.
bool unix_listener_allows(const char *allow_uids, uid_t own, uid_t peer);

#endif
