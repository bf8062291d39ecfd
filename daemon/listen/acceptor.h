// A listening socket on the libuv loop: accepts, keeps the open connections within a bound, and hands each on. It reads nothing.
// Loop thread only.
//
// A connection is handed on once its peer has begun to speak, as whoever asks for something does at once. Silent ones are closed
// after ACCEPTOR_SILENT_NS, and the oldest of them as soon as a newcomer has no room; where all that are open have spoken it is the
// newcomer that is closed. Out of descriptors the same happens, with one that is kept for it: nobody waits in the backlog for
// what may take for ever, and accepting goes on by itself.
#ifndef EXPERTD_DAEMON_LISTEN_ACCEPTOR_H
#define EXPERTD_DAEMON_LISTEN_ACCEPTOR_H

#include <stdbool.h>

#include "base/clock.h"
#include "base/err.h"

#define ACCEPTOR_SILENT_NS (INT64_C(10) * NS_PER_S)

struct acceptor;

struct acceptor_options {
    void *loop;                              // uv_loop_t *, untyped so that libuv stays in .c files
    const char *name;                        // of the address, for the log; copied
    unsigned max_connections;                // open at once, silent ones too; 0: no bound
    unsigned max_silent;                     // of them, silent ones; 0: no bound of their own
    int64_t silent_ns;                       // how long they may say nothing; 0: ACCEPTOR_SILENT_NS
    bool (*admits)(void *context, int fd);   // NULL: everybody. Where it says no, and why, the connection is closed
    void (*accepted)(void *context, int fd); // a connected, non-blocking, close-on-exec socket, owned by the callee
    void *context;
};

// fd listens, does not block, and is owned by the acceptor from here, also on error.
FALLIBLE acceptor_start(const struct acceptor_options *options, int fd, struct acceptor **out);
// Closes the socket and silent connections at once: nobody comes any more. Connections handed on stay, and are counted on. NULL is
// legal, and so are a second call and one from `accepted`.
void acceptor_refuse(struct acceptor *acceptor);
// Says the end to the peers of all connections that were handed on: what was sent before still comes, nothing after it. Their owner
// reads on. NULL is legal.
void acceptor_hang_up(struct acceptor *acceptor);
// The same as acceptor_refuse, and its memory goes, on the loop afterwards. NULL is legal, and so is a call from `accepted`.
void acceptor_stop(struct acceptor *acceptor);

struct acceptor_counts {
    unsigned open;             // connections, silent ones too
    unsigned long turned_away; // closed so far for want of room or descriptors
};
struct acceptor_counts acceptor_counts(struct acceptor *acceptor); // NULL is legal: none

#endif
