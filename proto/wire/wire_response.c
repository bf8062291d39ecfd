// Encodes a ForwardResponse up to the output's bytes, which are sent directly from the memory in which they were computed.
#include "proto/wire/wire.h"

#include "proto/wire/wire_writer.h"

static void put_timings_body(struct wire_writer *writer, const struct wire_timings *timings) {
    wire_put_number(writer, 1, timings->queue);
    wire_put_number(writer, 2, timings->route);
    wire_put_number(writer, 3, timings->exchange);
    wire_put_number(writer, 4, timings->compute);
    wire_put_number(writer, 5, timings->combine);
    wire_put_number(writer, 6, timings->total);
    wire_put_number(writer, 7, timings->batch_tokens);
    wire_put_number(writer, 8, timings->batch_requests);
}

static void put_timings(struct wire_writer *writer, const struct wire_timings *timings) {
    struct wire_writer measure = {0};
    put_timings_body(&measure, timings);
    wire_put_prefix(writer, 5, measure.used);
    put_timings_body(writer, timings);
}

static void put_output(struct wire_writer *writer, const struct wire_response *response) {
    uint64_t elements, bytes;
    INVARIANT(expertd_dtype_size(response->output_dtype) > 0);
    INVARIANT(!__builtin_mul_overflow(response->output_shape[0], response->output_shape[1], &elements));
    INVARIANT(!__builtin_mul_overflow(elements, (uint64_t)expertd_dtype_size(response->output_dtype), &bytes));
    struct wire_tensor_head head = {
        .dtype = response->output_dtype,
        .rank = 2,
        .shape = response->output_shape,
        .extent = response->output_in_extent ? &response->output : NULL,
        .data_bytes = response->output_in_extent ? 0 : bytes,
    };
    wire_put_tensor_head(writer, 31, &head);
}

// Field 31 is written last, and data is its last field, so the message ends with the output's bytes.
size_t wire_encode_response(const struct wire_response *response, uint8_t *header, size_t header_bytes) {
    struct wire_writer writer = {header, header_bytes, 0};
    wire_put_number(&writer, 1, response->id);
    if (response->status) {
        wire_put_prefix(&writer, 2, response->status_bytes);
        wire_put_raw(&writer, response->status, response->status_bytes);
    }
    wire_put_fixed64(&writer, 3, response->weights_id);
    wire_put_number(&writer, 4, response->placement_epoch);
    if (response->timings) {
        put_timings(&writer, response->timings);
    }
    if (response->has_output) {
        put_output(&writer, response);
    }
    return writer.used;
}
