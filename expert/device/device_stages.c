#include "expert/device/device_stages.h"

#include <string.h>

#include "expert/device/device_input.h"
#include "expert/device/device_message.h"
#include "expert/device/device_state.h"
#include "expert/device/device_weights.h"
#include "kernels/device/device_plan.h"

// ---- shared by the stages

static const struct device_layer *layer_of(const struct batch *b) {
    return &b->engine->device->weights->layers[b->layer - b->engine->model->layers];
}

static const struct layer_variants *variants_of(const struct batch *b) {
    return &b->engine->device->variants[b->layer - b->engine->model->layers];
}

static enum expertd_dtype dtype_of(const struct batch *b) {
    return b->engine->model->compute_dtype;
}

static FALLIBLE upload(const struct device_engine *d, uint32_t device, void *to, const void *from, size_t bytes) {
    EXPERTD_DEVICES_CALL(d->devices, device, copy, EXPERTD_DEVICE_UPLOAD, to, from, bytes);
    return OK;
}

// Consecutive rows as one group.
static struct expertd_device_rows consecutive_rows(const struct batch *b, const void *data, size_t count,
                                                   enum expertd_device_variant variant) {
    return (struct expertd_device_rows){.dtype = dtype_of(b),
                                        .data = data,
                                        .stride = b->in->hidden_stride,
                                        .variant = variant,
                                        .tiles = b->engine->device->scratch[0].token_tiles[variant],
                                        .tile_count = (uint32_t)device_tiles_over(count, device_variant_rows(variant)),
                                        .rows = (uint32_t)count};
}

// The variant for logits and gates. They use fma for every dtype; its bits do not depend on the tile size. Each sum is one chain of
// fmas, so a small tile takes as long as a large one. Small tiles are faster as long as all of them run at the same time.
static enum expertd_device_variant fma_for(size_t rows, size_t columns) {
    const size_t tile = device_variant_rows(EXPERTD_DEVICE_FMA_16), AT_ONCE = 512; // four on each of 128 multiprocessors
    return (rows + tile - 1) / tile * ((columns + tile - 1) / tile) <= AT_ONCE ? EXPERTD_DEVICE_FMA_16 : EXPERTD_DEVICE_FMA_64;
}

// The batch's message in `memory`, which is the host's or the first device's.
static struct device_message message_in(const struct batch *b, void *memory) {
    struct device_message_counts counts = {
        .choices = b->tokens * b->top_k,
        .tokens = b->tokens,
        .shared = b->shared_count,
        .weighed = b->layer->params.weights_on_input ? b->tokens * b->top_k : 0,
    };
    return device_message_in(memory, &counts);
}

static struct device_message host_side_message(const struct batch *b) {
    return message_in(b, b->engine->message);
}

static struct device_message device_side_message(const struct batch *b) {
    return message_in(b, b->engine->device->scratch[0].message);
}

// ---- route

// For layers that need token_ids: the host looks the experts up and uploads them; the device computes their weights.
static FALLIBLE look_up(const struct batch *b, const struct layer_request *requests, const struct router_args *args, int32_t *ids) {
    struct router_args each = *args;
    size_t end = args->tokens * b->top_k;
    for (const struct layer_request *request = requests; each.ids < args->ids + end; request++) {
        each.tokens = request->tokens;
        router_look_up(request, &each);
        each.ids += request->tokens * b->top_k;
    }
    return upload(b->engine->device, 0, ids, args->ids, end * sizeof *ids);
}

// Downloads the device's choices for to->tokens. A complete batch takes one copy, since the weights follow the ids in memory.
static FALLIBLE download_choices(const struct batch *b, const struct expertd_device_choose *from, const struct router_args *to) {
    const struct expertd_devices *devices = b->engine->devices;
    size_t ids = to->tokens * b->top_k * sizeof *to->ids, weights = to->tokens * b->top_k * sizeof *to->weights;
    if (to->tokens == b->tokens) {
        EXPERTD_DEVICES_CALL(devices, 0, copy, EXPERTD_DEVICE_DOWNLOAD, to->ids, from->ids, ids + weights);
        return OK;
    }
    EXPERTD_DEVICES_CALL(devices, 0, copy, EXPERTD_DEVICE_DOWNLOAD, to->ids, from->ids, ids);
    EXPERTD_DEVICES_CALL(devices, 0, copy, EXPERTD_DEVICE_DOWNLOAD, to->weights, from->weights, weights);
    return OK;
}

