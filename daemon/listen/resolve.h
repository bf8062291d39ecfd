// Resolves HOST:PORT to socket addresses.
#ifndef EXPERTD_DAEMON_LISTEN_RESOLVE_H
#define EXPERTD_DAEMON_LISTEN_RESOLVE_H

#include <netdb.h>

#include "base/err.h"

// Returns every address of HOST, for listening. A HOST in brackets is an IPv6 address. The caller calls freeaddrinfo.
// EXPERTD_ERR_CONFIG: `address` is not HOST:PORT. EXPERTD_ERR_UNAVAILABLE: the host cannot be resolved.
FALLIBLE resolve_address(const char *address, struct addrinfo **out);

#endif
