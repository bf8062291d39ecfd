#include "expert/device_engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "expert/device_weights.h"
#include "expert/layer_piece.h"
#include "kernels/device_plan.h"

enum { PIECE_ALIGN = 256, ROW_ALIGN = 64 };

// One device's scratch, all device memory.
struct device_scratch {
    void *memory;
    size_t bytes;
    char *inner;               // [max_choices, I] in D: of one rank at a time
    struct device_tile *tiles; // [engine->max_tiles] of its ranks, one after another
    // the front's only, which is the first device
    char *hidden[BATCH_INPUTS];       // [max_tokens, H] in D, hidden_stride apart: of the batch at hand, and of the next
    char *expanded;                   // [max_choices, H] where a layer weighs its inputs
    int32_t *ids;                     // [max_choices]
    float *weights;                   // [max_choices]
    uint32_t *row_token, *row_choice; // [max_choices] where a layer weighs its inputs
    struct device_tile *token_tiles[DEVICE_VARIANTS]; // all tokens in order, for each variant's tiles: written once
    float *logits;                                    // [max_tokens, router outputs]
    uint32_t *choice_row;                             // [max_choices]
    uint32_t *shared_tokens, *shared_rows;            // [max_tokens]
    float *shared_scale;                              // [max_tokens]
    char *shared_inner, *shared;                      // [max_tokens, shared I], [max_tokens, H] in D
    char *out[BATCH_INPUTS];                          // [max_tokens, H] in any output dtype
};

struct device_engine {
    struct engine *engine;
    struct devices *devices;
    struct device_weights *weights;
    bool owns_weights;
    struct device_scratch scratch[DEVICES_MAX];
    bool pinned;
    uint32_t max_outputs, max_shared_width; // over the model's layers
    bool weighs_inputs;
    struct layer_variants *variants; // [model->num_layers] what each layer's products may be made by
    uint32_t *first_tile;            // [ranks + 1] of the batch's tiles
    enum device_variant *variant;    // [ranks] that they are cut for
};

struct layer_variants {
    struct device_variants experts, shared;
};

static size_t tiles_of(size_t rows, uint32_t tile_rows) {
    return (rows + tile_rows - 1) / tile_rows;
}

// A group's last tile may hold one row, but groups without rows have none; and all tokens in order, as one group.
size_t device_engine_tiles(const struct layer_limits *limits, const struct model *model) {
    size_t groups = (size_t)model->max_experts * model->ranks, tokens = tiles_of(limits->max_tokens, DEVICE_TILE_ROWS_LEAST);
    size_t most =
        tiles_of(limits->max_choices, DEVICE_TILE_ROWS_LEAST) + (groups < limits->max_choices ? groups : limits->max_choices);
    return most > tokens ? most : tokens;
}

