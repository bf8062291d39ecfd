// expertd.admin.v1: round trips, comparison with protobuf-c, refusals.
#include "tests/unit/proto/wire/raw_message.h"

#include "generated/expertd/admin/v1/admin.pb-c.h"
#include "proto/admin/admin.h"

static uint32_t FIRST[] = {0, 1, 3, 4, 5}, HOLDERS[] = {0, 0, 2, 300, 1};
static uint64_t ROWS[] = {7, UINT64_MAX, 0, 1 << 20};

static struct proto_placement placement(void) {
    return (struct proto_placement){.layer = 61,
                                    .epoch = UINT64_C(1) << 40,
                                    .ranks = 301,
                                    .num_experts = 4,
                                    .first = FIRST,
                                    .holders = HOLDERS,
                                    .rows = ROWS,
                                    .imbalance = 1.75};
}

static void assert_same(const struct proto_placement *got, const struct proto_placement *sent) {
    assert_int_equal(got->layer, sent->layer);
    assert_true(got->epoch == sent->epoch && got->imbalance == sent->imbalance);
    assert_int_equal(got->ranks, sent->ranks);
    assert_int_equal(got->num_experts, sent->num_experts);
    assert_memory_equal(got->first, sent->first, (sent->num_experts + 1) * sizeof *sent->first);
    assert_memory_equal(got->holders, sent->holders, sent->first[sent->num_experts] * sizeof *sent->holders);
    assert_memory_equal(got->rows, sent->rows, sent->num_experts * sizeof *sent->rows);
}

// ---- round trips

static void a_placement_round_trips_and_matches_protobuf_c(void **state) {
    (void)state;
    struct proto_placement sent = placement(), got;
    struct proto_bytes bytes;
    assert_ok(proto_encode_apply_request(&sent, &bytes));
    assert_ok(proto_decode_apply_request(bytes.data, bytes.length, &got));
    assert_same(&got, &sent);
    proto_placement_deinit(&got);

    Expertd__Admin__V1__ApplyPlacementRequest *theirs =
        expertd__admin__v1__apply_placement_request__unpack(NULL, bytes.length, bytes.data);
    assert_non_null(theirs);
    const Expertd__Admin__V1__Placement *p = theirs->placement;
    assert_int_equal(p->base.n_unknown_fields, 0);
    assert_int_equal(p->layer, 61);
    assert_int_equal(p->n_copies, 4);
    assert_int_equal(p->copies[1], 2);
    assert_int_equal(p->n_holders, 5);
    assert_memory_equal(p->holders, HOLDERS, sizeof HOLDERS);
    assert_int_equal(p->n_rows, 4);
    assert_memory_equal(p->rows, ROWS, sizeof ROWS);
    assert_true(p->imbalance == 1.75);
    expertd__admin__v1__apply_placement_request__free_unpacked(theirs, NULL);
    free(bytes.data);
}

static void unpacked_numbers_are_accepted(void **state) {
    (void)state;
    struct raw inner = {.length = 0}, message = {.length = 0};
    raw_number(&inner, 3, 2);
    for (int e = 0; e < 3; e++) {
        raw_number(&inner, 4, 1);
        raw_number(&inner, 5, e & 1);
    }
    raw_message(&message, 1, &inner);
    struct proto_placement got;
    assert_ok(proto_decode_apply_request(message.bytes, message.length, &got));
    assert_int_equal(got.num_experts, 3);
    assert_int_equal(got.holders[1], 1);
    assert_int_equal(got.rows[2], 0);
    proto_placement_deinit(&got);
}

static void placements_and_loads_round_trip(void **state) {
    (void)state;
    struct proto_placement items[] = {placement(), placement()};
    items[1].layer = 0;
    struct proto_placements sent = {items, 2}, got;
    struct proto_bytes bytes;
    assert_ok(proto_encode_show_response(&sent, &bytes));
    assert_ok(proto_decode_show_response(bytes.data, bytes.length, &got));
    assert_int_equal(got.count, 2);
    assert_same(&got.items[0], &items[0]);
    assert_same(&got.items[1], &items[1]);
    proto_placements_deinit(&got);
    free(bytes.data);

    assert_ok(proto_encode_load_response(&sent, &bytes));
    assert_ok(proto_decode_load_response(bytes.data, bytes.length, &got));
    assert_int_equal(got.count, 2);
    assert_int_equal(got.items[0].num_experts, 4);
    assert_memory_equal(got.items[0].rows, ROWS, sizeof ROWS);
    assert_true(got.items[0].epoch == items[0].epoch && got.items[0].imbalance == 1.75);
    proto_placements_deinit(&got);
    free(bytes.data);
}

