// The map of the compute: compute(). Each stage does one thing over the whole batch and never calls the next. The rows are taken in
// by layer_input.c.
#include "expert/layer/layer.h"

#include <string.h>

#include "base/clock.h"
#include "expert/device/device_stages.h"
#include "expert/layer/layer_batch.h"
#include "expert/layer/layer_piece.h"
#include "expertd/kernels/combine.h"
#include "expertd/kernels/expert_matmul.h"
#include "expertd/kernels/normalise.h"
#include "kernels/elements/scalar_math.h"
#include "kernels/rows/convert.h"

// ---- route

// The device's own router chooses, but where it reads rows that only the host has.
static bool is_routed_on_device(const struct batch *b, const struct layer_request *request) {
    return b->engine->device && request->source == ROUTING_OWN && !b->layer->params.needs_router_input;
}

// Of the requests from `first` on: how many are routed as one, those that follow each other on the device, and else one.
static size_t routed_as_one(const struct batch *b, size_t first) {
    size_t count = 0;
    while (first + count < b->count && is_routed_on_device(b, &b->requests[first + count])) {
        count++;
    }
    return count > 0 ? count : 1;
}

static FALLIBLE route_on_host(struct batch *b, const struct layer_request *request, const struct router_args *args) {
    b->chosen_here = true;
    return router_forward(request, args, &b->engine->router, b->engine->team);
}

static FALLIBLE route(struct batch *b) {
    struct engine *engine = b->engine;
    size_t first = 0, stride, count;
    const float *rows = batch_router_rows(b, &stride);
    if (engine->device) {
        TRY(device_await_rows(b));
    }
    for (size_t r = 0; r < b->count; r += count) {
        count = routed_as_one(b, r);
        struct router_args args = {
            .layer = b->layer,
            .hidden = rows ? rows + first * stride : NULL,
            .hidden_stride = stride,
            .tokens = batch_tokens(&b->requests[r], count),
            .top_k = b->top_k,
            .ids = b->ids + first * b->top_k,
            .weights = b->weights + first * b->top_k,
        };
        TRY(is_routed_on_device(b, &b->requests[r]) ? device_route(b, &b->requests[r], &args)
                                                    : route_on_host(b, &b->requests[r], &args));
        first += args.tokens;
    }
    return engine->device ? device_routed(b) : OK;
}

// ---- plan

static FALLIBLE plan(struct batch *b) {
    return plan_make(&b->engine->plan, b->shards->placement, b->ids, b->tokens, b->top_k, b->layer->params.num_zero_experts);
}

// ---- latent experts: their rows are L wide, from here to each token's sum

static bool is_latent(const struct batch *b) {
    return b->layer->params.latent_size > 0;
}

// Bytes from one row that an expert reads, or gives, to the next.
static size_t expert_stride(const struct batch *b) {
    return arena_rounded(expert_row_size(&b->layer->params) * batch_element_bytes(b));
}

static FALLIBLE project(struct batch *b) {
    struct engine *engine = b->engine;
    int32_t size = (int32_t)b->tokens;
    if (!is_latent(b)) {
        return OK;
    }
    struct expertd_down_args args = {.product = {
                                         .lhs = b->in->hidden,
                                         .lhs_stride = b->in->hidden_stride / batch_element_bytes(b),
                                         .rhs = expertd_rhs_packed(&b->layer->latent_in),
                                         .group_sizes = &size,
                                         .num_groups = 1,
                                         .num_actual_groups = 1,
                                         .m = b->tokens,
                                         .out = engine->latent,
                                         .out_stride = expert_stride(b) / batch_element_bytes(b),
                                     }};
    return expertd_expert_down(&args, engine->team, engine->router.matmul);
}

// ---- dispatch

