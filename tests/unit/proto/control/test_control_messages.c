// Describe and health: round trips, fields of a newer peer, refusals.
#include "tests/unit/proto/wire/raw_message.h"

#include "generated/expertd/v1/expertd.pb-c.h"
#include "proto/control/control.h"

static struct describe_layer LAYERS[] = {
    {.layer = 3,
     .prefix = "model.layers.3.mlp.experts",
     .weights_id = 0xfedcba9876543210,
     .hidden_size = 7168,
     .num_experts = 256,
     .top_k = 8,
     .has_router = true,
     .has_shared_experts = true,
     .weights_on_input = true,
     .weight_dtype = EXPERTD_DTYPE_BF16,
     .quantisation = "fp8_block128",
     .numerics_id = "1/bf16/cpu",
     .ready = true,
     .needs_token_ids = true,
     .needs_router_input = true,
     .num_zero_experts = 2},
    {.layer = 4, .prefix = "", .quantisation = NULL, .numerics_id = "1/f32/cpu", .weight_dtype = EXPERTD_DTYPE_U8},
    {.layer = 1, .prefix = "other", .quantisation = "", .numerics_id = "", .weight_dtype = EXPERTD_DTYPE_NONE},
};

static struct describe_model MODELS[] = {
    {.name = "tiny",
     .architecture = "mixtral",
     .digest = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
     .layers = LAYERS,
     .num_layers = 2},
    {.name = "none", .architecture = "olmoe"},
    {.name = "other", .architecture = "gpt_oss", .layers = LAYERS + 2, .num_layers = 1},
};

static const char *const FEATURES[] = {"routes", "stream"};
static const enum expertd_dtype DTYPES[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F8_E5M2};

static struct describe_response description(void) {
    return (struct describe_response){.models = MODELS,
                                      .num_models = 3,
                                      .max_message_bytes = UINT64_C(1) << 40,
                                      .max_region_bytes = 5,
                                      .max_tokens = 4096,
                                      .max_top_k = 64,
                                      .max_inflight = 8,
                                      .server_version = "0.1.0",
                                      .features = FEATURES,
                                      .num_features = 2,
                                      .hidden_dtypes = DTYPES,
                                      .num_hidden_dtypes = 3,
                                      .placement_epoch = 12};
}

static void a_shard_describes_what_it_holds(void **state) {
    (void)state;
    struct describe_layer layers[] = {{.layer = 3, .num_experts = 64, .experts_held = 17}};
    struct describe_model model = {.name = "m", .layers = layers, .num_layers = 1};
    struct describe_response got,
        sent = {.models = &model,
                .num_models = 1,
                .is_shard = true,
                .shard = {
                    .bytes_used = UINT64_C(1) << 40, .bytes_max = UINT64_C(1) << 41, .fronts = 2, .loading = 5, .draining = true}};
    struct describe_reply *owner;
    struct proto_bytes bytes;
    assert_ok(proto_encode_describe_response(&sent, &bytes));
    assert_ok(proto_decode_describe_response(bytes.data, bytes.length, &got, &owner));
    free(bytes.data);
    assert_true(got.is_shard);
    assert_true(got.shard.bytes_used == UINT64_C(1) << 40);
    assert_true(got.shard.bytes_max == UINT64_C(1) << 41);
    assert_int_equal(got.shard.fronts, 2);
    assert_int_equal(got.shard.loading, 5);
    assert_true(got.shard.draining);
    assert_int_equal(got.models[0].layers[0].experts_held, 17);
    describe_reply_free(owner);
}

