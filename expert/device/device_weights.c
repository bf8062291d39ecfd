#include "expert/device/device_weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert/device/device_scratch.h"
#include "expert/model/memory.h"
#include "expertd/kernels/quantised.h"
#include "kernels/device/device_codes.h"
#include "shard/exchange.h"

// ---- checks

static bool same_format(const struct expertd_packed_weights *a, const struct expertd_packed_weights *b) {
    const struct expertd_quantised_format *f = a->format, *g = b->format;
    if (!f || !g) {
        return f == g;
    }
    return expertd_quantised_format_equal(f, g);
}

// model_options.for_devices has widened all weights that devices have no kernels for.
static void require_kernels(const struct expertd_packed_weights matrix[EXPERT_MATRICES]) {
    for (int i = 0; i < EXPERT_MATRICES; i++) {
        INVARIANT(!matrix[i].format || device_codes_supported(matrix[i].format));
    }
    INVARIANT(matrix[EXPERT_GATE].group_bytes == 0 || same_format(&matrix[EXPERT_GATE], &matrix[EXPERT_UP]));
}

// Refuses layers that devices cannot compute. All rows have width H.
static FALLIBLE check_layers(const struct model *model) {
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        if (layer->params.latent_size > 0) {
            FAIL(EXPERTD_ERR_UNAVAILABLE,
                 "layer %u: GPUs do not compute latent experts (rows of %u, not of %u): serve them with --device cpu",
                 layer->params.layer, layer->params.latent_size, layer->params.hidden_size);
        }
        if (layer->params.has_output_norm) {
            FAIL(EXPERTD_ERR_UNAVAILABLE, "layer %u: GPUs do not compute blocks that end with a norm: serve them with --device cpu",
                 layer->params.layer);
        }
        struct expert_shape shared;
        device_shape_of(&layer->shared, &shared);
        require_kernels(shared.matrix);
        for (uint32_t s = 0; s < layer->shapes.count; s++) {
            require_kernels(layer->shapes.all[s].matrix);
        }
    }
    return OK;
}

static uint32_t device_of(const struct device_weights *w, const struct model *model, uint32_t rank) {
    return expertd_device_of_rank(w->options.devices, model->ranks, rank);
}

// The number of experts of a shape that the rank holds.
static uint32_t held_by(const struct model_layer *layer, uint32_t rank, uint32_t shape) {
    const struct shards *shards = layer->in_force->shards;
    uint32_t held = 0;
    for (uint32_t run = shards->rank_runs[rank]; run < shards->rank_runs[rank + 1]; run++) {
        held += shards_run_shape(shards, run) == shape ? shards->run_first[run + 1] - shards->run_first[run] : 0;
    }
    return held;
}

// Of one slot for each shape.
static uint64_t slot_bytes(const struct model_layer *layer) {
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < layer->shapes.count; s++) {
        bytes += device_slot_bytes(&layer->shapes.all[s]);
    }
    return bytes;
}

// The spare slots of each rank of a device, in every layer, for each shape: as many as fit into spare_bytes.
static uint32_t spare_slots(const struct device_weights *w, const struct model *model, uint32_t device) {
    uint64_t of_one = 0;
    for (size_t i = 0; i < model->num_layers; i++) {
        for (uint32_t rank = 0; rank < model->ranks; rank++) {
            of_one += device_of(w, model, rank) == device ? slot_bytes(&model->layers[i]) : 0;
        }
    }
    uint64_t slots = of_one && model->ranks > 1 ? w->options.spare_bytes / of_one : 0;
    return slots < model->max_experts ? (uint32_t)slots : model->max_experts;
}

static uint32_t slots_of(const struct model_layer *layer, uint32_t rank, uint32_t shape, uint32_t spare) {
    uint32_t slots = held_by(layer, rank, shape) + spare,
             most = expert_shapes_experts(&layer->shapes, layer->params.num_experts, shape);
    return slots < most ? slots : most;
}

