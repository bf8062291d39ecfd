// Errors as google.rpc.Status: codes, details, and texts that every decoder accepts.
#include "tests/unit/proto/wire/raw_message.h"

#include "generated/google/rpc/error_details.pb-c.h"
#include "generated/google/rpc/status.pb-c.h"
#include "proto/control/control.h"

static void every_error_has_the_status_of_the_interface(void **state) {
    (void)state;
    static const struct {
        enum expertd_err_code code;
        int grpc_code;
        bool retry;
    } CASES[] = {
        {EXPERTD_ERR_OK, 0, false},
        {EXPERTD_ERR_MODEL_UNKNOWN, 5, false},
        {EXPERTD_ERR_LAYER_UNKNOWN, 5, false},
        {EXPERTD_ERR_REGION_UNKNOWN, 5, false},
        {EXPERTD_ERR_MALFORMED, 3, false},
        {EXPERTD_ERR_SHAPE_MISMATCH, 3, false},
        {EXPERTD_ERR_DTYPE_UNSUPPORTED, 3, false},
        {EXPERTD_ERR_EXPERT_OUT_OF_RANGE, 3, false},
        {EXPERTD_ERR_UNKNOWN_FIELD, 3, false},
        {EXPERTD_ERR_TENSOR_BYTES, 3, false},
        {EXPERTD_ERR_INVALID, 3, false},
        {EXPERTD_ERR_WEIGHTS_CHANGED, 9, false},
        {EXPERTD_ERR_NO_ROUTER, 9, false},
        {EXPERTD_ERR_NO_SHARED_EXPERTS, 9, false},
        {EXPERTD_ERR_QUEUE_FULL, 8, true},
        {EXPERTD_ERR_TOO_LARGE, 8, false},
        {EXPERTD_ERR_NOMEM, 8, false},
        {EXPERTD_ERR_DRAINING, 14, true},
        {EXPERTD_ERR_SHARD_LOST, 14, true},
        {EXPERTD_ERR_LOADING, 14, true},
        {EXPERTD_ERR_UNAVAILABLE, 14, true},
        {EXPERTD_ERR_DEADLINE, 4, false},
        {EXPERTD_ERR_CANCELLED, 1, false},
        {EXPERTD_ERR_PERMISSION, 7, false},
        {EXPERTD_ERR_UNIMPLEMENTED, 12, false},
        {EXPERTD_ERR_INTERNAL, 13, false},
        {EXPERTD_ERR_IO, 13, false},
        {EXPERTD_ERR_USAGE, 13, false},
        {EXPERTD_ERR_CONFIG, 13, false},
        {EXPERTD_ERR_CHECKPOINT, 13, false},
    };
    assert_int_equal(sizeof CASES / sizeof *CASES, EXPERTD_ERR_CODE_COUNT);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        assert_int_equal(proto_grpc_code(CASES[i].code), CASES[i].grpc_code);
        assert_int_equal(proto_retry_after_ms(CASES[i].code) >= 0, CASES[i].retry);
    }
    assert_int_equal(proto_grpc_code(EXPERTD_ERR_CODE_COUNT), 13);
}

static Google__Rpc__Status *encode(const struct proto_error *error) {
    struct proto_bytes bytes;
    assert_ok(proto_encode_status(error, &bytes));
    Google__Rpc__Status *status = google__rpc__status__unpack(NULL, bytes.length, bytes.data);
    assert_non_null(status);
    free(bytes.data);
    return status;
}

static const Google__Protobuf__Any *find_detail(const Google__Rpc__Status *status, const char *type) {
    for (size_t i = 0; i < status->n_details; i++) {
        if (strcmp(status->details[i]->type_url, type) == 0) {
            return status->details[i];
        }
    }
    return NULL;
}

static void status_carries_all_its_details(void **state) {
    (void)state;
    struct proto_error error = {.grpc_code = 3,
                                .reason = "SHAPE_MISMATCH",
                                .field = "routes.ids",
                                .message = "ids are [3, 2]; hidden has 4 rows",
                                .retry_after_ms = 2050};
    Google__Rpc__Status *status = encode(&error);
    assert_int_equal(status->code, 3);
    assert_string_equal(status->message, error.message);
    assert_int_equal(status->n_details, 3);

    const Google__Protobuf__Any *any = find_detail(status, "type.googleapis.com/google.rpc.ErrorInfo");
    Google__Rpc__ErrorInfo *info = google__rpc__error_info__unpack(NULL, any->value.len, any->value.data);
    assert_string_equal(info->reason, "SHAPE_MISMATCH");
    assert_string_equal(info->domain, "expertd");
    assert_int_equal(info->n_metadata, 1);
    assert_string_equal(info->metadata[0]->key, "field");
    assert_string_equal(info->metadata[0]->value, "routes.ids");
    google__rpc__error_info__free_unpacked(info, NULL);

    any = find_detail(status, "type.googleapis.com/google.rpc.BadRequest");
    Google__Rpc__BadRequest *bad = google__rpc__bad_request__unpack(NULL, any->value.len, any->value.data);
    assert_int_equal(bad->n_field_violations, 1);
    assert_string_equal(bad->field_violations[0]->field, "routes.ids");
    assert_string_equal(bad->field_violations[0]->description, error.message);
    google__rpc__bad_request__free_unpacked(bad, NULL);

    any = find_detail(status, "type.googleapis.com/google.rpc.RetryInfo");
    Google__Rpc__RetryInfo *retry = google__rpc__retry_info__unpack(NULL, any->value.len, any->value.data);
    assert_int_equal(retry->retry_delay->seconds, 2);
    assert_int_equal(retry->retry_delay->nanos, 50000000);
    google__rpc__retry_info__free_unpacked(retry, NULL);
    google__rpc__status__free_unpacked(status, NULL);
}

