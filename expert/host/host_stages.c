#include "expert/host/host_stages.h"

#include "expert/host/host_combine.h"
#include "expert/host/host_input.h"
#include "expert/host/host_state.h"
#include "expertd/kernels/combine.h"
#include "expertd/kernels/expert_matmul.h"
#include "kernels/elements/scalar_math.h"
#include "kernels/rows/convert.h"

// ---- route

static FALLIBLE route(struct batch *b) {
    size_t first = 0;
    for (size_t r = 0; r < b->count; r++) {
        TRY(batch_route_on_host(b, &b->requests[r], first));
        first += b->requests[r].tokens;
    }
    return OK;
}

// ---- project: rows of H to rows of L

static FALLIBLE project(struct batch *b) {
    struct engine *engine = b->engine;
    int32_t size = (int32_t)b->tokens;
    struct expertd_down_args args = {.product = {
                                         .lhs = b->in->hidden,
                                         .lhs_stride = b->in->hidden_stride / batch_element_bytes(b),
                                         .rhs = expertd_rhs_packed(&b->layer->latent_in),
                                         .group_sizes = &size,
                                         .num_groups = 1,
                                         .num_actual_groups = 1,
                                         .m = b->tokens,
                                         .out = engine->host->latent,
                                         .out_stride = batch_expert_stride(b) / batch_element_bytes(b),
                                     }};
    return expertd_expert_down(&args, engine->team, engine->router.matmul);
}

// ---- dispatch

// For layers with weights on the input: the row of each choice is round_D(w * x).
static void weigh_input_row(void *context, size_t row, unsigned thread) {
    (void)thread;
    struct batch *b = context;
    struct engine *engine = b->engine;
    size_t width = b->layer->params.hidden_size;
    const float *x = b->in->hidden_f32 + engine->plan.row_token[row] * b->in->hidden_f32_stride;
    float w = b->weights[engine->plan.row_choice[row]];
    char *out = engine->host->expanded + row * b->in->hidden_stride;
    for (size_t begin = 0; begin < width; begin += EXPERTD_COMBINE_BLOCK) {
        float block[EXPERTD_COMBINE_BLOCK];
        size_t columns = width - begin < EXPERTD_COMBINE_BLOCK ? width - begin : EXPERTD_COMBINE_BLOCK;
        for (size_t i = 0; i < columns; i++) {
            block[i] = w * x[begin + i];
        }
        convert_narrow(block, columns, engine->model->compute_dtype, out + begin * batch_element_bytes(b));
    }
}

static FALLIBLE dispatch(struct batch *b, struct exchange_batch *out) {
    struct host_engine *host = b->engine->host;
    if (out->expanded) {
        expertd_team_run(b->engine->team, b->engine->plan.rows, weigh_input_row, b);
    }
    out->hidden = out->expanded ? host->expanded : b->layer->params.latent_size > 0 ? host->latent : b->in->hidden;
    return OK;
}

// ---- experts

static FALLIBLE rank_experts(struct batch *b, uint32_t rank, struct ffn_scratch *scratch, struct expertd_team *team) {
    struct engine *engine = b->engine;
    const struct layer_params *p = &b->layer->params;
    const uint32_t *runs = b->shards->rank_runs + rank;
    struct exchange_work work;
    TRY(exchange_inbox(engine->exchange, rank, &work));
    struct ffn_args args = {
        .runs = b->shards->runs + runs[0],
        .num_runs = runs[1] - runs[0],
        .activation = &p->activation,
        .hidden_size = expert_row_size(p),
        .intermediate_size = p->intermediate_size,
        .dtype = engine->model->compute_dtype,
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

// Computes all local ranks of one of `nodes` memory nodes, one after another.
static FALLIBLE node_experts(struct batch *b, uint32_t node, uint32_t nodes, struct ffn_scratch *scratch,
                             struct expertd_team *team) {
    uint32_t ranks = exchange_local_ranks(b->engine->exchange);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (topology_node_of_rank(nodes, ranks, rank) == node) {
            TRY_IN(rank_experts(b, rank, scratch, team), "shard %u", rank);
        }
    }
    return OK;
}

static err_t experts_on_node(void *context, uint32_t node, struct expertd_team *team) {
    struct batch *b = context;
    return node_experts(b, node, node_teams_count(b->engine->host->node_teams), &b->engine->host->nodes[node].ffn, team);
}

static struct ffn_scratch *ffn_of_node(struct host_engine *host, uint32_t node) {
    return host->node_teams ? &host->nodes[node].ffn : &host->ffn;
}

static uint32_t node_count(const struct host_engine *host) {
    return host->node_teams ? node_teams_count(host->node_teams) : 1;
}

// Records the time of the routed experts' products on the slowest node.
static void record_products(struct batch *b) {
    struct host_engine *host = b->engine->host;
    for (uint32_t n = 0; n < node_count(host); n++) {
        const struct ffn_scratch *ffn = ffn_of_node(host, n);
        if (ffn->gate_up_ns + ffn->down_ns > b->gate_up_ns + b->down_ns) {
            b->gate_up_ns = ffn->gate_up_ns;
            b->down_ns = ffn->down_ns;
        }
    }
}

static FALLIBLE experts(struct batch *b) {
    struct engine *engine = b->engine;
    struct host_engine *host = engine->host;
    for (uint32_t n = 0; n < node_count(host); n++) {
        ffn_of_node(host, n)->gate_up_ns = ffn_of_node(host, n)->down_ns = 0;
    }
    TRY(host->node_teams ? node_teams_run(host->node_teams, experts_on_node, b) : node_experts(b, 0, 1, &host->ffn, engine->team));
    record_products(b);
    return OK;
}

// ---- shared experts

// sigmoid(x . g) for each token of shared_tokens.
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
        .out = engine->host->shared_scale,
        .out_stride = 1,
    };
    TRY(expertd_grouped_matmul(&m, engine->team, engine->router.matmul));
    for (size_t i = 0; i < b->shared_count; i++) {
        engine->host->shared_scale[i] = sigmoid_f32(engine->host->shared_scale[i]);
    }
    return OK;
}

static FALLIBLE shared_experts(struct batch *b) {
    struct engine *engine = b->engine;
    const struct layer_params *p = &b->layer->params;
    bool gated = p->shared == SHARED_SIGMOID;
    if (gated) {
        TRY(shared_gates(b));
    }
    int32_t size = (int32_t)b->shared_count;
    struct ffn_args args = {
        .runs = &b->layer->shared,
        .num_runs = 1,
        .activation = &p->shared_activation,
        .hidden_size = p->hidden_size,
        .intermediate_size = p->shared_intermediate_size,
        .dtype = engine->model->compute_dtype,
        .group_sizes = &size,
        .rows = b->shared_count,
        .hidden = b->in->hidden,
        .hidden_stride = b->in->hidden_stride,
        .hidden_rows = b->in->shared_tokens,
        .row_scale = gated ? engine->host->shared_scale : NULL,
        .results = engine->host->shared,
        .results_stride = b->in->hidden_stride,
    };
    return ffn_forward(&args, &engine->host->ffn, engine->team);
}

// ---- answer

static FALLIBLE answer(struct batch *b) {
    (void)b; // combine has written the outputs
    return OK;
}

static void abandon(struct batch *b) {
    (void)b; // no copy runs asynchronously
}

const struct layer_stages host_stages = {
    .overlaps = false,
    .input = host_input,
    .route = route,
    .project = project,
    .dispatch = dispatch,
    .experts = experts,
    .shared_experts = shared_experts,
    .combine = host_combine,
    .answer = answer,
    .abandon = abandon,
};
