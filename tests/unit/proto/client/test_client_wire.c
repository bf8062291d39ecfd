// The client's codec: the daemon and protobuf-c decode its requests; it decodes replies, also of a newer daemon.
#include "tests/unit/proto/wire/raw_message.h"

#include "generated/expertd/v1/expertd.pb-c.h"
#include "proto/client/client_wire.h"

typedef Expertd__V1__ForwardRequest pb_request;

static const uint8_t BYTES[256] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};

static struct wire_tensor tensor_of(enum expertd_dtype dtype, uint64_t rows, uint64_t columns) {
    return (struct wire_tensor){.present = true,
                                .view = {.dtype = dtype,
                                         .rank = 2,
                                         .shape = {rows, columns},
                                         .data = BYTES,
                                         .bytes = rows * columns * expertd_dtype_size(dtype)}};
}

static struct wire_request full_request(void) {
    struct wire_request request = {.id = 77,
                                   .model = "tiny",
                                   .layer = 3,
                                   .weights_id = 0x0123456789abcdef,
                                   .routing = WIRE_ROUTING_ROUTES,
                                   .ids = tensor_of(EXPERTD_DTYPE_I64, 3, 2),
                                   .weights = tensor_of(EXPERTD_DTYPE_F32, 3, 2),
                                   .hidden_scale = tensor_of(EXPERTD_DTYPE_F32, 3, 1),
                                   .shared = WIRE_SHARED_INCLUDE,
                                   .output_dtype = EXPERTD_DTYPE_F16,
                                   .has_output = true,
                                   .output = {1, 64, 30},
                                   .timeout_us = 1000000,
                                   .priority = -5,
                                   .timings = true,
                                   .traceparent = "00-ab-cd-01",
                                   .token_ids = tensor_of(EXPERTD_DTYPE_I32, 3, 1),
                                   .router_input = tensor_of(EXPERTD_DTYPE_BF16, 3, 5),
                                   .hidden = tensor_of(EXPERTD_DTYPE_F8_E4M3, 3, 5)};
    return request;
}

static void assert_same_tensor(const struct wire_tensor *a, const struct wire_tensor *b) {
    assert_int_equal(a->present, b->present);
    assert_int_equal(a->has_extent, b->has_extent);
    assert_memory_equal(&a->extent, &b->extent, sizeof a->extent);
    assert_int_equal(a->view.dtype, b->view.dtype);
    assert_int_equal(a->view.rank, b->view.rank);
    assert_memory_equal(a->view.shape, b->view.shape, sizeof a->view.shape);
    assert_int_equal(a->view.bytes, b->view.bytes);
    if (a->view.bytes > 0) {
        assert_memory_equal(a->view.data, b->view.data, a->view.bytes);
    }
}

static void assert_same_request(const struct wire_request *a, const struct wire_request *b) {
    assert_true(a->id == b->id && a->layer == b->layer && a->weights_id == b->weights_id);
    assert_string_equal(a->model, b->model);
    assert_int_equal(a->routing, b->routing);
    assert_int_equal(a->shared, b->shared);
    assert_int_equal(a->output_dtype, b->output_dtype);
    assert_int_equal(a->has_output, b->has_output);
    assert_memory_equal(&a->output, &b->output, sizeof a->output);
    assert_true(a->timeout_us == b->timeout_us && a->priority == b->priority && a->timings == b->timings);
    assert_string_equal(a->traceparent, b->traceparent);
    assert_same_tensor(&a->ids, &b->ids);
    assert_same_tensor(&a->weights, &b->weights);
    assert_same_tensor(&a->router_logits, &b->router_logits);
    assert_same_tensor(&a->hidden_scale, &b->hidden_scale);
    assert_same_tensor(&a->token_ids, &b->token_ids);
    assert_same_tensor(&a->router_input, &b->router_input);
    assert_same_tensor(&a->hidden, &b->hidden);
}

static void head_and_data_form_the_request(void **state) {
    (void)state;
    struct wire_request routed = full_request(), bare = {.hidden = tensor_of(EXPERTD_DTYPE_F32, 3, 4)}, none = {.id = 1};
    struct wire_request empty_hidden = {.id = 2, .hidden = tensor_of(EXPERTD_DTYPE_BF16, 0, 5)};
    const struct wire_request *const requests[] = {&routed, &bare, &none, &empty_hidden};
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        struct wire_request request = *requests[i];
        struct proto_bytes whole;
        uint8_t head[1024];
        assert_ok(wire_encode_request(&request, &whole));
        size_t data = request.hidden.view.bytes;
        request.hidden.view.data = NULL; // must not be read
        size_t length = wire_encode_request_head(&request, NULL, 0);
        assert_int_equal(length + data, whole.length);
        assert_int_equal(wire_encode_request_head(&request, head, length), length);
        assert_memory_equal(head, whole.data, length);
        if (data > 0) {
            assert_memory_equal(BYTES, whole.data + length, data);
        }
        free(whole.data);
    }
}

static void request_round_trips(void **state) {
    (void)state;
    struct wire_request logits = {.routing = WIRE_ROUTING_LOGITS, .router_logits = tensor_of(EXPERTD_DTYPE_BF16, 3, 8)};
    struct wire_request extents = full_request();
    extents.hidden = (struct wire_tensor){.present = true,
                                          .view = {.dtype = EXPERTD_DTYPE_F32, .rank = 2, .shape = {3, 4}},
                                          .has_extent = true,
                                          .extent = {9, 128, 48}};
    struct wire_request empty_hidden = {.hidden = tensor_of(EXPERTD_DTYPE_F32, 0, 5)};
    const struct wire_request requests[] = {full_request(), logits, extents, empty_hidden, {0}};
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        struct proto_bytes bytes;
        struct wire_request got;
        assert_ok(wire_encode_request(&requests[i], &bytes));
        assert_non_null(bytes.data);
        assert_ok(wire_decode_request(bytes.data, bytes.length, &got));
        assert_same_request(&got, &requests[i]);
        free(bytes.data);
    }
}

