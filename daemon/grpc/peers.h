// The peer names of the adopted sockets. gRPC names a plain connection by its descriptor number only, and a TLS connection by the
// address of its peer. A number is reused for another connection only after the calls of the previous one have ended. Any thread.
#ifndef EXPERTD_DAEMON_GRPC_PEERS_H
#define EXPERTD_DAEMON_GRPC_PEERS_H

#include <pthread.h>
#include <stddef.h>

#include "daemon/grpc/rpc.h"

struct peer_slot;

struct peers {
    pthread_mutex_t mutex;   // guards everything below; no other lock is taken under it
    struct peer_slot *slots; // [count], by descriptor number
    int *buckets;            // [count], a power of two: the newest slot with a hash of its name; -1: none
    size_t count;
};

void peers_init(struct peers *peers);
void peers_deinit(struct peers *peers);
FALLIBLE peers_set(struct peers *peers, int fd, const char *name); // EXPERTD_ERR_NOMEM
// Returns the descriptor number of a connection from gRPC's name of it, and its peer name: of "fd:17" the name given for 17, of
// "ipv4:…" and "ipv6:%5B…%5D:…" the descriptor with that name. The connection counts as one that has called. -1 and "unknown": no
// such name. -1 and the name: two open connections have it, from one address and port to two ports of this process.
int peers_find(struct peers *peers, const char *grpc_name, char out[RPC_PEER_MAX]);
bool peers_has_called(struct peers *peers, int fd);

#endif
