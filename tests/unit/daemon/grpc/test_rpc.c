// Tests the transport with a gRPC client in the same process, and with a peer that writes HTTP/2 frames itself.
#include "rpc_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/config/options_table.h"

static uint8_t *pattern(size_t length) {
    uint8_t *bytes = malloc(length + 1);
    uint32_t x = 12345;
    for (size_t i = 0; i < length; i++) {
        x = x * 1664525 + 1013904223;
        bytes[i] = (uint8_t)(x >> 24);
    }
    return bytes;
}

static const size_t SIZES[] = {0, 1, 9, 10, 11, 4096, 65537, 1 << 20, (16 << 20) + 5};
enum { SIZE_COUNT = sizeof SIZES / sizeof SIZES[0], MIB = 1 << 20 };

static void a_unary_message_of_any_size_is_echoed_completely(void **state) {
    (void)state;
    struct fixture *f = fixture_start(32 * MIB, 8);
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        uint8_t *bytes = pattern(SIZES[i]);
        struct peer_end end = peer_unary(&f->peer, ECHO, bytes, SIZES[i]);
        assert_int_equal(end.status, 0);
        assert_int_equal(end.reply_length, SIZES[i]);
        assert_memory_equal(end.reply, bytes, SIZES[i]);
        free(end.reply);
        free(bytes);
    }
    assert_int_equal(f->lost, 0);
    fixture_stop(f);
}

static void a_stream_answers_every_message_and_ends_when_the_peer_does(void **state) {
    (void)state;
    struct fixture *f = fixture_start(32 * MIB, 8);
    struct peer_call call;
    peer_start(&call, &f->peer, ECHO_STREAM, PEER_NO_DEADLINE);
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        uint8_t *bytes = pattern(SIZES[i]);
        peer_send(&call, bytes, SIZES[i]);
        size_t length;
        uint8_t *reply = peer_receive(&call, &length);
        assert_non_null(reply);
        assert_int_equal(length, SIZES[i]);
        assert_memory_equal(reply, bytes, SIZES[i]);
        free(reply);
        free(bytes);
    }
    peer_half_close(&call);
    assert_int_equal(peer_finish(&call).status, 0);
    assert_true(fixture_wait(&f->released, 1));
    assert_int_equal(f->cancelled, 0);
    fixture_stop(f);
}

static void a_dropped_body_is_freed_and_zeros_need_no_memory(void **state) {
    (void)state;
    struct fixture *f = fixture_start(32 * MIB, 8);
    f->zeros = true;
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        uint8_t *bytes = pattern(SIZES[i]);
        size_t header = SIZES[i] < 10 ? SIZES[i] : 10;
        struct peer_end end = peer_unary(&f->peer, ECHO, bytes, SIZES[i]);
        memset(bytes + header, 0, SIZES[i] - header);
        assert_int_equal(end.status, 0);
        assert_int_equal(end.reply_length, SIZES[i]);
        assert_memory_equal(end.reply, bytes, SIZES[i]);
        free(end.reply);
        free(bytes);
    }
    fixture_stop(f);
}

static void a_message_above_the_limit_fails_its_call_and_not_the_connection(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    uint8_t *bytes = pattern(MIB + 1);
    struct peer_end end = peer_unary(&f->peer, ECHO, bytes, MIB + 1);
    assert_int_equal(end.status, 8);
    assert_non_null(strstr(end.message, "1048577 bytes"));
    assert_non_null(strstr(end.message, "at most 1048576"));
    end = peer_unary(&f->peer, ECHO, bytes, MIB);
    assert_int_equal(end.status, 0);
    assert_true(fixture_wait(&f->opened, 2));
    assert_string_equal(f->peers[0], f->peers[1]); // the same connection
    free(end.reply);
    free(bytes);
    fixture_stop(f);
}

