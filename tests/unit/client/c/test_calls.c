// The asynchronous client without a daemon: every started call ends exactly once and in time.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "client/c/calls.h"

enum { ADDRESS_BYTES = 128, SLOTS = 5, ROW_BYTES = 8, TIMEOUT_MS = 200, PATIENCE_S = 60 };

static const uint8_t ROWS[4 * ROW_BYTES] = {1, 2, 3};

static void start(struct calls *calls, uint32_t slot, int64_t timeout_us) {
    struct wire_request request = {
        .layer = 1,
        .hidden = {.present = true, .view = {.dtype = EXPERTD_DTYPE_BF16, .rank = 2, .shape = {4, 4}, .bytes = sizeof ROWS}}};
    struct calls_piece pieces[] = {{ROWS, ROW_BYTES}, {ROWS + ROW_BYTES, 3 * ROW_BYTES}};
    calls_start(calls, &(struct calls_request){.slot = slot,
                                               .connection = slot % 2,
                                               .request = &request,
                                               .pieces = pieces,
                                               .num_pieces = 2,
                                               .timeout_us = timeout_us});
}

static void assert_each_ends_once(struct calls *calls, const char *code) {
    uint32_t seen = 0;
    for (int i = 0; i < SLOTS; i++) {
        struct calls_end end;
        assert_true(calls_next(calls, clock_now_ns() + (int64_t)PATIENCE_S * NS_PER_S, &end));
        assert_false(end.answered);
        assert_string_equal(calls_status_name(end.grpc_code), code);
        assert_in_range(end.slot, 0, SLOTS - 1);
        assert_int_equal(seen >> end.slot & 1, 0);
        seen |= 1u << end.slot;
    }
    struct calls_end end;
    assert_false(calls_next(calls, clock_now_ns() + 20 * NS_PER_MS, &end));
}

static struct calls *open_calls(const char *address, bool stream) {
    struct calls *calls;
    struct calls_options options = {.address = address, .connections = 2, .slots = SLOTS, .stream = stream};
    assert_false(err_is(calls_create(&options, &calls)));
    return calls;
}

static void calls_without_a_daemon_end_unavailable_and_their_slots_are_reusable(void **state) {
    for (int round = 0; round < 2; round++) {
        bool stream = *(bool *)*state;
        struct calls *calls = open_calls("unix:/tmp/there-is-no-such-expertd.sock", stream);
        assert_int_equal(calls_connect(calls, TIMEOUT_MS * NS_PER_US).code, EXPERTD_ERR_UNAVAILABLE);
        for (int again = 0; again < 3; again++) {
            for (uint32_t slot = 0; slot < SLOTS; slot++) {
                start(calls, slot, 0);
            }
            assert_each_ends_once(calls, "UNAVAILABLE");
        }
        calls_destroy(calls);
    }
}

// A listener that accepts connections and never sends anything.
static int listen_silently(char address[ADDRESS_BYTES]) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "/tmp/bench-silent-%d.sock", (int)getpid());
    snprintf(address, ADDRESS_BYTES, "unix:%s", name.sun_path);
    unlink(name.sun_path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(listener >= 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&name, sizeof name), 0);
    assert_int_equal(listen(listener, 8), 0);
    return listener;
}

static void calls_to_a_silent_peer_end_at_their_deadline(void **state) {
    (void)state;
    char address[ADDRESS_BYTES];
    int listener = listen_silently(address);
    struct calls *calls = open_calls(address, false);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        start(calls, slot, TIMEOUT_MS * NS_PER_US);
    }
    assert_each_ends_once(calls, "DEADLINE_EXCEEDED");
    calls_destroy(calls);
    close(listener);
    unlink(address + strlen("unix:"));
}

static void destroying_cancels_calls_in_flight(void **state) {
    char address[ADDRESS_BYTES];
    int listener = listen_silently(address);
    struct calls *calls = open_calls(address, *(bool *)*state);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        start(calls, slot, 0);
    }
    calls_destroy(calls); // the calls have no deadline
    close(listener);
    unlink(address + strlen("unix:"));
}

static void a_wrong_address_is_refused(void **state) {
    (void)state;
    struct calls *calls;
    struct calls_options options = {.address = "nowhere", .connections = 1, .slots = 1};
    assert_int_equal(calls_create(&options, &calls).code, EXPERTD_ERR_USAGE);
    assert_null(calls);
    calls_destroy(NULL);
}

int main(void) {
    bool unary = false, stream = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(calls_without_a_daemon_end_unavailable_and_their_slots_are_reusable, &unary),
        cmocka_unit_test_prestate(calls_without_a_daemon_end_unavailable_and_their_slots_are_reusable, &stream),
        cmocka_unit_test(calls_to_a_silent_peer_end_at_their_deadline),
        cmocka_unit_test_prestate(destroying_cancels_calls_in_flight, &unary),
        cmocka_unit_test_prestate(destroying_cancels_calls_in_flight, &stream),
        cmocka_unit_test(a_wrong_address_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
