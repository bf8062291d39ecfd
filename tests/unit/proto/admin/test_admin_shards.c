// ListShards and ChangeShard: round trips, comparison with protobuf-c, refusals.
#include "tests/unit/proto/wire/raw_message.h"

#include "generated/expertd/admin/v1/admin.pb-c.h"
#include "proto/admin/admin_shards.h"

static const struct proto_shard SHARD = {.shard = 3,
                                         .address = "10.0.0.7:7421",
                                         .state = "dead",
                                         .reason = "silent",
                                         .message = "no answer for 100 ms",
                                         .listed = true,
                                         .draining = true,
                                         .ready = 1,
                                         .loading = 2,
                                         .retiring = 3,
                                         .failed = 4,
                                         .bytes = 5,
                                         .bytes_max = UINT64_MAX,
                                         .bytes_left = 6,
                                         .bytes_per_second = 7,
                                         .heard_age_ns = -1,
                                         .round_trip_ns = INT64_MAX,
                                         .false_alarms = 8,
                                         .connections = 9,
                                         .batches = 10,
                                         .pieces = 11,
                                         .rows = 12,
                                         .bytes_sent = 13,
                                         .rows_answered = 14,
                                         .bytes_received = 15,
                                         .compute_ns = 16,
                                         .errors = 17,
                                         .refused = 18,
                                         .rows_per_second = 2.5};
static const struct proto_shards_summary SUMMARY = {
    .shards = 2, .live = 1, .experts = 96, .uncovered = 12, .places = true, .stalls = UINT64_C(1) << 40, .below_copies = 40};

static struct proto_bytes encode(struct proto_shard *items, size_t count) {
    struct proto_shards sent = {items, count, SUMMARY};
    struct proto_bytes bytes;
    assert_ok(proto_encode_list_shards_response(&sent, &bytes));
    return bytes;
}

static void assert_same(const struct proto_shard *got, const struct proto_shard *sent) {
    assert_memory_equal(&got->ready, &sent->ready, sizeof *sent - offsetof(struct proto_shard, ready));
    assert_int_equal(got->shard, sent->shard);
    assert_string_equal(got->address, sent->address);
    assert_string_equal(got->state, sent->state);
    assert_string_equal(got->reason, sent->reason);
    assert_string_equal(got->message, sent->message);
    assert_true(got->local == sent->local && got->listed == sent->listed && got->live == sent->live);
    assert_true(got->draining == sent->draining && got->drained == sent->drained);
}

// ---- round trips

static void shards_and_their_summary_round_trip(void **state) {
    (void)state;
    struct proto_shard items[] = {SHARD, {.address = "local:0", .state = "ready", .local = true, .live = true, .drained = true}};
    struct proto_bytes bytes = encode(items, 2);
    struct proto_shards got;
    assert_ok(proto_decode_list_shards_response(bytes.data, bytes.length, &got));
    assert_int_equal(got.count, 2);
    assert_same(&got.items[0], &items[0]);
    assert_same(&got.items[1], &items[1]);
    assert_true(got.summary.shards == 2 && got.summary.live == 1 && got.summary.experts == 96 && got.summary.uncovered == 12 &&
                got.summary.below_copies == 40);
    assert_true(got.summary.places && got.summary.stalls == UINT64_C(1) << 40);
    proto_shards_deinit(&got);
    free(bytes.data);

    bytes = encode(NULL, 0);
    assert_ok(proto_decode_list_shards_response(bytes.data, bytes.length, &got));
    assert_int_equal(got.count, 0);
    proto_shards_deinit(&got);
    free(bytes.data);
}

