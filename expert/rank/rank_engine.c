#include "expert/rank/rank_engine.h"

#include <inttypes.h>
#include <stdlib.h>

#include "expert/host/ffn.h"
#include "expert/layer/layer_sizes.h"
#include "expert/layer/scratch_layout.h"

struct rank_engine {
    struct rank_engine_options options;
    struct arena arena;
    struct ffn_scratch ffn;
    // The current piece's groups.
    struct expert_block **blocks; // [max_experts] one reference each while they are computed
    void **table;                 // [max_experts * EXPERT_TABLE]
    struct expert_weights *runs;  // [max_experts]
    uint32_t *experts;            // [max_experts]
    int32_t *sizes;               // [max_experts]
};

// ---- life

static struct ffn_sizes ffn_sizes_of(const struct rank_engine_options *options, const struct layer_sizes *sizes) {
    const struct model *model = options->model;
    return (struct ffn_sizes){
        .max_hidden_size = (uint32_t)(sizes->expert_row_bytes / expertd_dtype_size(model->compute_dtype)),
        .max_intermediate_size = model->max_intermediate_size,
        .max_experts = model->max_experts,
        .max_rows = options->limits.max_choices,
        .dtype = model->compute_dtype,
        .ordered = sizes->ordered,
    };
}

// Lays out the scratch and returns its bytes. With memory NULL the bytes are only counted.
static size_t lay_out(struct rank_engine *engine, char *memory) {
    struct layer_sizes sizes = layer_sizes_of(engine->options.model);
    struct ffn_sizes ffn = ffn_sizes_of(&engine->options, &sizes);
    struct scratch_layout layout = {.memory = memory};
    size_t experts = engine->options.model->max_experts;
    engine->blocks = scratch_piece(&layout, experts * sizeof *engine->blocks);
    engine->table = scratch_piece(&layout, experts * EXPERT_TABLE * sizeof *engine->table);
    engine->runs = scratch_piece(&layout, experts * sizeof *engine->runs);
    engine->experts = scratch_piece(&layout, experts * sizeof *engine->experts);
    engine->sizes = scratch_piece(&layout, experts * sizeof *engine->sizes);
    void *scratch = scratch_piece(&layout, ffn_scratch_bytes(&ffn));
    if (scratch) {
        ffn_scratch_init(&engine->ffn, &ffn, scratch);
    }
    return layout.used;
}

uint64_t rank_engine_bytes(const struct rank_engine_options *options) {
    struct rank_engine counted = {.options = *options};
    return lay_out(&counted, NULL);
}

// Batches of layers with weights on the input have a hidden row for each row.
static size_t max_hidden(const struct rank_engine_options *options, const struct layer_sizes *sizes) {
    const struct layer_limits *limits = &options->limits;
    return sizes->weights_on_input && limits->max_choices > limits->max_tokens ? limits->max_choices : limits->max_tokens;
}

uint64_t rank_engine_batch_bytes(const struct rank_engine_options *options) {
    struct layer_sizes sizes = layer_sizes_of(options->model);
    return (uint64_t)max_hidden(options, &sizes) * sizes.expert_row_bytes;
}

FALLIBLE rank_engine_create(const struct rank_engine_options *options, struct rank_engine **out) {
    *out = NULL;
    struct rank_engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the shard's engine");
    }
    engine->options = *options;
    err_t e = arena_init(&engine->arena, lay_out(engine, NULL));
    if (err_is(e)) {
        free(engine);
        return err_context(e, "scratch of the shard for batches of %" PRIu32 " tokens (lower max_batch_tokens)",
                           options->limits.max_tokens);
    }
    lay_out(engine, engine->arena.base);
    *out = engine;
    return OK;
}

void rank_engine_destroy(struct rank_engine *engine) {
    if (engine) {
        arena_deinit(&engine->arena);
        free(engine);
    }
}

FALLIBLE rank_engine_create_batch(const struct rank_engine *engine, struct rank_batch **out) {
    struct layer_sizes sizes = layer_sizes_of(engine->options.model);
    return rank_batch_create(max_hidden(&engine->options, &sizes), sizes.expert_row_bytes, out);
}

size_t rank_engine_max_rows(const struct rank_engine *engine) {
    return engine->options.limits.max_choices;
}

size_t rank_engine_max_hidden(const struct rank_engine *engine) {
    struct layer_sizes sizes = layer_sizes_of(engine->options.model);
    return max_hidden(&engine->options, &sizes);
}

size_t rank_engine_max_groups(const struct rank_engine *engine) {
    return engine->options.model->max_experts;
}

// ---- take

static FALLIBLE check_layer(const struct rank_engine *engine, const struct rank_piece *piece, const struct model_layer **out) {
    const struct model *model = engine->options.model;
    const struct model_layer *layer = *out = model_find_layer(model, piece->layer);
    if (!layer) {
        FAIL_FIELD(EXPERTD_ERR_LAYER_UNKNOWN, "layer",
                   "layer %" PRIu32 " is not served by this shard: give the front and its shards the "
                   "same --layers",
                   piece->layer);
    }
    size_t row_bytes = expert_row_size(&layer->params) * expertd_dtype_size(model->compute_dtype);
    if (piece->row_bytes != row_bytes) {
        FAIL_FIELD(EXPERTD_ERR_SHAPE_MISMATCH, "row_bytes",
                   "rows of %zu bytes, but rows of layer %" PRIu32
                   " have %zu in %s: the front and this shard serve different models or "
                   "compute dtypes",
                   piece->row_bytes, piece->layer, row_bytes, expertd_dtype_name(model->compute_dtype));
    }
    return OK;
}

