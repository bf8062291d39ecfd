#include "expert/store/expert_store.h"

#include <stdlib.h>

#include "expert/checkpoint/checkpoint.h"
#include "expert/loader/loader.h"
#include "expert/loader/loader_tensors.h"

struct expert_store {
    struct model_options options;
    struct supply supply;
    struct model *model;
    struct loader_digests *digests; // [supply.count]
    struct load load;               // of single experts
};

static FALLIBLE open(struct expert_store *store) {
    const struct model_options *options = &store->options;
    TRY(loader_open(options, &store->supply, store->model));
    TRY(loader_reserve(&store->supply, options, store->model));
    store->digests = calloc(store->supply.count, sizeof *store->digests);
    if (!store->digests) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the digests of %zu layers", store->supply.count);
    }
    if (options->parts == MODEL_WITHOUT_EXPERTS) {
        TRY(loader_pack(&store->supply, options, store->model, store->digests));
    }
    store->model->notes = store->supply.checkpoint ? checkpoint_take_notes(store->supply.checkpoint) : NULL;
    return load_begin(&store->load, &store->supply, options, store->model);
}

FALLIBLE expert_store_open(const struct model_options *options, struct model *model, struct expert_store **out) {
    INVARIANT(options->parts != MODEL_ALL && !options->sink && !options->audit);
    *out = NULL;
    *model = (struct model){0};
    struct expert_store *store = calloc(1, sizeof *store);
    if (!store) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a model's experts");
    }
    store->options = *options;
    store->model = model;
    err_t e = open(store);
    if (err_is(e)) {
        expert_store_close(store);
        return e;
    }
    *out = store;
    return OK;
}

void expert_store_close(struct expert_store *store) {
    if (store) {
        load_end(&store->load);
        free(store->digests);
        model_deinit(store->model);
        supply_close(&store->supply);
        free(store);
    }
}

static FALLIBLE fill(struct expert_store *store, size_t layer, uint32_t expert, unsigned thread, struct expert_block *block,
                     uint64_t *digest) {
    const struct model_layer *target = &store->model->layers[layer];
    void *table[EXPERT_TABLE];
    struct expert_weights weights;
    expert_weights_bind(expert_shape_of(&target->shapes, expert), &block, 1, table, &weights);
    const struct load_item item = {
        .layer = layer, .expert = expert, .experts = &weights, .group = 0, .staging = load_staging(&store->load, thread)};
    struct digest sum;
    digest_init(&sum);
    TRY(load_tensors(&store->load, &item, 0, SUPPLY_EXPERT_TENSORS, &sum));
    *digest = digest_64(&sum);
    return supply_finish(&store->supply); // no file was written meanwhile
}

FALLIBLE expert_store_load(struct expert_store *store, size_t layer, uint32_t expert, unsigned thread,
                           const struct topology_node *node, struct expert_block **out, uint64_t *digest) {
    INVARIANT(layer < store->model->num_layers && expert < store->model->layers[layer].params.num_experts);
    const struct model_layer *target = &store->model->layers[layer];
    TRY_IN(expert_block_create(expert_shape_of(&target->shapes, expert)->bytes, node, out), "layer %u, expert %u",
           target->params.layer, expert);
    err_t e = fill(store, layer, expert, thread, *out, digest);
    if (err_is(e)) {
        expert_block_drop(*out);
        *out = NULL;
        return err_context(e, "layer %u, expert %u", target->params.layer, expert);
    }
    return OK;
}

uint64_t expert_store_bytes_read(const struct expert_store *store) {
    return atomic_load_explicit(&store->load.done_bytes, memory_order_relaxed);
}

void expert_store_shapes_digest(const struct expert_store *store, uint8_t digest[16]) {
    loader_shapes_digest(&store->supply, store->model, digest);
}

void expert_store_identify(struct expert_store *store) {
    loader_identify(&store->supply, store->digests, store->model);
}
