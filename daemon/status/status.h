// The HTTP pages: /metrics, /health/live, /health/ready, /api/status (JSON) and / (the status page as HTML). Loop thread only.
#ifndef EXPERTD_DAEMON_STATUS_STATUS_H
#define EXPERTD_DAEMON_STATUS_STATUS_H

#include <stdatomic.h>
#include <stdio.h>

#include "daemon/config/options_fields.h"
#include "daemon/http/http.h"
#include "daemon/metrics/metrics.h"
#include "daemon/serve/service.h"
#include "daemon/shard/shard.h"
#include "expert/model/model.h"
#include "expertd/kernels/devices.h"

// The listeners of --listen. Entry i of one array serves address i and entry i of the other is NULL; both are NULL after the loop
// has been closed.
struct listeners {
    struct unix_listener *on_unix[OPTIONS_LISTEN_MAX];
    struct tcp_listener *on_tcp[OPTIONS_LISTEN_MAX];
};

struct shard_view;
struct tls_store;

// All pointers are borrowed. model, metrics, engine, devices and scratch_bytes are read only once the service is ready.
struct status {
    struct serve *serve;
    struct shard_service *shard; // of --role shard; NULL: a front
    const struct model *model;
    struct metrics *metrics;
    const struct engine *engine;           // NULL on a shard
    const struct expertd_devices *devices; // NULL: the CPU computes
    bool lost;                             // a device has failed permanently
    uint64_t scratch_bytes;
    const char *backend;     // name of the kernels
    const char *model_asked; // the value of --model
    uint32_t threads;
    int64_t started_ns;
    struct own_process *own_process;
    struct rpc_server *rpc;            // counts the calls that it refused
    const struct listeners *listeners; // count the connections that they refused
    struct shard_view *shards;         // of --shard-hosts, also before the service is ready; NULL: none
    struct tls_store *tls;             // NULL: no TLS files
};

uint64_t status_open_connections(const struct status *status); // open connections on all --listen addresses

// The http_page of the daemon; `context` is a struct status.
struct http_answer status_page(void *context, const char *path, FILE *body);

#endif