// gRPC reports the size only when all of the message has arrived: max_transport_bytes (at least 64 MiB) stops it earlier.
static void a_message_far_above_the_limit_is_stopped_while_it_is_received(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    uint8_t *bytes = calloc(1, 80 * MIB);
    struct peer_end end = peer_unary(&f->peer, ECHO, bytes, 80 * MIB);
    assert_int_equal(end.status, 8);
    assert_true(fixture_wait(&f->released, 1));
    assert_int_equal(f->cancelled, 1);
    assert_int_equal(f->refused, 0);
    end = peer_unary(&f->peer, ECHO, bytes, MIB);
    assert_int_equal(end.status, 0);
    assert_true(fixture_wait(&f->opened, 2));
    assert_string_equal(f->peers[0], f->peers[1]);
    free(end.reply);
    free(bytes);
    fixture_stop(f);
}

static void a_compressed_message_is_refused_and_others_are_served(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    struct peer gzip;
    peer_open(&gzip, f->address, -1, GRPC_COMPRESS_GZIP);
    uint8_t *bytes = calloc(1, 100000);
    struct peer_end end = peer_unary(&gzip, ECHO, bytes, 100000);
    assert_int_equal(end.status, 12);
    assert_non_null(strstr(end.message, "gzip"));
    assert_null(end.reply);
    end = peer_unary(&f->peer, ECHO, bytes, 100000);
    assert_int_equal(end.status, 0);
    free(end.reply);
    free(bytes);
    peer_close(&gzip);
    fixture_stop(f);
}

static void an_unknown_method_is_answered_at_once(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    const char *const paths[] = {"expertd.v1.Experts/Nothing", "expertd.v1.Experts/Forwar", "expertd.v1.Experts/Forwards", "x", ""};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        struct peer_end end = peer_unary(&f->peer, paths[i], "x", 1);
        assert_int_equal(end.status, 12);
        assert_non_null(strstr(end.message, paths[i]));
    }
    assert_int_equal(f->opened, 0);
    fixture_stop(f);
}

static void calls_above_the_bound_are_refused_with_details(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 2);
    struct peer_call held[2];
    for (int i = 0; i < 2; i++) {
        peer_start(&held[i], &f->peer, SILENCE, PEER_NO_DEADLINE);
    }
    assert_true(fixture_wait(&f->opened, 2));
    struct peer_end end = peer_unary(&f->peer, ECHO, "x", 1);
    assert_int_equal(end.status, 8);
    assert_non_null(strstr(end.message, "max_calls"));
    assert_true(end.details_length > 0);
    assert_true(end.pushback[0]);
    for (int i = 0; i < 2; i++) {
        peer_cancel(&held[i]);
        assert_int_equal(peer_finish(&held[i]).status, 1);
    }
    assert_true(fixture_wait(&f->released, 2));
    end = peer_unary(&f->peer, ECHO, "x", 1);
    assert_int_equal(end.status, 0);
    free(end.reply);
    fixture_stop(f);
}

static void a_status_arrives_with_its_details(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    struct peer_end end = peer_unary(&f->peer, ERRORS, "x", 1);
    assert_int_equal(end.status, 9);
    assert_string_equal(end.message, "50 % \xc3\xa9 \"quoted\"");
    assert_int_equal(end.details_length, 4);
    assert_string_equal(end.pushback, "250");
    fixture_stop(f);
}

static void a_unary_call_without_a_message_reports_null(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    struct peer_call call;
    peer_start(&call, &f->peer, ECHO, PEER_NO_DEADLINE);
    peer_half_close(&call);
    assert_int_equal(peer_finish(&call).status, 3);
    assert_int_equal(f->ended_early, 1);
    fixture_stop(f);
}

static void a_second_message_on_a_unary_call_does_no_harm(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    struct peer_call call;
    peer_start(&call, &f->peer, ECHO, PEER_NO_DEADLINE);
    peer_send(&call, "one", 3);
    peer_send(&call, "two", 3); // may fail: the call may have ended already
    size_t length;
    uint8_t *reply = peer_receive(&call, &length);
    assert_int_equal(length, 3);
    assert_memory_equal(reply, "one", 3);
    free(reply);
    assert_int_equal(peer_finish(&call).status, 0);
    fixture_stop(f);
}