static void lay_out_rank(struct device_pool *pool, const struct model_layer *layer, uint32_t rank, uint32_t spare,
                         struct device_layer *out) {
    for (uint32_t s = 0; s < out->shapes; s++) {
        device_experts_lay_out(pool, &layer->shapes.all[s], slots_of(layer, rank, s, spare),
                               &out->places[device_place(out, rank, s)]);
    }
}

static void *take_vector(struct device_pool *pool, const float *vector, size_t count) {
    return vector ? device_pool_take(pool, count * sizeof *vector) : NULL;
}

static void lay_out_plain(struct device_pool *pool, const struct expertd_packed_weights *m, struct expertd_device_matrix *out) {
    *out = (struct expertd_device_matrix){.dtype = m->dtype, .groups = 1, .n = (uint32_t)m->n, .k = (uint32_t)m->k};
    out->data = device_pool_take(pool, m->n * m->k * expertd_dtype_size(m->dtype));
}

static void lay_out_front(struct device_pool *pool, const struct model_layer *layer, struct device_layer *out) {
    size_t outputs = layer->params.num_experts + layer->params.num_zero_experts;
    if (layer->router.data) {
        lay_out_plain(pool, &layer->router, &out->router);
    }
    out->router_bias = take_vector(pool, layer->router_bias, outputs);
    out->selection_bias = take_vector(pool, layer->selection_bias, outputs);
    out->output_bias = take_vector(pool, layer->output_bias, layer->params.hidden_size);
    if (shared_has_expert(layer->params.shared)) {
        struct expert_shape shape;
        device_shape_of(&layer->shared, &shape);
        device_experts_lay_out(pool, &shape, 1, &out->shared);
    }
    if (layer->shared_gate.data) {
        lay_out_plain(pool, &layer->shared_gate, &out->shared_gate);
    }
}

// Lays out everything that a device holds. Called first without memory, to count the bytes, then with it.
static void lay_out(struct device_weights *w, const struct model *model, uint32_t device, uint32_t spare,
                    struct device_pool *pool) {
    pool->used = 0;
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        struct device_layer *out = &w->layers[i];
        const size_t before = pool->used;
        for (uint32_t rank = 0; rank < model->ranks; rank++) {
            if (device_of(w, model, rank) == device) {
                lay_out_rank(pool, layer, rank, spare, out);
            }
        }
        if (device == 0) {
            lay_out_front(pool, layer, out);
        }
        out->bytes[device] = pool->used - before;
    }
}

// ---- reserving

// Codes that take more memory here than in their files. cause, mend: "" if there are none.
static void explain_widened(const struct widened *widened, enum expertd_dtype dtype, char cause[WIDENED_TEXT_MAX + 160],
                            const char **mend) {
    char names[WIDENED_TEXT_MAX], wide[MEMORY_TEXT_MAX], stored[MEMORY_TEXT_MAX];
    cause[0] = '\0';
    *mend = "";
    if (widened->count > 0) {
        snprintf(cause, WIDENED_TEXT_MAX + 160, "; %s of %s in the files become %s of %s in all, as GPUs have no kernels for them",
                 memory_text(widened->stored_bytes, stored), widened_names_text(widened, UINT32_MAX, names),
                 memory_text(widened->bytes, wide), expertd_dtype_name(dtype));
        *mend = ", take the model in another format, or let the CPU compute the codes (--device cpu)";
    }
}

static FALLIBLE check_fits(const struct device_weights *w, const struct model *model, uint32_t device) {
    struct expertd_devices *devices = w->options.devices;
    const struct device_weights_sizes *sizes = &w->sizes[device];
    if (device_weights_needed(sizes) <= sizes->available) {
        return OK;
    }
    char text[5][MEMORY_TEXT_MAX], links[MEMORY_TEXT_MAX + 16] = "", cause[WIDENED_TEXT_MAX + 160];
    const char *mend;
    if (sizes->links > 0) {
        snprintf(links, sizeof links, ", NCCL up to %s", memory_text(sizes->links, text[4]));
    }
    explain_widened(&model->widened, model->compute_dtype, cause, &mend);
    FAIL(EXPERTD_ERR_NOMEM,
         "%s device %u (%s): its weights take %s (%s of it for experts that move in), batches of %u tokens %s%s, and it has %s "
         "available%s: serve fewer layers, spread them over more devices, or lower max_batch_tokens%s",
         devices->table->kind, devices->numbers[device], devices->facts.name, memory_text(sizes->weights, text[0]),
         memory_text(sizes->moves, text[1]), w->options.max_batch_tokens, memory_text(sizes->batches, text[2]), links,
         memory_text(sizes->available, text[3]), cause, mend);
}

