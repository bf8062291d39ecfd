#include "expert/device_weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "expert/memory.h"
#include "kernels/device_codes.h"
#include "kernels/quantised.h"

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

// From `offset` of the staging to the device, and the device is done with it.
static FALLIBLE send_from(const struct filling *f, size_t offset, void *to, size_t bytes) {
    struct device_error error;
    struct devices *devices = f->weights->devices;
    const struct device_table *table = devices->table;
    struct device *device = devices->all[f->device];
    TRY(devices_check(devices, f->device, table->copy(device, DEVICE_UPLOAD, to, f->staging.base + offset, bytes, &error), &error));
    return devices_check(devices, f->device, table->wait(device, &error), &error);
}

static FALLIBLE send(const struct filling *f, void *to, size_t bytes) {
    return send_from(f, 0, to, bytes);
}

// Codes, scales and zero points, each of all groups together.
static FALLIBLE put_codes(struct filling *f, const struct packed_weights *packed, struct device_matrix *out) {
    const struct quantised_format *format = packed->format;
    struct device_codes_size bytes = device_codes_bytes(format, packed->n, packed->k);
    char *codes = piece(f, packed->groups * bytes.codes), *scales = piece(f, packed->groups * bytes.scales);
    char *zeros = piece(f, packed->groups * bytes.zeros), *staging = f->staging.base;
    for (size_t g = 0; codes && g < packed->groups; g++) {
        char *staged_scales = staging + bytes.codes, *staged_zeros = staged_scales + bytes.scales;
        device_codes_pack(format, packed->data[g], packed->n, packed->k, staging, staged_scales, staged_zeros);
        TRY(send_from(f, 0, codes + g * bytes.codes, bytes.codes));
        TRY(send_from(f, bytes.codes, scales + g * bytes.scales, bytes.scales));
        TRY(send_from(f, bytes.codes + bytes.scales, zeros + g * bytes.zeros, bytes.zeros));
    }
    out->data = codes;
    out->quantised = (struct device_quantised){
        .format = *format, .scales = scales, .zeros = format->zero_points ? (const uint8_t *)zeros : NULL};
    return OK;
}

// Of each group, as its packed panels begin with it.
static FALLIBLE put_globals(struct filling *f, const struct packed_weights *packed, struct device_matrix *out) {
    if (packed->format->global == GLOBAL_NONE || packed->format->scale_of_panel) {
        return OK;
    }
    char *to = piece(f, packed->groups * sizeof(float));
    out->quantised.globals = (const float *)(const void *)to;
    for (size_t g = 0; to && g < packed->groups; g++) {
        memcpy(f->staging.base, packed->data[g], sizeof(float));
        TRY(send(f, to + g * sizeof(float), sizeof(float)));
    }
    return OK;
}

static FALLIBLE put_quantised(struct filling *f, const struct packed_weights *packed, struct device_matrix *out) {
    *out = (struct device_matrix){
        .dtype = packed->dtype, .groups = (uint32_t)packed->groups, .n = (uint32_t)packed->n, .k = (uint32_t)packed->k};
    TRY(put_codes(f, packed, out));
    return put_globals(f, packed, out);
}

static FALLIBLE put_matrix(struct filling *f, const struct packed_weights *packed, struct device_matrix *out) {
    if (packed->format) {
        return put_quantised(f, packed, out);
    }
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

// [groups][k]; NULL: in order.
static FALLIBLE put_order(struct filling *f, void *const *orders, size_t groups, size_t k, const uint32_t **out) {
    size_t bytes = k * sizeof(uint32_t);
    *out = NULL;
    if (!orders) {
        return OK;
    }
    char *to = piece(f, groups * bytes);
    *out = (const uint32_t *)(const void *)to;
    for (size_t g = 0; to && g < groups; g++) {
        memcpy(f->staging.base, orders[g], bytes);
        TRY(send(f, to + g * bytes, bytes));
    }
    return OK;
}

// Gate and up read their rows in one order.
static FALLIBLE put_orders(struct filling *f, const struct expert_weights *w, struct device_experts *out) {
    const uint32_t *hidden, *inner;
    TRY(put_order(f, w->hidden_order, w->up.groups, w->up.k, &hidden));
    TRY(put_order(f, w->inner_order, w->down.groups, w->down.k, &inner));
    out->matrix[EXPERT_GATE].quantised.order = out->matrix[EXPERT_UP].quantised.order = hidden;
    out->matrix[EXPERT_DOWN].quantised.order = inner;
    return OK;
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
    return put_orders(f, w, out);
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

// Of one group: a plain matrix in fp32 and a vector, or codes with all that belongs to them, or an order.
static size_t staging_of(const struct packed_weights *m) {
    size_t n = m->n > 0 ? m->n : 1, bytes = n * (m->k + 1) * sizeof(float);
    if (m->format) {
        struct device_codes_size codes = device_codes_bytes(m->format, m->n, m->k);
        size_t all = codes.codes + codes.scales + codes.zeros;
        bytes = all > bytes ? all : bytes;
    }
    return bytes;
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
            size_t bytes = staging_of(all[m]);
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

static bool same_format(const struct packed_weights *a, const struct packed_weights *b) {
    const struct quantised_format *f = a->format, *g = b->format;
    if (!f || !g) {
        return f == g;
    }
    return f->code == g->code && f->scale == g->scale && f->global == g->global && f->zero_points == g->zero_points &&
           f->scale_of_panel == g->scale_of_panel && f->scale_k == g->scale_k;
}

// Gate and up are multiplied together.
static FALLIBLE check_formats(const struct model *model) {
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        const struct packed_weights *gate = &layer->shape.matrix[EXPERT_GATE], *shared = &layer->shared.gate;
        bool differ = gate->group_bytes > 0 && !same_format(gate, &layer->shape.matrix[EXPERT_UP]);
        if (differ || (shared->data && !same_format(shared, &layer->shared.up))) {
            FAIL(ERR_UNAVAILABLE,
                 "layer %u: gate_proj and up_proj are quantised in two ways, which GPUs do not compute with: serve them with "
                 "--widen, or with --device cpu",
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
