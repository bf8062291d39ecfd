// Opens the listening sockets of a TCP port, one for each address of a host.
#ifndef EXPERTD_DAEMON_LISTEN_TCP_SOCKETS_H
#define EXPERTD_DAEMON_LISTEN_TCP_SOCKETS_H

#include <stddef.h>

#include "base/err.h"

enum { TCP_SOCKETS_MAX = 8 };

// Binds and listens on those addresses of "HOST:PORT" or "[HOST]:PORT" that this machine has; a host name often has an IPv4 and an
// IPv6 address. The caller owns the descriptors, which are close-on-exec and non-blocking. *port: the bound port, the same on all
// addresses also for port 0. EXPERTD_ERR_CONFIG: the address is not HOST:PORT. EXPERTD_ERR_UNAVAILABLE: the host cannot be
// resolved, or the address cannot be bound. On error no descriptor is open.
FALLIBLE tcp_sockets_open(const char *address, int fds[TCP_SOCKETS_MAX], size_t *count, unsigned *port);

#endif