static void a_plan_and_its_request_round_trip(void **state) {
    (void)state;
    uint32_t layers[] = {3, 0};
    struct proto_counts counts[] = {{.layer = 3, .rows = ROWS, .num_rows = 4}, {.layer = 0, .rows = NULL, .num_rows = 0}};
    struct proto_plan_request request = {.layers = {layers, 2},
                                         .policy = PROTO_POLICY_BALANCED,
                                         .replicas = 9,
                                         .counts = counts,
                                         .num_counts = 2},
                              decoded;
    struct proto_bytes bytes;
    assert_ok(proto_encode_plan_request(&request, &bytes));
    assert_ok(proto_decode_plan_request(bytes.data, bytes.length, &decoded));
    assert_int_equal(decoded.layers.count, 2);
    assert_memory_equal(decoded.layers.layers, layers, sizeof layers);
    assert_int_equal(decoded.policy, PROTO_POLICY_BALANCED);
    assert_int_equal(decoded.replicas, 9);
    assert_int_equal(decoded.num_counts, 2);
    assert_int_equal(decoded.counts[0].num_rows, 4);
    assert_memory_equal(decoded.counts[0].rows, ROWS, sizeof ROWS);
    assert_int_equal(decoded.counts[1].num_rows, 0);
    proto_plan_request_deinit(&decoded);
    free(bytes.data);

    struct proto_plan plan = {.now = placement(), .planned = placement(), .copies = 12, .copy_bytes = UINT64_C(1) << 50};
    struct proto_plans sent = {&plan, 1}, got;
    assert_ok(proto_encode_plan_response(&sent, &bytes));
    assert_ok(proto_decode_plan_response(bytes.data, bytes.length, &got));
    assert_int_equal(got.count, 1);
    assert_same(&got.items[0].now, &plan.now);
    assert_same(&got.items[0].planned, &plan.planned);
    assert_int_equal(got.items[0].copies, 12);
    assert_true(got.items[0].copy_bytes == UINT64_C(1) << 50);
    proto_plans_deinit(&got);
    free(bytes.data);
}

static void progress_drain_and_layers_round_trip(void **state) {
    (void)state;
    struct proto_progress sent = {1, 2, 3, 4, true, 5}, got;
    struct proto_bytes bytes;
    assert_ok(proto_encode_progress(&sent, &bytes));
    assert_ok(proto_decode_progress(bytes.data, bytes.length, &got));
    assert_true(got.moved_bytes == 1 && got.all_bytes == 2 && got.moved_experts == 3 && got.all_experts == 4);
    assert_true(got.done && got.epoch == 5);
    free(bytes.data);

    char reason[PROTO_REASON_MAX + 1];
    assert_ok(proto_encode_drain_request("d\xc3\xa9ploiement", &bytes));
    assert_ok(proto_decode_drain_request(bytes.data, bytes.length, reason));
    assert_string_equal(reason, "d\xc3\xa9ploiement");
    free(bytes.data);
    uint64_t active;
    assert_ok(proto_encode_drain_response(17, &bytes));
    assert_ok(proto_decode_drain_response(bytes.data, bytes.length, &active));
    assert_int_equal(active, 17);
    free(bytes.data);

    struct proto_layers none = {0}, layers;
    assert_ok(proto_encode_show_request(&none, &bytes));
    assert_non_null(bytes.data);
    assert_ok(proto_decode_show_request(bytes.data, bytes.length, &layers));
    assert_int_equal(layers.count, 0);
    free(layers.layers);
    free(bytes.data);
}

// ---- refusals