static size_t row_bytes(const struct device_engine *d, size_t width) {
    return (width * dtype_size(d->engine->model->compute_dtype) + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
}

// ---- memory

static void *piece(struct device_scratch *s, size_t bytes) {
    void *at = s->memory ? (char *)s->memory + s->bytes : NULL;
    s->bytes += (bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    return at;
}

// Twice: without memory the bytes are only counted.
static void lay_out(const struct device_engine *d, bool first, struct device_scratch *s) {
    const struct model *model = d->engine->model;
    const struct layer_limits *limits = &d->engine->limits;
    size_t tokens = limits->max_tokens, choices = limits->max_choices, row = row_bytes(d, model->max_hidden_size);
    s->bytes = 0;
    s->inner = piece(s, choices * row_bytes(d, model->max_intermediate_size));
    s->tiles = piece(s, device_engine_tiles(limits, model) * sizeof *s->tiles);
    if (!first) {
        return;
    }
    size_t weighed = d->weighs_inputs ? choices : 0;
    for (unsigned i = 0; i < BATCH_INPUTS; i++) {
        s->hidden[i] = piece(s, tokens * row);
        s->out[i] = piece(s, tokens * model->max_hidden_size * sizeof(float));
    }
    s->expanded = piece(s, weighed * row);
    s->row_token = piece(s, weighed * sizeof *s->row_token);
    s->row_choice = piece(s, weighed * sizeof *s->row_choice);
    s->ids = piece(s, choices * sizeof *s->ids);
    s->weights = piece(s, choices * sizeof *s->weights);
    for (int v = 0; v < DEVICE_VARIANTS; v++) {
        s->token_tiles[v] = piece(s, tiles_of(tokens, device_variant_rows((enum device_variant)v)) * sizeof **s->token_tiles);
    }
    s->logits = piece(s, tokens * d->max_outputs * sizeof *s->logits);
    s->choice_row = piece(s, choices * sizeof *s->choice_row);
    s->shared_tokens = piece(s, tokens * sizeof *s->shared_tokens);
    s->shared_rows = piece(s, tokens * sizeof *s->shared_rows);
    s->shared_scale = piece(s, tokens * sizeof *s->shared_scale);
    if (d->max_shared_width > 0) {
        s->shared_inner = piece(s, tokens * row_bytes(d, d->max_shared_width));
        s->shared = piece(s, tokens * row);
    }
}

static FALLIBLE check(const struct device_engine *d, uint32_t device, enum device_code code, const struct device_error *error) {
    return devices_check(d->devices, device, code, error);
}

// A call of the table on device `number`; needs `d` and returns the error.
#define CALL(number, call, ...)                                                                                                    \
    do {                                                                                                                           \
        struct device_error call_error_;                                                                                           \
        TRY(check(d, number, d->devices->table->call(d->devices->all[number], __VA_ARGS__, &call_error_), &call_error_));          \
    } while (0)

static FALLIBLE wait_for(const struct device_engine *d, uint32_t device) {
    struct device_error error;
    return check(d, device, d->devices->table->wait(d->devices->all[device], &error), &error);
}

static FALLIBLE reserve(struct device_engine *d, uint32_t device) {
    struct device_scratch *s = &d->scratch[device];
    lay_out(d, device == 0, s);
    CALL(device, reserve, s->bytes, &s->memory);
    lay_out(d, device == 0, s);
    return OK;
}

// Tiles over all tokens in order, as one group; a batch uses the first ones, and the last of them is cut by its number of rows.
static FALLIBLE write_token_tiles(const struct device_engine *d) {
    int32_t tokens = (int32_t)d->engine->limits.max_tokens;
    for (int v = 0; v < DEVICE_VARIANTS; v++) {
        uint32_t count = device_cut_tiles(&tokens, 1, 0, device_variant_rows((enum device_variant)v), d->engine->tiles);
        CALL(0, copy, DEVICE_UPLOAD, d->scratch[0].token_tiles[v], d->engine->tiles, count * sizeof *d->engine->tiles);
        TRY(wait_for(d, 0));
    }
    return OK;
}

static bool is_quantised(const struct packed_weights *up, const struct packed_weights *down) {
    return up->format || down->format;
}

static FALLIBLE learn_variants(const struct device_engine *d) {
    const struct model *model = d->engine->model;
    enum dtype dtype = model->compute_dtype;
    const struct device_variants *device = dtype == DTYPE_F32 ? &d->devices->facts.f32 : &d->devices->facts.bf16;
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        const struct layer_params *p = &layer->params;
        struct device_network_shape experts = {p->hidden_size, p->intermediate_size,
                                               is_quantised(&layer->shape.matrix[EXPERT_UP], &layer->shape.matrix[EXPERT_DOWN])};
        struct device_network_shape shared = {p->hidden_size, p->shared_intermediate_size,
                                              is_quantised(&layer->shared.up, &layer->shared.down)};
        struct layer_variants *out = &d->variants[i];
        TRY_IN(device_variants_of(device, &experts, dtype, d->devices->forced, &out->experts), "layer %u", p->layer);
        if (p->shared != SHARED_NONE) {
            TRY_IN(device_variants_of(device, &shared, dtype, d->devices->forced, &out->shared), "layer %u", p->layer);
        }
    }
    return OK;
}

static void learn_sizes(struct device_engine *d) {
    const struct model *model = d->engine->model;
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct layer_params *p = &model->layers[i].params;
        uint32_t outputs = p->num_experts + p->num_zero_experts;
        d->max_outputs = outputs > d->max_outputs ? outputs : d->max_outputs;
        bool wider = p->shared != SHARED_NONE && p->shared_intermediate_size > d->max_shared_width;
        d->max_shared_width = wider ? p->shared_intermediate_size : d->max_shared_width;
        d->weighs_inputs = d->weighs_inputs || p->weights_on_input;
    }
}

