#include "expert/loader.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "expert/digest.h"

enum { PROGRESS_NS = 100 * NS_PER_MS };

struct load {
    const struct supply *supply;
    const struct model_options *options;
    struct model *model;
    struct loader_digests *digests; // [layers]
    struct arena staging;           // [threads] of staging_bytes
    size_t staging_bytes;
    size_t layer_tasks;       // tasks of a layer: its experts, and one for the router and the shared expert
    uint64_t all_bytes;       // as stored
    int64_t next_progress_ns; // thread 0's
    _Atomic uint64_t done_bytes;
    _Atomic bool failed; // the first failure's thread writes `error`; read when all have come home
    struct err_copy error;
};

static void widen_vector(const struct supply_matrix *vector, float *out) {
    const struct weight_source *s = &vector->source;
    const char *data = s->data;
    size_t stride = s->k_stride * dtype_size(s->dtype);
    for (size_t i = 0; i < vector->k; i++) {
        dtype_widen(s->dtype, data + i * stride, 1, out + i);
    }
}

static void pack_into(const struct supply_matrix *m, const struct packed_weights *packed, size_t group) {
    pack_weights(&m->source, m->k, m->n, packed->dtype, packed->data[group]);
}

static void place(const struct supply_matrix *m, enum supply_tensor tensor, struct model_layer *layer,
                  const struct expert_weights *experts, size_t group) {
    switch (tensor) {
    case SUPPLY_GATE:
        return pack_into(m, &experts->gate, group);
    case SUPPLY_UP:
        return pack_into(m, &experts->up, group);
    case SUPPLY_DOWN:
        return pack_into(m, &experts->down, group);
    case SUPPLY_GATE_BIAS:
        return widen_vector(m, experts->gate_bias[group]);
    case SUPPLY_UP_BIAS:
        return widen_vector(m, experts->up_bias[group]);
    case SUPPLY_DOWN_BIAS:
        return widen_vector(m, experts->down_bias[group]);
    case SUPPLY_ROUTER:
        return pack_into(m, &layer->router, 0);
    case SUPPLY_ROUTER_BIAS:
        return widen_vector(m, layer->router_bias);
    case SUPPLY_SELECTION_BIAS:
        return widen_vector(m, layer->selection_bias);
    case SUPPLY_SHARED_GATE:
        return pack_into(m, &layer->shared_gate, 0);
    case SUPPLY_TENSORS:
        break;
    }
    INVARIANT(tensor < SUPPLY_TENSORS);
}

struct piece {
    size_t layer;
    uint32_t expert;                      // or SUPPLY_SHARED
    const struct expert_weights *experts; // where it goes, at `group`
    size_t group;
    void *staging;
};

// The piece's tensors [first, end): fetch, digest, pack, let go.
static FALLIBLE load_tensors(struct load *load, const struct piece *piece, int first, int end, struct digest *digest) {
    const struct layer_tensors *tensors = &load->supply->layers[piece->layer];
    for (int t = first; t < end; t++) {
        struct supply_matrix m;
        if (!supply_fetch(load->supply, tensors, piece->expert, (enum supply_tensor)t, piece->staging, &m)) {
            continue;
        }
        TRY(supply_prepare(load->supply, &m));
        digest_matrix(digest, &m.source, m.n, m.k, piece->staging);
        place(&m, (enum supply_tensor)t, &load->model->layers[piece->layer], piece->experts, piece->group);
        supply_release(load->supply, &m);
        atomic_fetch_add_explicit(&load->done_bytes, supply_matrix_bytes(&m), memory_order_relaxed);
    }
    return OK;
}

// Its other holders' copies, from the first.
static void replicate(const struct shards *shards, uint32_t expert) {
    const struct placement *placement = shards->placement;
    const uint32_t *slots = placement->holder_slots + placement->holder_first[expert];
    const struct expert_block *first = shards->blocks[slots[0]];
    for (uint32_t i = 1; i < placement->holder_first[expert + 1] - placement->holder_first[expert]; i++) {
        memcpy(shards->blocks[slots[i]]->data, first->data, first->bytes);
    }
}