// Runs the layer's router on the device over args->tokens tokens of consecutive requests.
static FALLIBLE route_on_device(struct batch *b, const struct layer_request *requests, const struct router_args *args) {
    const struct device_engine *d = b->engine->device;
    const struct device_scratch *s = &d->scratch[0];
    const struct device_layer *layer = layer_of(b);
    struct device_message on_device = device_side_message(b);
    size_t first = (size_t)(args->ids - b->ids), token = first / b->top_k;
    struct expertd_device_logits logits = {
        .rows = consecutive_rows(b, s->hidden[b->slot] + token * b->in->hidden_stride, args->tokens,
                                 fma_for(args->tokens, layer->router.n)),
        .weights = layer->router,
        .bias = layer->router_bias,
        .out = s->logits + token * layer->router.n,
    };
    struct expertd_device_choose choose = {
        .routing = args->layer->params.routing,
        .logits = logits.out,
        .tokens = (uint32_t)args->tokens,
        .columns = (uint32_t)b->top_k,
        .chosen = args->layer->params.needs_token_ids,
        .ids = on_device.ids + first,
        .weights = on_device.weights + first,
    };
    choose.routing.selection_bias = layer->selection_bias;
    if (choose.chosen) {
        TRY(look_up(b, requests, args, choose.ids));
    }
    EXPERTD_DEVICES_CALL(d->devices, 0, logits, &logits);
    EXPERTD_DEVICES_CALL(d->devices, 0, choose, &choose);
    return download_choices(b, &choose, args);
}

// Routers that read router_input run on the host, which normalises those rows.
static bool is_routed_on_device(const struct batch *b, const struct layer_request *request) {
    return request->source == ROUTING_OWN && !b->layer->params.needs_router_input;
}

// The number of consecutive requests, starting at `first`, that the device routes together; 0 if the host routes request `first`.
static size_t count_routed_on_device(const struct batch *b, size_t first) {
    size_t count = 0;
    while (first + count < b->count && is_routed_on_device(b, &b->requests[first + count])) {
        count++;
    }
    return count;
}

static FALLIBLE route(struct batch *b) {
    size_t first = 0, r = 0;
    TRY(device_input_convert(b));
    while (r < b->count) {
        size_t count = count_routed_on_device(b, r);
        if (count == 0) {
            TRY(batch_route_on_host(b, &b->requests[r], first));
            count = 1;
        } else {
            struct router_args args = batch_router_args(b, first, batch_tokens(&b->requests[r], count));
            TRY(route_on_device(b, &b->requests[r], &args));
        }
        first += batch_tokens(&b->requests[r], count);
        r += count;
    }
    return exchange_wait(b->engine->exchange); // the plan reads the device's choices
}

// Loading a model for devices refuses layers with latent experts.
static FALLIBLE project(struct batch *b) {
    (void)b;
    FAIL(EXPERTD_ERR_INTERNAL, "latent experts on a device");
}

// ---- dispatch

// Cuts the rows of a rank's experts of one shape into tiles. The plan numbers a rank's experts in placement order; on the device
// each has its slot. Returns the number of tiles.
static uint32_t cut_shape(const struct shards *shards, const struct plan_rank *plan, uint32_t rank, uint32_t shape,
                          uint32_t tile_rows, struct expertd_device_tile *tiles) {
    const uint32_t first = shards->placement->rank_first[rank];
    uint32_t count = 0, row = 0;
    for (uint32_t run = shards->rank_runs[rank]; run < shards->rank_runs[rank + 1]; run++) {
        uint32_t slot = shards->run_first[run], groups = shards->run_first[run + 1] - slot;
        const int32_t *sizes = plan->group_sizes + (slot - first);
        if (shards_run_shape(shards, run) == shape) {
            uint32_t cut = device_cut_tiles(sizes, groups, row, tile_rows, tiles + count);
            for (uint32_t i = count; i < count + cut; i++) {
                tiles[i].group = shards->device_slots[slot + tiles[i].group];
                tiles[i].span += count;
            }
            count += cut;
        }
        for (uint32_t g = 0; g < groups; g++) {
            row += (uint32_t)sizes[g];
        }
    }
    return count;
}

