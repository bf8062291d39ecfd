// gRPC's credentials from the current TLS files.
#ifndef EXPERTD_DAEMON_GRPC_SECURITY_CREDENTIALS_H
#define EXPERTD_DAEMON_GRPC_SECURITY_CREDENTIALS_H

#include <grpc/grpc_security.h>

#include "daemon/tls/tls_store.h"

// What gRPC's certificate config fetcher needs; lives as long as the server.
struct server_certificates {
    struct tls_store *store;
    uint64_t generation; // given to gRPC last; guarded by gRPC's lock around the fetcher
};

// Server credentials that look for a newer snapshot of certificates->store before each handshake. The caller releases them.
// NULL: gRPC did not take the files.
grpc_server_credentials *credentials_of_server(struct server_certificates *certificates);

// Channel credentials with these texts. The server's certificate must be of texts->ca and have a name that `patterns`
// (tls_identity.h) match; NULL: the host of the channel's target. The caller releases them. NULL: no memory.
grpc_channel_credentials *credentials_of_channel(const struct tls_texts *texts, const char *patterns);

#endif