static void request_matches_protobuf_c(void **state) {
    (void)state;
    struct wire_request request = full_request();
    struct proto_bytes bytes;
    assert_ok(wire_encode_request(&request, &bytes));
    pb_request *unpacked = expertd__v1__forward_request__unpack(NULL, bytes.length, bytes.data);
    assert_non_null(unpacked);
    assert_int_equal(unpacked->priority, -5);
    assert_int_equal(unpacked->base.n_unknown_fields, 0);
    assert_int_equal(expertd__v1__forward_request__get_packed_size(unpacked), bytes.length);
    uint8_t again[RAW_MAX];
    assert_int_equal(expertd__v1__forward_request__pack(unpacked, again), bytes.length);
    assert_memory_equal(again, bytes.data, bytes.length);
    expertd__v1__forward_request__free_unpacked(unpacked, NULL);
    free(bytes.data);
}

static void reply_round_trips(void **state) {
    (void)state;
    struct wire_timings timings = {1, 2, 3, 4, 5, 6, 7, 8};
    struct wire_response response = {.id = 9,
                                     .weights_id = 10,
                                     .placement_epoch = 11,
                                     .timings = &timings,
                                     .has_output = true,
                                     .output_dtype = EXPERTD_DTYPE_F32,
                                     .output_shape = {2, 3}};
    struct raw raw = {.length = 0};
    raw.length = wire_encode_response(&response, raw.bytes, sizeof raw.bytes);
    raw_put(&raw, BYTES, 24);
    uint8_t *bytes = raw_exact(raw.bytes, raw.length);
    struct wire_reply got;
    assert_ok(wire_decode_reply(bytes, raw.length, &got));
    assert_int_equal(got.id, 9);
    assert_int_equal(got.weights_id, 10);
    assert_int_equal(got.placement_epoch, 11);
    assert_false(got.has_error);
    assert_true(got.has_timings);
    assert_memory_equal(&got.timings, &timings, sizeof timings);
    assert_same_tensor(
        &got.output,
        &(struct wire_tensor){.present = true,
                              .view = {.dtype = EXPERTD_DTYPE_F32, .rank = 2, .shape = {2, 3}, .data = BYTES, .bytes = 24}});
    free(bytes);
}

static void error_reply_round_trips_with_its_details(void **state) {
    (void)state;
    struct proto_bytes status;
    struct proto_error error = {
        .grpc_code = 8, .reason = "QUEUE_FULL", .field = "", .message = "the queue is full", .retry_after_ms = 50};
    assert_ok(proto_encode_status(&error, &status));
    struct wire_response response = {.id = 4, .status = status.data, .status_bytes = status.length};
    uint8_t header[1024];
    size_t length = wire_encode_response(&response, header, sizeof header);
    struct wire_reply got;
    assert_ok(wire_decode_reply(header, length, &got));
    assert_true(got.has_error);
    assert_int_equal(got.error.grpc_code, 8);
    assert_string_equal(got.error.reason, "QUEUE_FULL");
    assert_string_equal(got.error.message, "the queue is full");
    assert_int_equal(got.error.retry_after_ms, 50);
    assert_false(got.output.present);
    free(status.data);
}

static void unknown_fields_of_a_newer_daemon_are_skipped(void **state) {
    (void)state;
    struct raw raw = {.length = 0}, tensor = raw_tensor(EXPERTD_DTYPE_F32, (uint64_t[]){1, 2}, 2, 4), timings = {.length = 0};
    raw_number(&tensor, 9, 1);
    raw_text(&timings, 20, "new");
    raw_number(&timings, 6, 99);
    raw_number(&raw, 77, 1);
    raw_tag(&raw, 78, RAW_FIXED32);
    raw_put(&raw, "1234", 4);
    raw_message(&raw, 5, &timings);
    raw_message(&raw, 31, &tensor);
    raw_number(&raw, 1, 6);
    struct wire_reply got;
    assert_ok(wire_decode_reply(raw.bytes, raw.length, &got));
    assert_int_equal(got.id, 6);
    assert_int_equal(got.timings.total, 99);
    assert_int_equal(got.output.view.bytes, 8);
}

static void inconsistent_reply_is_refused(void **state) {
    (void)state;
    struct wire_reply got;
    struct raw cut = {.length = 0}, tensor = {.length = 0}, shorter = {.length = 0};
    raw_tag(&cut, 31, RAW_BYTES);
    raw_varint(&cut, UINT32_MAX);
    assert_refused(wire_decode_reply(cut.bytes, cut.length, &got), EXPERTD_ERR_MALFORMED, "output", "is truncated");
    raw_number(&tensor, 1, EXPERTD_DTYPE_F32);
    raw_number(&tensor, 2, 3);
    raw_bytes(&tensor, 15, BYTES, 8);
    raw_message(&shorter, 31, &tensor);
    assert_refused(wire_decode_reply(shorter.bytes, shorter.length, &got), EXPERTD_ERR_TENSOR_BYTES, "output.data",
                   "received 8 bytes, but F32[3] has 12");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_and_data_form_the_request),
        cmocka_unit_test(request_round_trips),
        cmocka_unit_test(request_matches_protobuf_c),
        cmocka_unit_test(reply_round_trips),
        cmocka_unit_test(error_reply_round_trips_with_its_details),
        cmocka_unit_test(unknown_fields_of_a_newer_daemon_are_skipped),
        cmocka_unit_test(inconsistent_reply_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
