// A Unix socket on the libuv loop whose peers are checked by user id before anybody else sees them. It accepts, within a bound
// (acceptor.h), and hands descriptors on; it reads nothing. Loop thread only.
#ifndef EXPERTD_DAEMON_LISTEN_UNIX_LISTENER_H
#define EXPERTD_DAEMON_LISTEN_UNIX_LISTENER_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "daemon/listen/acceptor.h"

enum { UNIX_PATH_BYTES_MAX = 108 }; // a Unix socket's path with its end

// `path` and `ending`, made absolute for clients in other folders. False: too long for a socket.
bool unix_path_whole(const char *path, const char *ending, char out[UNIX_PATH_BYTES_MAX]);

struct unix_listener;

struct unix_listener_options {
    void *loop;               // uv_loop_t *, untyped so that libuv stays in .c files
    const char *path;         // at most 107 bytes; PATH.lock beside it tells live from stale
    const char *allow_uids;   // as struct options has it, checked there; copied
    unsigned max_connections; // open at once, more are closed as they come; 0: no bound
    unsigned max_silent;      // of them, such as have not spoken; 0: no bound of their own
    int64_t silent_ns;        // how long they may say nothing; 0: ACCEPTOR_SILENT_NS
    unsigned mode;            // of the socket file; 0: 0600 for "self", 0666 for others, whom only their user id lets in
    // A connected, non-blocking, close-on-exec socket, owned by the callee.
    void (*accepted)(void *context, int fd, uid_t uid);
    void *context;
};

// Binds and listens before it returns. EXPERTD_ERR_UNAVAILABLE: a live daemon holds the path (its process id is named), something
// that is no socket lies there, or the folder does not let us. The socket file of a daemon that died is replaced.
FALLIBLE unix_listener_start(const struct unix_listener_options *options, struct unix_listener **out);
// Closes the socket and removes its files at once. Connections handed on stay, and are counted on. NULL is legal, and so is a
// second call.
void unix_listener_refuse(struct unix_listener *listener);
void unix_listener_hang_up(struct unix_listener *listener); // acceptor_hang_up; NULL is legal
// The same as unix_listener_refuse, and its memory goes, its acceptor's on the loop afterwards. NULL is legal.
void unix_listener_stop(struct unix_listener *listener);
struct acceptor_counts unix_listener_counts(struct unix_listener *listener); // NULL is legal: none

// Whether a process of user `own` that was told `allow_uids` lets `peer` in: pure. "self" is the same user, or root.
bool unix_listener_allows(const char *allow_uids, uid_t own, uid_t peer);

#endif
