#include "tests/verify/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Limit of the reference's multiply-adds per request: about a second of plain loops.
#define REFERENCE_WORK_MAX UINT64_C(200000000)

static uint64_t row_work(const struct layer_params *p) {
    uint64_t routed = (uint64_t)p->routing.top_k * p->intermediate_size * p->hidden_size * 3;
    uint64_t shared = (uint64_t)p->shared_intermediate_size * p->hidden_size * 3;
    return routed + shared + (uint64_t)p->routing.num_experts * p->hidden_size;
}

uint64_t compare_rows(const struct layer_params *params, uint64_t tokens) {
    uint64_t affordable = REFERENCE_WORK_MAX / (row_work(params) + 1);
    affordable = affordable ? affordable : 1;
    return tokens < affordable ? tokens : affordable;
}

// The i-th of `count` rows spread over [0, tokens).
static uint64_t spread(uint64_t i, uint64_t count, uint64_t tokens) {
    return count < 2 ? 0 : i * (tokens - 1) / (count - 1);
}

static struct expertd_tensor_view row_view(const struct wire_tensor *tensor, uint64_t row) {
    struct expertd_tensor_view view = tensor->view;
    if (!tensor->present) {
        return (struct expertd_tensor_view){0};
    }
    view.bytes = view.bytes / view.shape[0];
    view.data = (const uint8_t *)view.data + row * view.bytes;
    view.shape[0] = 1;
    return view;
}

static void compare_values(const float *y, const float *expected, size_t count, struct comparison *sum) {
    double error = 0, greatest = 0;
    for (size_t i = 0; i < count; i++) {
        bool both_nan = isnan(y[i]) && isnan(expected[i]);
        bool same = both_nan ||
                    expertd_f32_bits(y[i]) == expertd_f32_bits(expected[i]); // widening is exact, so this compares the stored bits
        sum->differing += !same;
        double difference = same ? 0 : fabs((double)y[i] - (double)expected[i]);
        error = !isfinite(difference) ? (double)INFINITY : fmax(error, difference);
        greatest = fmax(greatest, fabs((double)expected[i]));
    }
    double relative = error > 0 && greatest > 0 ? error / greatest : error;
    sum->error_max = relative > sum->error_max ? relative : sum->error_max;
    sum->rows++;
    sum->values += count;
}

struct row_buffers {
    void *output;          // [H] in the output dtype
    float *got, *expected; // [H], widened to F32
};

static FALLIBLE compare_row(const struct verify_case *c, const struct model_layer *layer, enum expertd_dtype compute_dtype,
                            const struct expertd_tensor_view *answer, uint64_t row, struct row_buffers *b, struct comparison *sum) {
    const struct wire_request *r = &c->request;
    size_t width = layer->params.hidden_size;
    struct layer_request request = {
        .tokens = 1,
        .hidden = row_view(&r->hidden, row),
        .hidden_scale = row_view(&r->hidden_scale, row),
        .source = r->routing == WIRE_ROUTING_ROUTES   ? ROUTING_GIVEN
                  : r->routing == WIRE_ROUTING_LOGITS ? ROUTING_LOGITS
                                                      : ROUTING_OWN,
        .ids = row_view(&r->ids, row),
        .weights = row_view(&r->weights, row),
        .logits = row_view(&r->router_logits, row),
        .token_ids = row_view(&r->token_ids, row),
        .router_input = row_view(&r->router_input, row),
        .shared = c->with_shared,
        .output_dtype = r->output_dtype,
        .output = b->output,
    };
    TRY(layer_forward_reference(layer, compute_dtype, &request));
    expertd_dtype_widen(r->output_dtype, b->output, width, b->expected);
    size_t row_bytes = width * expertd_dtype_size(r->output_dtype);
    expertd_dtype_widen(r->output_dtype, (const uint8_t *)answer->data + row * row_bytes, width, b->got);
    compare_values(b->got, b->expected, width, sum);
    return OK;
}

FALLIBLE compare_answer(const struct verify_case *c, const struct model_layer *layer, enum expertd_dtype compute_dtype,
                        const struct expertd_tensor_view *answer, struct comparison *sum) {
    uint64_t tokens = c->request.hidden.view.shape[0], width = layer->params.hidden_size;
    if (answer->dtype != c->request.output_dtype || answer->rank != 2 || answer->shape[0] != tokens || answer->shape[1] != width ||
        answer->bytes != tokens * width * expertd_dtype_size(answer->dtype)) {
        char text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_SHAPE_MISMATCH, "the answer is %s%s, not %s[%llu, %llu]", expertd_dtype_name(answer->dtype),
             expertd_tensor_shape_text(answer->shape, answer->rank, text), expertd_dtype_name(c->request.output_dtype),
             (unsigned long long)tokens, (unsigned long long)width);
    }
    struct row_buffers buffers = {malloc(width * sizeof(float)), malloc(width * sizeof(float)), malloc(width * sizeof(float))};
    err_t e = OK;
    if (!buffers.output || !buffers.got || !buffers.expected) {
        e = err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for a row of %llu values", (unsigned long long)width);
    }
    uint64_t rows = compare_rows(&layer->params, tokens);
    for (uint64_t i = 0; i < rows && !err_is(e); i++) {
        e = compare_row(c, layer, compute_dtype, answer, spread(i, rows, tokens), &buffers, sum);
    }
    free(buffers.output);
    free(buffers.got);
    free(buffers.expected);
    return e;
}
