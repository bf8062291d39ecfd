// The messages of expertd.shard.v1.Control: round trips, agreement with protobuf-c, refusals.
#include "tests/unit/proto/wire/raw_message.h"

#include "generated/expertd/shard/v1/shard.pb-c.h"
#include "proto/shard/shard_control.h"

static const struct shard_identity IDENTITY = {
    .protocol = SHARD_PROTOCOL, .numerics_id = "1/bf16/cpu_amx", .compute_dtype = "bf16", .model_digest = {1, 2, 3, 255}};
static const uint32_t FEW[] = {0, 7, 300}, ONE[] = {5};

static struct shard_request exchange_request(const struct shard_request *sent, struct shard_message **owner) {
    struct proto_bytes bytes;
    struct shard_request got;
    assert_ok(shard_encode_request(sent, &bytes));
    uint8_t *exact = raw_exact(bytes.data, bytes.length);
    assert_ok(shard_decode_request(exact, bytes.length, &got, owner));
    free(exact);
    free(bytes.data);
    assert_int_equal(got.kind, sent->kind);
    return got;
}

static struct shard_reply exchange_reply(const struct shard_reply *sent, struct shard_message **owner) {
    struct proto_bytes bytes;
    struct shard_reply got;
    assert_ok(shard_encode_reply(sent, &bytes));
    uint8_t *exact = raw_exact(bytes.data, bytes.length);
    assert_ok(shard_decode_reply(exact, bytes.length, &got, owner));
    free(exact);
    free(bytes.data);
    assert_int_equal(got.kind, sent->kind);
    return got;
}

static void assert_same_identity(const struct shard_identity *got) {
    assert_int_equal(got->protocol, IDENTITY.protocol);
    assert_string_equal(got->numerics_id, IDENTITY.numerics_id);
    assert_string_equal(got->compute_dtype, IDENTITY.compute_dtype);
    assert_memory_equal(got->model_digest, IDENTITY.model_digest, sizeof IDENTITY.model_digest);
}

static void a_fronts_hello_round_trips(void **state) {
    (void)state;
    struct shard_message *owner;
    struct shard_request sent = {.kind = SHARD_FRONT_HELLO,
                                 .hello = {.identity = IDENTITY,
                                           .instance = UINT64_MAX,
                                           .version = "0.1.0",
                                           .asks_lease = true,
                                           .max_batch_rows = 4096,
                                           .max_batch_hidden = 512}};
    struct shard_request got = exchange_request(&sent, &owner);
    assert_same_identity(&got.hello.identity);
    assert_true(got.hello.instance == UINT64_MAX && got.hello.asks_lease);
    assert_string_equal(got.hello.version, "0.1.0");
    assert_int_equal(got.hello.max_batch_rows, 4096);
    assert_int_equal(got.hello.max_batch_hidden, 512);
    shard_message_free(owner);
}

static void commands_releases_and_heartbeats_round_trip(void **state) {
    (void)state;
    static const enum shard_request_kind KINDS[] = {SHARD_ASSIGN, SHARD_RETIRE, SHARD_RELEASE};
    struct shard_experts lists[] = {{3, FEW, 3}, {61, ONE, 1}, {62, NULL, 0}};
    struct shard_message *owner;
    for (size_t i = 0; i < 3; i++) {
        struct shard_request sent = {.kind = KINDS[i], .number = 77, .experts = {lists, 3}};
        struct shard_request got = exchange_request(&sent, &owner);
        assert_int_equal(got.number, 77);
        assert_int_equal(got.experts.count, 3);
        assert_int_equal(got.experts.lists[0].layer, 3);
        assert_memory_equal(got.experts.lists[0].experts, FEW, sizeof FEW);
        assert_int_equal(got.experts.lists[1].experts[0], 5);
        assert_int_equal(got.experts.lists[2].count, 0);
        shard_message_free(owner);
    }
    struct shard_request beat = {.kind = SHARD_HEARTBEAT, .heartbeat = UINT64_C(1) << 50};
    assert_true(exchange_request(&beat, &owner).heartbeat == beat.heartbeat);
    shard_message_free(owner);
    for (int drains = 0; drains < 2; drains++) {
        struct shard_request drain = {.kind = SHARD_DRAIN, .drains = drains}, got = exchange_request(&drain, &owner);
        assert_true(got.kind == SHARD_DRAIN && got.drains == drains);
        shard_message_free(owner);
    }
}

