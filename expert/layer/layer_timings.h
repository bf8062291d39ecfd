// The time of one batch by stage.
#ifndef EXPERTD_EXPERT_LAYER_LAYER_TIMINGS_H
#define EXPERTD_EXPERT_LAYER_LAYER_TIMINGS_H

#include <stdint.h>

struct layer_timings { // nanoseconds
    uint64_t route, exchange, compute, combine;
    struct layer_parts {
        uint64_t input, router, plan; // parts of route
        uint64_t gate_up, down;       // parts of compute: the routed experts, on the slowest memory node
        uint64_t shared;              // part of compute
    } parts;
    uint64_t placement_epoch; // epoch of the placement that computed the batch
    uint64_t rows_direct;     // rows that a device read from the caller's shared memory, without a copy on the host
    uint32_t plans_repeated;  // how often the batch was planned again because a rank had failed
};

#endif