static void description_round_trips(void **state) {
    (void)state;
    struct describe_response sent = description(), got;
    struct describe_reply *owner;
    struct proto_bytes bytes;
    assert_ok(proto_encode_describe_response(&sent, &bytes));
    assert_ok(proto_decode_describe_response(bytes.data, bytes.length, &got, &owner));
    free(bytes.data);
    assert_true(got.max_message_bytes == UINT64_C(1) << 40);
    assert_int_equal(got.max_region_bytes, 5);
    assert_int_equal(got.max_tokens, 4096);
    assert_int_equal(got.max_top_k, 64);
    assert_int_equal(got.max_inflight, 8);
    assert_string_equal(got.server_version, "0.1.0");
    assert_int_equal(got.placement_epoch, 12);
    assert_false(got.is_shard);
    assert_int_equal(got.num_features, 2);
    assert_string_equal(got.features[1], "stream");
    assert_int_equal(got.num_hidden_dtypes, 3);
    assert_memory_equal(got.hidden_dtypes, DTYPES, sizeof DTYPES);
    assert_int_equal(got.num_models, 3);
    assert_string_equal(got.models[0].name, "tiny");
    assert_string_equal(got.models[0].architecture, "mixtral");
    assert_memory_equal(got.models[0].digest, MODELS[0].digest, 16);
    assert_int_equal(got.models[0].num_layers, 2);
    assert_int_equal(got.models[1].num_layers, 0);
    assert_int_equal(got.models[2].num_layers, 1);
    assert_string_equal(got.models[2].layers[0].prefix, "other");
    describe_reply_free(owner);
}

static void every_field_of_a_layer_round_trips(void **state) {
    (void)state;
    struct describe_response sent = description(), got;
    struct describe_reply *owner;
    struct proto_bytes bytes;
    assert_ok(proto_encode_describe_response(&sent, &bytes));
    assert_ok(proto_decode_describe_response(bytes.data, bytes.length, &got, &owner));
    const struct describe_layer *layer = &got.models[0].layers[0];
    assert_int_equal(layer->layer, 3);
    assert_string_equal(layer->prefix, "model.layers.3.mlp.experts");
    assert_true(layer->weights_id == 0xfedcba9876543210);
    assert_int_equal(layer->hidden_size, 7168);
    assert_int_equal(layer->num_experts, 256);
    assert_int_equal(layer->top_k, 8);
    assert_true(layer->has_router && layer->has_shared_experts && layer->weights_on_input);
    assert_int_equal(layer->weight_dtype, EXPERTD_DTYPE_BF16);
    assert_string_equal(layer->quantisation, "fp8_block128");
    assert_string_equal(layer->numerics_id, "1/bf16/cpu");
    assert_true(layer->ready && layer->needs_token_ids && layer->needs_router_input);
    assert_int_equal(layer->num_zero_experts, 2);
    assert_false(got.models[0].layers[1].has_router || got.models[0].layers[1].ready);
    assert_string_equal(got.models[0].layers[1].quantisation, "");
    assert_int_equal(got.models[0].layers[1].weight_dtype, EXPERTD_DTYPE_NONE); // the interface has no U8: unspecified
    describe_reply_free(owner);
    free(bytes.data);
}

static void description_without_models_round_trips(void **state) {
    (void)state;
    struct describe_response sent = {.server_version = "x"}, got;
    struct describe_reply *owner;
    struct proto_bytes bytes;
    assert_ok(proto_encode_describe_response(&sent, &bytes));
    assert_ok(proto_decode_describe_response(bytes.data, bytes.length, &got, &owner));
    assert_int_equal(got.num_models, 0);
    describe_reply_free(owner);
    free(bytes.data);
}

static void damaged_description_is_refused_without_a_leak(void **state) {
    (void)state;
    struct describe_response sent = description(), got;
    struct proto_bytes bytes;
    assert_ok(proto_encode_describe_response(&sent, &bytes));
    size_t refused = 0;
    for (size_t length = 0; length < bytes.length; length++) {
        uint8_t *cut = raw_exact(bytes.data, length);
        struct describe_reply *owner;
        err_t e = proto_decode_describe_response(cut, length, &got, &owner);
        refused += err_is(e);
        assert_int_equal(err_is(e), owner == NULL);
        describe_reply_free(owner);
        free(cut);
    }
    assert_true(refused > bytes.length / 2);
    free(bytes.data);
}

static void describe_request_round_trips(void **state) {
    (void)state;
    static const char *const NAMES[] = {"", "tiny", "caf\xc3\xa9"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        struct proto_bytes bytes;
        char *model;
        assert_ok(proto_encode_describe_request(NAMES[i], &bytes));
        assert_non_null(bytes.data);
        assert_ok(proto_decode_describe_request(bytes.data, bytes.length, &model));
        assert_string_equal(model, NAMES[i]);
        free(model);
        free(bytes.data);
    }
}

