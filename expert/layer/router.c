#include "expert/layer/router.h"

#include <string.h>

#include "expert/layout/token_table.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/routing.h"

size_t router_choices(const struct layer_request *request, const struct model_layer *layer) {
    return request->source == ROUTING_GIVEN ? (size_t)request->ids.shape[1] : layer->params.routing.top_k;
}

// logits = hidden @ router^T (+ bias).
static FALLIBLE own_logits(const struct router_args *args, struct router_scratch *scratch, struct expertd_team *team) {
    const struct model_layer *layer = args->layer;
    int32_t size = (int32_t)args->tokens;
    struct expertd_grouped_matmul_args m = {
        .lhs = args->hidden,
        .lhs_stride = args->hidden_stride,
        .rhs = expertd_rhs_packed(&layer->router),
        .group_sizes = &size,
        .num_groups = 1,
        .num_actual_groups = 1,
        .m = args->tokens,
        .out = scratch->logits,
        .out_stride = layer->router.n,
    };
    TRY(expertd_grouped_matmul(&m, team, scratch->matmul));
    for (size_t t = 0; layer->router_bias && t < args->tokens; t++) {
        for (size_t e = 0; e < layer->router.n; e++) {
            scratch->logits[t * layer->router.n + e] += layer->router_bias[e];
        }
    }
    return OK;
}

struct choose_job {
    const struct layer_request *request;
    const struct router_args *args;
    struct router_scratch *scratch;
};

static void choose_row(void *context, size_t token, unsigned thread) {
    const struct choose_job *job = context;
    const struct router_args *args = job->args;
    const struct expertd_routing *routing = &args->layer->params.routing;
    const float *logits = job->scratch->logits + token * routing->num_experts;
    int32_t *ids = args->ids + token * args->top_k;
    float *weights = args->weights + token * args->top_k;
    void *scratch = job->scratch->rows + thread * job->scratch->routing_bytes;
    if (args->layer->params.needs_token_ids) {
        expertd_routing_row_chosen(routing, logits, ids, weights, scratch);
    } else {
        expertd_routing_row(routing, logits, ids, weights, scratch);
    }
}

// Element i of an I32 or I64 view for the plan: a negative value becomes -1, a value above INT32_MAX becomes INT32_MAX, which is
// out of range.
static int32_t id_at(const struct expertd_tensor_view *ids, size_t i) {
    if (ids->dtype == EXPERTD_DTYPE_I32) {
        int32_t id;
        memcpy(&id, (const char *)ids->data + i * sizeof id, sizeof id);
        return id < 0 ? -1 : id;
    }
    int64_t id;
    memcpy(&id, (const char *)ids->data + i * sizeof id, sizeof id);
    return id < 0 ? -1 : id > INT32_MAX ? INT32_MAX : (int32_t)id;
}

static void given_rows(const struct layer_request *request, const struct router_args *args) {
    size_t choices = (size_t)request->ids.shape[1];
    size_t weight_bytes = choices * expertd_dtype_size(request->weights.dtype);
    for (size_t t = 0; t < args->tokens; t++) {
        for (size_t k = 0; k < choices; k++) {
            args->ids[t * args->top_k + k] = id_at(&request->ids, t * choices + k);
        }
        const char *weights = (const char *)request->weights.data + t * weight_bytes;
        expertd_dtype_widen(request->weights.dtype, weights, choices, args->weights + t * args->top_k);
    }
}

void router_look_up(const struct layer_request *request, const struct router_args *args) {
    size_t top_k = args->layer->params.routing.top_k;
    for (size_t t = 0; t < args->tokens; t++) {
        const int32_t *experts = args->layer->token_experts + (size_t)token_id_at(&request->token_ids, t) * top_k;
        memcpy(args->ids + t * args->top_k, experts, top_k * sizeof *experts);
    }
}

// Marks the columns beyond the request's choices as empty.
static void clear_rest(const struct router_args *args, size_t choices) {
    for (size_t t = 0; t < args->tokens; t++) {
        for (size_t k = choices; k < args->top_k; k++) {
            args->ids[t * args->top_k + k] = -1;
            args->weights[t * args->top_k + k] = 0.0f;
        }
    }
}

FALLIBLE router_forward(const struct layer_request *request, const struct router_args *args, struct router_scratch *scratch,
                        struct expertd_team *team) {
    clear_rest(args, router_choices(request, args->layer));
    switch (request->source) {
    case ROUTING_GIVEN:
        given_rows(request, args);
        return OK;
    case ROUTING_LOGITS:
        expertd_dtype_widen(request->logits.dtype, request->logits.data, args->tokens * args->layer->params.routing.num_experts,
                            scratch->logits);
        break;
    case ROUTING_OWN:
        TRY(own_logits(args, scratch, team));
        break;
    }
    if (args->layer->params.needs_token_ids) {
        router_look_up(request, args);
    }
    struct choose_job job = {.request = request, .args = args, .scratch = scratch};
    expertd_team_run(team, args->tokens, choose_row, &job);
    return OK;
}
