// The sockets of a TCP port, one on each address of its host.
#ifndef EXPERTD_DAEMON_LISTEN_TCP_SOCKETS_H
#define EXPERTD_DAEMON_LISTEN_TCP_SOCKETS_H

#include <stddef.h>

#include "base/err.h"

enum { TCP_SOCKETS_MAX = 8 };

// Binds and listens on all addresses of "HOST:PORT" or "[HOST]:PORT" that this machine has, of a name often an IPv4 and an IPv6
// one. The descriptors, close-on-exec and non-blocking, are the caller's; *port is the bound one, with port 0 the same on all.
// EXPERTD_ERR_CONFIG: no HOST:PORT. EXPERTD_ERR_UNAVAILABLE: the host is not to be found, or the address is not to be had, with
// what holds it; nothing is open then.
FALLIBLE tcp_sockets_open(const char *address, int fds[TCP_SOCKETS_MAX], size_t *count, unsigned *port);

#endif