static void a_shard_matches_protobuf_c(void **state) {
    (void)state;
    struct proto_shard item = SHARD;
    struct proto_bytes bytes = encode(&item, 1);
    Expertd__Admin__V1__ListShardsResponse *theirs =
        expertd__admin__v1__list_shards_response__unpack(NULL, bytes.length, bytes.data);
    assert_non_null(theirs);
    const Expertd__Admin__V1__Shard *s = theirs->shards[0];
    assert_int_equal(s->base.n_unknown_fields + theirs->summary->base.n_unknown_fields, 0);
    assert_string_equal(s->address, "10.0.0.7:7421");
    assert_string_equal(s->message, "no answer for 100 ms");
    assert_true(s->shard == 3 && s->listed && s->draining && !s->live && s->ready == 1 && s->failed == 4);
    assert_true(s->bytes_max == UINT64_MAX && s->bytes_per_second == 7 && s->heard_age_ns == -1 && s->round_trip_ns == INT64_MAX);
    assert_true(s->false_alarms == 8 && s->compute_ns == 16 && s->refused == 18 && s->rows_per_second == 2.5);
    assert_true(theirs->summary->uncovered == 12 && theirs->summary->below_copies == 40 && theirs->summary->experts == 96 &&
                theirs->summary->places);
    expertd__admin__v1__list_shards_response__free_unpacked(theirs, NULL);
    free(bytes.data);
}

static void changes_round_trip(void **state) {
    (void)state;
    for (enum proto_shard_change change = PROTO_SHARD_DRAIN; change < PROTO_SHARD_CHANGES; change++) {
        struct proto_change_shard sent = {.address = "unix:/run/shard.sock", .change = change}, got;
        struct proto_bytes bytes;
        assert_ok(proto_encode_change_shard_request(&sent, &bytes));
        assert_ok(proto_decode_change_shard_request(bytes.data, bytes.length, &got));
        assert_string_equal(got.address, sent.address);
        assert_int_equal(got.change, change);
        free(bytes.data);
    }
    struct proto_bytes empty;
    assert_ok(proto_encode_list_shards_request(&empty));
    assert_ok(proto_decode_list_shards_request(empty.data, empty.length));
    free(empty.data);
    assert_ok(proto_encode_change_shard_response(&empty));
    assert_ok(proto_decode_change_shard_response(empty.data, empty.length));
    free(empty.data);
}

// ---- texts from peers

static void bytes_that_are_no_utf8_leave_as_question_marks(void **state) {
    (void)state;
    struct proto_shard item = {.address = "a:1", .message = "peer says \xff\xc3"};
    struct proto_bytes bytes = encode(&item, 1);
    struct proto_shards got;
    assert_ok(proto_decode_list_shards_response(bytes.data, bytes.length, &got));
    assert_string_equal(got.items[0].message, "peer says ??");
    proto_shards_deinit(&got);
    free(bytes.data);
}

static void a_text_may_fill_its_field(void **state) {
    (void)state;
    struct proto_shard item = {.address = "a:1"};
    memset(item.message, 'x', sizeof item.message - 1);
    struct proto_bytes bytes = encode(&item, 1);
    struct proto_shards got;
    assert_ok(proto_decode_list_shards_response(bytes.data, bytes.length, &got));
    assert_string_equal(got.items[0].message, item.message);
    proto_shards_deinit(&got);
    free(bytes.data);
}

// ---- refusals

static err_t decode_shard(const struct raw *shard) {
    struct raw message = {.length = 0};
    struct proto_shards got;
    raw_message(&message, 1, shard);
    err_t e = proto_decode_list_shards_response(message.bytes, message.length, &got);
    assert_true(err_is(e) == !got.items);
    proto_shards_deinit(&got);
    return e;
}

static void hostile_answers_are_refused(void **state) {
    (void)state;
    char text[PROTO_SHARD_MESSAGE_MAX + 1];
    memset(text, 'x', sizeof text);
    struct raw shard = {.length = 0};
    raw_bytes(&shard, 5, text, PROTO_SHARD_MESSAGE_MAX);
    assert_refused(decode_shard(&shard), EXPERTD_ERR_INVALID, "shards.message", "has 512 bytes; the limit is 511");
    shard.length = 0;
    raw_text(&shard, 2, "\xff");
    assert_refused(decode_shard(&shard), EXPERTD_ERR_MALFORMED, "shards.address", "not UTF-8");
    shard.length = 0;
    raw_number(&shard, 11, UINT64_C(1) << 32);
    assert_refused(decode_shard(&shard), EXPERTD_ERR_MALFORMED, "shards.ready", "4294967296");
    shard.length = 0;
    raw_number(&shard, 2, 1);
    assert_refused(decode_shard(&shard), EXPERTD_ERR_MALFORMED, "shards.address", "wire type");
    shard.length = 0;
    raw_number(&shard, 60, 1); // of a newer daemon
    assert_ok(decode_shard(&shard));
}

