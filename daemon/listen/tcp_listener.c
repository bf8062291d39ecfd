#include "daemon/listen/tcp_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/listen/tcp_sockets.h"

enum {
    PREFACE_BYTES = 24,
    USER_TIMEOUT_MS = 15000, // the kernel closes a connection with unacknowledged data after this time
    PEER_MAX = INET6_ADDRSTRLEN + 16
};

struct tcp_listener {
    struct tcp_listener_options options;
    struct acceptor *acceptors[TCP_SOCKETS_MAX];
    size_t count;
};

// ---- peers

union socket_address {
    struct sockaddr_in6 v6; // the largest
    struct sockaddr_in v4;
    struct sockaddr any;
};

static bool address_of_peer(int fd, union socket_address *out) {
    socklen_t length = sizeof *out;
    *out = (union socket_address){0};
    return getpeername(fd, &out->any, &length) == 0; // false: the peer has already disconnected
}

static bool peer_of(int fd, char out[PEER_MAX]) {
    union socket_address peer;
    char host[INET6_ADDRSTRLEN];
    if (!address_of_peer(fd, &peer)) {
        return false;
    }
    bool is_v6 = peer.any.sa_family == AF_INET6, mapped = is_v6 && IN6_IS_ADDR_V4MAPPED(&peer.v6.sin6_addr);
    if (is_v6 && !mapped) {
        inet_ntop(AF_INET6, &peer.v6.sin6_addr, host, sizeof host);
        snprintf(out, PEER_MAX, "ipv6:[%s]:%u", host, ntohs(peer.v6.sin6_port));
        return true;
    }
    const void *v4 = mapped ? (const void *)&peer.v6.sin6_addr.s6_addr[12] : &peer.v4.sin_addr;
    inet_ntop(AF_INET, v4, host, sizeof host);
    snprintf(out, PEER_MAX, "ipv4:%s:%u", host, ntohs(mapped ? peer.v6.sin6_port : peer.v4.sin_port));
    return true;
}

// Equal for connections of one IPv4 address, and of one /64 of IPv6, which is what one host or household gets.
static unsigned source_of(void *context, int fd) {
    (void)context;
    union socket_address peer;
    if (!address_of_peer(fd, &peer)) {
        return 0;
    }
    bool is_v6 = peer.any.sa_family == AF_INET6, mapped = is_v6 && IN6_IS_ADDR_V4MAPPED(&peer.v6.sin6_addr);
    uint32_t words[2] = {0};
    if (is_v6) {
        memcpy(words, peer.v6.sin6_addr.s6_addr + (mapped ? 8 : 0), sizeof words);
    } else {
        memcpy(words, &peer.v4.sin_addr, sizeof words[0]);
    }
    uint32_t hash = words[0] ^ words[1] * 0x9e3779b1u; // then MurmurHash3's finaliser: every bit reaches the lowest ones
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    return hash ^ hash >> 16;
}

static bool is_proven(void *context, int fd) {
    struct tcp_listener *listener = context;
    return listener->options.is_proven(listener->options.context, fd);
}

// The socket becomes readable only with the 24 bytes of the HTTP/2 preface, or as many of a TLS record, so a peer that sent fewer
// counts as silent.
static bool admits(void *context, int fd) {
    int bytes = PREFACE_BYTES;
    (void)context;
    return setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) == 0;
}

static bool prepare(int fd) {
    unsigned timeout_ms = USER_TIMEOUT_MS;
    int on = 1, bytes = 1;
    return setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) == 0 &&
           setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0 &&
           setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms) == 0;
}

static void on_accepted(void *context, int fd) {
    struct tcp_listener *listener = context;
    char peer[PEER_MAX];
    if (!peer_of(fd, peer) || !prepare(fd)) {
        close(fd);
        return;
    }
    listener->options.accepted(listener->options.context, fd, peer);
}

// ---- listening

// Owns the descriptors, also on error.
static FALLIBLE watch_all(struct tcp_listener *listener, const int *fds, size_t count) {
    const struct tcp_listener_options *options = &listener->options;
    unsigned each = options->max_connections / (unsigned)count;
    struct acceptor_options accept = {.loop = options->loop,
                                      .name = options->address,
                                      .max_connections = each > 0 ? each : 1,
                                      .admits = admits,
                                      .accepted = on_accepted,
                                      .unproven_ns = options->unproven_ns,
                                      .is_proven = options->is_proven ? is_proven : NULL,
                                      .source = options->unproven_ns ? source_of : NULL,
                                      .context = listener};
    err_t e = OK;
    for (size_t i = 0; i < count; i++) {
        if (err_is(e)) {
            close(fds[i]);
            continue;
        }
        e = acceptor_start(&accept, fds[i], &listener->acceptors[i]);
        listener->count += !err_is(e);
    }
    return e;
}

static FALLIBLE open_sockets(struct tcp_listener *listener, unsigned *port) {
    int fds[TCP_SOCKETS_MAX];
    size_t count;
    TRY(tcp_sockets_open(listener->options.address, fds, &count, port));
    return watch_all(listener, fds, count);
}

FALLIBLE tcp_listener_start(const struct tcp_listener_options *options, struct tcp_listener **out, unsigned *port) {
    *out = NULL;
    struct tcp_listener *listener = calloc(1, sizeof *listener);
    if (!listener) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a listener");
    }
    listener->options = *options;
    err_t e = open_sockets(listener, port);
    if (err_is(e)) {
        tcp_listener_stop(listener);
        return e;
    }
    *out = listener;
    return OK;
}

void tcp_listener_refuse(struct tcp_listener *listener) {
    for (size_t i = 0; listener && i < listener->count; i++) {
        acceptor_refuse(listener->acceptors[i]);
    }
}

void tcp_listener_hang_up(struct tcp_listener *listener) {
    for (size_t i = 0; listener && i < listener->count; i++) {
        acceptor_hang_up(listener->acceptors[i]);
    }
}

void tcp_listener_stop(struct tcp_listener *listener) {
    for (size_t i = 0; listener && i < listener->count; i++) {
        acceptor_stop(listener->acceptors[i]);
    }
    free(listener); // stopped acceptors make no callbacks
}

struct acceptor_counts tcp_listener_counts(struct tcp_listener *listener) {
    struct acceptor_counts sum = {0};
    for (size_t i = 0; listener && i < listener->count; i++) {
        struct acceptor_counts one = acceptor_counts(listener->acceptors[i]);
        sum.open += one.open;
        sum.turned_away += one.turned_away;
    }
    return sum;
}