// Weights on the input: an expert sees round_D(w * x), a row for each choice.
static void weigh_input_row(void *context, size_t row, unsigned thread) {
    (void)thread;
    struct batch *b = context;
    struct engine *engine = b->engine;
    size_t width = b->layer->params.hidden_size;
    const float *x = b->in->hidden_f32 + engine->plan.row_token[row] * b->in->hidden_f32_stride;
    float w = b->weights[engine->plan.row_choice[row]];
    char *out = engine->expanded + row * b->in->hidden_stride;
    for (size_t begin = 0; begin < width; begin += EXPERTD_COMBINE_BLOCK) {
        float block[EXPERTD_COMBINE_BLOCK];
        size_t columns = width - begin < EXPERTD_COMBINE_BLOCK ? width - begin : EXPERTD_COMBINE_BLOCK;
        for (size_t i = 0; i < columns; i++) {
            block[i] = w * x[begin + i];
        }
        convert_narrow(block, columns, engine->model->compute_dtype, out + begin * batch_element_bytes(b));
    }
}

static FALLIBLE dispatch(struct batch *b) {
    struct engine *engine = b->engine;
    bool expanded = b->layer->params.weights_on_input;
    const void *hidden = expanded ? engine->expanded : is_latent(b) ? engine->latent : b->in->hidden;
    struct exchange_batch out = {
        .layer = (uint32_t)(b->layer - engine->model->layers),
        .epoch = b->shards->placement->epoch,
        .batch = ++engine->batches,
        .plan = &engine->plan,
        .hidden = hidden,
        .hidden_stride = expert_stride(b),
        .expanded = expanded,
    };
    if (engine->device) {
        TRY(device_dispatch(b, &out));
    } else if (expanded) {
        expertd_team_run(engine->team, engine->plan.rows, weigh_input_row, b);
    }
    return exchange_dispatch(engine->exchange, &out, expert_stride(b));
}

// ---- experts

static FALLIBLE rank_experts(struct batch *b, uint32_t rank, struct ffn_scratch *scratch, struct expertd_team *team) {
    struct engine *engine = b->engine;
    const struct layer_params *p = &b->layer->params;
    struct exchange_work work;
    TRY(exchange_inbox(engine->exchange, rank, &work));
    struct ffn_args args = {
        .weights = &b->shards->ranks[rank],
        .activation = &p->activation,
        .hidden_size = expert_row_size(p),
        .intermediate_size = p->intermediate_size,
        .dtype = engine->model->compute_dtype,
        .num_groups = work.plan.num_groups,
        .group_offset = work.plan.group_offset,
        .group_sizes = work.plan.group_sizes,
        .rows = work.plan.rows,
        .hidden = work.hidden,
        .hidden_stride = work.hidden_stride,
        .hidden_rows = work.hidden_rows,
        .results = work.results,
        .results_stride = work.results_stride,
    };
    return ffn_forward(&args, scratch, team);
}

// The ranks of one of `nodes` memory nodes, one after another.
static FALLIBLE node_experts(struct batch *b, uint32_t node, uint32_t nodes, struct ffn_scratch *scratch,
                             struct expertd_team *team) {
    uint32_t ranks = b->shards->placement->ranks;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (topology_node_of_rank(nodes, ranks, rank) == node) {
            TRY_IN(rank_experts(b, rank, scratch, team), "rank %u", rank);
        }
    }
    return OK;
}

static err_t experts_on_node(void *context, uint32_t node, struct expertd_team *team) {
    struct batch *b = context;
    return node_experts(b, node, node_teams_count(b->engine->node_teams), &b->engine->nodes[node].ffn, team);
}

static struct ffn_scratch *ffn_of_node(struct engine *engine, uint32_t node) {
    return engine->node_teams ? &engine->nodes[node].ffn : &engine->ffn;
}

static uint32_t node_count(const struct engine *engine) {
    return engine->node_teams ? node_teams_count(engine->node_teams) : 1;
}

static FALLIBLE experts(struct batch *b) {
    struct engine *engine = b->engine;
    for (uint32_t n = 0; n < node_count(engine); n++) {
        ffn_of_node(engine, n)->gate_up_ns = ffn_of_node(engine, n)->down_ns = 0;
    }
    if (engine->device) {
        return device_experts(b);
    }
    if (engine->node_teams) {
        return node_teams_run(engine->node_teams, experts_on_node, b);
    }
    return node_experts(b, 0, 1, &engine->ffn, engine->team);
}

