// Tests outgoing streams against a server on rpc.h in the same process.
#include "dial_fixture.h"

// A TCP socket on a free port of the loopback, whose address is written to `address`; it listens if backlog is not 0.
static int bind_port(char address[64], int backlog) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int bound = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(bound, (struct sockaddr *)&at, sizeof at), 0);
    assert_true(backlog == 0 || listen(bound, backlog) == 0);
    assert_int_equal(getsockname(bound, (struct sockaddr *)&at, &length), 0);
    snprintf(address, 64, "127.0.0.1:%u", ntohs(at.sin_port));
    return bound;
}

static void messages_of_any_size_and_parts_come_back(void **state) {
    (void)state;
    struct fixture *f = fixture_start(32 * MIB, 8);
    struct dialler *dialler = start_dialler(32 * MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, NULL, NULL);
    for (int defers = 0; defers < 2; defers++) {
        struct seen *seen = open_stream(dialler, channel, ECHO_STREAM, CONNECT_NS);
        seen->defers = defers;
        assert_true(fixture_wait(&seen->opened, 1));
        assert_string_equal(seen->identity, "");
        assert_string_equal(seen->thread_name, "dial-1");
        exchange_sizes(seen, SIZE_MAX);
        dial_end_writes(seen->stream);
        assert_true(fixture_wait(&seen->closed, 1));
        assert_true(seen->end.answered);
        assert_int_equal(seen->end.code, EXPERTD_ERR_OK);
        assert_false(dial_read(seen->stream));
        assert_false(dial_write(seen->stream, NULL, 0, NULL, 0));
        release(seen);
    }
    assert_true(fixture_wait(&f->opened, 2));
    assert_string_equal(f->peers[0], f->peers[1]); // both streams on one connection
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    fixture_stop(f);
}

static void a_status_with_details_is_passed_on(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 1);
    struct dialler *dialler = start_dialler(MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, NULL, NULL);
    struct seen *seen = open_stream(dialler, channel, "expertd.shard.v1.Shard/None", CONNECT_NS);
    assert_true(fixture_wait(&seen->closed, 1));
    assert_true(seen->end.answered);
    assert_int_equal(seen->end.code, EXPERTD_ERR_UNIMPLEMENTED);
    assert_string_equal(seen->reason, "UNIMPLEMENTED");
    assert_non_null(strstr(seen->text, "unknown method"));
    release(seen);
    struct seen *first = open_stream(dialler, channel, SILENCE, CONNECT_NS);
    assert_true(fixture_wait(&f->opened, 1));
    seen = open_stream(dialler, channel, SILENCE, CONNECT_NS); // above max_calls
    assert_true(fixture_wait(&seen->closed, 1));
    assert_string_equal(seen->reason, "QUEUE_FULL");
    assert_int_equal(seen->end.code, EXPERTD_ERR_QUEUE_FULL);
    assert_int_equal(seen->end.retry_after_ms, 50);
    release(seen);
    cancel_and_release(first);
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    fixture_stop(f);
}

static void nobody_there_is_reported_at_once_and_each_open_tries_anew(void **state) {
    (void)state;
    char address[64];
    int bound = bind_port(address, 0); // the port is taken, and nobody listens on it
    struct dialler *dialler = start_dialler(MIB);
    struct dial_channel *channel = open_channel(dialler, address, NULL, NULL);
    for (int i = 0; i < 20; i++) {
        struct seen *seen = open_stream(dialler, channel, ECHO_STREAM, CONNECT_NS);
        assert_true(fixture_wait(&seen->closed, 1)); // with the refusal, not with the connect timeout
        assert_int_equal(seen->opened, 0);
        assert_false(seen->end.answered);
        assert_false(seen->end.cancelled);
        assert_int_equal(seen->end.code, EXPERTD_ERR_UNAVAILABLE);
        assert_non_null(strstr(seen->text, "Connection refused"));
        release(seen);
    }
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    close(bound);
}