static FALLIBLE measure_on(struct device_weights *w, const struct model *model, uint32_t device) {
    struct expertd_devices *devices = w->options.devices;
    struct expertd_device_error error;
    struct expertd_device_facts facts;
    TRY(expertd_devices_check(devices, device, devices->table->describe(devices->all[device], &facts, &error), &error));
    struct layer_limits limits = layer_limits_for(model, w->options.max_batch_tokens, w->options.max_top_k);
    struct device_pool pool = {0};
    lay_out(w, model, device, 0, &pool);
    const size_t without = pool.used;
    lay_out(w, model, device, spare_slots(w, model, device), &pool);
    w->sizes[device] = (struct device_weights_sizes){.weights = pool.used,
                                                     .moves = pool.used - without,
                                                     .batches = device_batch_bytes(model, &limits, devices, device),
                                                     .links = exchange_nccl_margin(devices, device),
                                                     .available = facts.memory_available};
    return OK;
}

static FALLIBLE reserve_on(struct device_weights *w, const struct model *model, uint32_t device) {
    struct expertd_devices *devices = w->options.devices;
    struct expertd_device_error error;
    struct device_pool pool = {0};
    const size_t bytes = w->sizes[device].weights;
    if (bytes == 0) {
        return OK; // the device has no rank
    }
    TRY(expertd_devices_check(devices, device, devices->table->reserve(devices->all[device], bytes, &w->memory[device], &error),
                              &error));
    pool.memory = w->memory[device];
    lay_out(w, model, device, spare_slots(w, model, device), &pool);
    return OK;
}

static FALLIBLE make_table(struct device_layer *layer, const struct model_layer *from, uint32_t ranks) {
    uint32_t places = ranks * from->shapes.count;
    layer->shapes = from->shapes.count;
    INVARIANT(places > 0);
    layer->places = calloc(places, sizeof *layer->places);
    layer->taken = calloc(places, sizeof *layer->taken);
    unsigned char *taken = calloc(places, from->params.num_experts);
    if (!layer->places || !layer->taken || !taken) {
        free(taken);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the tables of weights on devices");
    }
    for (uint32_t p = 0; p < places; p++) {
        layer->taken[p] = taken + (size_t)p * from->params.num_experts;
    }
    return OK;
}

static FALLIBLE make_tables(struct device_weights *w, const struct model *model) {
    w->num_layers = model->num_layers;
    w->layers = calloc(model->num_layers, sizeof *w->layers);
    if (!w->layers) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the tables of weights on devices");
    }
    for (size_t i = 0; i < model->num_layers; i++) {
        TRY(make_table(&w->layers[i], &model->layers[i], model->ranks));
    }
    return OK;
}

// Initially a rank's slots for a shape are in the order of its experts.
static void number_rank(struct shards *shards, uint32_t rank, struct device_layer *layer) {
    uint32_t next[EXPERT_SHAPES_MAX] = {0};
    for (uint32_t run = shards->rank_runs[rank]; run < shards->rank_runs[rank + 1]; run++) {
        uint32_t shape = shards_run_shape(shards, run);
        for (uint32_t s = shards->run_first[run]; s < shards->run_first[run + 1]; s++) {
            shards->device_slots[s] = next[shape]++;
            layer->taken[device_place(layer, rank, shape)][shards->device_slots[s]] = 1;
        }
    }
}

