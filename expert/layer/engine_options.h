// What an engine is created with.
#ifndef EXPERTD_EXPERT_LAYER_ENGINE_OPTIONS_H
#define EXPERTD_EXPERT_LAYER_ENGINE_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "expert/layer/layer_request.h"

struct device_weights; // expert/device/device_weights.h
struct expertd_devices;
struct expertd_team;
struct model;
struct node_teams; // expert/host/node_teams.h

// Host memory that the caller lends to devices: pinned, and unchanged until the engine is destroyed.
struct engine_lent {
    const void *memory;
    size_t bytes; // 0: none
};

struct engine_options {
    const struct model *model; // borrowed for the engine's life
    struct layer_limits limits;
    struct expertd_team *team;       // borrowed: the front's, and every rank's where node_teams is NULL
    struct node_teams *node_teams;   // borrowed, or NULL: one team per memory node, for the ranks of that node
    struct expertd_devices *devices; // borrowed, or NULL: devices compute the ranks instead of the teams
    struct device_weights *weights;  // borrowed: the weights are on the devices; NULL: they are copied from the host's
    struct engine_lent lent;         // the rows of large requests in this memory are not copied on the host
    int64_t exchange_timeout_ns;     // how long a rank on several devices may take for a batch before it is lost. 0: 10 s
};

// Bytes of engine_layer_variants' text.
enum { ENGINE_VARIANTS_TEXT_MAX = 160 };

#endif
