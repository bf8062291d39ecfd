// TLS and roles of a server's connections, for rpc.h.
#ifndef EXPERTD_DAEMON_GRPC_SECURITY_RPC_TLS_H
#define EXPERTD_DAEMON_GRPC_SECURITY_RPC_TLS_H

enum { RPC_IDENTITY_MAX = 512, RPC_HANDSHAKE_MS = 10000 };

// Who may call a method. Each method has one role (accept.c).
enum rpc_role {
    RPC_ROLE_ANY, // every client that the handshake admitted: health checks
    RPC_ROLE_CALLER,
    RPC_ROLE_FRONT, // of a remote shard
    RPC_ROLE_ADMIN,
    RPC_ROLE_COUNT
};

struct tls_store;

// How rpc_adopt_tls treats its connections.
struct rpc_tls {
    // Certificate and key of this server. With a client CA, a client without a certificate of that CA fails its handshake. Borrowed
    // until rpc_destroy. NULL: rpc_adopt_tls is not used.
    struct tls_store *store;
    // Patterns of tls_identity.h, borrowed until rpc_destroy: a client none of whose names matches is refused with
    // PERMISSION_DENIED. NULL: the role is open to every client with a certificate of the client CA. Connections of rpc_adopt are
    // not checked.
    const char *allowed[RPC_ROLE_COUNT];
};

#endif