static FALLIBLE check_groups(const struct rank_engine *engine, const struct model_layer *layer, const struct rank_piece *piece) {
    size_t rows = 0, max_rows = rank_engine_max_rows(engine);
    for (size_t g = 0; g < piece->num_groups; g++) {
        const struct remote_group *group = &piece->groups[g];
        if (group->expert >= layer->params.num_experts) {
            FAIL_FIELD(EXPERTD_ERR_EXPERT_OUT_OF_RANGE, "experts",
                       "expert %" PRIu32 ": layer %" PRIu32 " has experts 0 to %" PRIu32, group->expert, piece->layer,
                       layer->params.num_experts - 1);
        }
        if (group->rows == 0 || (g > 0 && group->expert <= piece->groups[g - 1].expert)) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "experts",
                       "expert %" PRIu32 " with %" PRIu32 " rows: experts must ascend and have rows", group->expert, group->rows);
        }
        rows += group->rows;
    }
    if (rows == 0 || rows != piece->rows) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "group_rows", "%zu rows of %zu experts in a piece of %zu rows", rows, piece->num_groups,
                   piece->rows);
    }
    if (rows > max_rows) {
        FAIL_FIELD(EXPERTD_ERR_TOO_LARGE, "group_rows",
                   "a piece of %zu rows: this shard has memory for %zu; its max_batch_tokens is smaller than the front's", rows,
                   max_rows);
    }
    return OK;
}

static FALLIBLE take(struct rank_engine *engine, struct rank_batch *batch, const struct rank_piece *piece) {
    const struct model_layer *layer;
    TRY(check_layer(engine, piece, &layer));
    TRY(check_groups(engine, layer, piece));
    return rank_batch_take(batch, piece);
}

FALLIBLE rank_engine_take(struct rank_engine *engine, struct rank_batch *batch, const struct rank_piece *piece) {
    err_t e = take(engine, batch, piece);
    if (err_is(e)) {
        rank_batch_fail(batch, piece->batch);
    }
    return e;
}

// ---- compute

// Takes references to the blocks of the piece's experts.
static FALLIBLE hold_blocks(struct rank_engine *engine, const struct model_layer *layer, const struct rank_piece *piece) {
    size_t index = (size_t)(layer - engine->options.model->layers);
    uint32_t missing;
    for (size_t g = 0; g < piece->num_groups; g++) {
        engine->experts[g] = piece->groups[g].expert;
        engine->sizes[g] = (int32_t)piece->groups[g].rows;
    }
    if (!engine->options.take(engine->options.context, index, engine->experts, piece->num_groups, engine->blocks, &missing)) {
        FAIL(EXPERTD_ERR_SHARD_LOST, "expert %" PRIu32 " of layer %" PRIu32 " is not on this shard", missing, piece->layer);
    }
    return OK;
}

static void drop_blocks(struct rank_engine *engine, size_t count) {
    for (size_t g = 0; g < count; g++) {
        expert_block_drop(engine->blocks[g]);
    }
}

// Divides the groups into runs of experts of one shape. Returns the number of runs.
static size_t bind_runs(struct rank_engine *engine, const struct expert_shapes *shapes, const struct rank_piece *piece) {
    size_t runs = 0;
    for (size_t first = 0, end; first < piece->num_groups; first = end) {
        uint8_t shape = shapes->of_expert[piece->groups[first].expert];
        for (end = first + 1; end < piece->num_groups && shapes->of_expert[piece->groups[end].expert] == shape;) {
            end++;
        }
        expert_weights_bind(&shapes->all[shape], engine->blocks + first, end - first, engine->table + first * EXPERT_TABLE,
                            &engine->runs[runs++]);
    }
    return runs;
}

static FALLIBLE compute(struct rank_engine *engine, const struct rank_batch *batch, const struct model_layer *layer,
                        const struct rank_piece *piece, void *results, size_t stride) {
    size_t hidden_stride;
    const void *hidden = rank_batch_hidden(batch, &hidden_stride);
    struct ffn_args args = {
        .runs = engine->runs,
        .num_runs = bind_runs(engine, &layer->shapes, piece),
        .activation = &layer->params.activation,
        .hidden_size = expert_row_size(&layer->params),
        .intermediate_size = layer->params.intermediate_size,
        .dtype = engine->options.model->compute_dtype,
        .group_sizes = engine->sizes,
        .rows = piece->rows,
        .hidden = hidden,
        .hidden_stride = hidden_stride,
        .hidden_rows = piece->hidden_rows,
        .results = results,
        .results_stride = stride,
    };
    return ffn_forward(&args, &engine->ffn, engine->options.team);
}

FALLIBLE rank_engine_compute(struct rank_engine *engine, struct rank_batch *batch, const struct rank_piece *piece, void *results,
                             size_t stride) {
    const struct model_layer *layer = model_find_layer(engine->options.model, piece->layer);
    INVARIANT(layer);
    err_t e = hold_blocks(engine, layer, piece);
    if (!err_is(e)) {
        e = compute(engine, batch, layer, piece, results, stride);
        drop_blocks(engine, piece->num_groups);
    }
    if (err_is(e)) {
        rank_batch_fail(batch, piece->batch);
    }
    return e;
}