// The weights are in the host's memory: they go to the devices beside that.
static FALLIBLE take_loaded(struct device_engine *d) {
    struct device_weights_options options = {
        .devices = d->devices, .max_batch_tokens = d->engine->limits.max_tokens, .max_top_k = d->engine->limits.max_top_k};
    TRY(device_weights_create(&options, &d->weights));
    d->owns_weights = true;
    return device_weights_take_loaded(d->weights, d->engine->model);
}

static FALLIBLE make(struct device_engine *d) {
    struct engine *engine = d->engine;
    learn_sizes(d);
    TRY(learn_variants(d));
    if (!d->weights) {
        TRY(take_loaded(d));
    }
    CALL(0, pin, engine->arena.base, engine->pinned_bytes);
    d->pinned = true;
    for (uint32_t i = 0; i < d->devices->count; i++) {
        TRY(reserve(d, i));
    }
    return write_token_tiles(d);
}

size_t device_engine_scratch_bytes(const struct model *model, const struct layer_limits *limits, uint32_t device) {
    struct engine engine = {.model = model, .limits = *limits};
    struct device_engine d = {.engine = &engine};
    struct device_scratch counted = {0};
    learn_sizes(&d);
    lay_out(&d, device == 0, &counted);
    return counted.bytes;
}

FALLIBLE device_engine_create(struct engine *engine, struct devices *devices, struct device_weights *weights,
                              struct device_engine **out) {
    *out = NULL;
    struct device_engine *d = calloc(1, sizeof *d);
    if (!d) {
        FAIL(ERR_NOMEM, "no memory for the engine of devices");
    }
    d->engine = engine;
    d->devices = devices;
    d->weights = weights;
    d->variants = calloc(engine->model->num_layers, sizeof *d->variants);
    d->first_tile = calloc(engine->model->ranks + 1, sizeof *d->first_tile);
    d->variant = calloc(engine->model->ranks, sizeof *d->variant);
    err_t e =
        d->variants && d->first_tile && d->variant ? make(d) : err_record(ERR_NOMEM, NULL, "no memory for the engine of devices");
    if (err_is(e)) {
        device_engine_destroy(d);
        return e;
    }
    *out = d;
    return OK;
}

void device_engine_destroy(struct device_engine *d) {
    if (!d) {
        return;
    }
    const struct device_table *table = d->devices->table;
    for (uint32_t i = 0; i < d->devices->count; i++) {
        table->release(d->devices->all[i], d->scratch[i].memory);
    }
    if (d->pinned) {
        table->unpin(d->devices->all[0], d->engine->arena.base);
    }
    if (d->owns_weights) {
        device_weights_destroy(d->weights);
    }
    free(d->variants);
    free(d->first_tile);
    free(d->variant);
    free(d);
}

struct device_weights *device_engine_weights(const struct device_engine *d) {
    return d->weights;
}

uint64_t device_engine_bytes(const struct device_engine *d) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < d->devices->count; i++) {
        bytes += d->scratch[i].bytes + d->weights->bytes[i];
    }
    return bytes;
}

const char *device_engine_variants(const struct device_engine *d, size_t layer, char text[ENGINE_VARIANTS_TEXT_MAX]) {
    static_assert((int)ENGINE_VARIANTS_TEXT_MAX >= (int)DEVICE_VARIANTS_TEXT_MAX, "it is written by device_variants_text");
    return device_variants_text(&d->variants[layer].experts, text);
}

// ---- what the stages share

static const struct device_layer *layer_of(const struct batch *b) {
    return &b->engine->device->weights->layers[b->layer - b->engine->model->layers];
}

static const struct layer_variants *variants_of(const struct batch *b) {
    return &b->engine->device->variants[b->layer - b->engine->model->layers];
}

static enum dtype dtype_of(const struct batch *b) {
    return b->engine->model->compute_dtype;
}

static FALLIBLE upload(const struct device_engine *d, uint32_t device, void *to, const void *from, size_t bytes) {
    CALL(device, copy, DEVICE_UPLOAD, to, from, bytes);
    return OK;
}