static void a_shards_hello_round_trips(void **state) {
    (void)state;
    struct shard_layer layers[] = {{3, 128, "mxfp4", 1 << 20}, {4, 256, "", UINT64_C(1) << 40}};
    struct shard_reply sent = {.kind = SHARD_HELLO,
                               .hello = {.identity = IDENTITY,
                                         .instance = 9,
                                         .version = "0.2.0",
                                         .rows_token = {4, 5, 6},
                                         .layers = layers,
                                         .num_layers = 2,
                                         .bytes_max = UINT64_C(1) << 36,
                                         .draining = true}};
    struct shard_message *owner;
    struct shard_reply got = exchange_reply(&sent, &owner);
    assert_same_identity(&got.hello.identity);
    assert_memory_equal(got.hello.rows_token, sent.hello.rows_token, SHARD_TOKEN_LENGTH);
    assert_true(got.hello.instance == 9 && got.hello.draining && got.hello.bytes_max == sent.hello.bytes_max);
    assert_int_equal(got.hello.num_layers, 2);
    assert_string_equal(got.hello.layers[0].format, "mxfp4");
    assert_int_equal(got.hello.layers[1].num_experts, 256);
    assert_true(got.hello.layers[1].expert_bytes == layers[1].expert_bytes);
    shard_message_free(owner);
}

static void an_inventory_round_trips_and_matches_protobuf_c(void **state) {
    (void)state;
    static const uint64_t DIGESTS[] = {1, UINT64_MAX, 3};
    struct shard_copies copies[] = {{3, SHARD_COPY_READY, FEW, 3, DIGESTS},
                                    {3, SHARD_COPY_LOADING, ONE, 1, NULL},
                                    {4, SHARD_COPY_RETIRING, ONE, 1, DIGESTS},
                                    {4, SHARD_COPY_NONE, FEW, 3, NULL},
                                    {5, SHARD_COPY_FAILED, ONE, 1, NULL}};
    struct shard_reply sent = {
        .kind = SHARD_INVENTORY,
        .inventory = {
            .sequence = 12, .commands_seen = 4, .complete = true, .copies = copies, .count = 5, .bytes_used = UINT64_C(1) << 33}};
    struct shard_message *owner;
    struct shard_reply got = exchange_reply(&sent, &owner);
    assert_true(got.inventory.sequence == 12 && got.inventory.complete && got.inventory.bytes_used == sent.inventory.bytes_used);
    assert_int_equal(got.inventory.commands_seen, 4);
    assert_int_equal(got.inventory.count, 5);
    for (size_t i = 0; i < 5; i++) {
        const struct shard_copies *c = &got.inventory.copies[i];
        assert_int_equal(c->layer, copies[i].layer);
        assert_int_equal(c->state, copies[i].state);
        assert_int_equal(c->count, copies[i].count);
        assert_memory_equal(c->experts, copies[i].experts, c->count * sizeof *c->experts);
        assert_true((c->digests != NULL) == (copies[i].digests != NULL));
        assert_true(!c->digests || memcmp(c->digests, copies[i].digests, c->count * sizeof *c->digests) == 0);
    }
    shard_message_free(owner);

    struct proto_bytes bytes;
    assert_ok(shard_encode_reply(&sent, &bytes));
    Expertd__Shard__V1__ControlReply *theirs = expertd__shard__v1__control_reply__unpack(NULL, bytes.length, bytes.data);
    assert_non_null(theirs);
    assert_int_equal(theirs->message_case, EXPERTD__SHARD__V1__CONTROL_REPLY__MESSAGE_INVENTORY);
    assert_int_equal(theirs->inventory->copies[0]->state, EXPERTD__SHARD__V1__COPY_STATE__COPY_STATE_READY);
    assert_int_equal(theirs->inventory->copies[2]->state, EXPERTD__SHARD__V1__COPY_STATE__COPY_STATE_RETIRING);
    assert_int_equal(theirs->inventory->copies[4]->state, EXPERTD__SHARD__V1__COPY_STATE__COPY_STATE_FAILED);
    assert_true(theirs->inventory->copies[0]->digests[1] == UINT64_MAX);
    expertd__shard__v1__control_reply__free_unpacked(theirs, NULL);
    free(bytes.data);
}

