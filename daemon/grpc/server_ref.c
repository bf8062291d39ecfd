#include "daemon/grpc/server_ref.h"

void server_ref(struct rpc_server *server) {
    atomic_fetch_add(&server->references, 1);
}

// The last reference ends the server, not gRPC's shutdown tag: the tag can arrive before a late call frees its body and reports its
// release.
void server_unref(struct rpc_server *server) {
    if (atomic_fetch_sub(&server->references, 1) != 1) {
        return;
    }
    if (server->done) {
        server->done(server->done_context);
    }
    sem_post(&server->shut_down); // after `done`, which rpc_destroy must not overtake
}
