// The scalar twin of a layer: one thread, one token and one choice at a time, plain loops. It shares with the fast path only the
// stored weights and the row functions for routing, activation and norms; batching, grouping, exchange and combine are its own.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "expert/layer/layer.h"
#include "expert/layout/token_table.h"
#include "expertd/kernels/activation.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/normalise.h"
#include "expertd/kernels/routing.h"
#include "kernels/elements/scalar_math.h"

struct twin {
    const struct model_layer *layer;
    const struct shards *shards;
    enum expertd_dtype dtype;
    const struct layer_request *request;
    size_t top_k;
    float *wide;             // [H] the hidden row in D, widened
    void *hidden;            // [H] in D
    void *latent;            // [L] in D: the row that latent experts read
    void *input;             // [max(H, L)] in D: the row that one expert reads
    float *router_row;       // [H] the normalised router_input, if the layer needs one
    float *logits;           // [E + Z]
    int32_t *ids;            // [K]
    float *weights;          // [K]
    float *gate, *up, *sums; // [max(I, shared I)], [max(H, L)]
    void *inner;             // [max(I, shared I)] in D
    void *ordered;           // [max(H, L, I, shared I)] in D: a row in the k order of an expert's codes
    void *result;            // [max(H, L)] in D
    float *row;              // [max(H, L)] a result row, widened
    float *out;              // [max(H, L)]
    void *scratch;           // expertd_routing_row's
};

// y = x W^T for one row and one group of packed weights.
static FALLIBLE multiply(const void *x, const struct expertd_packed_weights *weights, size_t group, float *y) {
    struct expertd_packed_weights one = *weights;
    one.groups = 1;
    one.data = weights->data + group;
    int32_t size = 1;
    struct expertd_grouped_matmul_args args = {
        .lhs = x,
        .lhs_stride = weights->k,
        .rhs = expertd_rhs_packed(&one),
        .group_sizes = &size,
        .num_groups = 1,
        .num_actual_groups = 1,
        .m = 1,
        .out = y,
        .out_stride = weights->n,
    };
    return expertd_grouped_matmul_reference(&args);
}

struct twin_expert {
    const struct expert_weights *weights;
    size_t group;
    const struct expertd_activation *activation;
    uint32_t row_size, width;
    float scale; // multiplies the result before it is rounded
    bool scaled;
};

// x in the k order of the expert's codes; x itself if they have no order of their own.
static const void *reordered(struct twin *t, const void *x, void *const *orders, size_t group, size_t k) {
    const uint32_t *order = orders ? orders[group] : NULL;
    size_t size = expertd_dtype_size(t->dtype);
    for (size_t i = 0; order && i < k; i++) {
        memcpy((char *)t->ordered + i * size, (const char *)x + order[i] * size, size);
    }
    return order ? t->ordered : x;
}

// result = round_D(down(activation(gate(x), up(x)))).
static FALLIBLE expert_row(struct twin *t, const struct twin_expert *e) {
    const struct expert_weights *w = e->weights;
    uint32_t row_size = e->row_size;
    bool gated = expertd_activation_is_gated(e->activation);
    const void *input = reordered(t, t->input, w->hidden_order, e->group, row_size);
    if (gated) {
        TRY(multiply(input, &w->gate, e->group, t->gate));
    }
    TRY(multiply(input, &w->up, e->group, t->up));
    struct expertd_activation_args a = {
        .activation = e->activation,
        .gate = gated ? t->gate : NULL,
        .up = t->up,
        .gate_bias = w->gate_bias ? w->gate_bias[e->group] : NULL,
        .up_bias = w->up_bias ? w->up_bias[e->group] : NULL,
        .width = e->width,
        .dtype = t->dtype,
        .out = t->inner,
    };
    expertd_activation_row(&a);
    TRY(multiply(reordered(t, t->inner, w->inner_order, e->group, e->width), &w->down, e->group, t->sums));
    for (uint32_t i = 0; i < row_size; i++) {
        if (w->down_bias) {
            t->sums[i] += ((const float *)w->down_bias[e->group])[i];
        }
        if (e->scaled) {
            t->sums[i] *= e->scale;
        }
    }
    expertd_dtype_narrow(t->sums, row_size, t->dtype, t->result);
    expertd_dtype_widen(t->dtype, t->result, row_size, t->row);
    return OK;
}

static void convert_input(struct twin *t, size_t token) {
    uint32_t width = t->layer->params.hidden_size;
    const struct layer_request *r = t->request;
    expertd_dtype_widen(r->hidden.dtype, (const char *)r->hidden.data + token * width * expertd_dtype_size(r->hidden.dtype), width,
                        t->wide);
    const struct expertd_tensor_view *scale = &r->hidden_scale;
    for (uint32_t i = 0; scale->dtype != EXPERTD_DTYPE_NONE && i < width; i++) {
        size_t columns = scale->rank == 2 ? (size_t)scale->shape[1] : 0;
        size_t index = columns == 0 ? 0 : columns == 1 ? token : token * columns + i / 128;
        float value;
        memcpy(&value, (const char *)scale->data + index * sizeof value, sizeof value);
        t->wide[i] *= value;
    }
    expertd_dtype_narrow(t->wide, width, t->dtype, t->hidden);
    expertd_dtype_widen(t->dtype, t->hidden, width, t->wide);
}

