// loader_reserve: one pass over the layers, done twice. The first time it only adds up sizes, the second time it divides the arena.
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert/loader/loader.h"
#include "expert/loader/loader_tensors.h"
#include "expert/model/layer_formats.h"
#include "expert/model/layer_shapes.h"
#include "expert/model/memory.h"

struct reservation {
    struct arena *arena;   // NULL: measure only
    uint64_t bytes;        // so far
    uint64_t expert_bytes; // the part of `bytes` for routed experts; counted only while measuring
    uint64_t block_bytes;  // of the largest routed expert
};

static FALLIBLE take(struct reservation *reservation, uint64_t count, uint64_t size, void **out) {
    uint64_t bytes;
    *out = NULL;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > INT64_MAX - ARENA_ALIGN ||
        __builtin_add_overflow(reservation->bytes, (uint64_t)arena_rounded(bytes), &reservation->bytes)) {
        FAIL(EXPERTD_ERR_NOMEM, "more than 2^63 bytes of weights");
    }
    return reservation->arena ? arena_take(reservation->arena, bytes, out) : OK;
}

static bool is_ordered(const struct expert_shape *shape) {
    return shape->order[EXPERT_HIDDEN_ORDER] > 0 || shape->order[EXPERT_INNER_ORDER] > 0;
}

// A matrix of one group, with its pointer table.
static FALLIBLE take_packed(struct reservation *reservation, enum expertd_dtype dtype, const struct supply_matrix *matrix,
                            struct expertd_packed_weights *out) {
    void *data, *table;
    TRY(packed_matrix_size(dtype, NULL, matrix, out));
    TRY(take(reservation, 1, out->group_bytes, &data));
    TRY(take(reservation, 1, sizeof(void *), &table));
    out->groups = 1;
    if (table) {
        *(void **)table = data;
        out->data = table;
    }
    return OK;
}

// Copies `count` shapes with their formats to the arena. *out NULL: measure only.
static FALLIBLE keep_shapes(struct reservation *reservation, const struct layer_shape *from, uint32_t count,
                            const struct expert_shape **out) {
    void *shapes, *formats;
    TRY(take(reservation, count, sizeof(struct expert_shape), &shapes));
    TRY(take(reservation, (uint64_t)count * EXPERT_MATRICES, sizeof(struct expertd_quantised_format), &formats));
    *out = shapes;
    for (uint32_t s = 0; shapes && formats && s < count; s++) {
        struct expert_shape *to = (struct expert_shape *)shapes + s;
        struct expertd_quantised_format *format = (struct expertd_quantised_format *)formats + (size_t)s * EXPERT_MATRICES;
        *to = from[s].shape;
        memcpy(format, from[s].format, sizeof from[s].format);
        for (int i = 0; i < EXPERT_MATRICES; i++) {
            to->matrix[i].format = to->matrix[i].format ? &format[i] : NULL;
        }
    }
    return OK;
}

static FALLIBLE take_shapes(struct reservation *reservation, const struct layer_shapes *from, struct model_layer *out) {
    void *of_expert;
    uint32_t experts = out->params.num_experts;
    TRY(keep_shapes(reservation, from->all, from->count, &out->shapes.all));
    TRY(take(reservation, experts, sizeof *from->of_expert, &of_expert));
    if (of_expert) {
        memcpy(of_expert, from->of_expert, experts * sizeof *from->of_expert);
    }
    out->shapes.of_expert = of_expert;
    out->shapes.count = from->count;
    for (uint32_t s = 0; s < from->count; s++) {
        const struct expert_shape *shape = &from->all[s].shape;
        out->ordered |= is_ordered(shape);
        reservation->block_bytes = shape->bytes > reservation->block_bytes ? shape->bytes : reservation->block_bytes;
    }
    return OK;
}