static void a_deadline_is_reported_at_the_start_and_closes_the_call(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    struct peer_call call;
    int64_t before_ns = clock_now_ns();
    peer_start(&call, &f->peer, SILENCE, 2000); // a call whose request was not sent by then is never opened
    assert_true(fixture_wait(&f->opened, 1));
    assert_true(f->deadline_ns > before_ns && f->deadline_ns < clock_now_ns() + 3 * (int64_t)NS_PER_S);
    assert_int_equal(peer_finish(&call).status, 4);
    assert_true(fixture_wait(&f->released, 1));
    assert_int_equal(f->cancelled, 1);
    peer_start(&call, &f->peer, SILENCE, PEER_NO_DEADLINE);
    assert_true(fixture_wait(&f->opened, 2));
    assert_true(f->deadline_ns == CLOCK_NEVER);
    peer_cancel(&call);
    peer_finish(&call);
    fixture_stop(f);
}

static void a_cancelled_flood_returns_its_body_and_is_released_once(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    struct peer_call call;
    peer_start(&call, &f->peer, FLOOD, PEER_NO_DEADLINE);
    size_t length;
    uint8_t *message = peer_receive(&call, &length);
    assert_int_equal(length, FLOOD_BYTES);
    free(message);
    peer_cancel(&call);
    assert_int_equal(peer_finish(&call).status, 1);
    assert_true(fixture_wait(&f->released, 1));
    assert_int_equal(f->lost, 1);
    assert_int_equal(f->cancelled, 1);
    fixture_stop(f);
}

static void a_broken_connection_closes_its_calls(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    assert_false(err_is(rpc_adopt(f->rpc, ends[0], "unix:test")));
    int held = dup(ends[1]); // to cut the client's connection
    struct peer peer;
    peer_open(&peer, NULL, ends[1], GRPC_COMPRESS_NONE);
    struct peer_call calls[3];
    for (int i = 0; i < 3; i++) {
        peer_start(&calls[i], &peer, i == 0 ? FLOOD : SILENCE, PEER_NO_DEADLINE);
    }
    assert_true(fixture_wait(&f->opened, 3));
    assert_string_equal(f->peers[0], "unix:test");
    shutdown(held, SHUT_RDWR);
    close(held);
    assert_true(fixture_wait(&f->released, 3));
    assert_int_equal(f->cancelled, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(peer_finish(&calls[i]).status, 14);
    }
    peer_close(&peer);
    fixture_stop(f);
}

static void a_peer_that_does_not_read_holds_nothing_once_it_is_cancelled(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    struct peer_call call;
    peer_start(&call, &f->peer, FLOOD, PEER_NO_DEADLINE);
    assert_true(fixture_wait(&f->opened, 1));
    nanosleep(&(struct timespec){.tv_nsec = 200 * NS_PER_MS}, NULL); // the HTTP/2 window is full
    fixture_command(f, COMMAND_CANCEL);
    assert_true(fixture_wait(&f->released, 1));
    assert_int_equal(f->lost, 1);
    size_t length;
    assert_null(peer_receive(&call, &length)); // an incomplete message is not delivered
    assert_int_equal(peer_finish(&call).status, 4);
    struct peer_end end = peer_unary(&f->peer, ECHO, "x", 1); // the connection still works
    assert_int_equal(end.status, 0);
    free(end.reply);
    fixture_stop(f);
}

// A peer that opens both flow-control windows to the maximum and never reads: the socket is full, and gRPC's write never completes.
static size_t by_hand(uint8_t *out, const char *path) {
    static const char PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    static const uint8_t WINDOWS[] = {0, 0, 6, 4, 0, 0, 0, 0, 0, 0,    4,    0x7f, 0xff, 0xff, 0xff, // SETTINGS: initial window
                                      0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0xff, 0,    0}; // WINDOW_UPDATE of the connection
    uint8_t block[256];
    size_t length = 0;
    const uint8_t post_http[] = {0x83, 0x86, 0x01, 1, 'x', 0x04, (uint8_t)(strlen(path) + 1), '/'}; // HPACK's static table
    memcpy(block, post_http, sizeof post_http);
    length += sizeof post_http;
    length += (size_t)sprintf((char *)block + length, "%s", path);
    static const char REST[] = "\x00\x0c"
                               "content-type\x10"
                               "application/grpc\x00\x02te\x08trailers";
    memcpy(block + length, REST, sizeof REST - 1);
    length += sizeof REST - 1;
    const uint8_t frame[] = {0, 0, (uint8_t)length, 1, 4, 0, 0, 0, 1}; // HEADERS, END_HEADERS, stream 1
    size_t total = 0;
    memcpy(out, PREFACE, sizeof PREFACE - 1);
    total += sizeof PREFACE - 1;
    memcpy(out + total, WINDOWS, sizeof WINDOWS);
    total += sizeof WINDOWS;
    memcpy(out + total, frame, sizeof frame);
    total += sizeof frame;
    memcpy(out + total, block, length);
    return total + length;
}

