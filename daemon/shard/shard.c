#include "daemon/shard/shard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/memory_cause.h"
#include "base/threads/thread_priority.h"
#include "daemon/shard/compute_thread.h"
#include "daemon/shard/housekeeping.h"
#include "daemon/shard/load_threads.h"
#include "daemon/shard/session.h"
#include "daemon/shard/shard_calls.h"
#include "daemon/shard/shard_types.h"

// A front that sends no heartbeat for so long counts as gone. Fronts send one every 25 ms; until then it keeps retired copies in
// memory.
#define FRONT_AFTER_NS (10 * (int64_t)NS_PER_S)

FALLIBLE shard_create(const struct shard_options *options, struct shard_service **out) {
    *out = NULL;
    struct shard_service *service = calloc(1, sizeof *service);
    struct shard_thread *threads = calloc(options->rpc_threads, sizeof *threads);
    if (!service || !threads) {
        free(service);
        free(threads);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the shard's service");
    }
    service->options = *options;
    service->threads = threads;
    thread_mutex_init(&service->mutex);
    pthread_cond_init(&service->compute_wake, NULL);
    pthread_cond_init(&service->load_wake, NULL);
    TAILQ_INIT(&service->sessions);
    TAILQ_INIT(&service->pending);
    for (unsigned t = 0; t < options->rpc_threads; t++) {
        TAILQ_INIT(&threads[t].streams);
        threads[t].due_ns = CLOCK_NEVER;
    }
    *out = service;
    return OK;
}

const struct rpc_handler *shard_handler(struct shard_service *service, const struct rpc_handler *rest) {
    service->rest = *rest;
    shard_calls_handle(service);
    return &service->handler;
}

void shard_attach(struct shard_service *service, struct rpc_server *server) {
    service->server = server;
}

// ---- ready

static bool take_blocks(void *context, size_t layer, const uint32_t *experts, size_t count, struct expert_block **blocks,
                        uint32_t *missing) {
    return holdings_take_all(context, layer, experts, count, blocks, missing);
}

static struct rank_engine_options engine_options(const struct shard_backend *backend) {
    return (struct rank_engine_options){.model = backend->model,
                                        .limits = backend->limits,
                                        .team = backend->team,
                                        .take = take_blocks,
                                        .context = backend->holdings};
}

uint64_t shard_bytes(const struct shard_backend *backend, uint32_t max_fronts) {
    const struct rank_engine_options engine = engine_options(backend);
    const uint64_t pieces = PIECES_MAX * (2ull * backend->model->max_experts + backend->limits.max_choices) * sizeof(uint32_t);
    return rank_engine_bytes(&engine) + max_fronts * (rank_engine_batch_bytes(&engine) + pieces + RESULT_BYTES_MAX);
}

static FALLIBLE describe_layers(struct shard_service *service) {
    const struct model *model = service->backend.model;
    const size_t count = model->num_layers;
    service->layer_experts = calloc(count + 1, sizeof *service->layer_experts);
    service->layer_numbers = calloc(count + 1, sizeof *service->layer_numbers);
    service->expert_bytes = calloc(count + 1, sizeof *service->expert_bytes);
    service->layers = calloc(count + 1, sizeof *service->layers);
    if (!service->layer_experts || !service->layer_numbers || !service->expert_bytes || !service->layers) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory to describe %zu layers", count);
    }
    for (size_t i = 0; i < count; i++) {
        const struct model_layer *layer = &model->layers[i];
        service->layer_experts[i] = layer->params.num_experts;
        service->layer_numbers[i] = layer->params.layer;
        service->expert_bytes[i] = expert_shapes_bytes_max(&layer->shapes);
        service->layers[i] = (struct shard_layer){.layer = layer->params.layer,
                                                  .num_experts = layer->params.num_experts,
                                                  .format = layer->quantisation,
                                                  .expert_bytes = service->expert_bytes[i]};
    }
    return OK;
}

static FALLIBLE create_holder(struct shard_service *service) {
    struct holder_options options = {
        .bytes_max = service->backend.bytes_max, .fronts_max = service->options.max_fronts, .front_after_ns = FRONT_AFTER_NS};
    TRY(catalogue_init(&options.catalogue, (uint32_t)service->backend.model->num_layers, service->layer_experts,
                       service->expert_bytes));
    TRY(holder_check(&options));
    service->holder_memory = aligned_alloc(64, (holder_bytes(&options) + 63) / 64 * 64);
    service->freeing = calloc(catalogue_words(&options.catalogue), sizeof *service->freeing);
    if (!service->holder_memory || !service->freeing) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the state of %u experts", options.catalogue.cells);
    }
    return holder_init(&service->holder, &options, service->holder_memory);
}

static FALLIBLE create_decoders(struct shard_service *service) {
    const size_t groups = rank_engine_max_groups(service->engine), rows = rank_engine_max_rows(service->engine);
    for (unsigned t = 0; t < service->options.rpc_threads; t++) {
        struct shard_thread *thread = &service->threads[t];
        thread->memory = (struct rows_memory){.groups_max = groups, .rows_max = rows, .head_bytes = rows_head_bytes(groups, rows)};
        thread->decoded.groups = calloc(2 * groups, sizeof(uint32_t));
        thread->decoded.hidden_rows = calloc(rows, sizeof(uint32_t));
        thread->memory.head = calloc(1, thread->memory.head_bytes);
        if (!thread->decoded.groups || !thread->decoded.hidden_rows || !thread->memory.head) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory to decode pieces of %zu rows", rows);
        }
    }
    return OK;
}

