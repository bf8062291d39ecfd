// Loads the model on a thread of its own, so that the daemon answers calls (with LOADING) meanwhile. Creates devices, teams, model,
// front, engine, metrics, mover and worker, in this order; unloading destroys them in reverse order.
#ifndef EXPERTD_DAEMON_PROCESS_LOADING_H
#define EXPERTD_DAEMON_PROCESS_LOADING_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/admin/mover.h"
#include "daemon/config/options.h"
#include "daemon/front/front.h"
#include "daemon/metrics/metrics.h"
#include "daemon/request/request_memory.h"
#include "daemon/request/worker.h"
#include "daemon/serve/service.h"
#include "daemon/shard_view/shard_view.h"
#include "expert/device/device_weights.h"
#include "expert/host/node_teams.h"
#include "expert/layer/layer.h"
#include "expert/loader/model_options.h"
#include "expert/store/expert_store.h"
#include "expert/store/holdings.h"
#include "expertd/kernels/devices.h"

struct loaded {
    struct topology topology;
    struct tls_store *tls; // borrowed; NULL: no TLS files
    struct expertd_team *team;
    struct node_teams *node_teams;   // one team per memory node; NULL: `team` computes all shards
    struct expertd_devices *devices; // NULL: the CPU computes
    struct device_weights *weights;  // on the devices; NULL: in host memory
    struct request_memory request_memory;
    struct model model;
    struct expert_store *store;             // of --role shard and with --shard-hosts: owns `model`, whose experts are loaded singly
    struct holdings *holdings;              // of --role shard
    struct front *front;                    // with --shard-hosts, else NULL
    struct shard_view *shard_view;          // borrowed; has the front once it has started
    struct expertd_tuning_table *schedules; // NULL: the heuristic
    struct engine *engine;
    struct metrics *metrics;
    struct mover *mover;
    struct worker *worker;
    struct layer_limits limits, request_limits; // of one batch; of one request
};

// `lost` is called once, on the compute thread: a device has failed permanently, and all further batches fail.
struct loading_listener {
    void (*lost)(void *context);
    void *context;
    struct tls_store *tls;         // borrowed while loaded; NULL: no TLS files
    struct shard_view *shard_view; // borrowed while loaded
};

// Loads according to `options` and logs the result. If options->shards is 1, it becomes the number of devices. Blocks. Any thread.
// On error everything is unloaded again.
FALLIBLE loading_load(struct options *options, struct serve *serve, const struct loading_listener *listener, struct loaded *out);
void loading_unload(struct loaded *loaded); // legal on a zeroed struct

// ---- the steps that main.c, loading_shard.h and examine/ take too

// Logs the CPU, its memory and the kernels, before anything is loaded.
FALLIBLE loading_log_cpu(const struct options *options);
// Creates out->metrics for the layers of out->model.
FALLIBLE loading_make_metrics(struct loaded *out);

// Selects the CPU kernels according to --kernels and --numerics. Errors as expertd_kernel_select.
FALLIBLE loading_select_kernels(const struct options *options);

// For processes that answer or send heartbeats, before their teams are started: the threads of the transport and of the dialler
// have raised their priority (is_urgent). Where that is not allowed, lowers this thread's, from which the computing threads
// inherit.
void loading_choose_priorities(void);

// The device that a start tries first: --device, or "cpu" if auto is decided by --kernels or --numerics.
const char *loading_device(const struct options *options);

// Opens the devices, and sets the number of shards: one for each device, or --shards if that is larger. out->devices stays NULL
// with "cpu", and with "auto" where there is no free GPU of a tested kind, which is logged.
FALLIBLE loading_open_devices(struct options *options, const char *device, struct loaded *out);
struct device_weights_options loading_device_weights_options(const struct options *options, struct expertd_devices *devices);

// Sets topology, team and node_teams of `out`.
FALLIBLE loading_start_teams(const struct options *options, struct loaded *out);

// The model that the options ask for, on the teams and for the devices of `loaded`. Borrows from both.
struct model_options loading_model_options(const struct options *options, const struct loaded *loaded);

struct loading_progress {
    int64_t started_ns, last_ns; // both the time of the start at first
};
// The progress of struct model_options; context: a struct loading_progress. Logs, once a second.
void loading_show_progress(void *context, uint64_t done_bytes, uint64_t all_bytes);

struct loading_scratch {
    const struct options *options;
    const struct loaded *loaded;
};
// The scratch_bytes of struct model_options; context: a struct loading_scratch.
uint64_t loading_scratch_bytes(void *context, const struct model *model);

#endif