// Connects such a peer; returns its socket.
static int flooded(struct fixture *f) {
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    assert_false(err_is(rpc_adopt(f->rpc, ends[0], "unix:test")));
    uint8_t bytes[512];
    size_t length = by_hand(bytes, FLOOD);
    assert_int_equal(write(ends[1], bytes, length), length);
    assert_true(fixture_wait(&f->opened, 1));
    nanosleep(&(struct timespec){.tv_nsec = 200 * NS_PER_MS}, NULL);
    assert_int_equal(f->written, 0);
    return ends[1];
}

static void a_socket_that_takes_no_data_is_shut_down_after_a_cancel(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    int peer = flooded(f);
    fixture_command(f, COMMAND_CANCEL);
    assert_true(fixture_wait(&f->released, 1));
    assert_int_equal(f->lost, 1);
    char rest[4096];
    ssize_t got;
    while ((got = read(peer, rest, sizeof rest)) > 0) {
    }
    assert_int_equal(got, 0); // the buffered data, then the end of the connection
    close(peer);
    fixture_stop(f);
}

// The process was stopped for longer than the time that a stuck peer has. The peer read everything meanwhile, and continues to.
static void a_stuck_peer_gets_new_time_after_the_process_was_stopped(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    int peer = flooded(f);
    fixture_command(f, COMMAND_PAUSE);
    static char rest[MIB];
    for (int i = 0; i < 20000 && !f->released; i++) {
        ssize_t got = read(peer, rest, sizeof rest);
        assert_int_not_equal(got, 0); // the connection is open
        nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
    }
    assert_int_equal(f->released, 1);
    ssize_t got;
    while ((got = read(peer, rest, sizeof rest)) > 0) {
    }
    assert_int_equal(got, -1);
    assert_int_equal(errno, EAGAIN);
    close(peer);
    fixture_stop(f);
}

static void a_write_after_the_end_is_answered_with_not_ok(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    f->command = COMMAND_LATE;
    struct peer_call call;
    peer_start(&call, &f->peer, SILENCE, PEER_NO_DEADLINE);
    assert_true(fixture_wait(&f->opened, 1));
    peer_cancel(&call);
    peer_finish(&call);
    assert_true(fixture_wait(&f->released, 1));
    assert_int_equal(f->lost, 1);
    f->command = COMMAND_NONE;
    fixture_stop(f);
}

static void many_short_connections_leave_nothing_behind(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    for (int i = 0; i < 200; i++) {
        struct peer peer;
        peer_open(&peer, f->address, -1, GRPC_COMPRESS_NONE);
        struct peer_end end = peer_unary(&peer, ECHO, "hello", 5);
        assert_int_equal(end.status, 0);
        free(end.reply);
        peer_close(&peer);
    }
    assert_true(fixture_wait(&f->released, 200));
    fixture_stop(f);
}

// Calls, ticks and shutdown of a server whose sockets another server's threads poll (rpc_options.watcher).
static void a_watched_server_serves_beside_its_watcher(void **state) {
    (void)state;
    struct fixture *watcher = fixture_start(MIB, 8), *watched = fixture_start_beside(watcher->rpc, MIB, 8);
    for (int i = 0; i < 20; i++) {
        struct fixture *f = i % 2 ? watcher : watched;
        struct peer_end end = peer_unary(&f->peer, ECHO, "hello", 5);
        assert_int_equal(end.status, 0);
        assert_memory_equal(end.reply, "hello", 5);
        free(end.reply);
    }
    int ticks = watched->ticks;
    rpc_wake(watched->rpc, 0);
    assert_true(fixture_wait(&watched->ticks, ticks + 1));
    fixture_stop(watched);
    fixture_stop(watcher);
}

