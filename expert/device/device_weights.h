// A model's weights in the memory of devices: each device holds the experts of its ranks, the first one also the routers and the
// shared experts. Everything is reserved before the first copy, with slots to spare for experts that move here. Experts come from
// the host's packed ones, one by one, by any of the load's threads: as the sink of a load (model.h), which then gives their memory
// back, or from a model that is loaded.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_WEIGHTS_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_WEIGHTS_H

#include <pthread.h>

#include "expert/device/device_experts.h"
#include "expert/model/model.h"

struct device_layer {
    struct device_experts *ranks; // [model->ranks]
    unsigned char **taken;        // [model->ranks][slots] an expert is there; the mover's once the load is over
    struct device_experts shared; // one slot
    struct expertd_device_matrix router, shared_gate;
    const float *router_bias, *selection_bias, *output_bias;
};

struct device_weights_options {
    struct expertd_devices *devices;      // borrowed
    uint64_t spare_bytes;                 // of each device: slots for experts that move there; 0: none moves
    uint32_t max_batch_tokens, max_top_k; // for which there must be room beside the weights
};

struct device_weights {
    struct device_weights_options options;
    size_t num_layers;
    struct device_layer *layers; // [num_layers]
    void *memory[EXPERTD_DEVICES_MAX];
    size_t bytes[EXPERTD_DEVICES_MAX], spare_bytes[EXPERTD_DEVICES_MAX]; // in all; of them those that are free at first
    // of the load
    struct arena staging;  // pinned: a piece for each thread
    size_t staging_bytes;  // of a piece
    pthread_mutex_t mutex; // guards the devices while threads fill them; held until a copy has landed
    // of moves, on streams of their own: one thread at a time
    struct expertd_devices *movers; // NULL: there is but one rank
    struct arena move_staging;
    bool load_is_pinned, moves_are_pinned;
};

FALLIBLE device_weights_create(const struct device_weights_options *options, struct device_weights **out);
void device_weights_destroy(struct device_weights *weights); // NULL is legal

// The three steps of a load; device_weights_sink is the first two of them for model_load, which begins and ends it. begin:
// everything of `model` is laid out, nothing is loaded; EXPERTD_ERR_NOMEM with figures, EXPERTD_ERR_UNAVAILABLE for weights that
// devices do not compute with.
FALLIBLE device_weights_begin(struct device_weights *weights, const struct model *model, unsigned threads);
FALLIBLE device_weights_put(struct device_weights *weights, const struct model *model, size_t layer, uint32_t expert,
                            unsigned thread); // to all of its holders; threads below those of begin
FALLIBLE device_weights_end(struct device_weights *weights, const struct model *model);

struct model_sink device_weights_sink(struct device_weights *weights);
FALLIBLE device_weights_take_loaded(struct device_weights *weights, const struct model *model); // all three

#endif
