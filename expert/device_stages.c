#include "expert/device_stages.h"

#include <string.h>

#include "expert/device_engine.h"
#include "expert/device_weights.h"
#include "kernels/device_plan.h"

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
    DEVICES_CALL(d->devices, device, copy, DEVICE_UPLOAD, to, from, bytes);
    return OK;
}

// Rows in order, as one group.
static struct device_rows rows_in_order(const struct batch *b, const void *data, size_t count, enum device_variant variant) {
    return (struct device_rows){.dtype = dtype_of(b),
                                .data = data,
                                .stride = b->in->hidden_stride,
                                .variant = variant,
                                .tiles = b->engine->device->scratch[0].token_tiles[variant],
                                .tile_count = (uint32_t)device_scratch_tiles_over(count, device_variant_rows(variant)),
                                .rows = (uint32_t)count};
}

// Of logits and gates: fmas whatever the dtype, and their bits are the same in any tile. A sum is one chain of fmas, so that a tile
// takes its time however small it is: small ones while all of them run at once.
static enum device_variant fma_for(size_t rows, size_t columns) {
    const size_t tile = device_variant_rows(DEVICE_FMA_16), AT_ONCE = 512; // four on each of 128 multiprocessors
    return (rows + tile - 1) / tile * ((columns + tile - 1) / tile) <= AT_ONCE ? DEVICE_FMA_16 : DEVICE_FMA_64;
}

// ---- route

FALLIBLE device_route(struct batch *b, const struct layer_request *request, const struct router_args *args) {
    const struct device_engine *d = b->engine->device;
    const struct device_scratch *s = &d->scratch[0];
    const struct device_layer *layer = layer_of(b);
    size_t first = (size_t)(args->ids - b->engine->ids), token = first / b->top_k, count = args->tokens * b->top_k;
    struct device_logits logits = {
        .rows = rows_in_order(b, s->hidden[b->slot] + token * b->in->hidden_stride, args->tokens, fma_for(args->tokens, layer->router.n)),
        .weights = layer->router,
        .bias = layer->router_bias,
        .out = s->logits + token * layer->router.n,
    };
    struct device_choose choose = {
        .routing = args->layer->params.routing,
        .logits = logits.out,
        .tokens = (uint32_t)args->tokens,
        .columns = (uint32_t)b->top_k,
        .chosen = args->layer->params.needs_token_ids,
        .ids = s->ids + first,
        .weights = s->weights + first,
    };
    choose.routing.selection_bias = layer->selection_bias;
    if (choose.chosen) {
        router_look_up(request, args);
        TRY(upload(d, 0, choose.ids, args->ids, count * sizeof *s->ids));
    }
    DEVICES_CALL(d->devices, 0, logits, &logits);
    DEVICES_CALL(d->devices, 0, choose, &choose);
    DEVICES_CALL(d->devices, 0, copy, DEVICE_DOWNLOAD, args->ids, s->ids + first, count * sizeof *s->ids);
    DEVICES_CALL(d->devices, 0, copy, DEVICE_DOWNLOAD, args->weights, s->weights + first, count * sizeof *s->weights);
    return OK;
}

FALLIBLE device_routed(struct batch *b) {
    return exchange_wait(b->engine->exchange);
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
        DEVICES_CALL(d->devices, 0, weigh, &weigh);
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
    size_t inner_stride = device_scratch_row_bytes(b->engine->model, n->width);
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
    DEVICES_CALL(d->devices, n->device, gate_up, &gate_up);
    DEVICES_CALL(d->devices, n->device, down, &down);
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
        struct device_logits gate = {.rows = rows_in_order(b, s->hidden[b->slot], b->shared_count, fma_for(b->shared_count, 1)),
                                     .weights = layer_of(b)->shared_gate,
                                     .sigmoid = 1,
                                     .out = s->shared_scale};
        gate.rows.index = s->shared_tokens;
        DEVICES_CALL(d->devices, 0, logits, &gate);
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
        .bias = request->shared ? layer_of(b)->output_bias : NULL,
        .averaged = p->shared == SHARED_AVERAGE,
        .output_dtype = request->output_dtype,
        .out = s->out[b->slot] + out_at,
    };
    DEVICES_CALL(d->devices, 0, combine, &combine);
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
    DEVICES_CALL(d->devices, 0, download_behind, b->in->outputs, d->scratch[0].out[b->slot], bytes);
    return OK;
}

FALLIBLE device_answer(struct batch *b) {
    size_t at = 0;
    TRY(exchange_wait(b->engine->exchange));
    TRY(devices_wait_behind(b->engine->devices, 0));
    for (size_t r = 0; r < b->count; r++) {
        size_t written = output_bytes(b, &b->requests[r]);
        if (written > 0) {
            memcpy(b->requests[r].output, b->in->outputs + at, written);
        }
        at += output_room(b, &b->requests[r]);
    }
    return OK;
}
