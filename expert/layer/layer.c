// compute() calls the stages in order; start reading there. Each stage works on the whole batch and never calls another stage. The
// stages that differ between the host and devices come from engine->stages (stages.h); the others are in this file.
#include "expert/layer/layer.h"

#include <string.h>

#include "base/clock.h"
#include "expert/layer/batch.h"
#include "expert/layer/stages.h"

// ---- stages

static const struct layer_stages *stages_of(const struct batch *b) {
    return b->engine->stages;
}

static FALLIBLE route(struct batch *b) {
    return stages_of(b)->route(b);
}

static FALLIBLE plan(struct batch *b, unsigned attempt) {
    const bool *live = exchange_live(b->engine->exchange, attempt);
    struct plan_batch batch = {.placement = b->shards->placement,
                               .live = live,
                               .rotates = live != NULL,
                               .rotation = (uint32_t)b->engine->batches,
                               .ids = b->ids,
                               .tokens = b->tokens,
                               .top_k = b->top_k,
                               .num_zero_experts = b->layer->params.num_zero_experts};
    TRY_IN(plan_make(&b->engine->plan, &batch), "layer %u", b->layer->params.layer);
    return OK;
}

static FALLIBLE project(struct batch *b) {
    return b->layer->params.latent_size > 0 ? stages_of(b)->project(b) : OK;
}

static FALLIBLE dispatch(struct batch *b) {
    struct engine *engine = b->engine;
    struct exchange_batch out = {
        .layer = (uint32_t)(b->layer - engine->model->layers),
        .epoch = b->shards->placement->epoch,
        .batch = ++engine->batches,
        .plan = &engine->plan,
        .hidden_stride = batch_expert_stride(b),
        .width_bytes = expert_row_size(&b->layer->params) * batch_element_bytes(b),
        .deadline_ns = batch_deadline(b),
        .expanded = b->layer->params.weights_on_input,
    };
    TRY(stages_of(b)->dispatch(b, &out));
    return exchange_dispatch(engine->exchange, &out, batch_expert_stride(b));
}

static FALLIBLE experts(struct batch *b) {
    return stages_of(b)->experts(b);
}

// Once per batch, also if its rows are exchanged again.
static FALLIBLE shared_experts(struct batch *b) {
    bool again = b->has_shared_rows;
    b->has_shared_rows = true;
    return b->shared_count > 0 && !again ? stages_of(b)->shared_experts(b) : OK;
}

static FALLIBLE collect(struct batch *b) {
    return exchange_collect(b->engine->exchange);
}

static FALLIBLE combine(struct batch *b) {
    return stages_of(b)->combine(b);
}

// ---- compute

// Nanoseconds since *last_ns, which is set to now.
static uint64_t lap(int64_t *last_ns) {
    int64_t now_ns = clock_now_ns();
    uint64_t span = (uint64_t)(now_ns - *last_ns);
    *last_ns = now_ns;
    return span;
}

// Adds the stage's name to an error.
static err_t in_stage(err_t e, const char *stage) {
    return err_is(e) ? err_context(e, "%s", stage) : e;
}

// How often a batch may be planned again. Each time at least one rank has failed, so a batch ends even if ranks come and go.
enum { PLANS_AGAIN_MAX = 16 };

// Takes the placement that is in force now: experts may have moved since the last plan, to ranks that are live.
static void renew_placement(struct layer_pass *pass) {
    struct batch *b = &pass->b;
    shards_release(b->layer->in_force, b->shards);
    b->shards = shards_take(b->layer->in_force);
    pass->spent.placement_epoch = b->shards->placement->epoch;
}

// From the plan to the collected result rows. The shared experts are computed while other processes compute.
static err_t exchange_rows(struct layer_pass *pass, unsigned attempt) {
    struct batch *b = &pass->b;
    struct layer_timings *spent = &pass->spent;
    TRY(in_stage(plan(b, attempt), "plan"));
    spent->parts.plan += lap(&pass->clock_ns);
    TRY(in_stage(dispatch(b), "dispatch"));
    spent->exchange += lap(&pass->clock_ns);
    TRY(in_stage(experts(b), "experts"));
    spent->compute += lap(&pass->clock_ns);
    TRY(in_stage(shared_experts(b), "shared experts"));
    uint64_t shared_ns = lap(&pass->clock_ns);
    spent->parts.shared += shared_ns;
    spent->compute += shared_ns;
    TRY(in_stage(collect(b), "collect"));
    spent->exchange += lap(&pass->clock_ns);
    return OK;
}

// True if a rank has failed, and the batch may be computed by others: it has not ended, and is still needed.
static bool may_plan_again(const struct batch *b, err_t e, unsigned attempt) {
    int64_t deadline_ns = batch_deadline(b);
    return e.code == EXPERTD_ERR_SHARD_LOST && attempt < PLANS_AGAIN_MAX && exchange_may_plan_again(b->engine->exchange) &&
           (deadline_ns == 0 || clock_now_ns() < deadline_ns);
}

