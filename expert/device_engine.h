// The stages of a batch on devices (GPUs, or simulated ones): the same map as layer_forward's, a function a stage, each working
// from and into the engine's arrays, which are pinned. Work is put into the devices' streams and waited for where the host needs
// what came of it: after the routes, and at the end. Memory is reserved at creation. Private to expert/; used by the engine's
// thread.
#ifndef EXPERTD_EXPERT_DEVICE_ENGINE_H
#define EXPERTD_EXPERT_DEVICE_ENGINE_H

#include "expert/layer_batch.h"
#include "expert/router.h"
#include "kernels/devices.h"

struct device_engine;
struct device_weights;

// Reserves scratch for engine->limits; the engine's arrays are laid out. weights: filled and borrowed, or NULL: those of the loaded
// model are copied. ERR_NOMEM, with figures where the weights are copied.
FALLIBLE device_engine_create(struct engine *engine, struct devices *devices, struct device_weights *weights,
                              struct device_engine **out);
void device_engine_destroy(struct device_engine *device); // NULL is legal
// Of model->layers[layer]'s experts, as device_variants_text. Returns text.
const char *device_engine_variants(const struct device_engine *device, size_t layer, char text[ENGINE_VARIANTS_TEXT_MAX]);
uint64_t device_engine_bytes(const struct device_engine *device); // of device memory, on all devices

struct device_weights *device_engine_weights(const struct device_engine *device);
size_t device_engine_scratch_bytes(const struct model *model, const struct layer_limits *limits, uint32_t device);

// Rows of the dtype the engine needs to be told of tiles and outputs: bytes of its pinned arrays.
size_t device_engine_tiles(const struct layer_limits *limits, const struct model *model);

FALLIBLE device_take_in(struct batch *b); // its rows leave, beside what is computed
FALLIBLE device_await_rows(struct batch *b);
// One request's own router: ids and weights are there after device_routed.
FALLIBLE device_route(struct batch *b, const struct router_args *args);
FALLIBLE device_routed(struct batch *b);
// *hidden: the rows that leave for the ranks, in the first device's memory; [plan.rows] where the layer weighs its inputs.
FALLIBLE device_dispatch(struct batch *b, const void **hidden);
FALLIBLE device_experts(struct batch *b);
FALLIBLE device_shared_experts(struct batch *b);
FALLIBLE device_combine(struct batch *b); // its answers leave, beside what is computed next
FALLIBLE device_answer(struct batch *b);  // waits for the exchange and for them, writes every request's output

#endif
