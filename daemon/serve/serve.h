// The service: from a gRPC call to its answer. serve.c holds a request's life as named stages; the rest of the serve_* files are
// those stages. Built by main before the model is loaded (calls are then answered LOADING), ready once serve_ready has been called.
#ifndef EXPERTD_DAEMON_SERVE_SERVE_H
#define EXPERTD_DAEMON_SERVE_SERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/grpc/rpc.h"
#include "daemon/request/admission.h"
#include "daemon/request/backlog.h"
#include "expert/layer/layer.h"

struct serve;
struct health;
struct metrics;
struct region_registry;
struct worker;

struct serve_options {
    unsigned rpc_threads;
    uint64_t max_message_bytes;
    uint32_t max_inflight;
    struct admission_limits admission;
    struct backlog_limits backlog;
    int64_t send_timeout_ns; // a peer that does not send its message, or does not read its answer
    const char *admin;       // "unix:PATH" of the admin socket, for Describe's features; NULL: none. Borrowed
};

FALLIBLE serve_create(const struct serve_options *options, struct serve **out);
// The handler for rpc_create; then the server that it came with, which serve uses and does not own.
const struct rpc_handler *serve_handler(struct serve *serve);
void serve_attach(struct serve *serve, struct rpc_server *server, struct health *health);

// Shared memory is on: regions of this registry, handed out at the socket `path` (copied). Before rpc_start.
void serve_share(struct serve *serve, struct region_registry *regions, const char *path);

// From here requests are computed. All borrowed until serve_destroy; worker's `done` is serve_done with the serve as context.
struct serve_backend {
    const struct model *model;
    struct layer_limits limits; // of one request
    struct worker *worker;
    struct metrics *metrics;
    const struct engine *engine;
    const struct expertd_devices *devices; // NULL: the CPU computes
};
void serve_ready(struct serve *serve, const struct serve_backend *backend); // any thread, once
struct worker_item;
void serve_done(void *context, struct worker_item *item);                        // the worker's thread
void serve_batched(void *context, uint64_t tokens, int64_t spent_ns, bool idle); // the worker's `batched`

// Draining, any thread: new requests are refused from here on, those under way go on.
void serve_drain(struct serve *serve);
uint64_t serve_active(struct serve *serve);  // requests read or being read, not yet answered
void serve_end_streams(struct serve *serve); // when none is active (or time is up): streams and watches end with DRAINING
void serve_destroy(struct serve *serve);     // after rpc_destroy and worker_stop; NULL is legal

struct serve_counts {
    uint32_t open_calls, queued;
    uint64_t queued_bytes;
    uint32_t regions; // of shared memory, closed ones in use included
    uint64_t region_bytes;
    uint32_t streams, read_slots; // taken
    int64_t pushback_ms;          // what a refused request is told now
    uint64_t refused[REFUSED_COUNT];
    bool ready, draining;
};
struct serve_counts serve_counts(struct serve *serve); // any thread

#endif