static void the_small_replies_round_trip(void **state) {
    (void)state;
    struct shard_message *owner;
    struct shard_reply got, sent = {.kind = SHARD_LEASE, .lease = {true, 99}};
    got = exchange_reply(&sent, &owner);
    assert_true(got.lease.granted && got.lease.owner == 99);
    shard_message_free(owner);
    sent = (struct shard_reply){.kind = SHARD_PROGRESS, .progress = {17, UINT64_C(1) << 40, 1 << 30}};
    got = exchange_reply(&sent, &owner);
    assert_int_equal(got.progress.loading, 17);
    assert_true(got.progress.bytes_left == sent.progress.bytes_left && got.progress.bytes_per_second == 1 << 30);
    shard_message_free(owner);
    sent = (struct shard_reply){.kind = SHARD_FAILURE, .failure = {61, 7, "model-00003.safetensors: \xff truncated"}};
    got = exchange_reply(&sent, &owner);
    assert_int_equal(got.failure.layer, 61);
    assert_int_equal(got.failure.expert, 7);
    assert_string_equal(got.failure.message, "model-00003.safetensors: ? truncated"); // proto3 needs UTF-8
    shard_message_free(owner);
    sent = (struct shard_reply){.kind = SHARD_ECHO, .echo = 5};
    assert_true(exchange_reply(&sent, &owner).echo == 5);
    shard_message_free(owner);
    sent = (struct shard_reply){.kind = SHARD_DRAINING, .draining = {true, "SIGTERM"}};
    got = exchange_reply(&sent, &owner);
    assert_true(got.draining.drains);
    assert_string_equal(got.draining.reason, "SIGTERM");
    shard_message_free(owner);
}

// ---- refusals

static void refuse_request(const struct raw *m, enum expertd_err_code code, const char *field, const char *text) {
    struct shard_request got;
    struct shard_message *owner;
    assert_refused(shard_decode_request(m->bytes, m->length, &got, &owner), code, field, text);
    assert_null(owner);
}

static void refuse_reply(const struct raw *m, enum expertd_err_code code, const char *field, const char *text) {
    struct shard_reply got;
    struct shard_message *owner;
    assert_refused(shard_decode_reply(m->bytes, m->length, &got, &owner), code, field, text);
    assert_null(owner);
}

static struct raw within(uint64_t field, const struct raw *inner) {
    struct raw m = {.length = 0};
    raw_message(&m, field, inner);
    return m;
}

static void messages_that_do_not_parse_are_refused(void **state) {
    (void)state;
    struct raw m = {.length = 0};
    refuse_request(&m, EXPERTD_ERR_MALFORMED, "", "without a message");
    refuse_reply(&m, EXPERTD_ERR_MALFORMED, "", "without a message");
    raw_bytes(&m, 99, "new", 3); // of a later version
    refuse_request(&m, EXPERTD_ERR_MALFORMED, "", "without a message");
    raw_put(&m, "\x0a\x7f", 2);
    refuse_request(&m, EXPERTD_ERR_MALFORMED, "", "not a valid ControlRequest");
    refuse_reply(&m, EXPERTD_ERR_MALFORMED, "", "not a valid ControlReply");
    uint8_t *large = calloc(1, SHARD_CONTROL_MESSAGE_MAX + 1);
    struct shard_request request;
    struct shard_reply reply;
    struct shard_message *owner;
    assert_int_equal(shard_decode_request(large, SHARD_CONTROL_MESSAGE_MAX + 1, &request, &owner).code, EXPERTD_ERR_TOO_LARGE);
    assert_int_equal(shard_decode_reply(large, SHARD_CONTROL_MESSAGE_MAX + 1, &reply, &owner).code, EXPERTD_ERR_TOO_LARGE);
    free(large);
}

