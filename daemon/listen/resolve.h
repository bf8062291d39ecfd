// HOST:PORT to socket addresses.
#ifndef EXPERTD_DAEMON_LISTEN_RESOLVE_H
#define EXPERTD_DAEMON_LISTEN_RESOLVE_H

#include <netdb.h>

#include "base/err.h"

// Every address of HOST, to listen on; a host in brackets is IPv6. The owner calls freeaddrinfo. EXPERTD_ERR_CONFIG: no HOST:PORT;
// EXPERTD_ERR_UNAVAILABLE: the host is not to be found.
FALLIBLE resolve_address(const char *address, struct addrinfo **out);

#endif
