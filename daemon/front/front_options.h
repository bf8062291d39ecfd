// What a front is made of: the parameters of front_create.
#ifndef EXPERTD_DAEMON_FRONT_FRONT_OPTIONS_H
#define EXPERTD_DAEMON_FRONT_FRONT_OPTIONS_H

#include "daemon/config/options_fields.h"
#include "expert/layer/layer_request.h"
#include "expert/store/expert_store.h"

struct tls_store;
struct topology;

// All pointers are borrowed for the front's life.
struct front_options {
    const struct options *options; // shards, shard_hosts, copies, replicas and what follows them, memory_max, tls_*
    struct model *model;           // MODEL_WITHOUT_EXPERTS; its ranks are front_ranks(options)
    struct expert_store *store;
    const struct topology *topology;
    struct layer_limits limits; // of a batch
    unsigned loaders;           // threads that load the experts of this process; at most the team's
    struct tls_store *tls;      // NULL: plain connections
};

#endif
