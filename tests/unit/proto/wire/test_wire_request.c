// ForwardRequest: messages packed by protobuf-c are decoded, with fields in any order and tensors as views.
#include "tests/unit/proto/wire/raw_message.h"

#include "generated/expertd/v1/expertd.pb-c.h"
#include "proto/wire/wire.h"

typedef Expertd__V1__ForwardRequest pb_request;
typedef Expertd__V1__Tensor pb_tensor;

enum { TOKENS = 3, HIDDEN = 5, CHOICES = 2, EXPERTS = 4 };

static const uint8_t BYTES[256] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};

static void set_tensor(pb_tensor *tensor, Expertd__V1__DType dtype, size_t element, uint64_t *shape, size_t rank) {
    expertd__v1__tensor__init(tensor);
    size_t bytes = element;
    for (size_t i = 0; i < rank; i++) {
        bytes *= shape[i];
    }
    tensor->dtype = dtype;
    tensor->n_shape = rank;
    tensor->shape = shape;
    tensor->place_case = EXPERTD__V1__TENSOR__PLACE_DATA;
    tensor->data = (ProtobufCBinaryData){bytes, (uint8_t *)BYTES};
}

// Sets every field, in memory of the caller.
struct full_request {
    pb_request request;
    pb_tensor hidden, ids, weights, scale, token_ids, router_input;
    Expertd__V1__Routes routes;
    Expertd__V1__Extent output;
    uint64_t hidden_shape[2], route_shape[2], scale_shape[1], token_shape[1];
};

static void fill(struct full_request *full) {
    *full = (struct full_request){
        .hidden_shape = {TOKENS, HIDDEN}, .route_shape = {TOKENS, CHOICES}, .scale_shape = {1}, .token_shape = {TOKENS}};
    pb_request *request = &full->request;
    expertd__v1__forward_request__init(request);
    set_tensor(&full->hidden, EXPERTD__V1__DTYPE__F8_E4M3, 1, full->hidden_shape, 2);
    set_tensor(&full->ids, EXPERTD__V1__DTYPE__I64, 8, full->route_shape, 2);
    set_tensor(&full->weights, EXPERTD__V1__DTYPE__BF16, 2, full->route_shape, 2);
    set_tensor(&full->scale, EXPERTD__V1__DTYPE__F32, 4, full->scale_shape, 1);
    set_tensor(&full->token_ids, EXPERTD__V1__DTYPE__I32, 4, full->token_shape, 1);
    set_tensor(&full->router_input, EXPERTD__V1__DTYPE__F16, 2, full->hidden_shape, 2);
    expertd__v1__routes__init(&full->routes);
    expertd__v1__extent__init(&full->output);
    full->routes.ids = &full->ids;
    full->routes.weights = &full->weights;
    full->output = (Expertd__V1__Extent){.base = full->output.base, .region = 7, .offset = 4096, .length = 60};
    request->id = UINT64_MAX;
    request->model = (char *)"mixtral \xc3\xa9";
    request->layer = UINT32_MAX;
    request->weights_id = 0xfedcba9876543210;
    request->routing_case = EXPERTD__V1__FORWARD_REQUEST__ROUTING_ROUTES;
    request->routes = &full->routes;
    request->hidden_scale = &full->scale;
    request->shared_experts = EXPERTD__V1__SHARED_EXPERTS__SHARED_EXPERTS_EXCLUDE;
    request->output_dtype = EXPERTD__V1__DTYPE__F32;
    request->output = &full->output;
    request->timeout_us = UINT64_C(1) << 40;
    request->priority = INT32_MIN;
    request->timings = true;
    request->traceparent = (char *)"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    request->token_ids = &full->token_ids;
    request->router_input = &full->router_input;
    request->hidden = &full->hidden;
}

static struct raw pack(const pb_request *request) {
    struct raw raw = {.length = expertd__v1__forward_request__get_packed_size(request)};
    assert_true(raw.length <= RAW_MAX);
    expertd__v1__forward_request__pack(request, raw.bytes);
    return raw;
}

static void assert_tensor(const struct wire_tensor *tensor, enum expertd_dtype dtype, const uint64_t *shape, uint32_t rank) {
    assert_true(tensor->present);
    assert_false(tensor->has_extent);
    assert_int_equal(tensor->view.dtype, dtype);
    assert_int_equal(tensor->view.rank, rank);
    uint64_t bytes = expertd_dtype_size(dtype);
    for (uint32_t i = 0; i < rank; i++) {
        assert_int_equal(tensor->view.shape[i], shape[i]);
        bytes *= shape[i];
    }
    assert_int_equal(tensor->view.bytes, bytes);
    assert_memory_equal(tensor->view.data, BYTES, bytes);
}

