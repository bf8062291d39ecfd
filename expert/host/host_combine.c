#include "expert/host/host_combine.h"

#include <string.h>

#include "expert/host/host_state.h"
#include "expert/layer/layer_piece.h"
#include "expertd/kernels/combine.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/normalise.h"
#include "kernels/rows/convert.h"

// The result row of one choice: the expert's result, the token's hidden row for an identity expert, or NULL for an empty choice.
static const void *choice_row(const struct batch *b, size_t token, size_t choice) {
    const struct engine *engine = b->engine;
    uint32_t row = engine->plan.choice_row[choice];
    if (row != PLAN_NO_ROW) {
        return exchange_result(engine->exchange, row);
    }
    return b->ids[choice] < 0 ? NULL : b->in->hidden + token * b->in->hidden_stride;
}

// The arguments of the token's weighted sum, except the output. Each thread has its own table of rows.
static struct expertd_combine_args routed_sum(struct batch *b, size_t token, unsigned thread) {
    struct engine *engine = b->engine;
    const struct layer_params *p = &b->layer->params;
    const void **rows = engine->host->rows + thread * engine->limits.max_top_k;
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
    return row == SHARED_NO_ROW ? NULL : b->engine->host->shared + row * b->in->hidden_stride;
}

// The memory of the token's output. If no expert reads the token, zeros are written and the result is NULL.
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

// True if the block ends with a norm and the request includes the shared experts. The routed sum alone is not normalised: the
// caller adds to it.
static bool ends_with_norm(const struct batch *b, size_t token) {
    return b->layer->params.has_output_norm && b->requests[b->in->token_request[token]].shared;
}

// Computes the sum in fp32, normalises it and rounds it once. The sum overwrites the widened hidden row, which is not read again.
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

// Sums a token's latent rows. The sum overwrites the latent row that the experts have read.
static void sum_latent_token(void *context, size_t token, unsigned thread) {
    struct batch *b = context;
    struct expertd_combine_args args = routed_sum(b, token, thread);
    args.output_dtype = args.dtype;
    args.out = b->engine->host->latent + token * batch_expert_stride(b);
    expertd_combine_row(&args);
}

// Adds the shared experts' row to the projected sum, which is in hidden_f32, and writes the output.
static void write_latent_token(void *context, size_t token, unsigned thread) {
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
        .lhs = engine->host->latent,
        .lhs_stride = batch_expert_stride(b) / batch_element_bytes(b),
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
    expertd_team_run(team, b->tokens, write_latent_token, b);
    return OK;
}

err_t host_combine(struct batch *b) {
    // Tokens without rows are not counted: one thread writes their zeros as fast as a team.
    struct expertd_team *team = batch_team(b, b->engine->plan.rows + b->shared_count);
    if (b->layer->params.latent_size > 0) {
        return combine_latent(b, team);
    }
    expertd_team_run(team, b->tokens, combine_token, b);
    return OK;
}