static void identify(struct shard_service *service) {
    const struct model *model = service->backend.model;
    service->identity = (struct shard_identity){.protocol = SHARD_PROTOCOL,
                                                .numerics_id = model->numerics_id,
                                                .compute_dtype = model->compute_dtype == EXPERTD_DTYPE_F32 ? "f32" : "bf16"};
    expert_store_fingerprint(service->backend.store, service->identity.model_digest);
}

static FALLIBLE draw_instance(uint64_t *instance) {
    do { // 0 stands for none
        if (getrandom(instance, sizeof *instance, 0) != (ssize_t)sizeof *instance) {
            FAIL(EXPERTD_ERR_INTERNAL, "the system gives no random bytes for the shard's instance");
        }
    } while (*instance == 0);
    return OK;
}

static FALLIBLE start_threads(struct shard_service *service) {
    int error = pthread_create(&service->compute, NULL, compute_thread_main, service);
    if (error) {
        char cause[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start the compute thread: %s", memory_cause_of_thread(error, cause));
    }
    service->compute_runs = true;
    pthread_setname_np(service->compute, "compute");
    return load_threads_start(service);
}

FALLIBLE shard_ready(struct shard_service *service, const struct shard_backend *backend) {
    INVARIANT(backend->loaders >= 1);
    service->backend = *backend;
    service->backend.loaders = backend->loaders < LOADERS_MAX ? backend->loaders : LOADERS_MAX;
    const struct rank_engine_options engine = engine_options(backend);
    TRY(rank_engine_create(&engine, &service->engine));
    TRY(describe_layers(service));
    TRY(create_holder(service));
    TRY(create_decoders(service));
    TRY(draw_instance(&service->instance));
    identify(service);
    service->progress_ns = clock_now_ns();
    TRY(start_threads(service));
    pthread_mutex_lock(&service->mutex);
    const bool drains = service->process_ends;
    holder_drain(&service->holder, drains);
    pthread_mutex_unlock(&service->mutex);
    atomic_store(&service->ready, true);
    session_wake_threads(service);
    return OK;
}

// ---- the end

void shard_drain(struct shard_service *service) {
    pthread_mutex_lock(&service->mutex);
    service->draining = service->process_ends = true;
    if (atomic_load(&service->ready)) {
        holder_drain(&service->holder, true);
        session_holder_changed(service);
    }
    pthread_mutex_unlock(&service->mutex);
}

bool shard_is_drained(struct shard_service *service) {
    pthread_mutex_lock(&service->mutex);
    bool drained = !atomic_load(&service->ready) || service->num_sessions == 0 || service->holder.bytes_used == 0;
    pthread_mutex_unlock(&service->mutex);
    return drained;
}

void shard_end_streams(struct shard_service *service) {
    atomic_store(&service->ending, true);
    session_wake_threads(service);
}

uint32_t shard_streams(struct shard_service *service) {
    return atomic_load(&service->streams);
}

void shard_stop(struct shard_service *service) {
    if (!service) {
        return;
    }
    pthread_mutex_lock(&service->mutex);
    service->stopping = true;
    pthread_cond_broadcast(&service->compute_wake);
    pthread_cond_broadcast(&service->load_wake);
    pthread_mutex_unlock(&service->mutex);
    if (service->compute_runs) {
        pthread_join(service->compute, NULL);
        service->compute_runs = false;
    }
    load_threads_join(service);
}

void shard_destroy(struct shard_service *service) {
    if (!service) {
        return;
    }
    shard_stop(service);
    for (unsigned t = 0; t < service->options.rpc_threads; t++) {
        free(service->threads[t].decoded.groups);
        free(service->threads[t].decoded.hidden_rows);
        free(service->threads[t].memory.head);
    }
    rank_engine_destroy(service->engine);
    free(service->layer_experts);
    free(service->layer_numbers);
    free(service->expert_bytes);
    free(service->layers);
    free(service->holder_memory);
    free(service->freeing);
    pthread_cond_destroy(&service->compute_wake);
    pthread_cond_destroy(&service->load_wake);
    pthread_mutex_destroy(&service->mutex);
    free(service->threads);
    free(service);
}

// ---- figures

void shard_read_figures(struct shard_service *service, struct shard_figures *out) {
    *out = (struct shard_figures){.ready = atomic_load(&service->ready)};
    pthread_mutex_lock(&service->mutex);
    out->draining = service->draining;
    out->fronts = service->num_sessions;
    out->pieces = service->count.pieces;
    out->rows = service->count.rows;
    out->errors = service->count.errors;
    out->compute_ns = service->count.compute_ns;
    out->dropped = service->count.dropped;
    out->loads = service->count.loads;
    out->load_failures = service->count.load_failures;
    out->frees = service->count.frees;
    out->sessions = service->count.sessions;
    out->refused = service->count.refused;
    if (out->ready) {
        uint64_t bytes;
        out->loading = housekeeping_loading(service, &bytes);
        out->bytes_used = service->holder.bytes_used;
        out->bytes_max = service->backend.bytes_max;
    }
    pthread_mutex_unlock(&service->mutex);
    if (out->ready) {
        out->held = (uint32_t)holdings_figures(service->backend.holdings).experts;
        out->bytes_read = expert_store_bytes_read(service->backend.store);
    }
}

uint32_t shard_held_of(struct shard_service *service, size_t layer) {
    uint32_t held = 0;
    if (!atomic_load(&service->ready)) {
        return 0;
    }
    pthread_mutex_lock(&service->mutex);
    const struct catalogue *catalogue = &service->holder.options.catalogue;
    for (uint32_t e = 0; e < catalogue->layer_experts[layer]; e++) {
        held += service->holder.cells[layer * catalogue->stride + e] == CELL_LOADED;
    }
    pthread_mutex_unlock(&service->mutex);
    return held;
}