static FALLIBLE take_shared(struct reservation *reservation, const struct supply *supply, const struct layer_tensors *tensors,
                            enum expertd_dtype dtype, struct model_layer *out) {
    struct layer_shape found;
    const struct expert_shape *shape;
    void *data, *table;
    TRY(layer_shape_of(supply, tensors, SUPPLY_SHARED, dtype, &found));
    TRY(keep_shapes(reservation, &found, 1, &shape));
    TRY(take(reservation, 1, found.shape.bytes, &data));
    TRY(take(reservation, EXPERT_TABLE, sizeof(void *), &table));
    if (data && shape) {
        struct expert_block block = {.data = data, .bytes = shape->bytes}, *blocks = &block;
        expert_weights_bind(shape, &blocks, 1, table, &out->shared);
    }
    out->ordered |= is_ordered(&found.shape);
    return OK;
}

static FALLIBLE place(const struct model_options *options, const struct layer_params *params, struct placement **out) {
    if (options->place) {
        return options->place(options->place_context, params, options->ranks, out);
    }
    return placement_contiguous(params->num_experts, options->ranks, 1, out);
}

// Reserves the layer's shards in the arena, each rank's blocks on the rank's memory node. Takes ownership of the placement.
static FALLIBLE take_shards(struct reservation *reservation, const struct topology *topology, struct placement *placement,
                            struct model_layer *out) {
    struct shards *shards;
    INVARIANT(out->shapes.of_expert);
    TRY(shards_create(placement, &out->shapes, placement->ranks, &shards));
    shards_in_force_init(out->in_force, shards); // from here on released by model_deinit
    for (uint32_t r = 0; r < placement->ranks; r++) {
        const struct topology_node *home = topology_home(topology, placement->ranks, r);
        for (uint32_t s = placement->rank_first[r]; s < placement->rank_first[r + 1]; s++) {
            size_t bytes = expert_shape_of(&out->shapes, placement->rank_experts[s])->bytes;
            void *data;
            TRY(take(reservation, 1, bytes, &data));
            TRY(expert_block_over(data, bytes, &shards->blocks[s]));
            topology_prefer(home, data, bytes);
        }
    }
    shards_bind(shards);
    return OK;
}

// Adds the bytes of the blocks that the placement asks for.
static FALLIBLE measure_shards(struct reservation *reservation, const struct layer_shapes *shapes,
                               const struct placement *placement) {
    void *none;
    for (uint32_t s = 0; s < placement->copies; s++) {
        size_t bytes = shapes->all[shapes->of_expert[placement->rank_experts[s]]].shape.bytes;
        TRY(take(reservation, 1, bytes, &none));
        reservation->expert_bytes += bytes;
    }
    return OK;
}

static FALLIBLE take_experts(struct reservation *reservation, const struct model_options *options,
                             const struct layer_shapes *shapes, struct model_layer *out) {
    void *memory;
    struct placement *placement;
    if (options->parts == MODEL_EXPERTS_ONLY) {
        return OK;
    }
    TRY(take(reservation, 1, sizeof *out->in_force, &memory));
    out->in_force = memory;
    if (options->parts == MODEL_WITHOUT_EXPERTS) {
        if (memory) {
            shards_in_force_init(memory, NULL);
        }
        return OK;
    }
    TRY(place(options, &out->params, &placement));
    INVARIANT(placement->ranks == options->ranks && placement->num_experts == out->params.num_experts);
    if (reservation->arena) {
        return take_shards(reservation, options->topology, placement, out);
    }
    err_t e = measure_shards(reservation, shapes, placement);
    placement_destroy(placement);
    return e;
}