static void read_router_input(struct twin *t, size_t token) {
    const struct layer_params *p = &t->layer->params;
    const struct expertd_tensor_view *input = &t->request->router_input;
    const char *row = (const char *)input->data + token * p->hidden_size * expertd_dtype_size(input->dtype);
    expertd_dtype_widen(input->dtype, row, p->hidden_size, t->router_row);
    expertd_rms_normalise_row(t->router_row, p->hidden_size, p->router_norm_epsilon, t->layer->router_norm, t->router_row);
}

static FALLIBLE route(struct twin *t, size_t token) {
    const struct layer_request *r = t->request;
    const struct expertd_routing *routing = &t->layer->params.routing;
    if (r->source == ROUTING_GIVEN) {
        size_t first = token * t->top_k;
        for (size_t k = 0; k < t->top_k; k++) {
            int64_t id;
            int32_t narrow;
            if (r->ids.dtype == EXPERTD_DTYPE_I32) {
                memcpy(&narrow, (const char *)r->ids.data + (first + k) * sizeof narrow, sizeof narrow);
                id = narrow;
            } else {
                memcpy(&id, (const char *)r->ids.data + (first + k) * sizeof id, sizeof id);
            }
            t->ids[k] = id < 0 ? -1 : (int32_t)id;
        }
        expertd_dtype_widen(r->weights.dtype, (const char *)r->weights.data + first * expertd_dtype_size(r->weights.dtype),
                            t->top_k, t->weights);
        return OK;
    }
    size_t outputs = routing->num_experts;
    if (r->source == ROUTING_LOGITS) {
        expertd_dtype_widen(r->logits.dtype, (const char *)r->logits.data + token * outputs * expertd_dtype_size(r->logits.dtype),
                            outputs, t->logits);
    } else {
        const float *rows = t->wide;
        if (t->layer->params.needs_router_input) {
            read_router_input(t, token);
            rows = t->router_row;
        }
        TRY(multiply(rows, &t->layer->router, 0, t->logits));
        for (size_t e = 0; t->layer->router_bias && e < outputs; e++) {
            t->logits[e] += t->layer->router_bias[e];
        }
    }
    if (t->layer->params.needs_token_ids) {
        const int32_t *experts = t->layer->token_experts + (size_t)token_id_at(&r->token_ids, token) * t->top_k;
        memcpy(t->ids, experts, t->top_k * sizeof *t->ids);
        expertd_routing_row_chosen(routing, t->logits, t->ids, t->weights, t->scratch);
    } else {
        expertd_routing_row(routing, t->logits, t->ids, t->weights, t->scratch);
    }
    return OK;
}

// Adds one choice's row to the token's output.
static FALLIBLE add_choice(struct twin *t, size_t k) {
    const struct layer_params *p = &t->layer->params;
    int32_t id = t->ids[k];
    if (id < 0) {
        return OK;
    }
    const float *row = t->wide;
    uint32_t row_size = expert_row_size(p);
    if ((uint32_t)id < p->num_experts) {
        memcpy(t->input, p->latent_size > 0 ? t->latent : t->hidden, row_size * expertd_dtype_size(t->dtype));
        for (uint32_t i = 0; p->weights_on_input && i < p->hidden_size; i++) {
            float product = t->weights[k] * t->wide[i];
            expertd_dtype_narrow(&product, 1, t->dtype, (char *)t->input + i * expertd_dtype_size(t->dtype));
        }
        const struct placement *placement = t->shards->placement;
        struct twin_expert e = {.activation = &p->activation, .row_size = row_size, .width = p->intermediate_size};
        e.weights = shards_find(t->shards, placement->holder_slots[placement->holder_first[id]], &e.group); // the first replica
        TRY(expert_row(t, &e));
        row = t->row;
    }
    for (uint32_t i = 0; i < row_size; i++) {
        t->out[i] = p->weights_on_input ? t->out[i] + row[i] : fmaf(t->weights[k], row[i], t->out[i]);
    }
    return OK;
}

static FALLIBLE add_shared(struct twin *t) {
    const struct layer_params *p = &t->layer->params;
    struct twin_expert e = {
        .weights = &t->layer->shared,
        .activation = &p->shared_activation,
        .row_size = p->hidden_size,
        .width = p->shared_intermediate_size,
        .scaled = p->shared == SHARED_SIGMOID,
    };
    if (e.scaled) {
        TRY(multiply(t->wide, &t->layer->shared_gate, 0, &e.scale));
        e.scale = sigmoid_f32(e.scale);
    }
    memcpy(t->input, t->hidden, p->hidden_size * expertd_dtype_size(t->dtype));
    TRY(expert_row(t, &e));
    for (uint32_t i = 0; i < p->hidden_size; i++) {
        t->out[i] += t->row[i];
    }
    return OK;
}

