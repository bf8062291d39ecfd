// Options of engine_create.
#ifndef EXPERTD_EXPERT_LAYER_ENGINE_OPTIONS_H
#define EXPERTD_EXPERT_LAYER_ENGINE_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "expert/layer/layer_request.h"

struct device_weights; // expert/device/device_weights.h
struct expertd_devices;
struct expertd_team;
struct model;
struct node_teams;   // expert/host/node_teams.h
struct remote_links; // shard/remote/remote_links.h

// Pinned host memory that the caller shares with the devices, which read it directly. Borrowed until the engine is destroyed.
struct engine_shared_memory {
    const void *memory;
    size_t bytes; // 0: none
};

struct engine_options {
    const struct model *model; // borrowed for the engine's life
    struct layer_limits limits;
    struct expertd_team *team;       // borrowed: computes the front, and every rank if node_teams is NULL
    struct node_teams *node_teams;   // borrowed, or NULL: a team for each memory node computes the ranks of that node
    struct expertd_devices *devices; // borrowed, or NULL: devices compute instead of the teams
    struct device_weights *weights;  // borrowed: weights already on the devices; NULL: engine_create copies them from the host
    struct engine_shared_memory shared_memory; // devices read the rows of large requests in this memory without a copy on the host
    int64_t exchange_timeout_ns;               // a rank that takes longer for a batch is lost. 0: 10 s
    // Borrowed: links to the ranks in other processes; NULL: there are none. Not with devices.
    const struct remote_links *links;
    uint32_t local_ranks;      // with links: ranks [0, local_ranks) compute in this process
    size_t remote_piece_bytes; // with links: target size of a message's rows; 0: REMOTE_PIECE_BYTES
};

// A rank computes its share of a batch within milliseconds to seconds; a simulated device computes it inside the call.
static inline int64_t engine_exchange_timeout_ns(const struct engine_options *options) {
    return options->exchange_timeout_ns > 0 ? options->exchange_timeout_ns : 10 * (int64_t)NS_PER_S;
}

// Bytes of engine_layer_variants' text.
enum { ENGINE_VARIANTS_TEXT_MAX = 160 };

#endif