// Rows in order, as one group.
static struct device_rows rows_in_order(const struct batch *b, const void *data, size_t count, enum device_variant variant) {
    return (struct device_rows){.dtype = dtype_of(b),
                                .data = data,
                                .stride = b->in->hidden_stride,
                                .variant = variant,
                                .tiles = b->engine->device->scratch[0].token_tiles[variant],
                                .tile_count = (uint32_t)tiles_of(count, device_variant_rows(variant)),
                                .rows = (uint32_t)count};
}

// Of logits and gates: fmas whatever the dtype, and their bits are the same in any tile.
static enum device_variant fma_for(size_t rows) {
    return rows <= device_variant_rows(DEVICE_FMA_16) ? DEVICE_FMA_16 : DEVICE_FMA_64;
}

// ---- take in, route

FALLIBLE device_take_in(struct batch *b) {
    const struct device_engine *d = b->engine->device;
    CALL(0, upload_ahead, d->scratch[0].hidden[b->slot], b->in->hidden, b->tokens * b->in->hidden_stride);
    return OK;
}

FALLIBLE device_await_rows(struct batch *b) {
    const struct device_engine *d = b->engine->device;
    struct device_error error;
    return check(d, 0, d->devices->table->await_ahead(d->devices->all[0], &error), &error);
}

FALLIBLE device_route(struct batch *b, const struct router_args *args) {
    const struct device_engine *d = b->engine->device;
    const struct device_scratch *s = &d->scratch[0];
    const struct device_layer *layer = layer_of(b);
    size_t first = (size_t)(args->ids - b->engine->ids), token = first / b->top_k, count = args->tokens * b->top_k;
    struct device_logits logits = {
        .rows = rows_in_order(b, s->hidden[b->slot] + token * b->in->hidden_stride, args->tokens, fma_for(args->tokens)),
        .weights = layer->router,
        .bias = layer->router_bias,
        .out = s->logits + token * layer->router.n,
    };
    struct device_choose choose = {
        .routing = args->layer->params.routing,
        .logits = logits.out,
        .tokens = (uint32_t)args->tokens,
        .columns = (uint32_t)b->top_k,
        .ids = s->ids + first,
        .weights = s->weights + first,
    };
    choose.routing.selection_bias = layer->selection_bias;
    CALL(0, logits, &logits);
    CALL(0, choose, &choose);
    CALL(0, copy, DEVICE_DOWNLOAD, args->ids, s->ids + first, count * sizeof *s->ids);
    CALL(0, copy, DEVICE_DOWNLOAD, args->weights, s->weights + first, count * sizeof *s->weights);
    return OK;
}

FALLIBLE device_routed(struct batch *b) {
    return wait_for(b->engine->device, 0);
}

// ---- dispatch

// The rows of each rank's experts, cut into tiles for the variant that suits them; a rank's rows are numbered from 0.
static void cut_tiles(const struct batch *b) {
    struct device_engine *d = b->engine->device;
    uint32_t count = 0, ranks = b->shards->placement->ranks;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct plan_rank plan = plan_for_rank(&b->engine->plan, rank);
        d->variant[rank] = device_variant_for(&variants_of(b)->experts, plan.group_sizes, plan.num_actual_groups);
        d->first_tile[rank] = count;
        count += device_cut_tiles(plan.group_sizes, plan.num_actual_groups, 0, device_variant_rows(d->variant[rank]),
                                  b->engine->tiles + count);
        const uint32_t *slots = b->shards->device_slots + b->shards->placement->rank_first[rank];
        for (uint32_t i = d->first_tile[rank]; i < count; i++) {
            b->engine->tiles[i].group = slots[b->engine->tiles[i].group]; // where the device has that expert
        }
    }
    d->first_tile[ranks] = count;
}

static uint32_t device_of(const struct batch *b, uint32_t rank) {
    return device_of_rank(b->engine->devices, b->shards->placement->ranks, rank);
}

// Each rank's tiles to its device, where they keep their numbers.
static FALLIBLE upload_tiles(const struct batch *b) {
    const struct device_engine *d = b->engine->device;
    for (uint32_t rank = 0; rank < b->shards->placement->ranks; rank++) {
        uint32_t first = d->first_tile[rank], count = d->first_tile[rank + 1] - first, device = device_of(b, rank);
        TRY(upload(d, device, d->scratch[device].tiles + first, b->engine->tiles + first, count * sizeof(struct device_tile)));
    }
    return OK;
}