static FALLIBLE load_expert(struct load *load, size_t layer_index, uint32_t expert, void *staging) {
    struct model_layer *layer = &load->model->layers[layer_index];
    const struct shards *shards = layer->in_force->shards; // nobody else has the model yet
    uint32_t holder = shards->placement->holder_first[expert], rank = shards->placement->holders[holder];
    struct piece piece = {.layer = layer_index,
                          .expert = expert,
                          .experts = &shards->ranks[rank],
                          .group = shards->placement->holder_slots[holder] - shards->placement->rank_first[rank],
                          .staging = staging};
    struct digest digest;
    digest_init(&digest);
    TRY_IN(load_tensors(load, &piece, 0, SUPPLY_EXPERT_TENSORS, &digest), "layer %u, expert %u", layer->params.layer, expert);
    layer->expert_digests[expert] = digest_64(&digest);
    replicate(shards, expert);
    return OK;
}

static FALLIBLE load_common(struct load *load, size_t layer_index, void *staging) {
    struct model_layer *layer = &load->model->layers[layer_index];
    struct piece piece = {.layer = layer_index, .expert = SUPPLY_SHARED, .experts = &layer->shared, .staging = staging};
    struct digest router, shared;
    digest_init(&router);
    digest_init(&shared);
    TRY_IN(load_tensors(load, &piece, SUPPLY_ROUTER, SUPPLY_SHARED_GATE, &router), "layer %u, router", layer->params.layer);
    TRY_IN(load_tensors(load, &piece, 0, SUPPLY_EXPERT_TENSORS, &shared), "layer %u, shared expert", layer->params.layer);
    TRY_IN(load_tensors(load, &piece, SUPPLY_SHARED_GATE, SUPPLY_TENSORS, &shared), "layer %u, shared expert's gate",
           layer->params.layer);
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

static void load_task(void *context, size_t task, unsigned thread) {
    struct load *load = context;
    size_t layer = task / load->layer_tasks, item = task % load->layer_tasks;
    uint32_t experts = load->supply->layers[layer].params.num_experts;
    if (item > experts || atomic_load_explicit(&load->failed, memory_order_relaxed)) {
        return; // past the end of a layer with fewer experts than the greatest, or all is lost
    }
    void *staging = load->staging_bytes ? load->staging.base + thread * load->staging_bytes : NULL;
    err_t e = item == experts ? load_common(load, layer, staging) : load_expert(load, layer, (uint32_t)item, staging);
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

static uint64_t stored_bytes(const struct supply *supply) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < supply->count; i++) {
        const struct layer_tensors *layer = &supply->layers[i];
        bytes += tensors_bytes(supply, layer, SUPPLY_SHARED, SUPPLY_TENSORS);
        for (uint32_t e = 0; e < layer->params.num_experts; e++) {
            bytes += tensors_bytes(supply, layer, e, SUPPLY_EXPERT_TENSORS);
        }
    }
    return bytes;
}

FALLIBLE loader_pack(const struct supply *supply, const struct model_options *options, struct model *model,
                     struct loader_digests *digests) {
    struct load load = {.supply = supply, .options = options, .model = model, .digests = digests};
    for (size_t i = 0; i < supply->count; i++) {
        size_t tasks = (size_t)supply->layers[i].params.num_experts + 1;
        load.layer_tasks = tasks > load.layer_tasks ? tasks : load.layer_tasks;
    }
    load.staging_bytes = arena_rounded(supply_staging_bytes(supply));
    load.all_bytes = model->stored_bytes = stored_bytes(supply);
    TRY_IN(arena_init(&load.staging, loader_staging_bytes(supply, options)), "staging memory");
    report(&load); // 0 of all: the line shows what is to come
    team_run(options->team, supply->count * load.layer_tasks, load_task, &load);
    arena_deinit(&load.staging);
    if (atomic_load(&load.failed)) {
        return err_restore(&load.error);
    }
    INVARIANT(atomic_load(&load.done_bytes) == load.all_bytes);
    if (options->progress) {
        options->progress(options->progress_context, load.all_bytes, load.all_bytes);
    }
    return OK;
}
