// A model's weights in device memory. Each device holds the experts of its ranks; the first one also holds the routers and the
// shared experts. All memory is reserved before the first copy, including spare slots for experts that move later. The loader's
// threads copy the host's packed experts one by one. Either they do so while a model is loaded, through a model_sink
// (model_options.h), and the loader then frees the host's copy; or the model stays loaded on the host.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_WEIGHTS_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_WEIGHTS_H

#include <pthread.h>

#include "expert/device/device_experts.h"
#include "expert/loader/model_options.h"

// Experts of different shapes cannot share an array of slots, so each rank has slots for each shape.
struct device_layer {
    uint32_t shapes;               // of the layer's experts
    struct device_experts *places; // [ranks * shapes]
    unsigned char **taken;         // [ranks * shapes][slots] 1: the slot is in use. After the load only the thread of moves uses it
    struct device_experts shared;  // one slot
    struct expertd_device_matrix router, shared_gate;
    const float *router_bias, *selection_bias, *output_bias;
    size_t bytes[EXPERTD_DEVICES_MAX]; // of everything above on each device
};

// Index of a rank's slots for a shape.
static inline uint32_t device_place(const struct device_layer *layer, uint32_t rank, uint32_t shape) {
    return rank * layer->shapes + shape;
}

struct device_weights_options {
    struct expertd_devices *devices;      // borrowed
    uint64_t spare_bytes;                 // of each device, for slots of experts that move there later; 0: experts cannot move
    uint32_t max_batch_tokens, max_top_k; // batches that must fit into device memory with the weights
};

// Bytes of device memory that serving a model takes on one device.
struct device_weights_sizes {
    uint64_t weights;   // all slots; on the first device also routers and shared experts
    uint64_t moves;     // of `weights`: the spare slots
    uint64_t batches;   // scratch, and rows that are exchanged with other devices
    uint64_t links;     // left free for NCCL
    uint64_t available; // at the time of the measurement
};

static inline uint64_t device_weights_needed(const struct device_weights_sizes *sizes) {
    return sizes->weights + sizes->batches + sizes->links;
}

struct device_weights {
    struct device_weights_options options;
    size_t num_layers;
    struct device_layer *layers; // [num_layers]
    void *memory[EXPERTD_DEVICES_MAX];
    struct device_weights_sizes sizes[EXPERTD_DEVICES_MAX];
    // For the load:
    struct arena staging;  // pinned: a staging buffer for each thread
    size_t staging_bytes;  // of one buffer
    pthread_mutex_t mutex; // guards the devices while several threads fill them; held until a copy has ended
    // For moves, which one thread does at a time:
    struct expertd_devices *move_devices; // the same devices with streams for moves; NULL: there is one rank only
    struct arena move_staging;
    bool load_is_pinned, moves_are_pinned;
};

FALLIBLE device_weights_create(const struct device_weights_options *options, struct device_weights **out);
void device_weights_destroy(struct device_weights *weights); // NULL is legal

// The three steps of a load; device_weights_sink passes them to model_load. At begin, `model` is laid out and no weights are
// loaded; it is loaded with model_options.for_devices. begin: EXPERTD_ERR_NOMEM with figures; EXPERTD_ERR_UNAVAILABLE for layers
// that devices do not compute.
FALLIBLE device_weights_begin(struct device_weights *weights, const struct model *model, unsigned threads);
FALLIBLE device_weights_put(struct device_weights *weights, const struct model *model, size_t layer, uint32_t expert,
                            unsigned thread); // to all ranks that hold the expert; thread < threads of begin
FALLIBLE device_weights_end(struct device_weights *weights, const struct model *model);

// The first steps of begin, which reserve nothing: setting the sizes, and refusing a model that does not fit.
FALLIBLE device_weights_measure(struct device_weights *weights, const struct model *model);
FALLIBLE device_weights_check_fits(const struct device_weights *weights, const struct model *model);
uint64_t device_weights_layer_bytes(const struct device_weights *weights, size_t layer); // measured, on all devices

struct model_sink device_weights_sink(struct device_weights *weights);
FALLIBLE device_weights_take_loaded(struct device_weights *weights, const struct model *model); // all three steps

#endif