static void truncated_messages_are_refused_without_a_leak(void **state) {
    (void)state;
    struct proto_plan plan = {.now = placement(), .planned = placement(), .copies = 3};
    struct proto_plans sent = {&plan, 1}, plans;
    struct proto_counts counts = {.layer = 1, .rows = ROWS, .num_rows = 4};
    struct proto_plan_request request = {.counts = &counts, .num_counts = 1}, decoded;
    struct proto_bytes response, wanted;
    assert_ok(proto_encode_plan_response(&sent, &response));
    assert_ok(proto_encode_plan_request(&request, &wanted));
    for (size_t length = 1; length < response.length; length++) {
        uint8_t *cut = raw_exact(response.data, length);
        assert_true(err_is(proto_decode_plan_response(cut, length, &plans)));
        assert_true(plans.items == NULL && plans.count == 0);
        free(cut);
    }
    for (size_t length = 1; length < wanted.length; length++) {
        uint8_t *cut = raw_exact(wanted.data, length);
        assert_true(err_is(proto_decode_plan_request(cut, length, &decoded)));
        assert_true(decoded.counts == NULL && decoded.layers.layers == NULL);
        free(cut);
    }
    free(response.data);
    free(wanted.data);
}

// Decodes a request that contains this Placement.
static err_t decode_with(const struct raw *inner) {
    struct raw message = {.length = 0};
    raw_message(&message, 1, inner);
    struct proto_placement got;
    err_t e = proto_decode_apply_request(message.bytes, message.length, &got);
    assert_true(err_is(e) && got.first == NULL && got.holders == NULL && got.rows == NULL);
    return e;
}

static struct raw raw_placement(uint64_t ranks, const uint8_t *copies, size_t num_copies, const uint8_t *holders,
                                size_t num_holders) {
    struct raw inner = {.length = 0};
    raw_number(&inner, 3, ranks);
    raw_bytes(&inner, 4, copies, num_copies); // each is below 128, so each byte is a varint
    raw_bytes(&inner, 5, holders, num_holders);
    return inner;
}

static void inconsistent_placements_are_refused(void **state) {
    (void)state;
    static const uint8_t TWO[] = {1, 1}, THREE[] = {1, 2}, NONE[] = {1, 0}, SAME[] = {0, 1, 1}, DOWN[] = {0, 1, 0}, HIGH[] = {0, 2};
    struct raw inner = raw_placement(2, THREE, 2, TWO, 2);
    assert_refused(decode_with(&inner), EXPERTD_ERR_INVALID, "placement.copies", "expert 1 has 2 copies, but 1 holders");
    inner = raw_placement(2, NONE, 2, TWO, 1);
    assert_refused(decode_with(&inner), EXPERTD_ERR_INVALID, "placement.copies", "expert 1 has 0 copies");
    inner = raw_placement(2, TWO, 2, SAME, 3);
    assert_refused(decode_with(&inner), EXPERTD_ERR_INVALID, "placement.holders", "3 holders, but the copies add up to 2");
    inner = raw_placement(2, THREE, 2, SAME, 3);
    assert_refused(decode_with(&inner), EXPERTD_ERR_INVALID, "placement.holders", "expert 1: rank 1");
    inner = raw_placement(2, THREE, 2, DOWN, 3);
    assert_refused(decode_with(&inner), EXPERTD_ERR_INVALID, "placement.holders", "expert 1: rank 0");
    inner = raw_placement(2, TWO, 2, HIGH, 2);
    assert_refused(decode_with(&inner), EXPERTD_ERR_INVALID, "placement.holders", "rank 2 is not below the 2 ranks");
    inner = raw_placement(2, TWO, 2, TWO, 2);
    raw_bytes(&inner, 6, TWO, 1);
    assert_refused(decode_with(&inner), EXPERTD_ERR_INVALID, "placement.rows", "1 counts for 2 experts");
    inner.length = 0;
    assert_refused(decode_with(&inner), EXPERTD_ERR_INVALID, "placement.copies", "missing");
}

static void numbers_above_the_maximum_are_refused(void **state) {
    (void)state;
    struct raw inner = {.length = 0};
    raw_number(&inner, 5, UINT64_C(1) << 32);
    assert_refused(decode_with(&inner), EXPERTD_ERR_MALFORMED, "placement.holders", "4294967296");
    inner.length = 0;
    raw_bytes(&inner, 4, "\x80", 1);
    assert_refused(decode_with(&inner), EXPERTD_ERR_MALFORMED, "placement.copies", "end inside a varint");
    inner.length = 0;
    raw_bytes(&inner, 1, "x", 1);
    assert_refused(decode_with(&inner), EXPERTD_ERR_MALFORMED, "placement.layer", "wire type");
}