// Runs the stages from the converted rows to each token's weighted sum. If a rank fails, its rows are planned again for other
// ranks. On devices, copies of the outputs may still be running on return.
static err_t compute(struct layer_pass *pass) {
    struct batch *b = &pass->b;
    struct layer_timings *spent = &pass->spent;
    struct layer_parts *parts = &spent->parts;
    TRY(in_stage(route(b), "route"));
    parts->router = lap(&pass->clock_ns);
    TRY(in_stage(project(b), "project"));
    spent->compute = lap(&pass->clock_ns);
    err_t e = exchange_rows(pass, 0);
    while (may_plan_again(b, e, spent->plans_repeated)) {
        exchange_settle(b->engine->exchange);
        renew_placement(pass);
        e = exchange_rows(pass, ++spent->plans_repeated);
    }
    spent->route = parts->input + parts->router + parts->plan;
    TRY(e);
    TRY(in_stage(combine(b), "combine"));
    spent->combine = lap(&pass->clock_ns);
    parts->gate_up = b->gate_up_ns;
    parts->down = b->down_ns;
    return OK;
}

// ---- the three steps of a batch: input, compute, finish

static FALLIBLE check_limits(struct batch *b) {
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
    return OK;
}

static FALLIBLE input(struct batch *b, uint64_t *rows_direct) {
    TRY(check_limits(b));
    b->ids = (int32_t *)(void *)b->engine->message;
    b->weights = (float *)(void *)(b->ids + b->tokens * b->top_k);
    batch_index_tokens(b);
    if (b->rows_read == 0) {
        return OK;
    }
    batch_normalise_router_rows(b);
    return in_stage(stages_of(b)->input(b, rows_direct), "input");
}

// No expert reads any row of the batch: every sum is zero.
static void write_zeros(struct batch *b) {
    for (size_t r = 0; r < b->count; r++) {
        const struct layer_request *request = &b->requests[r];
        if (request->tokens > 0) {
            memset(request->output, 0, request->tokens * b->layer->params.hidden_size * expertd_dtype_size(request->output_dtype));
        }
    }
}

static void count_load(const struct batch *b, uint64_t *expert_load) {
    for (uint32_t e = 0; expert_load && e < b->layer->params.num_experts; e++) {
        expert_load[e] += b->engine->plan.expert_rows[e];
    }
}

static void record_error(struct layer_pass *pass, err_t e) {
    if (err_is(e)) {
        err_save(e, &pass->error);
    }
}

static bool has_failed(const struct layer_pass *pass) {
    return pass->error.code != EXPERTD_ERR_OK;
}

struct layer_pass *layer_pass_input(struct engine *engine, const struct model_layer *layer, struct layer_request *requests,
                                    size_t count) {
    unsigned slot = engine->stages->overlaps ? engine->next_pass++ % BATCH_INPUTS : 0;
    struct layer_pass *pass = &engine->passes[slot];
    *pass = (struct layer_pass){.clock_ns = clock_now_ns()};
    pass->b = (struct batch){
        .engine = engine, .in = &engine->inputs[slot], .slot = slot, .layer = layer, .requests = requests, .count = count};
    pass->b.shards = shards_take(layer->in_force); // for the whole batch: a new placement takes effect between batches
    pass->spent.placement_epoch = pass->b.shards->placement->epoch;
    record_error(pass, input(&pass->b, &pass->spent.rows_direct));
    pass->spent.parts.input = lap(&pass->clock_ns);
    return pass;
}

void layer_pass_compute(struct layer_pass *pass) {
    if (has_failed(pass)) {
        return;
    }
    pass->clock_ns = clock_now_ns();
    if (pass->b.rows_read == 0) {
        write_zeros(&pass->b);
        pass->spent.combine = lap(&pass->clock_ns);
        return;
    }
    record_error(pass, compute(pass));
}

FALLIBLE layer_pass_finish(struct layer_pass *pass, uint64_t *expert_load, struct layer_timings *timings) {
    struct batch *b = &pass->b;
    if (!has_failed(pass) && b->rows_read > 0) {
        record_error(pass, in_stage(stages_of(b)->answer(b), "combine"));
        pass->spent.combine += lap(&pass->clock_ns);
    }
    if (has_failed(pass)) {
        stages_of(b)->abandon(b);
        exchange_settle(b->engine->exchange);
    } else if (b->rows_read > 0) {
        count_load(b, expert_load);
    }
    if (timings) {
        *timings = pass->spent;
    }
    shards_release(b->layer->in_force, b->shards);
    return has_failed(pass) ? err_restore(&pass->error) : OK;
}

FALLIBLE layer_forward(struct engine *engine, const struct model_layer *layer, struct layer_request *requests, size_t count,
                       uint64_t *expert_load, struct layer_timings *timings) {
    struct layer_pass *pass = layer_pass_input(engine, layer, requests, count);
    layer_pass_compute(pass);
    return layer_pass_finish(pass, expert_load, timings);
}
