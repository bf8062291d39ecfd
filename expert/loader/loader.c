#include "expert/loader/loader.h"

#include <string.h>

#include "base/clock.h"
#include "expert/loader/loader_tensors.h"

enum { PROGRESS_NS = 100 * NS_PER_MS };

// Copies the expert's block from its first holder to the others.
static void replicate(const struct shards *shards, uint32_t expert) {
    const struct placement *placement = shards->placement;
    const uint32_t *slots = placement->holder_slots + placement->holder_first[expert];
    const struct expert_block *first = shards->blocks[slots[0]];
    for (uint32_t i = 1; i < placement->holder_first[expert + 1] - placement->holder_first[expert]; i++) {
        memcpy(shards->blocks[slots[i]]->data, first->data, first->bytes);
    }
}

// Passes the expert to the sink, and releases the host's pages.
static FALLIBLE pass_to_sink(const struct load *load, size_t layer_index, uint32_t expert, unsigned thread) {
    const struct model_sink *sink = load->options->sink;
    const struct shards *shards = load->model->layers[layer_index].in_force->shards;
    const struct placement *placement = shards->placement;
    TRY(sink->put(sink->context, load->model, layer_index, expert, thread));
    expert_block_release(shards->blocks[placement->holder_slots[placement->holder_first[expert]]]);
    return OK;
}

static FALLIBLE load_expert(struct load *load, size_t layer_index, uint32_t expert, unsigned thread, void *staging) {
    struct model_layer *layer = &load->model->layers[layer_index];
    const struct shards *shards = layer->in_force->shards; // the model is not yet shared
    uint32_t slot = shards->placement->holder_slots[shards->placement->holder_first[expert]];
    struct load_item item = {.layer = layer_index, .expert = expert, .staging = staging};
    item.experts = shards_find(shards, slot, &item.group);
    struct digest digest;
    digest_init(&digest);
    TRY_IN(load_tensors(load, &item, 0, SUPPLY_EXPERT_TENSORS, &digest), "layer %u, expert %u", layer->params.layer, expert);
    layer->expert_digests[expert] = digest_64(&digest);
    if (load->options->sink) {
        return pass_to_sink(load, layer_index, expert, thread);
    }
    replicate(shards, expert);
    return OK;
}

static FALLIBLE load_common(struct load *load, size_t layer_index, void *staging) {
    struct model_layer *layer = &load->model->layers[layer_index];
    struct load_item item = {.layer = layer_index, .expert = SUPPLY_SHARED, .experts = &layer->shared, .staging = staging};
    struct digest router, shared;
    digest_init(&router);
    digest_init(&shared);
    TRY_IN(load_tensors(load, &item, SUPPLY_ROUTER, SUPPLY_SHARED_GATE, &router), "layer %u, router", layer->params.layer);
    if (layer->token_experts) {
        TRY_IN(token_table_read(&load->supply->layers[layer_index].token_experts, &layer->params, layer->token_experts, &router),
               "layer %u, router", layer->params.layer);
    }
    if (layer->router_norm) {
        load_router_input(&load->supply->layers[layer_index], layer, &router);
    }
    TRY_IN(load_tensors(load, &item, 0, SUPPLY_EXPERT_TENSORS, &shared), "layer %u, shared expert", layer->params.layer);
    TRY_IN(load_tensors(load, &item, SUPPLY_SHARED_GATE, SUPPLY_LATENT_IN, &shared), "layer %u, shared expert's gate",
           layer->params.layer);
    TRY_IN(load_tensors(load, &item, SUPPLY_LATENT_IN, SUPPLY_OUTPUT_NORM, &shared), "layer %u, projections", layer->params.layer);
    TRY_IN(load_tensors(load, &item, SUPPLY_OUTPUT_NORM, SUPPLY_TENSORS, &shared), "layer %u, output", layer->params.layer);
    load->digests[layer_index] = (struct loader_digests){.router = digest_64(&router), .shared = digest_64(&shared)};
    return OK;
}