// Projects the hidden row of H to the row of L that latent experts read.
static FALLIBLE project(struct twin *t) {
    uint32_t latent_size = t->layer->params.latent_size;
    if (latent_size > 0) {
        TRY(multiply(t->hidden, &t->layer->latent_in, 0, t->sums));
        expertd_dtype_narrow(t->sums, latent_size, t->dtype, t->latent);
    }
    return OK;
}

// Projects the latent experts' sum of L back to a row of H.
static FALLIBLE project_back(struct twin *t) {
    uint32_t latent_size = t->layer->params.latent_size;
    if (latent_size > 0) {
        expertd_dtype_narrow(t->out, latent_size, t->dtype, t->input);
        TRY(multiply(t->input, &t->layer->latent_out, 0, t->out));
    }
    return OK;
}

static FALLIBLE forward_token(struct twin *t, size_t token) {
    const struct layer_params *p = &t->layer->params;
    const struct layer_request *r = t->request;
    convert_input(t, token);
    TRY(route(t, token));
    TRY(project(t));
    memset(t->out, 0, expert_row_size(p) * sizeof *t->out);
    for (size_t k = 0; k < t->top_k; k++) {
        TRY(add_choice(t, k));
    }
    for (uint32_t i = 0; r->source != ROUTING_GIVEN && p->routed_scale != 1.0f && i < expert_row_size(p); i++) {
        t->out[i] *= p->routed_scale;
    }
    TRY(project_back(t));
    if (r->shared && shared_has_expert(p->shared)) {
        TRY(add_shared(t));
    }
    for (uint32_t i = 0; r->shared && p->shared == SHARED_BIAS && i < p->hidden_size; i++) {
        t->out[i] += t->layer->output_bias[i];
    }
    for (uint32_t i = 0; p->shared == SHARED_AVERAGE && i < p->hidden_size; i++) {
        t->out[i] *= 0.5f;
    }
    if (r->shared && p->has_output_norm) {
        expertd_rms_normalise_row(t->out, p->hidden_size, p->output_norm_epsilon, t->layer->output_norm, t->out);
    }
    size_t row_bytes = p->hidden_size * expertd_dtype_size(r->output_dtype);
    expertd_dtype_narrow(t->out, p->hidden_size, r->output_dtype, (char *)r->output + token * row_bytes);
    return OK;
}

FALLIBLE layer_forward_reference(const struct model_layer *layer, enum expertd_dtype compute_dtype, struct layer_request *request) {
    const struct layer_params *p = &layer->params;
    size_t hidden_size = p->hidden_size;
    size_t width = p->intermediate_size > p->shared_intermediate_size ? p->intermediate_size : p->shared_intermediate_size;
    size_t outputs = (size_t)p->num_experts + p->num_zero_experts;
    size_t row = p->latent_size > p->hidden_size ? p->latent_size : p->hidden_size;
    struct twin t = {.layer = layer, .dtype = compute_dtype, .request = request};
    t.top_k = request->source == ROUTING_GIVEN ? (size_t)request->ids.shape[1] : p->routing.top_k;
    size_t floats[] = {hidden_size, hidden_size,   row,   outputs, t.top_k, t.top_k, width,
                       width,       row,           width, row,     row,     row,     width > row ? width : row,
                       hidden_size, p->latent_size};
    void **pieces[] = {(void **)&t.wide,   &t.hidden,       &t.input,
                       (void **)&t.logits, (void **)&t.ids, (void **)&t.weights,
                       (void **)&t.gate,   (void **)&t.up,  (void **)&t.sums,
                       &t.inner,           &t.result,       (void **)&t.row,
                       (void **)&t.out,    &t.ordered,      (void **)&t.router_row,
                       &t.latent};
    enum { PIECES = sizeof floats / sizeof floats[0] };
    struct arena arena;
    size_t bytes = arena_rounded(p->has_router ? expertd_routing_scratch_bytes(&p->routing) : 0);
    for (size_t i = 0; i < PIECES; i++) {
        bytes += arena_rounded(floats[i] * sizeof(float));
    }
    TRY(arena_init(&arena, bytes));
    err_t e = OK;
    for (size_t i = 0; i < PIECES && !err_is(e); i++) {
        e = arena_take(&arena, floats[i] * sizeof(float), pieces[i]);
    }
    t.scratch = arena.base + arena.used;
    t.shards = shards_take(layer->in_force);
    for (size_t token = 0; token < request->tokens && !err_is(e); token++) {
        e = forward_token(&t, token);
    }
    shards_release(layer->in_force, t.shards);
    arena_deinit(&arena);
    return e;
}