// The weights that every token uses: the router, and the tensors that belong to no expert.
static FALLIBLE take_common(struct reservation *reservation, const struct supply *supply, const struct layer_tensors *tensors,
                            enum expertd_dtype dtype, struct model_layer *out) {
    struct supply_matrix m;
    void *bias = NULL;
    if (supply_describe(supply, tensors, SUPPLY_SHARED, SUPPLY_ROUTER, &m)) {
        TRY(take_packed(reservation, EXPERTD_DTYPE_F32, &m, &out->router));
    }
    if (supply_describe(supply, tensors, SUPPLY_SHARED, SUPPLY_ROUTER_BIAS, &m)) {
        TRY(take(reservation, m.k, sizeof(float), &bias));
        out->router_bias = bias;
    }
    if (supply_describe(supply, tensors, SUPPLY_SHARED, SUPPLY_SELECTION_BIAS, &m)) {
        TRY(take(reservation, m.k, sizeof(float), &bias));
        out->selection_bias = bias;
    }
    if (tensors->router_norm.data) {
        TRY(take(reservation, tensors->params.hidden_size, sizeof(float), &bias));
        out->router_norm = bias;
        TRY(take(reservation, tensors->params.num_experts, sizeof(float), &bias));
        out->expert_scale = bias;
    }
    if (tensors->token_experts.data) {
        void *table;
        TRY(take(reservation, (size_t)tensors->params.num_token_ids * tensors->params.routing.top_k, sizeof(int32_t), &table));
        out->token_experts = table;
    }
    if (supply_describe(supply, tensors, SUPPLY_SHARED, SUPPLY_SHARED_GATE, &m)) {
        TRY(take_packed(reservation, EXPERTD_DTYPE_F32, &m, &out->shared_gate));
    }
    if (supply_describe(supply, tensors, SUPPLY_SHARED, SUPPLY_LATENT_IN, &m)) {
        TRY(take_packed(reservation, dtype, &m, &out->latent_in));
    }
    if (supply_describe(supply, tensors, SUPPLY_SHARED, SUPPLY_LATENT_OUT, &m)) {
        TRY(take_packed(reservation, dtype, &m, &out->latent_out));
    }
    if (supply_describe(supply, tensors, SUPPLY_SHARED, SUPPLY_OUTPUT_NORM, &m)) {
        TRY(take(reservation, m.k, sizeof(float), &bias));
        out->output_norm = bias;
    }
    if (tensors->params.shared == SHARED_BIAS && supply_describe(supply, tensors, SUPPLY_SHARED, SUPPLY_DOWN_BIAS, &m)) {
        TRY(take(reservation, m.k, sizeof(float), &bias));
        out->output_bias = bias;
    }
    return OK;
}

static FALLIBLE take_routed(struct reservation *reservation, const struct supply *supply, const struct layer_tensors *tensors,
                            const struct model_options *options, enum expertd_dtype dtype, struct model_layer *out) {
    struct layer_shapes shapes;
    err_t e = layer_shapes_find(supply, tensors, dtype, &shapes);
    if (!err_is(e)) {
        e = take_shapes(reservation, &shapes, out);
    }
    if (!err_is(e)) {
        e = take_experts(reservation, options, &shapes, out);
    }
    layer_shapes_free(&shapes);
    return e;
}

static FALLIBLE lay_out_layer(struct reservation *reservation, const struct supply *supply, const struct layer_tensors *tensors,
                              const struct model_options *options, enum expertd_dtype dtype, struct model_layer *out) {
    void *memory;
    *out = (struct model_layer){.params = tensors->params, .weight_dtype = tensors->weight_dtype};
    memcpy(out->prefix, tensors->prefix, sizeof out->prefix);
    layer_formats_text(supply, tensors, out->quantisation, sizeof out->quantisation);
    if (shared_has_expert(tensors->params.shared)) {
        layer_formats_of_expert(supply, tensors, SUPPLY_SHARED, out->shared_quantisation);
    }
    TRY(take_routed(reservation, supply, tensors, options, dtype, out));
    if (options->parts != MODEL_EXPERTS_ONLY) {
        if (shared_has_expert(tensors->params.shared)) {
            TRY(take_shared(reservation, supply, tensors, dtype, out));
        }
        TRY(take_common(reservation, supply, tensors, dtype, out));
    }
    out->params.routing.selection_bias = out->selection_bias;
    out->params.routing.expert_scale = out->expert_scale;
    TRY(take(reservation, tensors->params.num_experts, sizeof(uint64_t), &memory));
    out->expert_digests = memory;
    return OK;
}

static FALLIBLE check_params(const struct layer_params *params) {
    if (params->hidden_size == 0 || params->intermediate_size == 0 || params->num_experts == 0 ||
        params->routing.num_experts == 0 || (shared_has_expert(params->shared) && params->shared_intermediate_size == 0)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "a size is 0: hidden %u, expert width %u, experts %u, shared width %u", params->hidden_size,
             params->intermediate_size, params->num_experts, params->shared_intermediate_size);
    }
    bool simple = !params->weights_on_input && params->num_zero_experts == 0 && params->shared != SHARED_AVERAGE &&
                  params->shared != SHARED_BIAS && !params->has_output_norm;
    INVARIANT(params->latent_size == 0 || simple); // no architecture combines them
    INVARIANT(!params->has_output_norm ||
              params->num_zero_experts == 0); // the sum overwrites the input row, which identity experts return
    return params->has_router ? expertd_routing_check(&params->routing) : OK;
}

