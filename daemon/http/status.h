// What HTTP shows: /metrics, /health/live, /health/ready, / (a page for people) and /api/status (JSON). Loop thread only.
#ifndef EXPERTD_DAEMON_HTTP_STATUS_H
#define EXPERTD_DAEMON_HTTP_STATUS_H

#include <stdatomic.h>
#include <stdio.h>

#include "daemon/config/options.h"
#include "daemon/http/http.h"
#include "daemon/http/metrics.h"
#include "daemon/serve/serve.h"
#include "expert/model/model.h"
#include "expertd/kernels/devices.h"

// By the option's index: each is of one kind, and NULL of the other, or of both once the loop is closed.
struct listeners {
    struct unix_listener *on_unix[OPTIONS_LISTEN_MAX];
    struct tcp_listener *on_tcp[OPTIONS_LISTEN_MAX];
};

// All borrowed; model, metrics, engine, devices and scratch_bytes are read only once `ready` is set.
struct status {
    struct serve *serve;
    const struct model *model;
    struct metrics *metrics;
    const struct engine *engine;
    const struct expertd_devices *devices; // NULL: the CPU computes
    bool lost;                             // a device has failed for good
    uint64_t scratch_bytes;
    const char *backend; // the kernels' name
    const char *model_asked;
    uint32_t threads;
    int64_t started_ns;
    struct own_process *own_process;
    struct rpc_server *rpc;            // for what it refused by itself
    const struct listeners *listeners; // for theirs
};

// The http_page of the daemon; context is a struct status.
uint64_t status_open_connections(const struct status *status); // now, on the addresses that are served

struct http_answer status_page(void *context, const char *path, FILE *body);

#endif
