// The service of a shard process: expertd.shard.v1 for its fronts. It holds the experts that fronts assign, loads and frees them,
// and computes rows. It is created before the model is opened (streams are then refused with LOADING), and serves from shard_ready
// on.
//
// Decisions about experts are those of shard/membership/holder.h, results those of expert/rank/rank_engine.h. One mutex guards the
// holder, the sessions and their queues; nothing blocks under it, and it is the last lock that is taken.
#ifndef EXPERTD_DAEMON_SHARD_SHARD_H
#define EXPERTD_DAEMON_SHARD_SHARD_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/grpc/rpc.h"
#include "daemon/shard/shard_options.h"

struct shard_service;

FALLIBLE shard_create(const struct shard_options *options, struct shard_service **out);
// The handler of a server of RPC_PLANE_SHARD: this service's for its two methods, and `rest` (borrowed) for the others.
const struct rpc_handler *shard_handler(struct shard_service *service, const struct rpc_handler *rest);
void shard_attach(struct shard_service *service, struct rpc_server *server); // after rpc_create; borrowed

// Of a front. Fronts divide batches into pieces of some 256 KiB; a bound near that keeps the memory small that a hostile one takes.
enum { SHARD_MESSAGE_MAX = 8 << 20 };

// Memory that shard_ready reserves, and that max_fronts fronts use.
uint64_t shard_bytes(const struct shard_backend *backend, uint32_t max_fronts);
// Starts the threads "compute" and "load-N". Once, any thread. EXPERTD_ERR_NOMEM, EXPERTD_ERR_UNAVAILABLE, EXPERTD_ERR_CHECKPOINT:
// a layer with more experts than a shard can name. After an error the service stays without its threads, and refuses streams.
FALLIBLE shard_ready(struct shard_service *service, const struct shard_backend *backend);

// ---- the end; any thread

// The process is to end: fronts are asked to place the experts elsewhere.
void shard_drain(struct shard_service *service);
bool shard_is_drained(struct shard_service *service);  // no copy is left, or no front is connected that could place it elsewhere
void shard_end_streams(struct shard_service *service); // ends all streams with DRAINING, and later ones
uint32_t shard_streams(struct shard_service *service); // open streams
void shard_stop(struct shard_service *service);        // joins the threads; before rpc_destroy. NULL is legal
void shard_destroy(struct shard_service *service);     // after rpc_destroy. NULL is legal

// ---- what it holds; any thread

struct shard_figures {
    bool ready, draining;
    uint32_t fronts;                // connected
    uint32_t held, loading;         // experts in memory; experts that are assigned and not in memory
    uint64_t bytes_used;            // memory of experts: held, being loaded and being freed
    uint64_t bytes_max, bytes_read; // memory for experts; bytes of tensors read from the checkpoint
    // since the start
    uint64_t pieces, rows, errors; // computed, and batches answered with an error
    uint64_t compute_ns, dropped;  // time in pieces; pieces of abandoned batches that were not computed
    uint64_t loads, load_failures, frees;
    uint64_t sessions, refused; // fronts that connected; streams that were refused or ended for a fault of the peer
};
void shard_read_figures(struct shard_service *service, struct shard_figures *out);
// Experts of model->layers[layer] that are in memory. 0 before shard_ready.
uint32_t shard_held_of(struct shard_service *service, size_t layer);

#endif
