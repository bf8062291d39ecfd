#include "expert/device_weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "expert/memory.h"

enum { PIECE_ALIGN = 256 }; // what a device's own allocations have

// One walk over everything that a device holds, done twice: first the bytes are counted, then they are filled.
struct filling {
    struct device_weights *weights;
    uint32_t device;
    char *memory; // NULL: count
    size_t used;
    struct arena staging; // pinned: one matrix
};

static void *piece(struct filling *f, size_t bytes) {
    void *at = f->memory ? f->memory + f->used : NULL;
    f->used += (bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    return at;
}

// Staging to the device, and the device is done with it.
static FALLIBLE send(const struct filling *f, void *to, size_t bytes) {
    struct device_error error;
    struct devices *devices = f->weights->devices;
    const struct device_table *table = devices->table;
    struct device *device = devices->all[f->device];
    TRY(devices_check(devices, f->device, table->copy(device, DEVICE_UPLOAD, to, f->staging.base, bytes, &error), &error));
    return devices_check(devices, f->device, table->wait(device, &error), &error);
}

static FALLIBLE put_matrix(struct filling *f, const struct packed_weights *packed, struct device_matrix *out) {
    size_t bytes = packed->n * packed->k * dtype_size(packed->dtype);
    *out = (struct device_matrix){
        .dtype = packed->dtype, .groups = (uint32_t)packed->groups, .n = (uint32_t)packed->n, .k = (uint32_t)packed->k};
    char *to = piece(f, packed->groups * bytes);
    out->data = to;
    for (size_t g = 0; to && g < packed->groups; g++) {
        unpack_weights(packed, g, f->staging.base);
        TRY(send(f, to + g * bytes, bytes));
    }
    return OK;
}

static FALLIBLE put_vectors(struct filling *f, void *const *vectors, size_t groups, size_t count, const float **out) {
    size_t bytes = count * sizeof(float);
    char *to = piece(f, groups * bytes);
    *out = (const float *)(const void *)to;
    for (size_t g = 0; to && g < groups; g++) {
        memcpy(f->staging.base, vectors[g], bytes);
        TRY(send(f, to + g * bytes, bytes));
    }
    return OK;
}

static FALLIBLE put_vector(struct filling *f, const float *vector, size_t count, const float **out) {
    void *const one = (void *)vector; // read only
    *out = NULL;
    return vector ? put_vectors(f, &one, 1, count, out) : OK;
}

static FALLIBLE put_experts(struct filling *f, const struct expert_weights *w, struct device_experts *out) {
    const struct packed_weights *matrices[EXPERT_MATRICES] = {&w->gate, &w->up, &w->down};
    void *const *const biases[EXPERT_MATRICES] = {w->gate_bias, w->up_bias, w->down_bias};
    *out = (struct device_experts){0};
    for (int i = 0; i < EXPERT_MATRICES; i++) {
        if (matrices[i]->data) {
            TRY(put_matrix(f, matrices[i], &out->matrix[i]));
        }
        if (biases[i]) {
            TRY(put_vectors(f, biases[i], w->up.groups, matrices[i]->n, &out->bias[i]));
        }
    }
    return OK;
}

static FALLIBLE put_front(struct filling *f, const struct model_layer *layer, struct device_layer *out) {
    size_t outputs = layer->params.num_experts + layer->params.num_zero_experts;
    if (layer->router.data) {
        TRY(put_matrix(f, &layer->router, &out->router));
    }
    TRY(put_vector(f, layer->router_bias, outputs, &out->router_bias));
    TRY(put_vector(f, layer->selection_bias, outputs, &out->selection_bias));
    if (layer->params.shared != SHARED_NONE) {
        TRY(put_experts(f, &layer->shared, &out->shared));
    }
    return layer->shared_gate.data ? put_matrix(f, &layer->shared_gate, &out->shared_gate) : OK;
}

static FALLIBLE put_layer(struct filling *f, const struct model *model, size_t index) {
    const struct model_layer *layer = &model->layers[index];
    struct device_layer *out = &f->weights->layers[index];
    const struct shards *shards = shards_take(layer->in_force);
    err_t e = OK;
    out->epoch = shards->placement->epoch;
    for (uint32_t rank = 0; rank < model->ranks && !err_is(e); rank++) {
        if (device_of_rank(f->weights->devices, model->ranks, rank) == f->device) {
            e = put_experts(f, &shards->ranks[rank], &out->ranks[rank]);
        }
    }
    shards_give_back(layer->in_force, shards);
    return f->device == 0 && !err_is(e) ? put_front(f, layer, out) : e;
}

static FALLIBLE put_all(struct filling *f, const struct model *model) {
    f->used = 0;
    for (size_t i = 0; i < model->num_layers; i++) {
        TRY_IN(put_layer(f, model, i), "layer %u", model->layers[i].params.layer);
    }
    return OK;
}

static size_t staging_bytes(const struct model *model) {
    size_t most = sizeof(float);
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        const struct packed_weights *all[] = {&layer->shape.matrix[EXPERT_UP],
                                              &layer->shape.matrix[EXPERT_DOWN],
                                              &layer->shared.up,
                                              &layer->shared.down,
                                              &layer->router,
                                              &layer->shared_gate};
        for (size_t m = 0; m < sizeof all / sizeof *all; m++) {
            size_t n = all[m]->n > 0 ? all[m]->n : 1, bytes = n * (all[m]->k + 1) * sizeof(float); // and a vector of n
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

static FALLIBLE check_formats(const struct model *model) {
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        if (layer->shape.matrix[EXPERT_UP].format || layer->shared.up.format) {
            FAIL(ERR_UNAVAILABLE,
                 "layer %u: quantised weights are not computed with on GPUs yet: serve them with --widen, or with --device cpu",
                 layer->params.layer);
        }
    }
    return OK;
}

static FALLIBLE reserve(struct filling *f) {
    struct devices *devices = f->weights->devices;
    struct device_error error;
    struct device_facts facts;
    char needs[MEMORY_TEXT_MAX], has[MEMORY_TEXT_MAX];
    struct device *device = devices->all[f->device];
    TRY(devices_check(devices, f->device, devices->table->describe(device, &facts, &error), &error));
    if (f->used > facts.memory_available) {
        FAIL(ERR_NOMEM,
             "%s device %u (%s): its weights take %s, it has %s available: serve fewer layers, or spread them over more "
             "devices",
             devices->table->kind, devices->numbers[f->device], facts.name, memory_text(f->used, needs),
             memory_text(facts.memory_available, has));
    }
    f->weights->bytes[f->device] = f->used;
    void *memory = NULL;
    TRY(devices_check(devices, f->device, devices->table->reserve(device, f->used, &memory, &error), &error));
    f->weights->memory[f->device] = f->memory = memory;
    return OK;
}

static FALLIBLE fill_device(struct filling *f, const struct model *model) {
    f->memory = NULL;
    TRY(put_all(f, model)); // counts
    if (f->used == 0) {
        return OK; // no rank is its
    }
    TRY(reserve(f));
    return put_all(f, model);
}

FALLIBLE device_weights_create(struct devices *devices, const struct model *model, struct device_weights **out) {
    *out = NULL;
    TRY(check_formats(model));
    struct device_weights *weights = calloc(1, sizeof *weights);
    struct device_error error;
    struct filling f = {.weights = weights};
    bool pinned = false;
    err_t e = OK;
    if (weights) {
        weights->devices = devices;
        weights->layers = calloc(model->num_layers, sizeof *weights->layers);
        weights->ranks = calloc(model->num_layers * model->ranks, sizeof *weights->ranks);
    }
    if (!weights || !weights->layers || !weights->ranks) {
        e = err_record(ERR_NOMEM, NULL, "no memory for the tables of weights on devices");
        goto out;
    }
    for (size_t i = 0; i < model->num_layers; i++) {
        weights->layers[i].ranks = weights->ranks + i * model->ranks;
    }
    TRY_OUT(e, arena_init(&f.staging, staging_bytes(model)));
    TRY_OUT(e, devices_check(devices, 0, devices->table->pin(devices->all[0], f.staging.base, f.staging.bytes, &error), &error));
    pinned = true;
    for (f.device = 0; f.device < devices->count; f.device++) {
        TRY_OUT(e, fill_device(&f, model));
    }
    *out = weights;
    weights = NULL; // taken
out:
    if (pinned) {
        devices->table->unpin(devices->all[0], f.staging.base);
    }
    arena_deinit(&f.staging);
    device_weights_destroy(weights);
    return e;
}

void device_weights_destroy(struct device_weights *weights) {
    if (weights) {
        for (uint32_t d = 0; d < weights->devices->count; d++) {
            weights->devices->table->release(weights->devices->all[d], weights->memory[d]);
        }
        free(weights->layers);
        free(weights->ranks);
        free(weights);
    }
}