static void status_without_field_and_retry_has_only_its_reason(void **state) {
    (void)state;
    struct proto_error error = {.grpc_code = 13, .reason = "INTERNAL", .message = NULL, .retry_after_ms = -1};
    Google__Rpc__Status *status = encode(&error);
    assert_string_equal(status->message, "");
    assert_int_equal(status->n_details, 1);
    assert_non_null(find_detail(status, "type.googleapis.com/google.rpc.ErrorInfo"));
    google__rpc__status__free_unpacked(status, NULL);
}

static void message_of_any_bytes_is_sent_as_utf8(void **state) {
    (void)state;
    struct proto_error error = {
        .grpc_code = 5, .reason = "MODEL_UNKNOWN", .message = "no model \xff\xfe \xc3\xa9 \xed\xa0\x80", .retry_after_ms = -1};
    Google__Rpc__Status *status = encode(&error);
    assert_string_equal(status->message, "no model ?? \xc3\xa9 ???");
    google__rpc__status__free_unpacked(status, NULL);
}

static void long_message_is_truncated_between_characters(void **state) {
    (void)state;
    char text[2 * EXPERTD_ERR_MESSAGE_MAX];
    memset(text, 'x', sizeof text);
    memcpy(text + EXPERTD_ERR_MESSAGE_MAX - 2, "\xc3\xa9", 2); // the terminator would replace its second byte
    text[sizeof text - 1] = '\0';
    Google__Rpc__Status *status = encode(&(struct proto_error){.message = text, .retry_after_ms = -1});
    assert_int_equal(strlen(status->message), EXPERTD_ERR_MESSAGE_MAX - 2);
    google__rpc__status__free_unpacked(status, NULL);
}

static void status_round_trips(void **state) {
    (void)state;
    struct proto_error error = {
        .grpc_code = 14, .reason = "LOADING", .field = "model", .message = "layer 3 of 61", .retry_after_ms = 2000};
    struct proto_bytes bytes;
    struct proto_error_text got;
    assert_ok(proto_encode_status(&error, &bytes));
    assert_ok(proto_decode_status(bytes.data, bytes.length, &got));
    assert_int_equal(got.grpc_code, 14);
    assert_string_equal(got.reason, "LOADING");
    assert_string_equal(got.field, "model");
    assert_string_equal(got.message, "layer 3 of 61");
    assert_int_equal(got.retry_after_ms, 2000);
    free(bytes.data);
}

static void unknown_details_of_a_status_are_skipped(void **state) {
    (void)state;
    struct raw any = {.length = 0}, damaged = {.length = 0}, raw = {.length = 0};
    raw_text(&any, 1, "type.googleapis.com/some.other.Detail");
    raw_text(&any, 2, "\xff\xff");
    raw_text(&damaged, 1, "type.googleapis.com/google.rpc.ErrorInfo");
    raw_text(&damaged, 2, "\xff\xff");
    raw_number(&raw, 1, 2);
    raw_text(&raw, 2, "odd");
    raw_message(&raw, 3, &any);
    raw_message(&raw, 3, &damaged);
    struct proto_error_text got;
    assert_ok(proto_decode_status(raw.bytes, raw.length, &got));
    assert_int_equal(got.grpc_code, 2);
    assert_string_equal(got.message, "odd");
    assert_string_equal(got.reason, "");
    assert_int_equal(got.retry_after_ms, -1);
}

static void invalid_status_is_refused(void **state) {
    (void)state;
    struct proto_error_text got;
    assert_refused(proto_decode_status((const uint8_t *)"\xff\xff", 2, &got), EXPERTD_ERR_MALFORMED, "", "google.rpc.Status");
}

static void long_texts_of_a_status_are_truncated(void **state) {
    (void)state;
    char text[2048];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    struct raw raw = {.length = 0};
    raw_text(&raw, 2, text);
    struct proto_error_text got;
    assert_ok(proto_decode_status(raw.bytes, raw.length, &got));
    assert_int_equal(strlen(got.message), sizeof got.message - 1);
}

static void absurd_retry_delay_is_ignored(void **state) {
    (void)state;
    static const int64_t SECONDS[] = {-1, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof SECONDS / sizeof *SECONDS; i++) {
        struct raw delay = {.length = 0}, info = {.length = 0}, any = {.length = 0}, raw = {.length = 0};
        raw_number(&delay, 1, (uint64_t)SECONDS[i]);
        raw_message(&info, 1, &delay);
        raw_text(&any, 1, "type.googleapis.com/google.rpc.RetryInfo");
        raw_message(&any, 2, &info);
        raw_message(&raw, 3, &any);
        struct proto_error_text got;
        assert_ok(proto_decode_status(raw.bytes, raw.length, &got));
        assert_int_equal(got.retry_after_ms, -1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_error_has_the_status_of_the_interface),
        cmocka_unit_test(status_carries_all_its_details),
        cmocka_unit_test(status_without_field_and_retry_has_only_its_reason),
        cmocka_unit_test(message_of_any_bytes_is_sent_as_utf8),
        cmocka_unit_test(long_message_is_truncated_between_characters),
        cmocka_unit_test(status_round_trips),
        cmocka_unit_test(unknown_details_of_a_status_are_skipped),
        cmocka_unit_test(invalid_status_is_refused),
        cmocka_unit_test(long_texts_of_a_status_are_truncated),
        cmocka_unit_test(absurd_retry_delay_is_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
