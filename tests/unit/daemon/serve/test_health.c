// Tests health and reflection with a gRPC client over the transport.
#include "tests/unit/daemon/grpc/rpc_fixture.h"

#include "proto/control/control.h"

#define CHECK "grpc.health.v1.Health/Check"
#define WATCH "grpc.health.v1.Health/Watch"

static struct peer_end check(struct fixture *f, const char *service) {
    struct proto_bytes request;
    assert_false(err_is(proto_encode_health_request(service, &request)));
    struct peer_end end = peer_unary(&f->peer, CHECK, request.data, request.length);
    free(request.data);
    return end;
}

static enum proto_serving decoded(uint8_t *bytes, size_t length) {
    enum proto_serving state = SERVING_UNKNOWN;
    assert_non_null(bytes);
    assert_false(err_is(proto_decode_health_response(bytes, length, &state)));
    free(bytes);
    return state;
}

static void watch_start(struct peer_call *call, struct fixture *f, const char *service) {
    struct proto_bytes request;
    assert_false(err_is(proto_encode_health_request(service, &request)));
    peer_start(call, &f->peer, WATCH, PEER_NO_DEADLINE);
    peer_send(call, request.data, request.length);
    peer_half_close(call);
    free(request.data);
}

static enum proto_serving watch_next(struct peer_call *call) {
    size_t length;
    uint8_t *bytes = peer_receive(call, &length);
    return decoded(bytes, length);
}

static void check_reports_each_service_and_refuses_unknown_ones(void **state) {
    (void)state;
    struct fixture *f = fixture_start(1 << 20, 8);
    const char *const known[] = {"", "expertd.v1.Experts"};
    for (int serving = 0; serving < 2; serving++) {
        health_set_serving(f->health, serving);
        for (size_t i = 0; i < 2; i++) {
            struct peer_end end = check(f, known[i]);
            assert_int_equal(end.status, 0);
            assert_int_equal(decoded(end.reply, end.reply_length), serving ? SERVING : NOT_SERVING);
        }
    }
    assert_int_equal(check(f, "a/model").status, 5);
    health_set_model(f->health, "a/model");
    health_set_model(f->health, "a/model");
    struct peer_end end = check(f, "a/model");
    assert_int_equal(decoded(end.reply, end.reply_length), SERVING);
    assert_int_equal(check(f, "a/mode").status, 5);
    fixture_stop(f);
}

static void check_refuses_malformed_requests(void **state) {
    (void)state;
    struct fixture *f = fixture_start(1 << 20, 8);
    assert_int_equal(peer_unary(&f->peer, CHECK, "\x0a\xff", 2).status, 3);
    struct peer_call call;
    peer_start(&call, &f->peer, CHECK, PEER_NO_DEADLINE);
    peer_half_close(&call);
    assert_int_equal(peer_finish(&call).status, 3);
    fixture_stop(f);
}

static void a_watch_sends_the_state_at_once_and_every_change(void **state) {
    (void)state;
    struct fixture *f = fixture_start(1 << 20, 8);
    struct peer_call all, model;
    watch_start(&all, f, "");
    assert_int_equal(watch_next(&all), NOT_SERVING);
    watch_start(&model, f, "m");
    assert_int_equal(watch_next(&model), SERVICE_UNKNOWN);
    health_set_serving(f->health, true);
    assert_int_equal(watch_next(&all), SERVING);
    health_set_serving(f->health, true); // no change: no message
    health_set_model(f->health, "m");
    assert_int_equal(watch_next(&model), SERVING);
    health_set_serving(f->health, false);
    assert_int_equal(watch_next(&all), NOT_SERVING);
    assert_int_equal(watch_next(&model), NOT_SERVING);
    health_end_watches(f->health);
    assert_int_equal(peer_finish(&all).status, 14);
    assert_int_equal(peer_finish(&model).status, 14);
    assert_true(fixture_wait(&f->released, 2));
    fixture_stop(f);
}

static void a_watch_opened_during_shutdown_sends_the_state_and_ends(void **state) {
    (void)state;
    struct fixture *f = fixture_start(1 << 20, 8);
    health_end_watches(f->health);
    struct peer_call call;
    watch_start(&call, f, "");
    assert_int_equal(watch_next(&call), NOT_SERVING);
    assert_int_equal(peer_finish(&call).status, 14);
    fixture_stop(f);
}

static void a_watch_without_a_request_ends_at_shutdown(void **state) {
    (void)state;
    struct fixture *f = fixture_start(1 << 20, 8);
    struct peer_call call;
    peer_start(&call, &f->peer, WATCH, PEER_NO_DEADLINE);
    assert_true(fixture_wait(&f->opened, 1));
    health_end_watches(f->health);
    assert_int_equal(peer_finish(&call).status, 14);
    fixture_stop(f);
}

static bool contains(const uint8_t *bytes, size_t length, const char *text) {
    return bytes && memmem(bytes, length, text, strlen(text)) != NULL;
}

static void reflection_answers_each_message_in_order(void **state) {
    (void)state;
    static const char LIST[] = "\x3a\x01*", SYMBOL[] = "\x22\x12"
                                                       "expertd.v1.Experts";
    const char *const methods[] = {"grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                                   "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};
    struct fixture *f = fixture_start(1 << 20, 8);
    for (size_t i = 0; i < 2; i++) {
        struct peer_call call;
        peer_start(&call, &f->peer, methods[i], PEER_NO_DEADLINE);
        peer_send(&call, LIST, sizeof LIST - 1);
        peer_send(&call, SYMBOL, sizeof SYMBOL - 1);
        size_t length;
        uint8_t *list = peer_receive(&call, &length);
        assert_true(contains(list, length, "grpc.health.v1.Health"));
        free(list);
        uint8_t *file = peer_receive(&call, &length);
        assert_true(contains(file, length, "ForwardRequest"));
        free(file);
        peer_half_close(&call);
        assert_int_equal(peer_finish(&call).status, 0);
    }
    fixture_stop(f);
}

static void an_idle_reflection_stream_ends_at_shutdown(void **state) {
    (void)state;
    struct fixture *f = fixture_start(1 << 20, 8);
    struct peer_call call;
    peer_start(&call, &f->peer, "grpc.reflection.v1.ServerReflection/ServerReflectionInfo", PEER_NO_DEADLINE);
    assert_true(fixture_wait(&f->opened, 1));
    fixture_command(f, COMMAND_END);
    assert_int_equal(peer_finish(&call).status, 14);
    fixture_stop(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_reports_each_service_and_refuses_unknown_ones),
        cmocka_unit_test(check_refuses_malformed_requests),
        cmocka_unit_test(a_watch_sends_the_state_at_once_and_every_change),
        cmocka_unit_test(a_watch_opened_during_shutdown_sends_the_state_and_ends),
        cmocka_unit_test(a_watch_without_a_request_ends_at_shutdown),
        cmocka_unit_test(reflection_answers_each_message_in_order),
        cmocka_unit_test(an_idle_reflection_stream_ends_at_shutdown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
