#include "daemon/examine/inspect_devices.h"

#include <stdlib.h>
#include <string.h>

#include "expert/device/device_weights.h"

// The context of the sink, whose `begin` measures.
struct measuring {
    const struct options *options;
    struct inspected_devices *out;
    struct expertd_devices *devices;
};

static FALLIBLE keep_layers(const struct model *model, const struct device_weights *weights, struct inspected_devices *out) {
    out->layer_bytes = calloc(model->num_layers, sizeof *out->layer_bytes);
    out->layer_widened = calloc(model->num_layers, sizeof *out->layer_widened);
    if (!out->layer_bytes || !out->layer_widened) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu layers", model->num_layers);
    }
    for (size_t i = 0; i < model->num_layers; i++) {
        out->layer_bytes[i] = device_weights_layer_bytes(weights, i);
        out->layer_widened[i] = model->layers[i].widened;
    }
    return OK;
}

static err_t measure(void *context, const struct model *model, unsigned threads) {
    const struct measuring *measuring = context;
    struct inspected_devices *out = measuring->out;
    struct device_weights_options options = loading_device_weights_options(measuring->options, measuring->devices);
    struct device_weights *weights = NULL;
    err_t e;
    (void)threads;
    out->widened = model->widened;
    for (size_t i = 0; i < model->widened.count; i++) {
        model_widened_layers(model, i, out->widened_layers[i]);
    }
    TRY_OUT(e, device_weights_create(&options, &weights));
    TRY_OUT(e, device_weights_measure(weights, model));
    memcpy(out->sizes, weights->sizes, sizeof out->sizes);
    TRY_OUT(e, keep_layers(model, weights, out));
    TRY_OUT(e, device_weights_check_fits(weights, model));
out:
    device_weights_destroy(weights);
    return e;
}

void inspect_devices(const struct options *options, const struct loaded *loaded,
                     uint64_t (*scratch_bytes)(void *, const struct model *), void *scratch_context,
                     struct inspected_devices *out) {
    *out = (struct inspected_devices){.devices = loaded->devices};
    struct measuring measuring = {.options = options, .out = out, .devices = loaded->devices};
    const struct model_sink sink = {.context = &measuring, .begin = measure};
    struct model_options model = loading_model_options(options, loaded);
    model.scratch_bytes = scratch_bytes;
    model.scratch_context = scratch_context;
    model.sink = &sink;
    model_inspect(&model, &options->shards, 1, &out->start);
}

void inspected_devices_deinit(struct inspected_devices *inspected) {
    inspection_deinit(&inspected->start);
    free(inspected->layer_bytes);
    free(inspected->layer_widened);
    *inspected = (struct inspected_devices){0};
}
