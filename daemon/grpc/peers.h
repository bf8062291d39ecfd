// What the peer of each adopted socket is called: gRPC knows it by its descriptor's number alone. A number is given to another
// connection only after the calls of the one before it are over. Any thread.
#ifndef EXPERTD_DAEMON_GRPC_PEERS_H
#define EXPERTD_DAEMON_GRPC_PEERS_H

#include <pthread.h>
#include <stddef.h>

#include "daemon/grpc/rpc.h"

struct peers {
    pthread_mutex_t mutex; // guards all below; innermost
    char (*names)[RPC_PEER_MAX];
    size_t count; // numbers that there is room for
};

void peers_init(struct peers *peers);
void peers_deinit(struct peers *peers);
FALLIBLE peers_set(struct peers *peers, int fd, const char *name); // EXPERTD_ERR_NOMEM
// gRPC's name of an adopted socket ("fd:17") into its number and our name. -1, and "unknown": it is of none.
int peers_find(struct peers *peers, const char *grpc_name, char out[RPC_PEER_MAX]);

#endif
