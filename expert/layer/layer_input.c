// Taking a batch in: hidden rows of any dtype to D, one rounding, and what routers with rows of their own read. On devices the rows
// are computed there (device_input.c), and only which tokens want what is noted here.
#include <string.h>

#include "expert/layer/layer_batch.h"
#include "expert/layer/layer_piece.h"
#include "expertd/kernels/normalise.h"
#include "kernels/rows/convert.h"

// Waking the team costs more than a few rows of conversions: it is called for so many values and more.
enum { TEAM_VALUES_MIN = 1 << 16 };

struct expertd_team *batch_team(const struct batch *b, size_t rows) {
    return rows * b->layer->params.hidden_size >= TEAM_VALUES_MIN ? b->engine->team : NULL;
}

enum { SCALE_COLUMNS = 128 };

// The multiplier of columns [128 * block, 128 * block + 128) of an F8 row.
static float scale_at(const struct expertd_tensor_view *scale, size_t row, size_t block) {
    size_t columns = scale->rank == 2 ? (size_t)scale->shape[1] : 0;
    size_t index = columns == 0 ? 0 : columns == 1 ? row : row * columns + block;
    float value;
    memcpy(&value, (const char *)scale->data + index * sizeof value, sizeof value);
    return value;
}

static void scale_row(const struct expertd_tensor_view *scale, size_t row, size_t width, float *values) {
    for (size_t begin = 0; begin < width; begin += SCALE_COLUMNS) {
        size_t end = width - begin < SCALE_COLUMNS ? width : begin + SCALE_COLUMNS;
        float factor = scale_at(scale, row, begin / SCALE_COLUMNS);
        for (size_t i = begin; i < end; i++) {
            values[i] *= factor;
        }
    }
}

// Does anything read the request's rows in fp32?
static bool reads_wide(const struct batch *b, const struct layer_request *request) {
    const struct layer_params *p = &b->layer->params;
    return request->source == ROUTING_OWN || p->weights_on_input || (request->shared && p->shared == SHARED_SIGMOID);
}

static void take_in_row(void *context, size_t token, unsigned thread) {
    (void)thread;
    struct batch *b = context;
    struct engine *engine = b->engine;
    enum expertd_dtype compute = engine->model->compute_dtype;
    size_t request_index = b->in->token_request[token];
    const struct layer_request *request = &b->requests[request_index];
    size_t row = token - batch_first_token(b, request_index);
    if (!layer_request_reads_row(request, row)) {
        return;
    }
    size_t width = b->layer->params.hidden_size;
    float *wide = b->in->hidden_f32 + token * b->in->hidden_f32_stride;
    const char *source = (const char *)request->hidden.data + row * width * expertd_dtype_size(request->hidden.dtype);
    char *rounded = b->in->hidden + token * b->in->hidden_stride;
    if (request->hidden.dtype == compute) {
        memcpy(rounded, source, width * expertd_dtype_size(compute));
    } else {
        convert_widen(request->hidden.dtype, source, width, wide);
        if (request->hidden_scale.dtype != EXPERTD_DTYPE_NONE) {
            scale_row(&request->hidden_scale, row, width, wide);
        }
        if (compute != EXPERTD_DTYPE_F32) { // where it is, both are one
            convert_narrow(wide, width, compute, rounded);
        }
    }
    if (compute != EXPERTD_DTYPE_F32 && reads_wide(b, request)) {
        convert_widen(compute, rounded, width, wide);
    }
}

// Elements from one of the router's own rows to the next.
static size_t router_stride(const struct batch *b) {
    return arena_rounded(b->layer->params.hidden_size * sizeof(float)) / sizeof(float);
}

static void take_in_router_row(void *context, size_t token, unsigned thread) {
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

size_t batch_take_in(struct batch *b) {
    b->in->hidden_stride = arena_rounded(b->layer->params.hidden_size * batch_element_bytes(b));
    b->in->hidden_f32_stride = b->in->hidden_stride / batch_element_bytes(b);
    b->shared_count = 0;
    size_t token = 0, read = 0;
    for (size_t r = 0; r < b->count; r++) {
        for (size_t t = 0; t < b->requests[r].tokens; t++, token++) {
            b->in->token_request[token] = (uint32_t)r;
            read += layer_request_reads_row(&b->requests[r], t);
            b->in->shared_rows[token] = SHARED_NO_ROW;
            if (b->requests[r].shared && shared_has_expert(b->layer->params.shared)) {
                b->in->shared_rows[token] = (uint32_t)b->shared_count;
                b->in->shared_tokens[b->shared_count++] = (uint32_t)token;
            }
        }
    }
    if (read > 0 && !b->engine->device) {
        expertd_team_run(batch_team(b, read), b->tokens, take_in_row, b);
    }
    if (read > 0 && b->layer->params.needs_router_input) {
        expertd_team_run(batch_team(b, read), b->tokens, take_in_router_row, b);
    }
    return read;
}

const float *batch_router_rows(const struct batch *b, size_t *stride) {
    bool own = b->layer->params.needs_router_input;
    *stride = own ? router_stride(b) : b->in->hidden_f32_stride;
    return own ? b->in->router_rows : b->in->hidden_f32;
}
