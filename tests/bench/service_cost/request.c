#include "tests/bench/service_cost/request.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { TOP_K = 8, POISON = 0xff };

// Places tensors one after another in a region, or keeps them in their own memory.
struct layout {
    struct client_region *region;
    size_t used;
};

static size_t aligned(size_t bytes) {
    return (bytes + CLIENT_REGION_ALIGN - 1) / CLIENT_REGION_ALIGN * CLIENT_REGION_ALIGN;
}

static struct wire_extent place(struct layout *layout, size_t bytes) {
    struct wire_extent extent = {.region = layout->region->id, .offset = layout->used, .length = bytes};
    layout->used += aligned(bytes);
    INVARIANT(layout->used <= layout->region->bytes);
    return extent;
}

// Takes ownership of data (from malloc).
static struct wire_tensor tensor_of(struct layout *layout, enum expertd_dtype dtype, uint64_t rows, uint64_t columns, void *data) {
    size_t bytes = rows * columns * expertd_dtype_size(dtype);
    struct wire_tensor tensor = {.present = true,
                                 .view = {.dtype = dtype, .rank = 2, .shape = {rows, columns}, .data = data, .bytes = bytes}};
    if (layout->region) {
        tensor.has_extent = true;
        tensor.extent = place(layout, bytes);
        memcpy(layout->region->data + tensor.extent.offset, data, bytes);
        tensor.view.data = NULL;
        tensor.view.bytes = 0;
        free(data);
    }
    return tensor;
}

static struct wire_tensor ids_of(struct layout *layout, size_t tokens) {
    int32_t *ids = malloc(tokens * TOP_K * sizeof *ids);
    INVARIANT(ids);
    for (size_t i = 0; i < tokens * TOP_K; i++) {
        ids[i] = -1;
    }
    return tensor_of(layout, EXPERTD_DTYPE_I32, tokens, TOP_K, ids);
}

static struct wire_tensor weights_of(struct layout *layout, size_t tokens) {
    float *weights = malloc(tokens * TOP_K * sizeof *weights);
    INVARIANT(weights);
    for (size_t i = 0; i < tokens * TOP_K; i++) {
        weights[i] = 0.125F;
    }
    return tensor_of(layout, EXPERTD_DTYPE_F32, tokens, TOP_K, weights);
}

static struct wire_tensor hidden_of(struct layout *layout, size_t tokens, size_t width) {
    uint16_t *hidden = malloc(tokens * width * sizeof *hidden);
    INVARIANT(hidden);
    for (size_t i = 0; i < tokens * width; i++) {
        hidden[i] = (uint16_t)(0x3f80 + i % 64); // BF16 near 1
    }
    return tensor_of(layout, EXPERTD_DTYPE_BF16, tokens, width, hidden);
}

static size_t output_bytes(const struct request_options *options) {
    return options->tokens * options->hidden * expertd_dtype_size(EXPERTD_DTYPE_BF16);
}

// Encodes an answer like the daemon's, with an 8-byte weights_id, epoch and two dimensions before the output, to get its length.
static size_t answer_bytes(const struct request_options *options, const struct wire_request *request) {
    struct wire_response response = {.id = 1,
                                     .weights_id = 1,
                                     .placement_epoch = 1,
                                     .has_output = true,
                                     .output_dtype = EXPERTD_DTYPE_BF16,
                                     .output_shape = {options->tokens, options->hidden},
                                     .output_in_extent = request->has_output,
                                     .output = request->output};
    uint8_t header[WIRE_HEADER_MAX];
    size_t head_bytes = wire_encode_response(&response, header, sizeof header);
    return request->has_output ? head_bytes : head_bytes + output_bytes(options);
}

static void free_data(const struct wire_tensor *tensor) {
    free((void *)(uintptr_t)tensor->view.data); // from malloc, although the view's type is const
}

size_t request_region_bytes(const struct request_options *options) {
    size_t choices = options->tokens * TOP_K;
    return aligned(choices * sizeof(int32_t)) + aligned(choices * sizeof(float)) + 2 * aligned(output_bytes(options));
}

struct request request_create(const struct request_options *options) {
    struct layout layout = {.region = options->region};
    struct wire_request wire = {
        .id = 1,
        .layer = options->layer,
        .routing = WIRE_ROUTING_ROUTES,
        .ids = ids_of(&layout, options->tokens),
        .weights = weights_of(&layout, options->tokens),
        .hidden = hidden_of(&layout, options->tokens, options->hidden),
    };
    struct request request = {.output_bytes = output_bytes(options)};
    if (options->region) {
        wire.has_output = true;
        wire.output = place(&layout, request.output_bytes);
        request.output = options->region->data + wire.output.offset;
        memset(request.output, POISON, request.output_bytes);
    }
    request.answer_bytes = answer_bytes(options, &wire);
    INVARIANT(!err_is(wire_encode_request(&wire, &request.bytes)));
    free_data(&wire.ids);
    free_data(&wire.weights);
    free_data(&wire.hidden);
    return request;
}

bool request_was_answered(const struct request *request) {
    for (size_t i = 0; request->output && i < request->output_bytes; i++) {
        if (request->output[i] != 0) {
            return false;
        }
    }
    return true;
}