static void a_server_without_threads_is_refused(void **state) {
    (void)state;
    struct fixture none = {0};
    struct rpc_options options = {.threads = 0, .max_message_bytes = MIB, .max_calls = 1, .handler = fixture_handler(&none)};
    struct rpc_server *never;
    assert_int_equal(rpc_create(&options, &never).code, EXPERTD_ERR_CONFIG);
    assert_null(never);
    rpc_destroy(NULL);
}

// The greatest number of threads that the option allows; one more is refused.
static void a_server_has_up_to_the_greatest_number_of_threads(void **state) {
    (void)state;
    const struct options_row *row = &OPTIONS_ROWS[OPTION_RPC_THREADS];
    struct fixture none = {0};
    struct rpc_options options = {.max_message_bytes = MIB, .max_calls = 1, .handler = fixture_handler(&none)};
    struct rpc_server *server;
    options.threads = (unsigned)row->greatest;
    assert_false(err_is(rpc_create(&options, &server)));
    rpc_destroy(server);
    options.threads++;
    assert_int_equal(rpc_create(&options, &server).code, EXPERTD_ERR_CONFIG);
}

static void *wake_often(void *context) {
    struct fixture *f = context;
    for (int i = 0; i < 1000; i++) {
        rpc_wake(f->rpc, 0);
    }
    return NULL;
}

static void wakes_from_any_thread_coalesce_and_none_is_lost(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    assert_true(fixture_wait(&f->ticks, 1));
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, wake_often, f), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < 100; i++) { // each of these wakes causes a tick
        int before = f->ticks;
        rpc_wake(f->rpc, 0);
        assert_true(fixture_wait(&f->ticks, before + 1));
    }
    assert_true(f->ticks <= 3101 + 1);
    fixture_stop(f);
}

static void a_tick_runs_again_at_the_time_it_returned(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    assert_true(fixture_wait(&f->ticks, 1));
    int before = f->ticks;
    int64_t due_ns = clock_now_ns() + 50 * NS_PER_MS;
    f->next_tick_ns = due_ns;
    rpc_wake(f->rpc, 0);
    assert_true(fixture_wait(&f->ticks, before + 1));
    f->next_tick_ns = CLOCK_NEVER;
    assert_true(fixture_wait(&f->ticks, before + 2));
    assert_true(clock_now_ns() >= due_ns);
    nanosleep(&(struct timespec){.tv_nsec = 50 * NS_PER_MS}, NULL);
    assert_int_equal(f->ticks, before + 2); // and no further tick
    fixture_stop(f);
}

static void a_shutdown_waits_for_open_calls_and_refuses_new_ones(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    struct peer_call stream;
    peer_start(&stream, &f->peer, ECHO_STREAM, PEER_NO_DEADLINE);
    assert_true(fixture_wait(&f->opened, 1));
    rpc_shutdown(f->rpc, fixture_down, f);
    peer_send(&stream, "still here", 10);
    size_t length;
    uint8_t *reply = peer_receive(&stream, &length);
    assert_int_equal(length, 10);
    free(reply);
    assert_int_equal(f->down, 0);
    fixture_command(f, COMMAND_END);
    struct peer_end end = peer_finish(&stream);
    assert_int_equal(end.status, 14);
    assert_string_equal(end.message, "shutting down");
    assert_true(fixture_wait(&f->down, 1));
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(rpc_adopt(f->rpc, ends[0], "unix:test").code, EXPERTD_ERR_DRAINING);
    assert_int_equal(fcntl(ends[0], F_GETFD), -1); // owned by the server, which closed it
    close(ends[1]);
    fixture_stop(f);
}

