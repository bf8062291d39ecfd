#include "expert/device/device_engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "expert/device/device_message.h"
#include "expert/device/device_moves.h"
#include "expert/device/device_stages.h"
#include "expert/device/device_state.h"
#include "expert/device/device_weights.h"
#include "shard/exchange.h"

#define JOIN_TIMEOUT_NS ((int64_t)60 * NS_PER_S) // NCCL's bootstrap takes seconds, more on a machine with many GPUs

static FALLIBLE reserve_scratch(struct device_engine *d, uint32_t device) {
    struct device_scratch *s = &d->scratch[device];
    struct device_scratch_needs needs = device_scratch_needs_of(d->engine->model, &d->engine->limits);
    device_scratch_lay_out(&needs, device == 0, s);
    EXPERTD_DEVICES_CALL(d->devices, device, reserve, s->bytes, &s->memory);
    device_scratch_lay_out(&needs, device == 0, s);
    return OK;
}

// Writes tiles over max_tokens consecutive rows as one group. A batch uses the first ones; its number of rows ends the last.
static FALLIBLE write_token_tiles(const struct device_engine *d) {
    int32_t tokens = (int32_t)d->engine->limits.max_tokens;
    struct expertd_device_tile *tiles = device_message_max(d->engine->message, d->engine->model, &d->engine->limits).tiles;
    for (int v = 0; v < EXPERTD_DEVICE_VARIANTS; v++) {
        uint32_t count = device_cut_tiles(&tokens, 1, 0, device_variant_rows((enum expertd_device_variant)v), tiles);
        EXPERTD_DEVICES_CALL(d->devices, 0, copy, EXPERTD_DEVICE_UPLOAD, d->scratch[0].token_tiles[v], tiles,
                             count * sizeof *tiles);
        TRY(expertd_devices_wait(d->devices, 0));
    }
    return OK;
}

// Finds the kernel variants that may compute each layer.
static FALLIBLE find_variants(const struct device_engine *d) {
    const struct model *model = d->engine->model;
    enum expertd_dtype dtype = model->compute_dtype;
    const struct expertd_device_variants *device = dtype == EXPERTD_DTYPE_F32 ? &d->devices->facts.f32 : &d->devices->facts.bf16;
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        const struct layer_params *p = &layer->params;
        struct device_network_shape shared = {p->hidden_size, p->shared_intermediate_size, layer->shared.up.format,
                                              layer->shared.down.format, layer->ordered};
        struct layer_variants *out = &d->variants[i];
        for (uint32_t s = 0; s < layer->shapes.count; s++) {
            const struct expertd_packed_weights *matrix = layer->shapes.all[s].matrix;
            struct device_network_shape experts = {p->hidden_size, p->intermediate_size, matrix[EXPERT_UP].format,
                                                   matrix[EXPERT_DOWN].format, layer->ordered};
            TRY_IN(device_variants_of(device, &experts, dtype, d->devices->forced, &out->experts[s]), "layer %u", p->layer);
        }
        if (shared_has_expert(p->shared)) {
            TRY_IN(device_variants_of(device, &shared, dtype, d->devices->forced, &out->shared), "layer %u", p->layer);
        }
    }
    return OK;
}

// Copies a loaded model's weights to the devices. The host keeps its own.
static FALLIBLE take_loaded(struct device_engine *d) {
    struct device_weights_options options = {
        .devices = d->devices, .max_batch_tokens = d->engine->limits.max_tokens, .max_top_k = d->engine->limits.max_top_k};
    TRY(device_weights_create(&options, &d->weights));
    d->owns_weights = true;
    return device_weights_take_loaded(d->weights, d->engine->model);
}

static FALLIBLE reserve_on_devices(struct device_engine *d) {
    struct engine *engine = d->engine;
    TRY(find_variants(d));
    if (!d->weights) {
        TRY(take_loaded(d));
    }
    EXPERTD_DEVICES_CALL(d->devices, 0, pin, engine->arena.base, engine->pinned_bytes);
    d->pinned = true;
    for (uint32_t i = 0; i < d->devices->count; i++) {
        TRY(reserve_scratch(d, i));
    }
    return write_token_tiles(d);
}

// ---- sizes

static size_t message_bytes(const struct engine *engine) {
    return device_message_max(NULL, engine->model, &engine->limits).bytes;
}

static void lay_out_pinned(struct scratch_layout *layout, const struct engine *engine, struct batch_input *in) {
    size_t tokens = engine->limits.max_tokens;
    in->staging = scratch_piece(layout, device_raw_bytes(engine->model, tokens));
    in->outputs = scratch_piece(layout, tokens * engine->model->max_hidden_size * sizeof(float));
}