static uint32_t greater(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static void take_maxima(struct model *model, const struct layer_params *params) {
    model->max_hidden_size = greater(model->max_hidden_size, params->hidden_size);
    model->max_intermediate_size = greater(model->max_intermediate_size, params->intermediate_size);
    model->max_intermediate_size = greater(model->max_intermediate_size, params->shared_intermediate_size);
    model->max_experts = greater(model->max_experts, greater(params->num_experts, params->routing.num_experts));
    model->max_top_k = greater(model->max_top_k, params->routing.top_k);
}

static uint64_t threads_of(const struct model_options *options) {
    return options->team ? expertd_team_threads(options->team) : 1;
}

// The memory that is available, and the memory that the load needs. During the load it holds weights and staging memory, afterwards
// weights and scratch. The configured limit bounds the first sum only.
struct budget {
    struct memory_limit available, weights_limit;
    uint64_t weights, staging, scratch;
};

static FALLIBLE make_budget(const struct supply *supply, const struct model_options *options, struct budget *out) {
    *out = (struct budget){.staging = load_staging_bytes(supply, options)};
    TRY(memory_available(&out->available));
    out->weights_limit = out->available;
    if (options->memory_bytes_max > 0 && options->memory_bytes_max < out->available.bytes) {
        out->weights_limit.bytes = options->memory_bytes_max;
        snprintf(out->weights_limit.what, sizeof out->weights_limit.what, "the configured memory limit");
    }
    return OK;
}

static bool fits(uint64_t weights, uint64_t other, const struct memory_limit *limit) {
    return weights <= limit->bytes && other <= limit->bytes - weights;
}

static bool weights_fit(const struct budget *budget) {
    return fits(budget->weights, budget->staging, &budget->weights_limit);
}

static FALLIBLE refuse(const struct supply *supply, const struct model *model, const struct budget *budget, size_t fitting) {
    char need[MEMORY_TEXT_MAX], have[MEMORY_TEXT_MAX], hint[160], size[MEMORY_TEXT_MAX], scratch[160] = "";
    if (fitting == 0) {
        snprintf(hint, sizeof hint, "not one layer would fit");
    } else {
        snprintf(hint, sizeof hint, "%zu %s would fit: --layers %u-%u", fitting, fitting == 1 ? "layer" : "layers",
                 supply->layers[0].params.layer, supply->layers[fitting - 1].params.layer);
    }
    char kind[QUANTISATION_NAME_MAX] = "";
    bool has_codes = layer_formats_text(supply, &supply->layers[0], kind, sizeof kind);
    bool keeps_codes = has_codes && supply->widen != SUPPLY_WIDEN_ALL, only_scratch_does_not_fit = weights_fit(budget);
    if (only_scratch_does_not_fit) {
        snprintf(scratch, sizeof scratch, ", a batch's scratch %s more (lower max_batch_tokens)",
                 memory_text(budget->scratch, size));
    }
    const struct memory_limit *limit = only_scratch_does_not_fit ? &budget->available : &budget->weights_limit;
    FAIL(EXPERTD_ERR_NOMEM, "%s: %zu MoE layers in %s%s take %s of memory%s, but %s is available (%s); %s%s", model->name,
         supply->count, keeps_codes ? kind : expertd_dtype_name(model->compute_dtype),
         has_codes && !keeps_codes ? " (widened)" : "",
         memory_text(budget->weights + (only_scratch_does_not_fit ? 0 : budget->staging), need), scratch,
         memory_text(limit->bytes, have), limit->what, hint, has_codes && !keeps_codes ? "; they take less without --widen" : "");
}

// Appends a measured layer to `seen`, the model so far, which scratch_bytes reads.
static void add_seen(struct model *seen, const struct model_layer *layer) {
    seen->layers[seen->num_layers++] = *layer;
    take_maxima(seen, &layer->params);
}

static void keep_sizes(const struct model_layer *layer, const struct reservation *before, const struct reservation *after,
                       struct loader_layer_sizes *out) {
    memcpy(out->quantisation, layer->quantisation, sizeof out->quantisation);
    memcpy(out->shared_quantisation, layer->shared_quantisation, sizeof out->shared_quantisation);
    out->bytes = after->bytes - before->bytes;
    out->experts_bytes = after->expert_bytes - before->expert_bytes;
}

// sizes NULL: refuses a model that does not fit.
static FALLIBLE measure_layers(const struct supply *supply, const struct model_options *options, struct model *seen,
                               uint64_t *arena_bytes, struct loader_sizes *sizes) {
    struct reservation reservation = {0};
    struct budget budget;
    void *none;
    size_t fitting = 0;
    TRY(make_budget(supply, options, &budget));
    TRY(take(&reservation, supply->count, sizeof *seen->layers, &none));
    for (size_t i = 0; i < supply->count; i++) {
        struct model_layer layer;
        const struct reservation before = reservation;
        const struct layer_params *params = &supply->layers[i].params;
        TRY_IN(check_params(params), "layer %u (%s)", params->layer, supply->layers[i].prefix);
        TRY_IN(lay_out_layer(&reservation, supply, &supply->layers[i], options, seen->compute_dtype, &layer), "layer %u (%s)",
               params->layer, supply->layers[i].prefix);
        add_seen(seen, &layer);
        if (sizes) {
            keep_sizes(&layer, &before, &reservation, &sizes->layers[i]);
        }
        budget.weights = reservation.bytes;
        if (options->sink) {
            // The host holds one expert for each thread at a time.
            budget.weights += threads_of(options) * reservation.block_bytes - reservation.expert_bytes;
        }
        budget.scratch = options->scratch_bytes ? options->scratch_bytes(options->scratch_context, seen) : 0;
        if (weights_fit(&budget) && fits(budget.weights, budget.scratch, &budget.available)) {
            fitting = i + 1;
        }
    }
    *arena_bytes = reservation.bytes;
    if (sizes) {
        sizes->weights = budget.weights;
        sizes->staging = budget.staging;
        sizes->scratch = budget.scratch;
        sizes->available = budget.available;
        sizes->loading = budget.weights_limit;
        err_save(fitting < supply->count ? refuse(supply, seen, &budget, fitting) : OK, &sizes->refusal);
        return OK;
    }
    return fitting < supply->count ? refuse(supply, seen, &budget, fitting) : OK;
}

static FALLIBLE measure(const struct supply *supply, const struct model_options *options, const struct model *model,
                        uint64_t *arena_bytes, struct loader_sizes *sizes) {
    struct model seen = *model;
    seen.ranks = options->ranks;
    seen.layers = calloc(supply->count, sizeof *seen.layers);
    if (!seen.layers) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu layers", supply->count);
    }
    err_t e = measure_layers(supply, options, &seen, arena_bytes, sizes);
    free(seen.layers);
    return e;
}

FALLIBLE loader_measure(const struct supply *supply, const struct model_options *options, const struct model *model,
                        struct loader_sizes *out) {
    uint64_t none;
    return measure(supply, options, model, &none, out);
}

FALLIBLE loader_reserve(const struct supply *supply, const struct model_options *options, struct model *model) {
    uint64_t bytes = 0;
    TRY(measure(supply, options, model, &bytes, NULL));
    TRY_IN(arena_init(&model->arena, bytes), "%s", model->name);
    struct reservation reservation = {.arena = &model->arena};
    void *layers;
    TRY(take(&reservation, supply->count, sizeof *model->layers, &layers));
    INVARIANT(layers);
    model->layers = layers;
    model->num_layers = supply->count;
    model->ranks = options->ranks;
    model->topology = options->topology;
    for (size_t i = 0; i < supply->count; i++) {
        TRY(lay_out_layer(&reservation, supply, &supply->layers[i], options, model->compute_dtype, &model->layers[i]));
        model->layers[i].widened = widened_in_layer(supply, i, &model->widened);
        take_maxima(model, &model->layers[i].params);
    }
    INVARIANT(reservation.bytes == bytes);
    model->fixed_bytes = bytes - model_weights_bytes(model);
    return OK;
}
