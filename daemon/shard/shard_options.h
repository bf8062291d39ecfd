// The parameters of a shard's service: its limits, passed at creation; the model and the memory, passed when the model is open.
#ifndef EXPERTD_DAEMON_SHARD_SHARD_OPTIONS_H
#define EXPERTD_DAEMON_SHARD_SHARD_OPTIONS_H

#include <stdint.h>

#include "expert/layer/layer_request.h"
#include "expert/store/expert_store.h"
#include "expert/store/holdings.h"
#include "expertd/kernels/team.h"
#include "shard/topology.h"

struct shard_options {
    unsigned rpc_threads;
    uint32_t max_fronts;     // 1 to HOLDER_FRONTS_MAX
    int64_t send_timeout_ns; // a front that reads nothing for so long loses its session
};

// All borrowed until shard_destroy.
struct shard_backend {
    const struct model *model;
    struct expert_store *store;
    struct holdings *holdings; // empty
    struct expertd_team *team; // computes
    const struct topology *topology;
    struct layer_limits limits; // of a front's batch
    uint64_t bytes_max;         // memory for experts
    unsigned loaders;           // threads that load experts: 1 to the number of the team's threads
};

#endif