static void lay_out_input(struct scratch_layout *layout, const struct engine *engine, const struct layer_sizes *sizes,
                          struct batch_input *in) {
    (void)layout, (void)engine, (void)sizes, (void)in; // the rows are on the device
}

static void lay_out(struct scratch_layout *layout, struct engine *engine, const struct layer_sizes *sizes) {
    (void)layout, (void)engine, (void)sizes; // the scratch is on the devices
}

static uint64_t other_bytes(const struct engine_options *options, const struct layer_sizes *sizes) {
    (void)options, (void)sizes;
    return 0;
}

static uint64_t untouched(const struct engine *engine) {
    (void)engine;
    return 0;
}

// ---- life

static FALLIBLE open(struct engine *engine, const struct engine_options *options) {
    struct device_engine *d = calloc(1, sizeof *d);
    if (!d) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the engine on devices");
    }
    engine->device = d;
    d->engine = engine;
    d->devices = options->devices;
    d->weights = options->weights;
    d->variants = calloc(engine->model->num_layers, sizeof *d->variants);
    size_t places = (size_t)engine->model->ranks * EXPERT_SHAPES_MAX;
    d->first_tile = calloc(places + 1, sizeof *d->first_tile);
    d->variant = calloc(places, sizeof *d->variant);
    if (!d->variants || !d->first_tile || !d->variant) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the engine on devices");
    }
    return OK;
}

static FALLIBLE reserve(struct engine *engine, const struct engine_options *options, const struct layer_sizes *sizes) {
    struct exchange_options exchange = layer_exchange_options(engine->model, &engine->limits, sizes);
    struct exchange_over_nccl over = {
        .devices = options->devices,
        .timeout_ns = engine_exchange_timeout_ns(options),
        .join_timeout_ns = JOIN_TIMEOUT_NS,
    };
    TRY(reserve_on_devices(engine->device));
    return exchange_create_nccl(&exchange, &over, &engine->exchange);
}

static void close(struct engine *engine) {
    struct device_engine *d = engine->device;
    if (!d) {
        return;
    }
    for (uint32_t i = 0; i < d->devices->count; i++) {
        expertd_devices_release(d->devices, i, d->scratch[i].memory);
    }
    if (d->pinned) {
        expertd_devices_unpin(d->devices, engine->arena.base);
    }
    if (d->owns_weights) {
        device_weights_destroy(d->weights);
    }
    free(d->variants);
    free(d->first_tile);
    free(d->variant);
    free(d);
}

// ---- weights on devices

static uint64_t device_bytes(const struct engine *engine) {
    const struct device_engine *d = engine->device;
    struct layer_sizes sizes = layer_sizes_of(engine->model);
    struct exchange_options exchange = layer_exchange_options(engine->model, &engine->limits, &sizes);
    struct exchange_over_nccl over = {.devices = engine->devices};
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < d->devices->count; i++) {
        bytes += d->scratch[i].bytes + d->weights->sizes[i].weights + exchange_nccl_bytes(&exchange, &over, i);
    }
    return bytes;
}

static_assert((int)ENGINE_VARIANTS_TEXT_MAX >= (int)DEVICE_VARIANTS_TEXT_MAX,
              "device_variants_text writes up to DEVICE_VARIANTS_TEXT_MAX bytes");

static const char *variants(const struct engine *engine, size_t layer, char text[ENGINE_VARIANTS_TEXT_MAX]) {
    const struct layer_variants *of = &engine->device->variants[layer];
    struct expertd_device_variants all = of->experts[0];
    for (uint32_t s = 1; s < engine->model->layers[layer].shapes.count; s++) {
        all.equal |= of->experts[s].equal;
    }
    return device_variants_text(&all, text);
}

static void move_free_slots(const struct engine *engine, size_t layer, uint32_t *free_slots) {
    device_moves_free_slots(engine->device->weights, layer, engine->model, free_slots);
}

static FALLIBLE move_prepare(struct engine *engine, size_t layer, const struct shards *from, struct shards *to) {
    return device_moves_prepare(engine->device->weights, layer, from, to);
}

static void move_finish(struct engine *engine, size_t layer, const struct shards *in_force) {
    device_moves_finish(engine->device->weights, layer, in_force);
}

const struct engine_backend device_backend = {
    .stages = &device_stages,
    .inputs = BATCH_INPUTS,
    .message_bytes = message_bytes,
    .lay_out_pinned = lay_out_pinned,
    .lay_out_input = lay_out_input,
    .lay_out = lay_out,
    .other_bytes = other_bytes,
    .open = open,
    .reserve = reserve,
    .close = close,
    .untouched = untouched,
    .device_bytes = device_bytes,
    .variants = variants,
    .move_free_slots = move_free_slots,
    .move_prepare = move_prepare,
    .move_finish = move_finish,
};
