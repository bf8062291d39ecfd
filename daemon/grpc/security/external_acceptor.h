// Passes accepted sockets to gRPC's TLS handshake.
//
// gRPC 1.51 has no C function for this: grpc_server_add_channel_from_fd takes insecure credentials only. Its C++ library does it
// with an "external" listener, which is created with the C functions, and one virtual call per socket. external_acceptor.cc makes
// that call, and is the only C++ file of the daemon. README.md gives the reasons for this way.
#ifndef EXPERTD_DAEMON_GRPC_SECURITY_EXTERNAL_ACCEPTOR_H
#define EXPERTD_DAEMON_GRPC_SECURITY_EXTERNAL_ACCEPTOR_H

#include <grpc/grpc.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// The argument with which grpc_server_create is told where to store its handler: `handler` is written by external_acceptor_listen.
grpc_arg external_acceptor_arg(void **handler);
// Adds the external listener to a server that was created with that argument, before grpc_server_start. False: gRPC refused,
// because of the credentials. The server owns the handler; it ends when the server's shutdown begins.
bool external_acceptor_listen(grpc_server *server, grpc_server_credentials *credentials, void *const *handler);
// Gives gRPC a connected, non-blocking TCP socket, which gRPC owns from here. After grpc_server_start, and not after the server's
// shutdown began. One thread at a time for a server: gRPC's replacement of certificates (its certificate config fetcher) is not
// synchronised with other handshakes that begin.
void external_acceptor_handle(void *handler, int fd);

#ifdef __cplusplus
}
#endif

#endif