static FALLIBLE number_slots(struct device_weights *w, const struct model *model) {
    for (size_t i = 0; i < model->num_layers; i++) {
        struct shards *shards = model->layers[i].in_force->shards; // no other thread has the model yet
        free(shards->device_slots);
        shards->device_slots = calloc(shards->placement->copies, sizeof *shards->device_slots);
        if (!shards->device_slots) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory for the slots of %u experts", shards->placement->copies);
        }
        for (uint32_t rank = 0; rank < shards->placement->ranks; rank++) {
            number_rank(shards, rank, &w->layers[i]);
        }
    }
    return OK;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t staging_for(const struct model *model) {
    size_t most = sizeof(float);
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        struct expert_shape shared;
        device_shape_of(&layer->shared, &shared);
        most = larger(most, device_staging_bytes(&shared));
        for (uint32_t s = 0; s < layer->shapes.count; s++) {
            most = larger(most, device_staging_bytes(&layer->shapes.all[s]));
        }
        most = larger(most, layer->router.n * layer->router.k * sizeof(float));
        most = larger(most, layer->shared_gate.n * layer->shared_gate.k * sizeof(float));
    }
    return most;
}

static FALLIBLE pin(struct device_weights *w, size_t bytes, struct arena *out, bool *pinned) {
    struct expertd_devices *devices = w->options.devices;
    struct expertd_device_error error;
    TRY(arena_init(out, bytes));
    TRY(expertd_devices_check(devices, 0, devices->table->pin(devices->all[0], out->base, out->bytes, &error), &error));
    *pinned = true;
    return OK;
}

static void unpin(struct device_weights *w, struct arena *arena, bool *pinned) {
    if (*pinned) {
        expertd_devices_unpin(w->options.devices, arena->base);
    }
    *pinned = false;
    arena_deinit(arena);
}

FALLIBLE device_weights_measure(struct device_weights *w, const struct model *model) {
    TRY(check_layers(model));
    TRY(make_tables(w, model));
    for (uint32_t d = 0; d < w->options.devices->count; d++) {
        TRY(measure_on(w, model, d));
    }
    return OK;
}

FALLIBLE device_weights_check_fits(const struct device_weights *w, const struct model *model) {
    for (uint32_t d = 0; d < w->options.devices->count; d++) {
        TRY(check_fits(w, model, d));
    }
    return OK;
}

uint64_t device_weights_layer_bytes(const struct device_weights *w, size_t layer) {
    uint64_t bytes = 0;
    for (uint32_t d = 0; d < w->options.devices->count; d++) {
        bytes += w->layers[layer].bytes[d];
    }
    return bytes;
}

FALLIBLE device_weights_begin(struct device_weights *w, const struct model *model, unsigned threads) {
    TRY(device_weights_measure(w, model));
    TRY(device_weights_check_fits(w, model));
    TRY(number_slots(w, model));
    for (uint32_t d = 0; d < w->options.devices->count; d++) {
        TRY(reserve_on(w, model, d));
    }
    w->staging_bytes = arena_rounded(staging_for(model));
    TRY_IN(pin(w, w->staging_bytes * threads, &w->staging, &w->load_is_pinned), "staging for the load");
    if (model->ranks == 1) {
        return OK;
    }
    TRY_IN(expertd_devices_again(w->options.devices, &w->move_devices), "for moves");
    TRY_IN(pin(w, w->staging_bytes, &w->move_staging, &w->moves_are_pinned), "staging for moves");
    return OK;
}

// ---- filling

static struct device_staging staging_of(struct device_weights *w, uint32_t device, unsigned thread) {
    return (struct device_staging){.devices = w->options.devices,
                                   .device = device,
                                   .memory = w->staging.base + thread * w->staging_bytes,
                                   .bytes = w->staging_bytes,
                                   .mutex = &w->mutex};
}