static void cancel_all_ends_the_calls_that_are_open(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    struct peer_call calls[3];
    const char *const methods[] = {ECHO_STREAM, SILENCE, FLOOD};
    for (int i = 0; i < 3; i++) {
        peer_start(&calls[i], &f->peer, methods[i], PEER_NO_DEADLINE);
    }
    assert_true(fixture_wait(&f->opened, 3));
    rpc_shutdown(f->rpc, fixture_down, f);
    rpc_cancel_all(f->rpc);
    assert_true(fixture_wait(&f->down, 1));
    assert_int_equal(f->released, 3);
    assert_int_equal(f->cancelled, 3);
    size_t length;
    for (uint8_t *message = peer_receive(&calls[2], &length); message; message = peer_receive(&calls[2], &length)) {
        free(message); // the client reports the status only after the messages before it were read
    }
    for (int i = 0; i < 3; i++) {
        assert_int_not_equal(peer_finish(&calls[i]).status, 0);
    }
    fixture_stop(f);
}

static void the_sockets_that_a_client_adopts_carry_large_messages(void **state) {
    (void)state;
    struct fixture *f = fixture_start(32 * MIB, 8);
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    assert_false(err_is(rpc_adopt(f->rpc, ends[0], "unix:test")));
    struct peer peer;
    peer_open(&peer, NULL, ends[1], GRPC_COMPRESS_NONE);
    uint8_t *bytes = pattern(16 * MIB);
    struct peer_end end = peer_unary(&peer, ECHO, bytes, 16 * MIB);
    assert_int_equal(end.status, 0);
    assert_int_equal(end.reply_length, 16 * MIB);
    assert_memory_equal(end.reply, bytes, 16 * MIB);
    free(end.reply);
    free(bytes);
    peer_close(&peer);
    fixture_stop(f);
}

static void a_thread_blocks_all_signals_but_those_of_faults(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    assert_true(fixture_wait(&f->ticks, 1));
    assert_false(sigismember(&f->mask, SIGBUS));
    assert_true(sigismember(&f->mask, SIGTERM));
    fixture_stop(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_unary_message_of_any_size_is_echoed_completely),
        cmocka_unit_test(a_dropped_body_is_freed_and_zeros_need_no_memory),
        cmocka_unit_test(a_stream_answers_every_message_and_ends_when_the_peer_does),
        cmocka_unit_test(a_message_above_the_limit_fails_its_call_and_not_the_connection),
        cmocka_unit_test(a_message_far_above_the_limit_is_stopped_while_it_is_received),
        cmocka_unit_test(a_compressed_message_is_refused_and_others_are_served),
        cmocka_unit_test(an_unknown_method_is_answered_at_once),
        cmocka_unit_test(calls_above_the_bound_are_refused_with_details),
        cmocka_unit_test(a_status_arrives_with_its_details),
        cmocka_unit_test(a_unary_call_without_a_message_reports_null),
        cmocka_unit_test(a_second_message_on_a_unary_call_does_no_harm),
        cmocka_unit_test(a_deadline_is_reported_at_the_start_and_closes_the_call),
        cmocka_unit_test(a_cancelled_flood_returns_its_body_and_is_released_once),
        cmocka_unit_test(a_broken_connection_closes_its_calls),
        cmocka_unit_test(a_peer_that_does_not_read_holds_nothing_once_it_is_cancelled),
        cmocka_unit_test(a_socket_that_takes_no_data_is_shut_down_after_a_cancel),
        cmocka_unit_test(a_stuck_peer_gets_new_time_after_the_process_was_stopped),
        cmocka_unit_test(a_write_after_the_end_is_answered_with_not_ok),
        cmocka_unit_test(many_short_connections_leave_nothing_behind),
        cmocka_unit_test(a_watched_server_serves_beside_its_watcher),
        cmocka_unit_test(a_server_without_threads_is_refused),
        cmocka_unit_test(a_server_has_up_to_the_greatest_number_of_threads),
        cmocka_unit_test(wakes_from_any_thread_coalesce_and_none_is_lost),
        cmocka_unit_test(a_tick_runs_again_at_the_time_it_returned),
        cmocka_unit_test(a_thread_blocks_all_signals_but_those_of_faults),
        cmocka_unit_test(a_shutdown_waits_for_open_calls_and_refuses_new_ones),
        cmocka_unit_test(cancel_all_ends_the_calls_that_are_open),
        cmocka_unit_test(the_sockets_that_a_client_adopts_carry_large_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
