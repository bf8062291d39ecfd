// OpenRegion and CloseRegion: each side decodes what the other encodes; hostile bytes are refused.
#include "tests/unit/proto/wire/raw_message.h"

#include "proto/control/control.h"

static void open_request_round_trips(void **state) {
    (void)state;
    static const uint64_t SIZES[] = {0, 1, 4096, UINT64_MAX};
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        struct proto_bytes bytes;
        uint64_t got = 7;
        assert_ok(proto_encode_open_region_request(SIZES[i], &bytes));
        assert_ok(proto_decode_open_region_request(bytes.data, bytes.length, &got));
        assert_true(got == SIZES[i]);
        free(bytes.data);
    }
}

static void close_request_round_trips(void **state) {
    (void)state;
    struct proto_bytes bytes;
    uint64_t got = 0;
    assert_ok(proto_encode_close_region_request(UINT64_MAX - 1, &bytes));
    assert_ok(proto_decode_close_region_request(bytes.data, bytes.length, &got));
    assert_true(got == UINT64_MAX - 1);
    free(bytes.data);
    assert_ok(proto_encode_close_region_response(&bytes));
    assert_int_equal(bytes.length, 0);
    free(bytes.data);
}

static void open_response_round_trips(void **state) {
    (void)state;
    struct open_region_response response = {.region = 0x8000000000000001,
                                            .socket = "/run/expertd/s.regions",
                                            .token = {0, 1, 2, 255, 0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 0}};
    struct open_region_response got;
    struct proto_bytes bytes;
    assert_ok(proto_encode_open_region_response(&response, &bytes));
    assert_ok(proto_decode_open_region_response(bytes.data, bytes.length, &got));
    assert_true(got.region == response.region);
    assert_string_equal(got.socket, response.socket);
    assert_memory_equal(got.token, response.token, sizeof got.token);
    for (size_t cut = 1; cut < bytes.length; cut++) {
        assert_true(err_is(proto_decode_open_region_response(bytes.data, bytes.length - cut, &got)));
    }
    free(bytes.data);
}

static void response_with_too_long_fields_is_refused(void **state) {
    (void)state;
    uint8_t bytes[2 + 200] = {0x12, 120}; // socket: 120 bytes
    struct open_region_response got;
    memset(bytes + 2, 'a', 120);
    assert_int_equal(proto_decode_open_region_response(bytes, 122, &got).code, EXPERTD_ERR_MALFORMED);
    const uint8_t short_token[] = {0x1a, 3, 1, 2, 3};
    assert_int_equal(proto_decode_open_region_response(short_token, sizeof short_token, &got).code, EXPERTD_ERR_MALFORMED);
}

static void unknown_fields_of_requests_are_refused(void **state) {
    (void)state;
    const uint8_t bytes[] = {0x08, 1, 0x78, 1};
    uint64_t got;
    assert_int_equal(proto_decode_open_region_request(bytes, sizeof bytes, &got).code, EXPERTD_ERR_UNKNOWN_FIELD);
    assert_int_equal(proto_decode_close_region_request(bytes, sizeof bytes, &got).code, EXPERTD_ERR_UNKNOWN_FIELD);
}

static void invalid_requests_are_refused(void **state) {
    (void)state;
    const uint8_t bytes[] = {0x08};
    uint64_t got;
    assert_int_equal(proto_decode_open_region_request(bytes, sizeof bytes, &got).code, EXPERTD_ERR_MALFORMED);
    assert_int_equal(proto_decode_close_region_request(bytes, sizeof bytes, &got).code, EXPERTD_ERR_MALFORMED);
    assert_int_equal(proto_decode_open_region_request(bytes, 1 << 20, &got).code, EXPERTD_ERR_TOO_LARGE);
    assert_int_equal(proto_decode_close_region_request(bytes, 1 << 20, &got).code, EXPERTD_ERR_TOO_LARGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_request_round_trips),
        cmocka_unit_test(close_request_round_trips),
        cmocka_unit_test(open_response_round_trips),
        cmocka_unit_test(response_with_too_long_fields_is_refused),
        cmocka_unit_test(unknown_fields_of_requests_are_refused),
        cmocka_unit_test(invalid_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