// ---- shared experts

// sigmoid(x . g) of each token that wants the shared experts.
static FALLIBLE shared_gates(struct batch *b) {
    struct engine *engine = b->engine;
    int32_t size = (int32_t)b->shared_count;
    struct expertd_grouped_matmul_args m = {
        .lhs = b->in->hidden_f32,
        .lhs_stride = b->in->hidden_f32_stride,
        .lhs_rows = b->in->shared_tokens,
        .rhs = expertd_rhs_packed(&b->layer->shared_gate),
        .group_sizes = &size,
        .num_groups = 1,
        .num_actual_groups = 1,
        .m = b->shared_count,
        .out = engine->shared_scale,
        .out_stride = 1,
    };
    TRY(expertd_grouped_matmul(&m, engine->team, engine->router.matmul));
    for (size_t i = 0; i < b->shared_count; i++) {
        engine->shared_scale[i] = sigmoid_f32(engine->shared_scale[i]);
    }
    return OK;
}

static FALLIBLE shared_experts(struct batch *b) {
    struct engine *engine = b->engine;
    const struct layer_params *p = &b->layer->params;
    if (b->shared_count == 0) {
        return OK;
    }
    if (engine->device) {
        return device_shared_experts(b);
    }
    bool gated = p->shared == SHARED_SIGMOID;
    if (gated) {
        TRY(shared_gates(b));
    }
    int32_t size = (int32_t)b->shared_count;
    struct ffn_args args = {
        .weights = &b->layer->shared,
        .activation = &p->shared_activation,
        .hidden_size = p->hidden_size,
        .intermediate_size = p->shared_intermediate_size,
        .dtype = engine->model->compute_dtype,
        .num_groups = 1,
        .group_sizes = &size,
        .rows = b->shared_count,
        .hidden = b->in->hidden,
        .hidden_stride = b->in->hidden_stride,
        .hidden_rows = b->in->shared_tokens,
        .row_scale = gated ? engine->shared_scale : NULL,
        .results = engine->shared,
        .results_stride = b->in->hidden_stride,
    };
    return ffn_forward(&args, &engine->ffn, engine->team);
}

// ---- combine

// The result row of one choice: an expert's, the token's own where the expert is the identity, or none.
static const void *choice_row(const struct batch *b, size_t token, size_t choice) {
    const struct engine *engine = b->engine;
    uint32_t row = engine->plan.choice_row[choice];
    if (row != PLAN_NO_ROW) {
        return exchange_result(engine->exchange, row);
    }
    return b->ids[choice] < 0 ? NULL : b->in->hidden + token * b->in->hidden_stride;
}

// The weighted sum of the token's rows, but for where it goes. The table of rows is the thread's.
static struct expertd_combine_args routed_sum(struct batch *b, size_t token, unsigned thread) {
    struct engine *engine = b->engine;
    const struct layer_params *p = &b->layer->params;
    const void **rows = engine->rows + thread * engine->limits.max_top_k;
    for (size_t k = 0; k < b->top_k; k++) {
        rows[k] = choice_row(b, token, token * b->top_k + k);
    }
    bool given = b->requests[b->in->token_request[token]].source == ROUTING_GIVEN;
    return (struct expertd_combine_args){
        .width = expert_row_size(p),
        .choices = b->top_k,
        .rows = rows,
        .weights = p->weights_on_input ? NULL : b->weights + token * b->top_k,
        .dtype = engine->model->compute_dtype,
        .routed_scale = given ? 1.0f : p->routed_scale,
    };
}

static const char *shared_row(const struct batch *b, size_t token) {
    uint32_t row = b->in->shared_rows[token];
    return row == SHARED_NO_ROW ? NULL : b->engine->shared + row * b->in->hidden_stride;
}

