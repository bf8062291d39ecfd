#include "daemon/listen/tcp_sockets.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/listen/resolve.h"

enum { BACKLOG = 1024 };

static void set_port(struct sockaddr *address, unsigned port) {
    if (address->sa_family == AF_INET6) {
        ((struct sockaddr_in6 *)(void *)address)->sin6_port = htons((uint16_t)port);
    } else {
        ((struct sockaddr_in *)(void *)address)->sin_port = htons((uint16_t)port);
    }
}

_Static_assert(offsetof(struct sockaddr_in6, sin6_port) == offsetof(struct sockaddr_in, sin_port), "");

static unsigned port_of(int fd) {
    struct sockaddr_in6 bound = {0};
    socklen_t length = sizeof bound;
    INVARIANT(getsockname(fd, (struct sockaddr *)&bound, &length) == 0);
    return ntohs(bound.sin6_port); // sin_port has the same offset
}

// Returns -1 and sets errno on error.
static int listen_on(const struct addrinfo *at) {
    int on = 1, fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0) {
        return -1;
    }
    // SO_REUSEADDR permits a port with connections in TIME_WAIT, but not a port on which another socket listens.
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 && bind(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        listen(fd, BACKLOG) == 0) {
        return fd;
    }
    int cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

static FALLIBLE refused(const char *address, int cause) {
    FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot listen on %s: %s", address,
         cause == EADDRINUSE ? "another program listens there (is a daemon running already?): stop it or choose another port"
                             : strerror(cause));
}

// A host name may have addresses of a family that this machine does not support.
static bool is_unavailable_here(int cause) {
    return cause == EADDRNOTAVAIL || cause == EAFNOSUPPORT;
}

// With port 0, the port of the first socket is used for all.
static FALLIBLE bind_all(const struct addrinfo *found, const char *address, int fds[TCP_SOCKETS_MAX], size_t *count,
                         unsigned *port) {
    int cause = 0;
    for (const struct addrinfo *at = found; at && *count < TCP_SOCKETS_MAX; at = at->ai_next) {
        if (*count > 0) {
            set_port(at->ai_addr, *port);
        }
        int fd = listen_on(at);
        if (fd >= 0) {
            *port = *count == 0 ? port_of(fd) : *port;
            fds[(*count)++] = fd;
        } else if (is_unavailable_here(errno)) {
            cause = errno;
        } else {
            return refused(address, errno);
        }
    }
    return *count > 0 ? OK : refused(address, cause);
}

FALLIBLE tcp_sockets_open(const char *address, int fds[TCP_SOCKETS_MAX], size_t *count, unsigned *port) {
    struct addrinfo *found;
    *count = 0;
    TRY(resolve_address(address, &found));
    err_t e = bind_all(found, address, fds, count, port);
    freeaddrinfo(found);
    while (err_is(e) && *count > 0) {
        close(fds[--*count]);
    }
    return e;
}
