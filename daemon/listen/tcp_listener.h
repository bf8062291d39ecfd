// Listens on a TCP port, on every address of a host, with an acceptor (acceptor.h) for each address. A connection is handed over
// once 24 bytes have arrived: the HTTP/2 preface, or the beginning of a TLS handshake. Loop thread only.
#ifndef EXPERTD_DAEMON_LISTEN_TCP_LISTENER_H
#define EXPERTD_DAEMON_LISTEN_TCP_LISTENER_H

#include "base/err.h"
#include "daemon/listen/acceptor.h"

struct tcp_listener;

struct tcp_listener_options {
    void *loop;               // uv_loop_t *, untyped so that libuv stays in .c files
    const char *address;      // HOST:PORT or [HOST]:PORT; port 0: any free port
    unsigned max_connections; // over all addresses of the host
    // A connected, non-blocking, close-on-exec socket, owned by the callee; peer: "ipv4:127.0.0.1:40214", "ipv6:[::1]:40214".
    void (*accepted)(void *context, int fd, const char *peer);
    // For connections with a handshake: as in struct acceptor_options. 0 and NULL: none.
    int64_t unproven_ns;
    bool (*is_proven)(void *context, int fd);
    void *context;
};

// Binds and listens before it returns. *port: the bound port. EXPERTD_ERR_CONFIG: the address is not HOST:PORT.
// EXPERTD_ERR_UNAVAILABLE: the host cannot be resolved, or the address cannot be bound.
FALLIBLE tcp_listener_start(const struct tcp_listener_options *options, struct tcp_listener **out, unsigned *port);
// The following call the acceptor function of the same name for each address. NULL is legal.
void tcp_listener_refuse(struct tcp_listener *listener);
void tcp_listener_hang_up(struct tcp_listener *listener);
void tcp_listener_stop(struct tcp_listener *listener); // also frees the listener
struct acceptor_counts tcp_listener_counts(struct tcp_listener *listener);

#endif
