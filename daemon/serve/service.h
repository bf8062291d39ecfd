// The service, from a gRPC call to its answer. It is created before the model is loaded (requests are then answered LOADING) and
// serves from serve_ready on. The life of a request is in serve.c.
#ifndef EXPERTD_DAEMON_SERVE_SERVICE_H
#define EXPERTD_DAEMON_SERVE_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/grpc/rpc.h"
#include "daemon/request/admission.h"
#include "daemon/serve/serve_options.h"

struct health;
struct region_registry;
struct serve;
struct worker_item;

FALLIBLE serve_create(const struct serve_options *options, struct serve **out);
// The order is: serve_handler for rpc_create, then serve_attach with the server that rpc_create returned. The server and the health
// service are borrowed.
const struct rpc_handler *serve_handler(struct serve *serve);
void serve_attach(struct serve *serve, struct rpc_server *server, struct health *health);

// Enables shared memory: regions of this registry, passed to clients at the socket `path` (copied). Before rpc_start.
void serve_share(struct serve *serve, struct region_registry *regions, const char *path);

void serve_ready(struct serve *serve, const struct serve_backend *backend); // requests are computed from here; any thread, once
void serve_done(void *context, struct worker_item *item);                   // the worker's `done`, on the worker's thread
void serve_batched(void *context, uint64_t tokens, int64_t spent_ns, bool idle); // the worker's `batched`

// Any thread. New requests are refused from here on; those in progress continue.
void serve_drain(struct serve *serve);
uint64_t serve_active(struct serve *serve); // requests whose message was read and that are not released yet
void serve_end_streams(
    struct serve *serve);                // ends idle streams and watches with DRAINING: when no request is active, or time is up
void serve_destroy(struct serve *serve); // after rpc_destroy and worker_stop; NULL is legal

struct serve_counts {
    uint32_t open_calls, queued;
    uint64_t queued_bytes;
    uint32_t regions; // of shared memory, including closed ones in use
    uint64_t region_bytes;
    uint32_t streams, read_slots; // in use
    int64_t pushback_ms;          // retry delay that a refused request gets now
    uint64_t refused[REFUSED_COUNT];
    bool ready, draining;
};
struct serve_counts serve_counts(struct serve *serve); // any thread

#endif