// Weights on the input: an expert sees round_D(w * x), a row for each choice.
static FALLIBLE weigh_inputs(const struct batch *b) {
    const struct device_engine *d = b->engine->device;
    const struct device_scratch *s = &d->scratch[0];
    const struct plan *plan = &b->engine->plan;
    TRY(upload(d, 0, s->row_token, plan->row_token, plan->rows * sizeof *s->row_token));
    TRY(upload(d, 0, s->row_choice, plan->row_choice, plan->rows * sizeof *s->row_choice));
    struct device_weigh weigh = {
        .dtype = dtype_of(b),
        .hidden = s->hidden[b->slot],
        .stride = b->in->hidden_stride,
        .width = b->layer->params.hidden_size,
        .rows = (uint32_t)plan->rows,
        .token = s->row_token,
        .choice = s->row_choice,
        .weights = s->weights,
        .out = s->expanded,
    };
    if (plan->rows > 0) {
        CALL(0, weigh, &weigh);
    }
    return OK;
}

FALLIBLE device_dispatch(struct batch *b, const void **hidden) {
    struct device_engine *d = b->engine->device;
    const struct device_scratch *s = &d->scratch[0];
    const struct engine *engine = b->engine;
    size_t choices = b->tokens * b->top_k;
    cut_tiles(b);
    TRY(upload_tiles(b));
    TRY(upload(d, 0, s->ids, engine->ids, choices * sizeof *s->ids));
    TRY(upload(d, 0, s->weights, engine->weights, choices * sizeof *s->weights));
    TRY(upload(d, 0, s->choice_row, engine->plan.choice_row, choices * sizeof *s->choice_row));
    TRY(upload(d, 0, s->shared_tokens, b->in->shared_tokens, b->shared_count * sizeof *s->shared_tokens));
    TRY(upload(d, 0, s->shared_rows, b->in->shared_rows, b->tokens * sizeof *s->shared_rows));
    *hidden = b->layer->params.weights_on_input ? s->expanded : s->hidden[b->slot];
    return b->layer->params.weights_on_input ? weigh_inputs(b) : OK;
}

// ---- experts

// One network over rows that are cut into tiles.
struct network {
    uint32_t device;
    const struct device_experts *weights;
    const struct activation *activation;
    uint32_t width; // I
    struct device_rows rows;
    char *inner; // the device's scratch
    void *results;
    const float *row_scale;
};

static FALLIBLE run_network(const struct batch *b, const struct network *n) {
    const struct device_engine *d = b->engine->device;
    size_t inner_stride = row_bytes(d, n->width);
    struct device_gate_up gate_up = {
        .rows = n->rows,
        .gate = n->weights->matrix[EXPERT_GATE],
        .up = n->weights->matrix[EXPERT_UP],
        .gate_bias = n->weights->bias[EXPERT_GATE],
        .up_bias = n->weights->bias[EXPERT_UP],
        .activation = *n->activation,
        .out = n->inner,
        .out_stride = inner_stride,
    };
    struct device_down down = {
        .rows = n->rows,
        .down = n->weights->matrix[EXPERT_DOWN],
        .bias = n->weights->bias[EXPERT_DOWN],
        .row_scale = n->row_scale,
        .out = n->results,
        .out_stride = b->in->hidden_stride,
    };
    down.rows.data = n->inner;
    down.rows.stride = inner_stride;
    down.rows.index = NULL;
    CALL(n->device, gate_up, &gate_up);
    CALL(n->device, down, &down);
    return OK;
}

static FALLIBLE rank_experts(const struct batch *b, uint32_t rank) {
    const struct device_engine *d = b->engine->device;
    const struct layer_params *p = &b->layer->params;
    uint32_t device = device_of(b, rank), first = d->first_tile[rank], tiles = d->first_tile[rank + 1] - first;
    struct exchange_work work;
    TRY(exchange_inbox(b->engine->exchange, rank, &work));
    if (tiles == 0) {
        return OK;
    }
    struct network network = {
        .device = device,
        .weights = &layer_of(b)->ranks[rank],
        .activation = &p->activation,
        .width = p->intermediate_size,
        .rows = {.dtype = dtype_of(b),
                 .data = work.hidden,
                 .stride = work.hidden_stride,
                 .index = work.hidden_rows,
                 .variant = d->variant[rank],
                 .tiles = d->scratch[device].tiles + first,
                 .tile_count = tiles,
                 .rows = (uint32_t)work.plan.rows},
        .inner = d->scratch[device].inner,
        .results = work.results,
    };
    return run_network(b, &network);
}

