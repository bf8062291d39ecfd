// A TCP port on the libuv loop, on every address of its host. It accepts, within a bound (acceptor.h), and hands descriptors on
// once the 24 bytes that begin an HTTP/2 connection have come; it reads nothing. Loop thread only.
#ifndef EXPERTD_DAEMON_LISTEN_TCP_LISTENER_H
#define EXPERTD_DAEMON_LISTEN_TCP_LISTENER_H

#include "base/err.h"
#include "daemon/listen/acceptor.h"

struct tcp_listener;

struct tcp_listener_options {
    void *loop;               // uv_loop_t *, untyped so that libuv stays in .c files
    const char *address;      // HOST:PORT, [HOST]:PORT; port 0: any
    unsigned max_connections; // open at once, of all its addresses together; more are closed as they come
    // A connected, non-blocking, close-on-exec socket, owned by the callee; peer: "ipv4:127.0.0.1:40214", "ipv6:[::1]:40214".
    void (*accepted)(void *context, int fd, const char *peer);
    void *context;
};

// Binds and listens before it returns; *port is the bound one. EXPERTD_ERR_CONFIG: no HOST:PORT. EXPERTD_ERR_UNAVAILABLE: the host
// is not to be found, or the address is not to be had, with what holds it.
FALLIBLE tcp_listener_start(const struct tcp_listener_options *options, struct tcp_listener **out, unsigned *port);
// Closes the sockets at once. Connections handed on stay, and are counted on. NULL is legal, and so is a second call.
void tcp_listener_refuse(struct tcp_listener *listener);
void tcp_listener_hang_up(struct tcp_listener *listener); // acceptor_hang_up; NULL is legal
// The same as tcp_listener_refuse, and its memory goes, on the loop afterwards. NULL is legal.
void tcp_listener_stop(struct tcp_listener *listener);
struct acceptor_counts tcp_listener_counts(struct tcp_listener *listener); // NULL is legal: none

#endif
