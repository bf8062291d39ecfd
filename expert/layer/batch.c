#include "expert/layer/batch.h"

#include "base/clock.h"
#include "expert/layer/layer_piece.h"
#include "expertd/kernels/normalise.h"
#include "kernels/rows/convert.h"

// Below this number of values, one thread is faster than waking the team.
enum { TEAM_VALUES_MIN = 1 << 16 };

int64_t batch_deadline(const struct batch *b) {
    int64_t latest_ns = 0;
    for (size_t r = 0; r < b->count; r++) {
        int64_t deadline_ns = b->requests[r].deadline_ns;
        if (deadline_ns == 0 || deadline_ns == CLOCK_NEVER) {
            return 0;
        }
        latest_ns = deadline_ns > latest_ns ? deadline_ns : latest_ns;
    }
    return latest_ns;
}

size_t batch_expert_stride(const struct batch *b) {
    return arena_rounded(expert_row_size(&b->layer->params) * batch_element_bytes(b));
}

struct expertd_team *batch_team(const struct batch *b, size_t rows) {
    return rows * b->layer->params.hidden_size >= TEAM_VALUES_MIN ? b->engine->team : NULL;
}

void batch_index_tokens(struct batch *b) {
    b->in->hidden_stride = arena_rounded(b->layer->params.hidden_size * batch_element_bytes(b));
    b->in->hidden_f32_stride = b->in->hidden_stride / batch_element_bytes(b);
    b->shared_count = 0;
    b->rows_read = 0;
    size_t token = 0;
    for (size_t r = 0; r < b->count; r++) {
        for (size_t t = 0; t < b->requests[r].tokens; t++, token++) {
            b->in->token_request[token] = (uint32_t)r;
            b->rows_read += layer_request_reads_row(&b->requests[r], t);
            b->in->shared_rows[token] = SHARED_NO_ROW;
            if (b->requests[r].shared && shared_has_expert(b->layer->params.shared)) {
                b->in->shared_rows[token] = (uint32_t)b->shared_count;
                b->in->shared_tokens[b->shared_count++] = (uint32_t)token;
            }
        }
    }
}

// Stride in elements of in->router_rows.
static size_t router_stride(const struct batch *b) {
    return arena_rounded(b->layer->params.hidden_size * sizeof(float)) / sizeof(float);
}

static void normalise_router_row(void *context, size_t token, unsigned thread) {
    (void)thread;
    struct batch *b = context;
    const struct layer_params *p = &b->layer->params;
    size_t index = b->in->token_request[token], row = token - batch_first_token(b, index);
    const struct layer_request *request = &b->requests[index];
    float *out = b->in->router_rows + token * router_stride(b);
    if (request->source == ROUTING_OWN) {
        enum expertd_dtype dtype = request->router_input.dtype;
        const char *source = (const char *)request->router_input.data + row * p->hidden_size * expertd_dtype_size(dtype);
        convert_widen(dtype, source, p->hidden_size, out);
        expertd_rms_normalise_row(out, p->hidden_size, p->router_norm_epsilon, b->layer->router_norm, out);
    }
}

void batch_normalise_router_rows(struct batch *b) {
    if (b->layer->params.needs_router_input) {
        expertd_team_run(batch_team(b, b->rows_read), b->tokens, normalise_router_row, b);
    }
}

struct router_args batch_router_args(const struct batch *b, size_t first, size_t tokens) {
    bool own = b->layer->params.needs_router_input;
    size_t stride = own ? router_stride(b) : b->in->hidden_f32_stride;
    const float *rows = own ? b->in->router_rows : b->in->hidden_f32;
    return (struct router_args){
        .layer = b->layer,
        .hidden = rows ? rows + first * stride : NULL,
        .hidden_stride = stride,
        .tokens = tokens,
        .top_k = b->top_k,
        .ids = b->ids + first * b->top_k,
        .weights = b->weights + first * b->top_k,
    };
}

FALLIBLE batch_route_on_host(struct batch *b, const struct layer_request *request, size_t first_token) {
    struct router_args args = batch_router_args(b, first_token, request->tokens);
    b->routed_on_host = true;
    return router_forward(request, &args, &b->engine->router, b->engine->team);
}