// Where the token's output goes; NULL where that is zeros, the sum of no rows, which are written here.
static char *output_row(struct batch *b, size_t token) {
    size_t request_index = b->in->token_request[token];
    const struct layer_request *request = &b->requests[request_index];
    size_t row = token - batch_first_token(b, request_index);
    size_t out_bytes = b->layer->params.hidden_size * expertd_dtype_size(request->output_dtype);
    char *out = (char *)request->output + row * out_bytes;
    if (layer_request_reads_row(request, row)) {
        return out;
    }
    memset(out, 0, out_bytes);
    return NULL;
}

// Is the token's answer the whole of a block that ends with a norm? The routed experts alone are not normalised: the caller adds
// to them.
static bool ends_with_norm(const struct batch *b, size_t token) {
    return b->layer->params.has_output_norm && b->requests[b->in->token_request[token]].shared;
}

// The sum goes where the widened hidden row was, which nothing reads any more, and is rounded once, behind the norm.
static void combine_and_normalise(const struct batch *b, size_t token, struct expertd_combine_args *args) {
    enum expertd_dtype output_dtype = args->output_dtype;
    void *out = args->out;
    float *sum = b->in->hidden_f32 + token * b->in->hidden_f32_stride;
    args->output_dtype = EXPERTD_DTYPE_F32;
    args->out = sum;
    expertd_combine_row(args);
    expertd_rms_normalise_row(sum, args->width, b->layer->params.output_norm_epsilon, b->layer->output_norm, sum);
    convert_narrow(sum, args->width, output_dtype, out);
}

static void combine_token(void *context, size_t token, unsigned thread) {
    struct batch *b = context;
    const struct layer_request *request = &b->requests[b->in->token_request[token]];
    char *out = output_row(b, token);
    if (!out) {
        return;
    }
    struct expertd_combine_args args = routed_sum(b, token, thread);
    args.shared = shared_row(b, token);
    args.bias = request->shared ? b->layer->output_bias : NULL;
    args.averaged = b->layer->params.shared == SHARED_AVERAGE;
    args.output_dtype = request->output_dtype;
    args.out = out;
    if (ends_with_norm(b, token)) {
        combine_and_normalise(b, token, &args);
    } else {
        expertd_combine_row(&args);
    }
}

// Over the row that the experts have read.
static void sum_latent_token(void *context, size_t token, unsigned thread) {
    struct batch *b = context;
    struct expertd_combine_args args = routed_sum(b, token, thread);
    args.output_dtype = args.dtype;
    args.out = b->engine->latent + token * expert_stride(b);
    expertd_combine_row(&args);
}

// The shared row is added to the sums, which lie where the widened hidden rows were.
static void finish_latent_token(void *context, size_t token, unsigned thread) {
    (void)thread;
    struct batch *b = context;
    enum expertd_dtype dtype = b->engine->model->compute_dtype,
                       output_dtype = b->requests[b->in->token_request[token]].output_dtype;
    size_t width = b->layer->params.hidden_size;
    float *sums = b->in->hidden_f32 + token * b->in->hidden_f32_stride;
    const char *shared = shared_row(b, token);
    char *out = output_row(b, token);
    if (!out) {
        return;
    }
    for (size_t begin = 0; shared && begin < width; begin += EXPERTD_COMBINE_BLOCK) {
        float block[EXPERTD_COMBINE_BLOCK];
        size_t columns = width - begin < EXPERTD_COMBINE_BLOCK ? width - begin : EXPERTD_COMBINE_BLOCK;
        convert_widen(dtype, shared + begin * batch_element_bytes(b), columns, block);
        for (size_t i = 0; i < columns; i++) {
            sums[begin + i] += block[i];
        }
    }
    convert_narrow(sums, width, output_dtype, out);
}

