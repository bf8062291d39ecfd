// The parameters of the service: its limits, passed at creation; the model and the engine, passed after the load.
#ifndef EXPERTD_DAEMON_SERVE_SERVE_OPTIONS_H
#define EXPERTD_DAEMON_SERVE_SERVE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/request/admission.h"
#include "daemon/request/backlog.h"
#include "expert/layer/layer.h"

struct metrics;
struct shard_service;
struct worker;

struct serve_options {
    unsigned rpc_threads;
    uint64_t max_message_bytes;
    uint32_t max_inflight;
    struct admission_limits admission;
    struct backlog_limits backlog;
    int64_t send_timeout_ns; // how long a peer may take to send its message, or to read its answer
    struct shard_service
        *shard;        // of --role shard: Forward and regions are refused, and Describe tells what it holds. NULL: a front
    const char *admin; // "unix:PATH" of the admin socket, a feature of Describe; NULL: none. Borrowed
};

// All borrowed until serve_destroy. The worker's `done` is serve_done, its context the service.
struct serve_backend {
    const struct model *model;
    struct layer_limits limits; // of one request
    struct worker *worker;      // NULL: a shard
    struct metrics *metrics;
    const struct engine *engine;           // NULL: a shard
    const struct expertd_devices *devices; // NULL: the CPU computes
    // Whether calls that fail with SHARD_LOST may be tried again. Any thread; does not block. NULL: they may.
    bool (*mends)(void *context);
    void *mends_context;
};

#endif
