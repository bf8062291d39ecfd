// A listening socket on the libuv loop. It accepts connections, limits their number and hands each one over to its owner. It reads
// no data. Loop thread only.
//
// A connection is silent until its peer has sent data; then it is handed over. A silent connection is closed after silent_ns. At
// the connection limit, a new connection replaces the oldest silent one; if no connection is silent, an unproven one; otherwise the
// new one is closed. Unproven is, on listeners with unproven_ns, a connection that was handed over less than unproven_ns ago and of
// which its owner has had no call: it may be a handshake that its peer never ends. Among these, the oldest of the source with the
// most is replaced, so that one host cannot displace the others. The same happens when the process has no descriptor left (of
// silent connections only): a spare descriptor is reserved for accepting and closing the new connection. So no connection waits in
// the backlog without limit, and accepting resumes by itself.
#ifndef EXPERTD_DAEMON_LISTEN_ACCEPTOR_H
#define EXPERTD_DAEMON_LISTEN_ACCEPTOR_H

#include <stdbool.h>

#include "base/clock.h"
#include "base/err.h"

#define ACCEPTOR_SILENT_NS (INT64_C(10) * NS_PER_S)

struct acceptor;

struct acceptor_options {
    void *loop;                              // uv_loop_t *, untyped so that libuv stays in .c files
    const char *name;                        // the address, for the log; copied
    unsigned max_connections;                // open connections, including silent ones; 0: no limit
    unsigned max_silent;                     // silent connections; 0: no separate limit
    int64_t silent_ns;                       // time limit of a silent connection; 0: ACCEPTOR_SILENT_NS
    bool (*admits)(void *context, int fd);   // false: the connection is closed; the callee logs why. NULL: admits all
    void (*accepted)(void *context, int fd); // a connected, non-blocking, close-on-exec socket, owned by the callee
    // The following are NULL and 0 on listeners without unproven connections.
    int64_t unproven_ns;
    bool (*is_proven)(void *context, int fd);  // whether the owner has had a call on this connection
    unsigned (*source)(void *context, int fd); // a hash of the peer's host
    void *context;
};

// The most unproven connections that were replaced and that their owner has not closed yet; further ones are not replaced. They
// have descriptors beside those of max_connections.
unsigned acceptor_closing_max(unsigned max_connections);

// `fd` is a listening, non-blocking socket. The acceptor owns it from this call, also on error.
FALLIBLE acceptor_start(const struct acceptor_options *options, int fd, struct acceptor **out);
// Closes the listening socket and all silent connections. Connections that were handed over stay open and are still counted. NULL
// is legal, and so are a second call and a call from `accepted`.
void acceptor_refuse(struct acceptor *acceptor);
// Shuts down the sending side of all connections that were handed over. Data sent before still arrives, and their owner can still
// read. NULL is legal.
void acceptor_hang_up(struct acceptor *acceptor);
// Like acceptor_refuse; then the loop frees the acceptor. NULL is legal, and so is a call from `accepted`.
void acceptor_stop(struct acceptor *acceptor);

struct acceptor_counts {
    unsigned open;             // connections, including silent ones
    unsigned long turned_away; // connections closed so far because a limit was reached or no descriptor was free
};
struct acceptor_counts acceptor_counts(struct acceptor *acceptor); // NULL is legal: none

#endif