static FALLIBLE combine_latent(struct batch *b, struct expertd_team *team) {
    struct engine *engine = b->engine;
    int32_t size = (int32_t)b->tokens;
    struct expertd_grouped_matmul_args back = {
        .lhs = engine->latent,
        .lhs_stride = expert_stride(b) / batch_element_bytes(b),
        .rhs = expertd_rhs_packed(&b->layer->latent_out),
        .group_sizes = &size,
        .num_groups = 1,
        .num_actual_groups = 1,
        .m = b->tokens,
        .out = b->in->hidden_f32,
        .out_stride = b->in->hidden_f32_stride,
    };
    expertd_team_run(team, b->tokens, sum_latent_token, b);
    TRY(expertd_grouped_matmul(&back, engine->team, engine->router.matmul));
    expertd_team_run(team, b->tokens, finish_latent_token, b);
    return OK;
}

static FALLIBLE collect(struct batch *b) {
    return exchange_collect(b->engine->exchange);
}

static FALLIBLE combine(struct batch *b) {
    if (b->engine->device) {
        return device_combine(b);
    }
    size_t rows = b->engine->plan.rows + b->shared_count; // a token without rows is zeros to write, which one thread does as fast
    struct expertd_team *team = batch_team(b, rows);
    if (is_latent(b)) {
        return combine_latent(b, team);
    }
    expertd_team_run(team, b->tokens, combine_token, b);
    return OK;
}

// The answers into the callers' memory, where combine has not written them there.
static FALLIBLE answer(struct batch *b) {
    return b->engine->device ? device_answer(b) : OK;
}

// No expert sees any row of the batch: what the sums of no rows are.
static void write_zeros(struct batch *b) {
    for (size_t r = 0; r < b->count; r++) {
        const struct layer_request *request = &b->requests[r];
        if (request->tokens > 0) {
            memset(request->output, 0, request->tokens * b->layer->params.hidden_size * expertd_dtype_size(request->output_dtype));
        }
    }
}

// ---- the whole

static FALLIBLE begin(struct batch *b) {
    const struct layer_limits *limits = &b->engine->limits;
    b->tokens = batch_first_token(b, b->count);
    for (size_t r = 0; r < b->count; r++) {
        size_t choices = router_choices(&b->requests[r], b->layer);
        b->top_k = choices > b->top_k ? choices : b->top_k;
    }
    if (b->tokens > limits->max_tokens || b->top_k > limits->max_top_k || b->tokens * b->top_k > limits->max_choices) {
        FAIL(EXPERTD_ERR_TOO_LARGE, "a batch of %zu tokens with %zu choices each: memory is reserved for %u tokens and %zu choices",
             b->tokens, b->top_k, limits->max_tokens, limits->max_choices);
    }
    b->ids = (int32_t *)(void *)b->engine->message;
    b->weights = (float *)(void *)(b->ids + b->tokens * b->top_k);
    return OK;
}

static void count_load(const struct batch *b, uint64_t *expert_load) {
    for (uint32_t e = 0; expert_load && e < b->layer->params.num_experts; e++) {
        expert_load[e] += b->engine->plan.expert_rows[e];
    }
}

// Nanoseconds since the last lap.
static uint64_t lap(int64_t *last_ns) {
    int64_t now_ns = clock_now_ns();
    uint64_t span = (uint64_t)(now_ns - *last_ns);
    *last_ns = now_ns;
    return span;
}

// The products of the routed experts, on the node that took longest.
static void note_products(struct engine *engine, struct layer_parts *parts) {
    for (uint32_t n = 0; n < node_count(engine); n++) {
        const struct ffn_scratch *ffn = ffn_of_node(engine, n);
        if (ffn->gate_up_ns + ffn->down_ns > parts->gate_up + parts->down) {
            parts->gate_up = ffn->gate_up_ns;
            parts->down = ffn->down_ns;
        }
    }
}

// Errors on the way name their stage.
static err_t in_stage(err_t e, const char *stage) {
    return err_is(e) ? err_context(e, "%s", stage) : e;
}

