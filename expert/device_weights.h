// A model's weights in the memory of devices: copied there once from the packed ones on the host, which stay: row-major, or
// quantised as device_codes.h lays them out. Each device holds the experts of its ranks; the first one also the routers and the
// shared experts. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_WEIGHTS_H
#define EXPERTD_EXPERT_DEVICE_WEIGHTS_H

#include "expert/model.h"
#include "kernels/devices.h"

struct device_experts { // of one rank, or the shared expert
    struct device_matrix matrix[EXPERT_MATRICES];
    const float *bias[EXPERT_MATRICES]; // [groups, n] or NULL
};

struct device_layer {
    struct device_experts *ranks; // [model->ranks]
    uint64_t epoch;               // of the placement that they were copied from
    struct device_experts shared;
    struct device_matrix router, shared_gate;
    const float *router_bias, *selection_bias;
};

struct device_weights {
    struct devices *devices;
    struct device_layer *layers;  // [model->num_layers]
    struct device_experts *ranks; // the layers' own
    void *memory[DEVICES_MAX];
    size_t bytes[DEVICES_MAX];
};

// ERR_NOMEM with figures; ERR_UNAVAILABLE for weights that devices do not compute with. Blocks until everything is there.
FALLIBLE device_weights_create(struct devices *devices, const struct model *model, struct device_weights **out);
void device_weights_destroy(struct device_weights *weights); // NULL is legal

#endif