static void a_rate_that_is_no_number_is_read_as_0(void **state) {
    (void)state;
    struct raw shard = {.length = 0}, message = {.length = 0};
    const uint64_t nan = UINT64_C(0x7ff8000000000000);
    raw_tag(&shard, 32, RAW_FIXED64);
    raw_put(&shard, &nan, sizeof nan);
    raw_message(&message, 1, &shard);
    struct proto_shards got;
    assert_ok(proto_decode_list_shards_response(message.bytes, message.length, &got));
    assert_true(got.items[0].rows_per_second == 0);
    proto_shards_deinit(&got);
}

static void too_many_shards_are_refused(void **state) {
    (void)state;
    uint8_t *bytes = malloc(2 * 4097);
    for (size_t i = 0; i < 4097; i++) {
        bytes[2 * i] = 1 << 3 | 2; // an entry of 0 bytes
        bytes[2 * i + 1] = 0;
    }
    struct proto_shards got;
    assert_refused(proto_decode_list_shards_response(bytes, (size_t)2 * 4097, &got), EXPERTD_ERR_TOO_LARGE, "shards",
                   "more than 4096");
    assert_ok(proto_decode_list_shards_response(bytes, (size_t)2 * 4096, &got));
    proto_shards_deinit(&got);
    free(bytes);
}

static void changes_name_a_shard_and_what_to_do(void **state) {
    (void)state;
    struct proto_change_shard got;
    struct raw message = {.length = 0};
    raw_number(&message, 2, 1);
    assert_refused(proto_decode_change_shard_request(message.bytes, message.length, &got), EXPERTD_ERR_INVALID, "address",
                   "missing");
    raw_text(&message, 1, "a:1");
    assert_ok(proto_decode_change_shard_request(message.bytes, message.length, &got));
    raw_number(&message, 3, 1);
    assert_refused(proto_decode_change_shard_request(message.bytes, message.length, &got), EXPERTD_ERR_UNKNOWN_FIELD, "3",
                   "no field 3");
    message.length = 0;
    raw_text(&message, 1, "a:1");
    assert_refused(proto_decode_change_shard_request(message.bytes, message.length, &got), EXPERTD_ERR_INVALID, "change",
                   "missing");
    raw_number(&message, 2, 5);
    assert_refused(proto_decode_change_shard_request(message.bytes, message.length, &got), EXPERTD_ERR_INVALID, "change",
                   "5 is not a ShardChange");
    assert_refused(proto_decode_list_shards_request(message.bytes, message.length), EXPERTD_ERR_UNKNOWN_FIELD, "1", "no field 1");
}

static void truncated_messages_are_refused_without_a_leak(void **state) {
    (void)state;
    struct proto_shard items[] = {SHARD, SHARD};
    struct proto_bytes bytes = encode(items, 2);
    struct proto_shards got;
    for (size_t length = 0; length < bytes.length; length++) {
        err_t e = proto_decode_list_shards_response(bytes.data, length, &got);
        assert_true(err_is(e) ? !got.items : got.count <= 2); // a cut between fields is a message
        proto_shards_deinit(&got);
    }
    free(bytes.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_and_their_summary_round_trip),
        cmocka_unit_test(a_shard_matches_protobuf_c),
        cmocka_unit_test(changes_round_trip),
        cmocka_unit_test(bytes_that_are_no_utf8_leave_as_question_marks),
        cmocka_unit_test(a_text_may_fill_its_field),
        cmocka_unit_test(hostile_answers_are_refused),
        cmocka_unit_test(a_rate_that_is_no_number_is_read_as_0),
        cmocka_unit_test(too_many_shards_are_refused),
        cmocka_unit_test(changes_name_a_shard_and_what_to_do),
        cmocka_unit_test(truncated_messages_are_refused_without_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
