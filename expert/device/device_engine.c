#include "expert/device/device_engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "expert/device/device_message.h"
#include "expert/device/device_weights.h"

static FALLIBLE reserve(struct device_engine *d, uint32_t device) {
    struct device_scratch *s = &d->scratch[device];
    struct device_scratch_needs needs = device_scratch_needs_of(d->engine->model, &d->engine->limits);
    device_scratch_lay_out(&needs, device == 0, s);
    EXPERTD_DEVICES_CALL(d->devices, device, reserve, s->bytes, &s->memory);
    device_scratch_lay_out(&needs, device == 0, s);
    return OK;
}

// Tiles over all tokens in order, as one group; a batch uses the first ones, and the last of them is cut by its number of rows.
static FALLIBLE write_token_tiles(const struct device_engine *d) {
    int32_t tokens = (int32_t)d->engine->limits.max_tokens;
    struct expertd_device_tile *tiles = device_message_most(d->engine->message, d->engine->model, &d->engine->limits).tiles;
    for (int v = 0; v < EXPERTD_DEVICE_VARIANTS; v++) {
        uint32_t count = device_cut_tiles(&tokens, 1, 0, device_variant_rows((enum expertd_device_variant)v), tiles);
        EXPERTD_DEVICES_CALL(d->devices, 0, copy, EXPERTD_DEVICE_UPLOAD, d->scratch[0].token_tiles[v], tiles,
                             count * sizeof *tiles);
        TRY(expertd_devices_wait(d->devices, 0));
    }
    return OK;
}

static FALLIBLE learn_variants(const struct device_engine *d) {
    const struct model *model = d->engine->model;
    enum expertd_dtype dtype = model->compute_dtype;
    const struct expertd_device_variants *device = dtype == EXPERTD_DTYPE_F32 ? &d->devices->facts.f32 : &d->devices->facts.bf16;
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        const struct layer_params *p = &layer->params;
        struct device_network_shape experts = {p->hidden_size, p->intermediate_size, layer->shape.matrix[EXPERT_UP].format,
                                               layer->shape.matrix[EXPERT_DOWN].format, layer->ordered};
        struct device_network_shape shared = {p->hidden_size, p->shared_intermediate_size, layer->shared.up.format,
                                              layer->shared.down.format, layer->ordered};
        struct layer_variants *out = &d->variants[i];
        TRY_IN(device_variants_of(device, &experts, dtype, d->devices->forced, &out->experts), "layer %u", p->layer);
        if (shared_has_expert(p->shared)) {
            TRY_IN(device_variants_of(device, &shared, dtype, d->devices->forced, &out->shared), "layer %u", p->layer);
        }
    }
    return OK;
}

// The weights are in the host's memory: they go to the devices beside that.
static FALLIBLE take_loaded(struct device_engine *d) {
    struct device_weights_options options = {
        .devices = d->devices, .max_batch_tokens = d->engine->limits.max_tokens, .max_top_k = d->engine->limits.max_top_k};
    TRY(device_weights_create(&options, &d->weights));
    d->owns_weights = true;
    return device_weights_take_loaded(d->weights, d->engine->model);
}

static FALLIBLE make(struct device_engine *d) {
    struct engine *engine = d->engine;
    TRY(learn_variants(d));
    if (!d->weights) {
        TRY(take_loaded(d));
    }
    EXPERTD_DEVICES_CALL(d->devices, 0, pin, engine->arena.base, engine->pinned_bytes);
    d->pinned = true;
    for (uint32_t i = 0; i < d->devices->count; i++) {
        TRY(reserve(d, i));
    }
    return write_token_tiles(d);
}

FALLIBLE device_engine_create(struct engine *engine, struct expertd_devices *devices, struct device_weights *weights,
                              struct device_engine **out) {
    *out = NULL;
    struct device_engine *d = calloc(1, sizeof *d);
    if (!d) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the engine of devices");
    }
    d->engine = engine;
    d->devices = devices;
    d->weights = weights;
    d->variants = calloc(engine->model->num_layers, sizeof *d->variants);
    d->first_tile = calloc(engine->model->ranks + 1, sizeof *d->first_tile);
    d->variant = calloc(engine->model->ranks, sizeof *d->variant);
    err_t e = d->variants && d->first_tile && d->variant
                  ? make(d)
                  : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for the engine of devices");
    if (err_is(e)) {
        device_engine_destroy(d);
        return e;
    }
    *out = d;
    return OK;
}

void device_engine_destroy(struct device_engine *d) {
    if (!d) {
        return;
    }
    for (uint32_t i = 0; i < d->devices->count; i++) {
        expertd_devices_release(d->devices, i, d->scratch[i].memory);
    }
    if (d->pinned) {
        expertd_devices_unpin(d->devices, d->engine->arena.base);
    }
    if (d->owns_weights) {
        device_weights_destroy(d->weights);
    }
    free(d->variants);
    free(d->first_tile);
    free(d->variant);
    free(d);
}

struct device_weights *device_engine_weights(const struct device_engine *d) {
    return d->weights;
}

uint64_t device_engine_bytes(const struct device_engine *d) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < d->devices->count; i++) {
        bytes += d->scratch[i].bytes + d->weights->bytes[i];
    }
    return bytes;
}

const char *device_engine_variants(const struct device_engine *d, size_t layer, char text[ENGINE_VARIANTS_TEXT_MAX]) {
    static_assert((int)ENGINE_VARIANTS_TEXT_MAX >= (int)DEVICE_VARIANTS_TEXT_MAX, "it is written by device_variants_text");
    return device_variants_text(&d->variants[layer].experts, text);
}