FALLIBLE device_experts(struct batch *b) {
    for (uint32_t rank = 0; rank < b->shards->placement->ranks; rank++) {
        TRY_IN(rank_experts(b, rank), "rank %u", rank);
    }
    return OK;
}

FALLIBLE device_shared_experts(struct batch *b) {
    const struct device_engine *d = b->engine->device;
    const struct device_scratch *s = &d->scratch[0];
    const struct layer_params *p = &b->layer->params;
    if (b->shared_count == 0) {
        return OK;
    }
    int32_t count = (int32_t)b->shared_count;
    struct network network = {
        .weights = &layer_of(b)->shared,
        .activation = &p->shared_activation,
        .width = p->shared_intermediate_size,
        .rows = rows_in_order(b, s->hidden[b->slot], b->shared_count, device_variant_for(&variants_of(b)->shared, &count, 1)),
        .inner = s->shared_inner,
        .results = s->shared,
        .row_scale = p->shared == SHARED_SIGMOID ? s->shared_scale : NULL,
    };
    network.rows.index = s->shared_tokens;
    if (network.row_scale) {
        struct device_logits gate = {.rows = rows_in_order(b, s->hidden[b->slot], b->shared_count, fma_for(b->shared_count)),
                                     .weights = layer_of(b)->shared_gate,
                                     .sigmoid = 1,
                                     .out = s->shared_scale};
        gate.rows.index = s->shared_tokens;
        CALL(0, logits, &gate);
    }
    return run_network(b, &network);
}

// ---- combine

static FALLIBLE combine_request(const struct batch *b, const struct layer_request *request, size_t token, size_t out_at) {
    const struct device_engine *d = b->engine->device;
    const struct device_scratch *s = &d->scratch[0];
    const struct layer_params *p = &b->layer->params;
    size_t stride = b->in->hidden_stride, choice = token * b->top_k;
    struct device_combine combine = {
        .width = p->hidden_size,
        .tokens = (uint32_t)request->tokens,
        .choices = (uint32_t)b->top_k,
        .dtype = dtype_of(b),
        .stride = stride,
        .rows = exchange_result(b->engine->exchange, 0),
        .choice_row = s->choice_row + choice,
        .ids = s->ids + choice,
        .weights = p->weights_on_input ? NULL : s->weights + choice,
        .hidden = s->hidden[b->slot] + token * stride,
        .routed_scale = request->source == ROUTING_GIVEN ? 1.0f : p->routed_scale,
        .shared = s->shared,
        .shared_rows = s->shared_rows + token,
        .output_dtype = request->output_dtype,
        .out = s->out[b->slot] + out_at,
    };
    CALL(0, combine, &combine);
    return OK;
}

static size_t output_bytes(const struct batch *b, const struct layer_request *request) {
    return request->tokens * b->layer->params.hidden_size * dtype_size(request->output_dtype);
}

// So that the next one is aligned; never more than F32 takes.
static size_t output_room(const struct batch *b, const struct layer_request *request) {
    return (output_bytes(b, request) + sizeof(float) - 1) / sizeof(float) * sizeof(float);
}

FALLIBLE device_combine(struct batch *b) {
    struct device_engine *d = b->engine->device;
    size_t token = 0, bytes = 0;
    for (size_t r = 0; r < b->count; r++) {
        TRY(combine_request(b, &b->requests[r], token, bytes));
        token += b->requests[r].tokens;
        bytes += output_room(b, &b->requests[r]);
    }
    CALL(0, download_behind, b->in->outputs, d->scratch[0].out[b->slot], bytes);
    return OK;
}

FALLIBLE device_answer(struct batch *b) {
    struct device_engine *d = b->engine->device;
    struct device_error error;
    size_t at = 0;
    TRY(exchange_wait(b->engine->exchange));
    TRY(check(d, 0, d->devices->table->wait_behind(d->devices->all[0], &error), &error));
    for (size_t r = 0; r < b->count; r++) {
        size_t written = output_bytes(b, &b->requests[r]);
        if (written > 0) {
            memcpy(b->requests[r].output, b->in->outputs + at, written);
        }
        at += output_room(b, &b->requests[r]);
    }
    return OK;
}
