// Loading, on a thread of its own, so that the service answers (LOADING) and the loop lives meanwhile: devices, teams, model,
// engine, metrics, mover, worker, in that order; unloading takes them down in reverse.
#ifndef EXPERTD_DAEMON_PROCESS_LOADING_H
#define EXPERTD_DAEMON_PROCESS_LOADING_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/admin/mover.h"
#include "daemon/config/options.h"
#include "daemon/http/metrics.h"
#include "daemon/request/request_memory.h"
#include "daemon/request/worker.h"
#include "daemon/serve/serve.h"
#include "expert/device/device_weights.h"
#include "expert/layer/layer.h"
#include "expert/host/node_teams.h"
#include "expertd/kernels/devices.h"

struct loaded {
    struct topology topology;
    struct expertd_team *team;
    struct node_teams *node_teams;   // NULL: `team` serves all shards
    struct expertd_devices *devices; // NULL: the CPU computes
    struct device_weights *weights;  // on them; NULL: in the host's memory
    struct request_memory request_memory;
    struct model model;
    struct expertd_tuning_table *schedules; // NULL: by rule
    struct engine *engine;
    struct metrics *metrics;
    struct mover *mover;
    struct worker *worker;
    struct layer_limits limits, request_limits; // of a batch; of one request
};

// Told on the computing thread, once: a device has failed for good, and no batch will be answered any more.
struct loading_listener {
    void (*lost)(void *context);
    void *context;
};

// Loads everything that `options` ask for, and logs what was loaded. options->shards becomes the number of devices where that was
// left at one. Blocks; any thread. On error nothing is left.
FALLIBLE loading_load(struct options *options, struct serve *serve, const struct loading_listener *listener, struct loaded *out);
void loading_unload(struct loaded *loaded); // legal on a zeroed struct

#endif