// Cuts the rows of each rank's experts into tiles of the variant that computes them: rank by rank, and within a rank shape by
// shape. Each rank numbers its rows from 0.
static void cut_tiles(const struct batch *b, struct expertd_device_tile *tiles) {
    struct device_engine *d = b->engine->device;
    const uint32_t ranks = b->shards->placement->ranks, shapes = b->layer->shapes.count;
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct plan_rank plan = plan_for_rank(&b->engine->plan, rank);
        for (uint32_t shape = 0; shape < shapes; shape++) {
            const uint32_t place = device_place(layer_of(b), rank, shape);
            enum expertd_device_variant variant =
                device_variant_for(&variants_of(b)->experts[shape], plan.group_sizes, plan.num_actual_groups);
            d->variant[place] = variant;
            d->first_tile[place] = count;
            count += cut_shape(b->shards, &plan, rank, shape, device_variant_rows(variant), tiles + count);
        }
    }
    d->first_tile[ranks * shapes] = count;
}

static uint32_t device_of(const struct batch *b, uint32_t rank) {
    return expertd_device_of_rank(b->engine->devices, b->shards->placement->ranks, rank);
}

// Index of the first tile of the device's ranks, which are consecutive.
static uint32_t first_tile_of(const struct batch *b, uint32_t device) {
    uint32_t rank = 0;
    while (rank < b->shards->placement->ranks && device_of(b, rank) < device) {
        rank++;
    }
    return b->engine->device->first_tile[device_place(layer_of(b), rank, 0)];
}

// Fills the host's message, except the ids and weights, which route has written already.
static void write_message(const struct batch *b, const struct device_message *m) {
    const struct plan *plan = &b->engine->plan;
    memcpy(m->choice_row, plan->choice_row, b->tokens * b->top_k * sizeof *m->choice_row);
    memcpy(m->shared_tokens, b->in->shared_tokens, b->shared_count * sizeof *m->shared_tokens);
    memcpy(m->shared_rows, b->in->shared_rows, b->tokens * sizeof *m->shared_rows);
    memcpy(m->row_token, plan->row_token, plan->rows * sizeof *m->row_token);
    if (b->layer->params.weights_on_input) {
        memcpy(m->row_choice, plan->row_choice, plan->rows * sizeof *m->row_choice);
    }
    cut_tiles(b, m->tiles);
}

// Sends the message to the first device, with that device's tiles only. If the device computed all choices, the ids and weights are
// omitted.
static FALLIBLE upload_message(const struct batch *b, const struct device_message *on_host,
                               const struct device_message *on_device) {
    const void *from = b->routed_on_host ? (const void *)on_host->ids : on_host->choice_row;
    void *to = b->routed_on_host ? (void *)on_device->ids : on_device->choice_row;
    const struct expertd_device_tile *end = on_host->tiles + first_tile_of(b, 1);
    return upload(b->engine->device, 0, to, from, (size_t)((const char *)end - (const char *)from));
}

// Sends each other device its tiles, at the same indices.
static FALLIBLE upload_tiles(const struct batch *b, const struct expertd_device_tile *tiles) {
    const struct device_engine *d = b->engine->device;
    for (uint32_t device = 1; device < d->devices->count; device++) {
        uint32_t first = first_tile_of(b, device), count = first_tile_of(b, device + 1) - first;
        TRY(upload(d, device, d->scratch[device].tiles + first, tiles + first, count * sizeof *tiles));
    }
    return OK;
}

// For layers with weights on the input: the row of each choice is round_D(w * x).
static FALLIBLE weigh_inputs(const struct batch *b, const struct device_message *on_device) {
    const struct device_engine *d = b->engine->device;
    const struct device_scratch *s = &d->scratch[0];
    struct expertd_device_weigh weigh = {
        .dtype = dtype_of(b),
        .hidden = s->hidden[b->slot],
        .stride = b->in->hidden_stride,
        .width = b->layer->params.hidden_size,
        .rows = (uint32_t)b->engine->plan.rows,
        .token = on_device->row_token,
        .choice = on_device->row_choice,
        .weights = on_device->weights,
        .out = s->expanded,
    };
    if (weigh.rows > 0) {
        EXPERTD_DEVICES_CALL(d->devices, 0, weigh, &weigh);
    }
    return OK;
}