static struct raw raw_identity(size_t digest) {
    struct raw identity = {.length = 0};
    uint8_t zeros[32] = {0};
    raw_number(&identity, 1, 1);
    raw_text(&identity, 2, "1/bf16/cpu");
    raw_bytes(&identity, 4, zeros, digest);
    return identity;
}

static void hellos_without_their_parts_are_refused(void **state) {
    (void)state;
    struct raw hello = {.length = 0}, identity = raw_identity(16), m;
    raw_message(&hello, 1, &identity);
    m = within(1, &hello);
    refuse_request(&m, EXPERTD_ERR_MALFORMED, "hello.instance", "missing");
    refuse_reply(&m, EXPERTD_ERR_MALFORMED, "hello.instance", "missing");
    uint64_t instance = 5;
    raw_tag(&hello, 2, RAW_FIXED64);
    raw_put(&hello, &instance, 8);
    m = within(1, &hello);
    refuse_reply(&m, EXPERTD_ERR_MALFORMED, "hello.rows_token", "0 bytes instead of 16");
    struct shard_request got;
    struct shard_message *owner;
    assert_ok(shard_decode_request(m.bytes, m.length, &got, &owner));
    shard_message_free(owner);
    hello.length = 0;
    raw_tag(&hello, 2, RAW_FIXED64);
    raw_put(&hello, &instance, 8);
    m = within(1, &hello);
    refuse_request(&m, EXPERTD_ERR_MALFORMED, "hello.identity", "missing");
    identity = raw_identity(15);
    raw_message(&hello, 1, &identity);
    m = within(1, &hello);
    refuse_request(&m, EXPERTD_ERR_MALFORMED, "hello.identity.model_digest", "15 bytes instead of 16");
    hello.length = 0;
    identity = raw_identity(16);
    raw_text(&identity, 3, "bf\xff");
    raw_message(&hello, 1, &identity);
    raw_tag(&hello, 2, RAW_FIXED64);
    raw_put(&hello, &instance, 8);
    m = within(1, &hello);
    refuse_request(&m, EXPERTD_ERR_MALFORMED, "hello.identity.compute_dtype", "not UTF-8");
}

static void inventories_that_contradict_themselves_are_refused(void **state) {
    (void)state;
    uint64_t digest = 7;
    for (uint64_t kind = 0; kind < 6; kind++) { // states 0 to 4 with the wrong number of digests; 5: no such state
        struct raw copies = {.length = 0}, inventory = {.length = 0};
        raw_number(&copies, 1, 3);
        raw_number(&copies, 2, kind);
        raw_number(&copies, 3, 9);
        if (kind != SHARD_COPY_READY && kind != SHARD_COPY_RETIRING) {
            raw_tag(&copies, 4, RAW_FIXED64);
            raw_put(&copies, &digest, 8);
        }
        raw_message(&inventory, 4, &copies);
        struct raw m = within(2, &inventory);
        refuse_reply(&m, EXPERTD_ERR_MALFORMED, kind < 5 ? "inventory.copies.digests" : "inventory.copies.state",
                     kind < 5 ? "digests of 1 experts" : "5 is not a CopyState");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fronts_hello_round_trips),
        cmocka_unit_test(commands_releases_and_heartbeats_round_trip),
        cmocka_unit_test(a_shards_hello_round_trips),
        cmocka_unit_test(an_inventory_round_trips_and_matches_protobuf_c),
        cmocka_unit_test(the_small_replies_round_trip),
        cmocka_unit_test(messages_that_do_not_parse_are_refused),
        cmocka_unit_test(hellos_without_their_parts_are_refused),
        cmocka_unit_test(inventories_that_contradict_themselves_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