static void assert_full(const struct wire_request *got, const struct full_request *full) {
    assert_true(got->id == UINT64_MAX);
    assert_string_equal(got->model, "mixtral \xc3\xa9");
    assert_true(got->layer == UINT32_MAX);
    assert_true(got->weights_id == 0xfedcba9876543210);
    assert_int_equal(got->routing, WIRE_ROUTING_ROUTES);
    assert_tensor(&got->ids, EXPERTD_DTYPE_I64, full->route_shape, 2);
    assert_tensor(&got->weights, EXPERTD_DTYPE_BF16, full->route_shape, 2);
    assert_false(got->router_logits.present);
    assert_tensor(&got->hidden_scale, EXPERTD_DTYPE_F32, full->scale_shape, 1);
    assert_int_equal(got->shared, WIRE_SHARED_EXCLUDE);
    assert_int_equal(got->output_dtype, EXPERTD_DTYPE_F32);
    assert_true(got->has_output);
    assert_int_equal(got->output.region, 7);
    assert_int_equal(got->output.offset, 4096);
    assert_int_equal(got->output.length, 60);
    assert_true(got->timeout_us == UINT64_C(1) << 40);
    assert_int_equal(got->priority, INT32_MIN);
    assert_true(got->timings);
    assert_string_equal(got->traceparent, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    assert_tensor(&got->token_ids, EXPERTD_DTYPE_I32, full->token_shape, 1);
    assert_tensor(&got->router_input, EXPERTD_DTYPE_F16, full->hidden_shape, 2);
    assert_tensor(&got->hidden, EXPERTD_DTYPE_F8_E4M3, full->hidden_shape, 2);
}

static void request_with_every_field_is_decoded(void **state) {
    (void)state;
    struct full_request full;
    fill(&full);
    struct raw raw = pack(&full.request);
    uint8_t *bytes = raw_exact(raw.bytes, raw.length);
    struct wire_request got;
    assert_ok(wire_decode_request(bytes, raw.length, &got));
    assert_full(&got, &full);
    free(bytes);
}

static void tensor_is_a_view_into_the_message(void **state) {
    (void)state;
    struct full_request full;
    fill(&full);
    struct raw raw = pack(&full.request);
    struct wire_request got;
    assert_ok(wire_decode_request(raw.bytes, raw.length, &got));
    const uint8_t *data = got.hidden.view.data;
    assert_true(data >= raw.bytes && data + got.hidden.view.bytes <= raw.bytes + raw.length);
}

// Splits a message into its fields: a minimal reader for messages packed by protobuf-c.
static size_t split(const struct raw *raw, size_t starts[64]) {
    size_t count = 0, at = 0;
    while (at < raw->length) {
        starts[count++] = at;
        uint64_t value[2] = {0, 0};
        for (int part = 0; part < 2; part++) {
            if (part == 1 && (value[0] & 7) == RAW_FIXED64) {
                at += 8;
                break;
            }
            for (int shift = 0;; shift += 7) {
                uint8_t byte = raw->bytes[at++];
                value[part] |= (uint64_t)(byte & 0x7f) << shift;
                if (byte < 0x80) {
                    break;
                }
            }
        }
        at += (value[0] & 7) == RAW_BYTES ? value[1] : 0;
    }
    starts[count] = at;
    return count;
}

static void fields_may_be_in_any_order(void **state) {
    (void)state;
    struct full_request full;
    fill(&full);
    struct raw raw = pack(&full.request);
    size_t starts[64];
    size_t count = split(&raw, starts);
    assert_int_equal(count, 16);
    // A stride coprime to the number of fields visits each field once; 15 is the reverse order.
    for (size_t stride = 1; stride < count; stride += 2) {
        for (size_t first = 0; first < count; first++) {
            struct raw moved = {.length = 0};
            for (size_t i = 0; i < count; i++) {
                size_t field = (first + i * stride) % count;
                raw_put(&moved, raw.bytes + starts[field], starts[field + 1] - starts[field]);
            }
            struct wire_request got;
            assert_ok(wire_decode_request(moved.bytes, moved.length, &got));
            assert_full(&got, &full);
        }
    }
}

static void tensor_fields_may_be_in_any_order(void **state) {
    (void)state;
    static const int ORDERS[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t i = 0; i < 6; i++) {
        struct raw tensor = {.length = 0}, raw = {.length = 0};
        for (size_t j = 0; j < 3; j++) {
            switch (ORDERS[i][j]) {
            case 0:
                raw_number(&tensor, 1, EXPERTD_DTYPE_BF16);
                break;
            case 1:
                raw_bytes(&tensor, 2, (uint8_t[]){2, 3}, 2);
                break;
            default:
                raw_bytes(&tensor, 15, BYTES, 12);
            }
        }
        raw_message(&raw, 31, &tensor);
        struct wire_request got;
        assert_ok(wire_decode_request(raw.bytes, raw.length, &got));
        assert_tensor(&got.hidden, EXPERTD_DTYPE_BF16, (uint64_t[]){2, 3}, 2);
    }
}

static void empty_message_is_a_request_of_defaults(void **state) {
    (void)state;
    struct wire_request got;
    memset(&got, 0xff, sizeof got);
    assert_ok(wire_decode_request((const uint8_t *)"", 0, &got));
    assert_int_equal(got.id, 0);
    assert_int_equal(got.routing, WIRE_ROUTING_NONE);
    assert_int_equal(got.output_dtype, EXPERTD_DTYPE_NONE);
    assert_int_equal(got.shared, WIRE_SHARED_UNSPECIFIED);
    assert_string_equal(got.model, "");
    assert_false(got.hidden.present);
    assert_false(got.has_output);
}

static void router_logits_replace_routes(void **state) {
    (void)state;
    pb_request request = EXPERTD__V1__FORWARD_REQUEST__INIT;
    pb_tensor logits;
    uint64_t shape[] = {TOKENS, EXPERTS};
    set_tensor(&logits, EXPERTD__V1__DTYPE__F32, 4, shape, 2);
    request.routing_case = EXPERTD__V1__FORWARD_REQUEST__ROUTING_ROUTER_LOGITS;
    request.router_logits = &logits;
    struct raw raw = pack(&request);
    struct wire_request got;
    assert_ok(wire_decode_request(raw.bytes, raw.length, &got));
    assert_int_equal(got.routing, WIRE_ROUTING_LOGITS);
    assert_tensor(&got.router_logits, EXPERTD_DTYPE_F32, shape, 2);
    assert_false(got.ids.present);
}

static void extent_replaces_data(void **state) {
    (void)state;
    pb_request request = EXPERTD__V1__FORWARD_REQUEST__INIT;
    pb_tensor hidden;
    Expertd__V1__Extent extent = EXPERTD__V1__EXTENT__INIT;
    uint64_t shape[] = {TOKENS, HIDDEN};
    set_tensor(&hidden, EXPERTD__V1__DTYPE__BF16, 2, shape, 2);
    extent.region = 3;
    extent.offset = 128;
    extent.length = TOKENS * HIDDEN * 2;
    hidden.place_case = EXPERTD__V1__TENSOR__PLACE_EXTENT;
    hidden.extent = &extent;
    request.hidden = &hidden;
    struct raw raw = pack(&request);
    struct wire_request got;
    assert_ok(wire_decode_request(raw.bytes, raw.length, &got));
    assert_true(got.hidden.present && got.hidden.has_extent);
    assert_null(got.hidden.view.data);
    assert_int_equal(got.hidden.extent.region, 3);
    assert_int_equal(got.hidden.extent.offset, 128);
    assert_int_equal(got.hidden.extent.length, TOKENS * HIDDEN * 2);
}

static void no_tokens_with_and_without_data_are_legal(void **state) {
    (void)state;
    for (int with_data = 0; with_data < 2; with_data++) {
        struct raw tensor = {.length = 0}, raw = {.length = 0};
        raw_number(&tensor, 1, EXPERTD_DTYPE_BF16);
        raw_bytes(&tensor, 2, (uint8_t[]){0, 3}, 2);
        if (with_data) {
            raw_bytes(&tensor, 15, NULL, 0);
        }
        raw_message(&raw, 31, &tensor);
        struct wire_request got;
        assert_ok(wire_decode_request(raw.bytes, raw.length, &got));
        assert_true(got.hidden.present);
        assert_int_equal(got.hidden.view.rank, 2);
        assert_int_equal(got.hidden.view.shape[0], 0);
        assert_int_equal(got.hidden.view.bytes, 0);
    }
}

static void shape_may_be_unpacked_or_split(void **state) {
    (void)state;
    struct raw tensor = {.length = 0}, raw = {.length = 0};
    raw_number(&tensor, 2, 2);
    raw_bytes(&tensor, 2, NULL, 0);
    raw_bytes(&tensor, 2, (uint8_t[]){1, 0x83, 0x00}, 3); // 3 in an overlong encoding
    raw_number(&tensor, 1, EXPERTD_DTYPE_F8_E5M2);
    raw_bytes(&tensor, 2, (uint8_t[]){1}, 1);
    raw_bytes(&tensor, 15, BYTES, 6);
    raw_message(&raw, 31, &tensor);
    struct wire_request got;
    assert_ok(wire_decode_request(raw.bytes, raw.length, &got));
    assert_tensor(&got.hidden, EXPERTD_DTYPE_F8_E5M2, (uint64_t[]){2, 1, 3, 1}, 4);
}

static void shape_of_eight_dimensions_is_read(void **state) {
    (void)state;
    struct raw tensor = raw_tensor(EXPERTD_DTYPE_F32, (uint64_t[]){1, 1, 1, 2, 1, 1, 1, 1}, 8, 4), raw = {.length = 0};
    raw_message(&raw, 31, &tensor);
    struct wire_request got;
    assert_ok(wire_decode_request(raw.bytes, raw.length, &got));
    assert_int_equal(got.hidden.view.rank, 8);
    assert_int_equal(got.hidden.view.shape[3], 2);
}

static void priorities_of_either_sign_are_decoded(void **state) {
    (void)state;
    static const int32_t PRIORITIES[] = {0, 1, -1, 2, -2, 63, -64, 64, INT32_MAX, INT32_MIN + 1, INT32_MIN};
    for (size_t i = 0; i < sizeof PRIORITIES / sizeof *PRIORITIES; i++) {
        pb_request request = EXPERTD__V1__FORWARD_REQUEST__INIT;
        request.priority = PRIORITIES[i];
        struct raw raw = pack(&request);
        struct wire_request got;
        assert_ok(wire_decode_request(raw.bytes, raw.length, &got));
        assert_int_equal(got.priority, PRIORITIES[i]);
    }
}

static void every_dtype_of_the_interface_is_decoded(void **state) {
    (void)state;
    static const enum expertd_dtype OURS[] = {EXPERTD_DTYPE_F32,     EXPERTD_DTYPE_F16, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F8_E4M3,
                                              EXPERTD_DTYPE_F8_E5M2, EXPERTD_DTYPE_I32, EXPERTD_DTYPE_I64};
    static const Expertd__V1__DType THEIRS[] = {EXPERTD__V1__DTYPE__F32,     EXPERTD__V1__DTYPE__F16,     EXPERTD__V1__DTYPE__BF16,
                                                EXPERTD__V1__DTYPE__F8_E4M3, EXPERTD__V1__DTYPE__F8_E5M2, EXPERTD__V1__DTYPE__I32,
                                                EXPERTD__V1__DTYPE__I64};
    for (size_t i = 0; i < sizeof OURS / sizeof *OURS; i++) {
        pb_request request = EXPERTD__V1__FORWARD_REQUEST__INIT;
        request.output_dtype = THEIRS[i];
        struct raw raw = pack(&request);
        struct wire_request got;
        assert_ok(wire_decode_request(raw.bytes, raw.length, &got));
        assert_int_equal(got.output_dtype, OURS[i]);
    }
}

static void any_varint_but_zero_is_true(void **state) {
    (void)state;
    struct raw raw = {.length = 0};
    raw_number(&raw, 13, UINT64_C(1) << 40);
    struct wire_request got;
    assert_ok(wire_decode_request(raw.bytes, raw.length, &got));
    assert_true(got.timings);
}

static void longest_model_name_fits(void **state) {
    (void)state;
    char name[WIRE_STRING_MAX];
    memset(name, 'm', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    struct raw raw = {.length = 0};
    raw_text(&raw, 2, name);
    struct wire_request got;
    assert_ok(wire_decode_request(raw.bytes, raw.length, &got));
    assert_string_equal(got.model, name);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_with_every_field_is_decoded),
        cmocka_unit_test(tensor_is_a_view_into_the_message),
        cmocka_unit_test(fields_may_be_in_any_order),
        cmocka_unit_test(tensor_fields_may_be_in_any_order),
        cmocka_unit_test(empty_message_is_a_request_of_defaults),
        cmocka_unit_test(router_logits_replace_routes),
        cmocka_unit_test(extent_replaces_data),
        cmocka_unit_test(no_tokens_with_and_without_data_are_legal),
        cmocka_unit_test(shape_may_be_unpacked_or_split),
        cmocka_unit_test(shape_of_eight_dimensions_is_read),
        cmocka_unit_test(priorities_of_either_sign_are_decoded),
        cmocka_unit_test(every_dtype_of_the_interface_is_decoded),
        cmocka_unit_test(any_varint_but_zero_is_true),
        cmocka_unit_test(longest_model_name_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