static FALLIBLE dispatch(struct batch *b, struct exchange_batch *out) {
    const struct device_scratch *s = &b->engine->device->scratch[0];
    struct device_message on_host = host_side_message(b), on_device = device_side_message(b);
    write_message(b, &on_host);
    TRY(upload_message(b, &on_host, &on_device));
    TRY(upload_tiles(b, on_host.tiles));
    out->row_token = on_device.row_token;
    out->hidden = out->expanded ? s->expanded : s->hidden[b->slot];
    return out->expanded ? weigh_inputs(b, &on_device) : OK;
}

// ---- experts

// A feed-forward network over rows that are cut into tiles: the experts of a rank, or the shared expert.
struct network {
    uint32_t device;
    const struct device_experts *weights;
    const struct expertd_activation *activation;
    uint32_t width; // I
    struct expertd_device_rows rows;
    char *inner; // scratch on the device
    void *results;
    const float *row_scale; // of each result row, or NULL
};

static FALLIBLE run_network(const struct batch *b, const struct network *n) {
    const struct device_engine *d = b->engine->device;
    size_t inner_stride = device_scratch_row_bytes(b->engine->model, n->width);
    struct expertd_device_gate_up gate_up = {
        .rows = n->rows,
        .gate = n->weights->matrix[EXPERT_GATE],
        .up = n->weights->matrix[EXPERT_UP],
        .gate_bias = n->weights->bias[EXPERT_GATE],
        .up_bias = n->weights->bias[EXPERT_UP],
        .activation = *n->activation,
        .out = n->inner,
        .out_stride = inner_stride,
    };
    struct expertd_device_down down = {
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
    EXPERTD_DEVICES_CALL(d->devices, n->device, gate_up, &gate_up);
    EXPERTD_DEVICES_CALL(d->devices, n->device, down, &down);
    return OK;
}

static const struct expertd_device_tile *tiles_on(const struct batch *b, uint32_t device) {
    return device > 0 ? b->engine->device->scratch[device].tiles : device_side_message(b).tiles;
}

// The experts of one shape of a rank.
static FALLIBLE shape_experts(const struct batch *b, uint32_t rank, const struct exchange_work *work, uint32_t shape) {
    const struct device_engine *d = b->engine->device;
    const struct layer_params *p = &b->layer->params;
    uint32_t device = device_of(b, rank), place = device_place(layer_of(b), rank, shape);
    uint32_t first = d->first_tile[place], tiles = d->first_tile[place + 1] - first;
    if (tiles == 0) {
        return OK;
    }
    struct network network = {
        .device = device,
        .weights = &layer_of(b)->places[place],
        .activation = &p->activation,
        .width = p->intermediate_size,
        .rows = {.dtype = dtype_of(b),
                 .data = work->hidden,
                 .stride = work->hidden_stride,
                 .index = work->hidden_rows,
                 .variant = d->variant[place],
                 .tiles = tiles_on(b, device) + first,
                 .tile_count = tiles,
                 .rows = (uint32_t)work->plan.rows},
        .inner = d->scratch[device].inner,
        .results = work->results,
    };
    return run_network(b, &network);
}

static FALLIBLE rank_experts(const struct batch *b, uint32_t rank) {
    struct exchange_work work;
    TRY(exchange_inbox(b->engine->exchange, rank, &work));
    for (uint32_t shape = 0; shape < b->layer->shapes.count; shape++) {
        TRY(shape_experts(b, rank, &work, shape));
    }
    return OK;
}

static FALLIBLE experts(struct batch *b) {
    for (uint32_t rank = 0; rank < b->shards->placement->ranks; rank++) {
        TRY_IN(rank_experts(b, rank), "shard %u", rank);
    }
    return OK;
}

static FALLIBLE shared_experts(struct batch *b) {
    const struct device_engine *d = b->engine->device;
    const struct device_scratch *s = &d->scratch[0];
    const struct layer_params *p = &b->layer->params;
    int32_t count = (int32_t)b->shared_count;
    struct network network = {
        .weights = &layer_of(b)->shared,
        .activation = &p->shared_activation,
        .width = p->shared_intermediate_size,
        .rows = consecutive_rows(b, s->hidden[b->slot], b->shared_count, device_variant_for(&variants_of(b)->shared, &count, 1)),
        .inner = s->shared_inner,
        .results = s->shared,
        .row_scale = p->shared == SHARED_SIGMOID ? s->shared_scale : NULL,
    };
    network.rows.index = device_side_message(b).shared_tokens;
    if (network.row_scale) {
        struct expertd_device_logits gate = {
            .rows = consecutive_rows(b, s->hidden[b->slot], b->shared_count, fma_for(b->shared_count, 1)),
            .weights = layer_of(b)->shared_gate,
            .sigmoid = 1,
            .out = s->shared_scale};
        gate.rows.index = network.rows.index;
        EXPERTD_DEVICES_CALL(d->devices, 0, logits, &gate);
    }
    return run_network(b, &network);
}

// ---- combine

static FALLIBLE combine_request(const struct batch *b, const struct layer_request *request, size_t token, size_t out_at) {
    const struct device_engine *d = b->engine->device;
    const struct device_scratch *s = &d->scratch[0];
    const struct layer_params *p = &b->layer->params;
    struct device_message on_device = device_side_message(b);
    size_t stride = b->in->hidden_stride, choice = token * b->top_k;
    struct expertd_device_combine sum = {
        .width = p->hidden_size,
        .tokens = (uint32_t)request->tokens,
        .choices = (uint32_t)b->top_k,
        .dtype = dtype_of(b),
        .stride = stride,
        .rows = exchange_result(b->engine->exchange, 0),
        .choice_row = on_device.choice_row + choice,
        .ids = on_device.ids + choice,
        .weights = p->weights_on_input ? NULL : on_device.weights + choice,
        .hidden = s->hidden[b->slot] + token * stride,
        .routed_scale = request->source == ROUTING_GIVEN ? 1.0f : p->routed_scale,
        .shared = s->shared,
        .shared_rows = on_device.shared_rows + token,
        .bias = request->shared ? layer_of(b)->output_bias : NULL,
        .averaged = p->shared == SHARED_AVERAGE,
        .output_dtype = request->output_dtype,
        .out = s->out[b->slot] + out_at,
    };
    EXPERTD_DEVICES_CALL(d->devices, 0, combine, &sum);
    return OK;
}

static size_t output_bytes(const struct batch *b, const struct layer_request *request) {
    return request->tokens * b->layer->params.hidden_size * expertd_dtype_size(request->output_dtype);
}

// Padded so that the next output is aligned. Never more than for F32.
static size_t padded_output_bytes(const struct batch *b, const struct layer_request *request) {
    return (output_bytes(b, request) + sizeof(float) - 1) / sizeof(float) * sizeof(float);
}

static FALLIBLE combine(struct batch *b) {
    struct device_engine *d = b->engine->device;
    size_t token = 0, bytes = 0;
    for (size_t r = 0; r < b->count; r++) {
        TRY(combine_request(b, &b->requests[r], token, bytes));
        token += b->requests[r].tokens;
        bytes += padded_output_bytes(b, &b->requests[r]);
    }
    EXPERTD_DEVICES_CALL(d->devices, 0, download_async, b->in->outputs, d->scratch[0].out[b->slot], bytes);
    return OK;
}

static FALLIBLE answer(struct batch *b) {
    size_t at = 0;
    TRY(exchange_wait(b->engine->exchange));
    TRY(expertd_devices_wait_downloads(b->engine->devices, 0));
    for (size_t r = 0; r < b->count; r++) {
        size_t written = output_bytes(b, &b->requests[r]);
        if (written > 0) {
            memcpy(b->requests[r].output, b->in->outputs + at, written);
        }
        at += padded_output_bytes(b, &b->requests[r]);
    }
    return OK;
}

const struct layer_stages device_stages = {
    .overlaps = true,
    .input = device_input,
    .route = route,
    .project = project,
    .dispatch = dispatch,
    .experts = experts,
    .shared_experts = shared_experts,
    .combine = combine,
    .answer = answer,
    .abandon = device_input_abandon,
};
