#include "expert/host/host_input.h"

#include <string.h>

#include "expert/layer/layer_piece.h"
#include "expertd/kernels/team.h"
#include "kernels/rows/convert.h"

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

// True if the router, the weighted inputs or the shared gate read the request's rows in fp32.
static bool reads_f32(const struct batch *b, const struct layer_request *request) {
    const struct layer_params *p = &b->layer->params;
    return request->source == ROUTING_OWN || p->weights_on_input || (request->shared && p->shared == SHARED_SIGMOID);
}

static void convert_row(void *context, size_t token, unsigned thread) {
    (void)thread;
    struct batch *b = context;
    enum expertd_dtype compute = b->engine->model->compute_dtype;
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
        if (compute != EXPERTD_DTYPE_F32) { // with F32 `wide` and `rounded` are the same memory
            convert_narrow(wide, width, compute, rounded);
        }
    }
    if (compute != EXPERTD_DTYPE_F32 && reads_f32(b, request)) {
        convert_widen(compute, rounded, width, wide);
    }
}

err_t host_input(struct batch *b, uint64_t *rows_direct) {
    (void)rows_direct;
    expertd_team_run(batch_team(b, b->rows_read), b->tokens, convert_row, b);
    return OK;
}