// A listener that never accepts: its backlog takes the connection, and no HTTP/2 settings come.
static void a_silent_server_is_given_up_after_the_connect_timeout(void **state) {
    (void)state;
    char address[64];
    int listener = bind_port(address, 4);
    struct dialler *dialler = start_dialler(MIB);
    struct dial_channel *channel = open_channel(dialler, address, NULL, NULL);
    int64_t begin_ns = clock_now_ns();
    struct seen *seen = open_stream(dialler, channel, ECHO_STREAM, 200 * (int64_t)NS_PER_MS);
    assert_true(fixture_wait(&seen->closed, 1));
    int64_t took_ns = clock_now_ns() - begin_ns;
    assert_true(took_ns >= 200 * (int64_t)NS_PER_MS);
    assert_int_equal(seen->end.code, EXPERTD_ERR_DEADLINE);
    assert_non_null(strstr(seen->text, "was not connected within 200 ms"));
    assert_int_equal(seen->opened, 0);
    release(seen);
    seen = open_stream(dialler, channel, ECHO_STREAM, CONNECT_NS); // and another one can be cancelled while it connects
    cancel_and_release(seen);
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    close(listener);
}

static void a_server_that_goes_away_closes_the_streams_and_can_come_back(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    struct dialler *dialler = start_dialler(MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, NULL, NULL);
    struct seen *seen = open_stream(dialler, channel, SILENCE, CONNECT_NS);
    assert_true(dial_read(seen->stream));
    assert_true(fixture_wait(&f->opened, 1));
    // Only the connection breaks: the server's end of it is shut down.
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in peer = {0};
        socklen_t length = sizeof peer;
        char name[64];
        if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0) {
            snprintf(name, sizeof name, "ipv4:127.0.0.1:%u", ntohs(peer.sin_port));
            if (strcmp(name, f->peers[0]) == 0) {
                shutdown(fd, SHUT_RDWR);
            }
        }
    }
    assert_true(fixture_wait(&seen->closed, 1));
    assert_int_equal(seen->no_message, 1); // the pending read is reported
    assert_false(seen->end.answered);
    assert_false(seen->end.cancelled);
    assert_int_equal(seen->end.code, EXPERTD_ERR_UNAVAILABLE);
    release(seen);
    seen = open_stream(dialler, channel, ECHO_STREAM, CONNECT_NS);
    exchange(seen, NULL, 0, (const uint8_t *)"again", 5, 1);
    assert_true(fixture_wait(&f->opened, 2));
    assert_string_not_equal(f->peers[0], f->peers[1]);
    cancel_and_release(seen);
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    fixture_stop(f);
}

// The server reads one message and then no more, so that most of this one stays in socket buffers and in gRPC.
static void a_cut_ends_a_write_to_a_server_that_does_not_read(void **state) {
    (void)state;
    struct fixture *f = fixture_start(64 * MIB, 8);
    struct dialler *dialler = start_dialler(64 * MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, NULL, NULL);
    struct seen *seen = open_stream(dialler, channel, FLOOD, CONNECT_NS); // writes and never reads
    assert_true(fixture_wait(&seen->opened, 1));
    uint8_t *bytes = calloc(1, 48 * MIB);
    assert_true(dial_write(seen->stream, NULL, 0, &(struct rpc_part){bytes, 48 * MIB}, 1));
    nanosleep(&(struct timespec){.tv_nsec = 50 * NS_PER_MS}, NULL);
    assert_int_equal(seen->written, 0);
    dial_channel_cut(channel);
    assert_true(fixture_wait(&seen->closed, 1));
    assert_int_equal(seen->lost, 1);
    assert_true(seen->end.cancelled);
    memset(bytes, POISON, 48 * MIB); // the body is free: nothing reads it any more
    release(seen);
    seen = open_stream(dialler, channel, ECHO_STREAM, CONNECT_NS);
    exchange(seen, NULL, 0, (const uint8_t *)"again", 5, 1);
    cancel_and_release(seen);
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    free(bytes);
    fixture_stop(f);
}