static void report(struct load *load) {
    int64_t now = clock_now_ns();
    if (load->options->progress && now >= load->next_progress_ns) {
        load->next_progress_ns = clock_add_ns(now, PROGRESS_NS);
        load->options->progress(load->options->progress_context, atomic_load_explicit(&load->done_bytes, memory_order_relaxed),
                                load->all_bytes);
    }
}

// The number of a layer's experts that loader_pack loads.
static uint32_t experts_of(const struct load *load, size_t layer) {
    return load->options->parts == MODEL_ALL ? load->supply->layers[layer].params.num_experts : 0;
}

static void load_task(void *context, size_t task, unsigned thread) {
    struct load *load = context;
    size_t layer = task / load->layer_tasks, index = task % load->layer_tasks;
    uint32_t experts = experts_of(load, layer);
    if (index > experts || atomic_load_explicit(&load->failed, memory_order_relaxed)) {
        return; // the layer has fewer experts than the largest, or the load has failed
    }
    void *staging = load_staging(load, thread);
    err_t e = index == experts ? load_common(load, layer, staging) : load_expert(load, layer, (uint32_t)index, thread, staging);
    if (err_is(e) && !atomic_exchange(&load->failed, true)) {
        err_save(e, &load->error);
    }
    if (thread == 0) {
        report(load);
    }
}

static uint64_t tensors_bytes(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, int end) {
    uint64_t bytes = 0;
    for (int t = 0; t < end; t++) {
        struct supply_matrix m;
        bytes += supply_describe(supply, layer, expert, (enum supply_tensor)t, &m) ? supply_matrix_bytes(&m) : 0;
    }
    return bytes;
}

uint64_t loader_stored_bytes(const struct supply *supply, size_t layer) {
    const struct layer_tensors *tensors = &supply->layers[layer];
    uint64_t bytes = tensors_bytes(supply, tensors, SUPPLY_SHARED, SUPPLY_TENSORS);
    for (uint32_t e = 0; e < tensors->params.num_experts; e++) {
        bytes += tensors_bytes(supply, tensors, e, SUPPLY_EXPERT_TENSORS);
    }
    return bytes;
}

static uint64_t common_bytes(const struct supply *supply) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < supply->count; i++) {
        bytes += tensors_bytes(supply, &supply->layers[i], SUPPLY_SHARED, SUPPLY_TENSORS);
    }
    return bytes;
}

static uint64_t stored_bytes(const struct supply *supply) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < supply->count; i++) {
        bytes += loader_stored_bytes(supply, i);
    }
    return bytes;
}

static FALLIBLE pack(struct load *load) {
    const struct supply *supply = load->supply;
    for (size_t i = 0; i < supply->count; i++) {
        size_t tasks = (size_t)experts_of(load, i) + 1;
        load->layer_tasks = tasks > load->layer_tasks ? tasks : load->layer_tasks;
    }
    load->model->stored_bytes = stored_bytes(supply);
    load->all_bytes = load->options->parts == MODEL_ALL ? load->model->stored_bytes : common_bytes(supply);
    report(load); // 0 of all, to show that the load has begun
    expertd_team_run(load->options->team, supply->count * load->layer_tasks, load_task, load);
    if (atomic_load(&load->failed)) {
        return err_restore(&load->error);
    }
    INVARIANT(atomic_load(&load->done_bytes) == load->all_bytes);
    TRY(supply_finish(supply));
    load_name_odd_tensors(load);
    if (load->options->progress) {
        load->options->progress(load->options->progress_context, load->all_bytes, load->all_bytes);
    }
    return OK;
}

FALLIBLE loader_pack(const struct supply *supply, const struct model_options *options, struct model *model,
                     struct loader_digests *digests) {
    struct load load;
    err_t e = load_begin(&load, supply, options, model);
    load.digests = digests;
    if (!err_is(e)) {
        e = pack(&load);
    }
    load_end(&load);
    return e;
}