// From the routes to the sum of each token's rows. On devices the answers are under way then.
static err_t compute(struct layer_pass *pass) {
    struct batch *b = &pass->b;
    struct layer_timings *spent = &pass->spent;
    struct layer_parts *parts = &spent->parts;
    TRY(in_stage(route(b), "route"));
    parts->router = lap(&pass->clock_ns);
    TRY(in_stage(plan(b), "plan"));
    parts->plan = lap(&pass->clock_ns);
    spent->route = parts->input + parts->router + parts->plan;
    TRY(in_stage(project(b), "project"));
    spent->compute = lap(&pass->clock_ns);
    TRY(in_stage(dispatch(b), "dispatch"));
    spent->exchange = lap(&pass->clock_ns);
    TRY(in_stage(experts(b), "experts"));
    spent->compute += lap(&pass->clock_ns);
    note_products(b->engine, parts);
    TRY(in_stage(shared_experts(b), "shared experts"));
    parts->shared = lap(&pass->clock_ns);
    spent->compute += parts->shared;
    TRY(in_stage(collect(b), "collect"));
    spent->exchange += lap(&pass->clock_ns);
    TRY(in_stage(combine(b), "combine"));
    spent->combine = lap(&pass->clock_ns);
    return OK;
}

static void note(struct layer_pass *pass, err_t e) {
    if (err_is(e)) {
        err_save(e, &pass->error);
    }
}

bool engine_overlaps(const struct engine *engine) {
    return engine->device != NULL;
}

struct layer_pass *layer_take_in(struct engine *engine, const struct model_layer *layer, struct layer_request *requests,
                                 size_t count) {
    unsigned slot = engine_overlaps(engine) ? engine->next_pass++ % BATCH_INPUTS : 0;
    struct layer_pass *pass = &engine->passes[slot];
    *pass = (struct layer_pass){.clock_ns = clock_now_ns()};
    pass->b = (struct batch){
        .engine = engine, .in = &engine->inputs[slot], .slot = slot, .layer = layer, .requests = requests, .count = count};
    pass->b.shards = shards_take(layer->in_force); // for the whole batch: a new placement comes in between two
    pass->spent.placement_epoch = pass->b.shards->placement->epoch;
    err_t e = begin(&pass->b);
    if (!err_is(e)) {
        pass->b.read = batch_take_in(&pass->b);
    }
    if (!err_is(e) && engine->device && pass->b.read > 0) {
        e = in_stage(device_take_in(&pass->b, &pass->spent.rows_direct), "take in");
    }
    note(pass, e);
    pass->spent.parts.input = lap(&pass->clock_ns);
    return pass;
}

void layer_start(struct layer_pass *pass) {
    if (pass->error.code != EXPERTD_ERR_OK) {
        return;
    }
    pass->clock_ns = clock_now_ns();
    if (pass->b.read == 0) {
        write_zeros(&pass->b);
        pass->spent.combine = lap(&pass->clock_ns);
        return;
    }
    note(pass, compute(pass));
}

FALLIBLE layer_finish(struct layer_pass *pass, uint64_t *expert_load, struct layer_timings *timings) {
    struct batch *b = &pass->b;
    if (pass->error.code == EXPERTD_ERR_OK && b->read > 0) {
        note(pass, in_stage(answer(b), "combine"));
        pass->spent.combine += lap(&pass->clock_ns);
    }
    if (pass->error.code != EXPERTD_ERR_OK) {
        if (b->engine->device) {
            device_abandon_rows(b);
        }
        exchange_settle(b->engine->exchange);
    } else if (b->read > 0) {
        count_load(b, expert_load);
    }
    if (timings) {
        *timings = pass->spent;
    }
    shards_give_back(b->layer->in_force, b->shards);
    return pass->error.code == EXPERTD_ERR_OK ? OK : err_restore(&pass->error);
}

FALLIBLE layer_forward(struct engine *engine, const struct model_layer *layer, struct layer_request *requests, size_t count,
                       uint64_t *expert_load, struct layer_timings *timings) {
    struct layer_pass *pass = layer_take_in(engine, layer, requests, count);
    layer_start(pass);
    return layer_finish(pass, expert_load, timings);
}