static void invalid_fields_of_requests_are_refused(void **state) {
    (void)state;
    struct raw inner = {.length = 0}, message = {.length = 0};
    raw_number(&inner, 9, 1);
    assert_refused(decode_with(&inner), EXPERTD_ERR_UNKNOWN_FIELD, "placement.9", "no field 9");
    inner.length = 0;
    raw_number(&inner, 1, 1);
    raw_number(&inner, 1, 1);
    assert_refused(decode_with(&inner), EXPERTD_ERR_UNKNOWN_FIELD, "placement.layer", "is given twice");
    struct proto_plan_request plan;
    raw_number(&message, 2, 3);
    assert_refused(proto_decode_plan_request(message.bytes, message.length, &plan), EXPERTD_ERR_INVALID, "policy",
                   "3 is not a Policy");
    struct proto_layers layers;
    message.length = 0;
    raw_number(&message, 2, 3);
    assert_refused(proto_decode_show_request(message.bytes, message.length, &layers), EXPERTD_ERR_UNKNOWN_FIELD, "2", "no field 2");
}

static void reasons_are_short_and_utf8(void **state) {
    (void)state;
    char reason[PROTO_REASON_MAX + 1], text[PROTO_REASON_MAX + 2];
    memset(text, 'x', sizeof text);
    struct raw message = {.length = 0};
    raw_bytes(&message, 1, text, PROTO_REASON_MAX);
    assert_ok(proto_decode_drain_request(message.bytes, message.length, reason));
    assert_int_equal(strlen(reason), PROTO_REASON_MAX);
    message.length = 0;
    raw_bytes(&message, 1, text, PROTO_REASON_MAX + 1);
    assert_refused(proto_decode_drain_request(message.bytes, message.length, reason), EXPERTD_ERR_INVALID, "reason", "257 bytes");
    message.length = 0;
    raw_bytes(&message, 1, "a\0b", 3);
    assert_refused(proto_decode_drain_request(message.bytes, message.length, reason), EXPERTD_ERR_MALFORMED, "reason", "NUL");
}

static void too_many_entries_are_refused(void **state) {
    (void)state;
    enum { ENTRIES = 4097 };
    uint8_t *bytes = malloc(2 * ENTRIES);
    for (size_t i = 0; i < ENTRIES; i++) {
        bytes[2 * i] = 4 << 3 | RAW_BYTES;
        bytes[2 * i + 1] = 0;
    }
    struct proto_plan_request request;
    assert_ok(proto_decode_plan_request(bytes, 2 * (ENTRIES - 1), &request));
    proto_plan_request_deinit(&request);
    assert_refused(proto_decode_plan_request(bytes, 2 * ENTRIES, &request), EXPERTD_ERR_TOO_LARGE, "counts", "4096");
    free(bytes);
}

static void unknown_fields_of_answers_are_skipped(void **state) {
    (void)state;
    struct raw message = {.length = 0};
    raw_number(&message, 1, 5);
    raw_text(&message, 40, "later");
    struct proto_progress progress;
    assert_ok(proto_decode_progress(message.bytes, message.length, &progress));
    assert_int_equal(progress.moved_bytes, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_placement_round_trips_and_matches_protobuf_c),
        cmocka_unit_test(unpacked_numbers_are_accepted),
        cmocka_unit_test(placements_and_loads_round_trip),
        cmocka_unit_test(a_plan_and_its_request_round_trip),
        cmocka_unit_test(progress_drain_and_layers_round_trip),
        cmocka_unit_test(truncated_messages_are_refused_without_a_leak),
        cmocka_unit_test(inconsistent_placements_are_refused),
        cmocka_unit_test(numbers_above_the_maximum_are_refused),
        cmocka_unit_test(invalid_fields_of_requests_are_refused),
        cmocka_unit_test(reasons_are_short_and_utf8),
        cmocka_unit_test(too_many_entries_are_refused),
        cmocka_unit_test(unknown_fields_of_answers_are_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
