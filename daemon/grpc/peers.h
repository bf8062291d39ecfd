// The peer names of the adopted sockets. gRPC names such a connection by its descriptor number only. A number is reused for another
// connection only after the calls of the previous one have ended. Any thread.
#ifndef EXPERTD_DAEMON_GRPC_PEERS_H
#define EXPERTD_DAEMON_GRPC_PEERS_H

#include <pthread.h>
#include <stddef.h>

#include "daemon/grpc/rpc.h"

struct peers {
    pthread_mutex_t mutex; // guards everything below; no other lock is taken under it
    char (*names)[RPC_PEER_MAX];
    size_t count; // descriptor numbers that names[] has space for
};

void peers_init(struct peers *peers);
void peers_deinit(struct peers *peers);
FALLIBLE peers_set(struct peers *peers, int fd, const char *name); // EXPERTD_ERR_NOMEM
// Returns the descriptor number in gRPC's name of an adopted socket ("fd:17"), and its peer name. -1 and "unknown": no such name.
int peers_find(struct peers *peers, const char *grpc_name, char out[RPC_PEER_MAX]);

#endif