static void a_message_above_the_limit_closes_the_stream(void **state) {
    (void)state;
    struct fixture *f = fixture_start(64 * MIB, 8);
    struct dialler *dialler = start_dialler(MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, NULL, NULL);
    struct seen *seen = open_stream(dialler, channel, FLOOD, CONNECT_NS); // messages of 8 MiB
    assert_true(dial_read(seen->stream));
    assert_true(fixture_wait(&seen->closed, 1));
    assert_int_equal(seen->end.code, EXPERTD_ERR_TOO_LARGE);
    assert_non_null(strstr(seen->text, "this daemon takes at most 1048576"));
    assert_int_equal(seen->no_message, 1);
    release(seen);
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    fixture_stop(f);
}

// ---- many threads

enum { RACERS = 4, ROUNDS = 25 };

struct racer {
    struct dialler *dialler;
    struct dial_channel *channel;
    unsigned seed;
};

static void *race(void *context) {
    struct racer *racer = context;
    uint8_t *bytes = pattern(200000, racer->seed);
    for (int i = 0; i < ROUNDS; i++) {
        struct seen *seen = open_stream(racer->dialler, racer->channel, i % 3 ? ECHO_STREAM : FLOOD, CONNECT_NS);
        seen->reads_on = true;
        dial_read(seen->stream);
        if (dial_write(seen->stream, bytes, 10, &(struct rpc_part){bytes, 200000}, 1) && i % 2) {
            assert_true(fixture_wait_either(&seen->messages, 1, &seen->closed, 1)); // another racer may have cut the channel
        }
        if (i % 5 == 0) {
            dial_channel_cut(racer->channel);
        } else {
            dial_cancel(seen->stream);
        }
        release(seen);
    }
    free(bytes);
    return NULL;
}

static void streams_are_opened_written_cancelled_and_cut_by_many_threads(void **state) {
    (void)state;
    struct fixture *f = fixture_start(64 * MIB, 48);
    struct dialler *dialler = start_dialler(64 * MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, NULL, NULL);
    pthread_t threads[RACERS];
    struct racer racers[RACERS];
    for (unsigned i = 0; i < RACERS; i++) {
        racers[i] = (struct racer){dialler, channel, i};
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (unsigned i = 0; i < RACERS; i++) {
        pthread_join(threads[i], NULL);
    }
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    fixture_stop(f);
}

static atomic_int ticks;

static int64_t on_tick(void *context, unsigned thread, int64_t now_ns) {
    (void)context, (void)thread;
    ticks++;
    return ticks < 3 ? now_ns + NS_PER_MS : CLOCK_NEVER;
}

static void ticks_run_at_the_start_at_their_time_and_when_woken(void **state) {
    (void)state;
    struct dialler *dialler;
    struct dialler_options options = {.threads = 1, .name = "t", .max_message_bytes = MIB, .tick = on_tick};
    ticks = 0;
    assert_false(err_is(dialler_create(&options, &dialler)));
    assert_true(fixture_wait(&ticks, 3));
    dialler_wake(dialler, 0);
    assert_true(fixture_wait(&ticks, 4));
    dialler_destroy(dialler);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_any_size_and_parts_come_back),
        cmocka_unit_test(a_status_with_details_is_passed_on),
        cmocka_unit_test(nobody_there_is_reported_at_once_and_each_open_tries_anew),
        cmocka_unit_test(a_silent_server_is_given_up_after_the_connect_timeout),
        cmocka_unit_test(a_server_that_goes_away_closes_the_streams_and_can_come_back),
        cmocka_unit_test(a_cut_ends_a_write_to_a_server_that_does_not_read),
        cmocka_unit_test(a_message_above_the_limit_closes_the_stream),
        cmocka_unit_test(streams_are_opened_written_cancelled_and_cut_by_many_threads),
        cmocka_unit_test(ticks_run_at_the_start_at_their_time_and_when_woken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