FALLIBLE device_weights_put(struct device_weights *w, const struct model *model, size_t index, uint32_t expert, unsigned thread) {
    const struct model_layer *layer = &model->layers[index];
    const struct shards *shards = layer->in_force->shards;
    const struct placement *placement = shards->placement;
    struct device_layer *to = &w->layers[index];
    uint32_t first = placement->holder_first[expert];
    size_t group; // the expert's index in the host's weights
    const struct expert_weights *weights = shards_find(shards, placement->holder_slots[first], &group);
    for (uint32_t h = first; h < placement->holder_first[expert + 1]; h++) {
        uint32_t rank = placement->holders[h], place = device_place(to, rank, shards->shapes->of_expert[expert]);
        struct device_staging staging = staging_of(w, device_of(w, model, rank), thread);
        TRY_IN(device_experts_put(&to->places[place], shards->device_slots[placement->holder_slots[h]], weights, group, &staging),
               "layer %u, expert %u", layer->params.layer, expert);
    }
    return OK;
}

static FALLIBLE put_vector(const struct device_staging *staging, const float *to, const float *from, size_t count) {
    return from ? device_put(staging, (void *)to, from, count * sizeof *from) : OK;
}

static FALLIBLE put_front(const struct device_staging *staging, const struct model_layer *layer, const struct device_layer *to) {
    size_t outputs = layer->params.num_experts + layer->params.num_zero_experts;
    if (layer->router.data) {
        TRY(device_put_plain(staging, &layer->router, (void *)to->router.data));
    }
    TRY(put_vector(staging, to->router_bias, layer->router_bias, outputs));
    TRY(put_vector(staging, to->selection_bias, layer->selection_bias, outputs));
    TRY(put_vector(staging, to->output_bias, layer->output_bias, layer->params.hidden_size));
    if (shared_has_expert(layer->params.shared)) {
        TRY(device_experts_put(&to->shared, 0, &layer->shared, 0, staging));
    }
    return layer->shared_gate.data ? device_put_plain(staging, &layer->shared_gate, (void *)to->shared_gate.data) : OK;
}

FALLIBLE device_weights_end(struct device_weights *w, const struct model *model) {
    struct device_staging front = staging_of(w, 0, 0);
    for (size_t i = 0; i < model->num_layers; i++) {
        TRY_IN(put_front(&front, &model->layers[i], &w->layers[i]), "layer %u", model->layers[i].params.layer);
    }
    unpin(w, &w->staging, &w->load_is_pinned);
    return OK;
}

FALLIBLE device_weights_take_loaded(struct device_weights *w, const struct model *model) {
    TRY(device_weights_begin(w, model, 1));
    for (size_t i = 0; i < model->num_layers; i++) {
        for (uint32_t e = 0; e < model->layers[i].params.num_experts; e++) {
            TRY(device_weights_put(w, model, i, e, 0));
        }
    }
    return device_weights_end(w, model);
}

static err_t sink_begin(void *context, const struct model *model, unsigned threads) {
    return device_weights_begin(context, model, threads);
}

static err_t sink_put(void *context, const struct model *model, size_t layer, uint32_t expert, unsigned thread) {
    return device_weights_put(context, model, layer, expert, thread);
}

static err_t sink_end(void *context, const struct model *model) {
    return device_weights_end(context, model);
}

struct model_sink device_weights_sink(struct device_weights *weights) {
    return (struct model_sink){.context = weights, .begin = sink_begin, .put = sink_put, .end = sink_end};
}

// ---- create and destroy

FALLIBLE device_weights_create(const struct device_weights_options *options, struct device_weights **out) {
    *out = calloc(1, sizeof **out);
    if (!*out) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the table of weights on devices");
    }
    (*out)->options = *options;
    pthread_mutex_init(&(*out)->mutex, NULL);
    return OK;
}

void device_weights_destroy(struct device_weights *w) {
    if (!w) {
        return;
    }
    const struct expertd_devices *devices = w->options.devices;
    unpin(w, &w->staging, &w->load_is_pinned);
    unpin(w, &w->move_staging, &w->moves_are_pinned);
    expertd_devices_close(w->move_devices);
    for (uint32_t d = 0; d < devices->count; d++) {
        expertd_devices_release(devices, d, w->memory[d]);
    }
    for (size_t i = 0; w->layers && i < w->num_layers; i++) {
        free(w->layers[i].places);
        free(w->layers[i].taken ? w->layers[i].taken[0] : NULL);
        free(w->layers[i].taken);
    }
    free(w->layers);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}