static void unknown_field_of_describe_is_ignored(void **state) {
    (void)state;
    struct raw raw = {.length = 0};
    raw_number(&raw, 9, 1);
    raw_text(&raw, 1, "tiny");
    char *model;
    assert_ok(proto_decode_describe_request(raw.bytes, raw.length, &model));
    assert_string_equal(model, "tiny");
    free(model);
}

static void invalid_control_request_is_refused(void **state) {
    (void)state;
    char *text;
    assert_refused(proto_decode_describe_request((const uint8_t *)"\x0a\x05", 2, &text), EXPERTD_ERR_MALFORMED, "",
                   "DescribeRequest");
    assert_null(text);
    assert_refused(proto_decode_health_request((const uint8_t *)"\xff", 1, &text), EXPERTD_ERR_MALFORMED, "", "HealthCheckRequest");
    assert_null(text);
    assert_refused(proto_decode_describe_request((const uint8_t *)"\x0a\x01\xff", 3, &text), EXPERTD_ERR_MALFORMED, "model",
                   "UTF-8");
    assert_null(text);
    assert_refused(proto_decode_health_request((const uint8_t *)"\x0a\x01\xff", 3, &text), EXPERTD_ERR_MALFORMED, "service",
                   "UTF-8");
    assert_null(text);
}

static void large_control_request_is_refused_before_decoding(void **state) {
    (void)state;
    // Unknown fields of two bytes each would cost protobuf-c forty times their size.
    enum { LENGTH = 128 * 1024 };
    uint8_t *bytes = malloc(LENGTH);
    for (size_t i = 0; i < LENGTH; i += 2) {
        bytes[i] = 9 << 3;
        bytes[i + 1] = 1;
    }
    char *text;
    struct proto_bytes reply;
    assert_refused(proto_decode_describe_request(bytes, LENGTH, &text), EXPERTD_ERR_TOO_LARGE, "", "131072");
    assert_refused(proto_decode_health_request(bytes, LENGTH, &text), EXPERTD_ERR_TOO_LARGE, "", "131072");
    assert_refused(proto_reflect(bytes, LENGTH, &reply), EXPERTD_ERR_TOO_LARGE, "", "131072");
    free(bytes);
}

static void health_request_round_trips(void **state) {
    (void)state;
    struct proto_bytes bytes;
    char *service;
    assert_ok(proto_encode_health_request("expertd.v1.Experts", &bytes));
    assert_ok(proto_decode_health_request(bytes.data, bytes.length, &service));
    assert_string_equal(service, "expertd.v1.Experts");
    free(service);
    free(bytes.data);
}

static void every_serving_status_round_trips(void **state) {
    (void)state;
    for (int status = SERVING_UNKNOWN; status <= SERVICE_UNKNOWN; status++) {
        struct proto_bytes bytes;
        enum proto_serving got;
        assert_ok(proto_encode_health_response((enum proto_serving)status, &bytes));
        assert_ok(proto_decode_health_response(bytes.data, bytes.length, &got));
        assert_int_equal(got, status);
        free(bytes.data);
    }
}

static void serving_status_of_a_newer_daemon_is_unknown(void **state) {
    (void)state;
    enum proto_serving got;
    assert_ok(proto_decode_health_response((const uint8_t *)"\x08\x09", 2, &got));
    assert_int_equal(got, SERVING_UNKNOWN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(description_round_trips),
        cmocka_unit_test(a_shard_describes_what_it_holds),
        cmocka_unit_test(every_field_of_a_layer_round_trips),
        cmocka_unit_test(description_without_models_round_trips),
        cmocka_unit_test(damaged_description_is_refused_without_a_leak),
        cmocka_unit_test(describe_request_round_trips),
        cmocka_unit_test(unknown_field_of_describe_is_ignored),
        cmocka_unit_test(invalid_control_request_is_refused),
        cmocka_unit_test(large_control_request_is_refused_before_decoding),
        cmocka_unit_test(health_request_round_trips),
        cmocka_unit_test(every_serving_status_round_trips),
        cmocka_unit_test(serving_status_of_a_newer_daemon_is_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
