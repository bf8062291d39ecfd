// The acceptor under TCP ports, with real sockets: handing over, limits, and a lack of descriptors.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/listen/acceptor.h"
#include "daemon/listen/tcp_listener.h"
#include "daemon/log/log.h"

static const char PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum { PREFACE_BYTES = sizeof PREFACE - 1, ACCEPTED_MAX = 256, CONNECTIONS_MAX = 4, TURNS_MAX = 2000 };

struct fixture {
    uv_loop_t loop;
    struct tcp_listener *listener;
    struct acceptor *acceptor;
    unsigned port;
    int fds[ACCEPTED_MAX];
    char peers[ACCEPTED_MAX][64];
    size_t count;
    bool proven[1024]; // by descriptor: a call has arrived
};

static bool is_proven(void *context, int fd) {
    const struct fixture *f = context;
    return f->proven[fd];
}

static void accepted(void *context, int fd, const char *peer) {
    struct fixture *f = context;
    assert_true(f->count < ACCEPTED_MAX);
    snprintf(f->peers[f->count], sizeof f->peers[0], "%s", peer);
    f->fds[f->count++] = fd;
}

static void accepted_bare(void *context, int fd) {
    accepted(context, fd, "");
}

static int make(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    if (!f || uv_loop_init(&f->loop) != 0) {
        return -1;
    }
    log_init(LOG_LEVEL_ERROR, false);
    *state = f;
    return 0;
}

static int unmake(void **state) {
    struct fixture *f = *state;
    tcp_listener_stop(f->listener);
    acceptor_stop(f->acceptor);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    int busy = uv_loop_close(&f->loop);
    for (size_t i = 0; i < f->count; i++) {
        close(f->fds[i]);
    }
    free(f);
    return busy;
}

static void listen_at(struct fixture *f, const char *address, unsigned max_connections) {
    struct tcp_listener_options options = {
        .loop = &f->loop, .address = address, .max_connections = max_connections, .accepted = accepted, .context = f};
    if (err_is(tcp_listener_start(&options, &f->listener, &f->port))) {
        fail_msg("%s", expertd_err_message());
    }
}

// Connections are unproven for this time, until the test says otherwise.
static void listen_with_handshakes(struct fixture *f, unsigned max_connections, int64_t unproven_ns) {
    struct tcp_listener_options options = {.loop = &f->loop,
                                           .address = "127.0.0.1:0",
                                           .max_connections = max_connections,
                                           .accepted = accepted,
                                           .unproven_ns = unproven_ns,
                                           .is_proven = is_proven,
                                           .context = f};
    if (err_is(tcp_listener_start(&options, &f->listener, &f->port))) {
        fail_msg("%s", expertd_err_message());
    }
}

static void turns(struct fixture *f, int count) {
    for (int i = 0; i < count; i++) {
        uv_run(&f->loop, UV_RUN_NOWAIT);
        usleep(500);
    }
}

static void until_accepted(struct fixture *f, size_t count) {
    for (int i = 0; i < TURNS_MAX && f->count < count; i++) {
        turns(f, 1);
    }
    assert_int_equal(f->count, count);
}

// Returns -1 if the connection is refused.
static int dial(const struct fixture *f, const char *host) {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } to = {0};
    bool is_v6 = strchr(host, ':') != NULL;
    if (is_v6) {
        to.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)f->port)};
        assert_int_equal(inet_pton(AF_INET6, host, &to.v6.sin6_addr), 1);
    } else {
        to.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)f->port)};
        assert_int_equal(inet_pton(AF_INET, host, &to.v4.sin_addr), 1);
    }
    int fd = socket(to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, &to.any, is_v6 ? sizeof to.v6 : sizeof to.v4) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int dial_and_speak(const struct fixture *f, const char *host) {
    int fd = dial(f, host);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, PREFACE, PREFACE_BYTES), PREFACE_BYTES);
    return fd;
}

static bool is_closed(int fd) {
    char byte;
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

// ---- handing over

static void expect_peer(struct fixture *f, const char *host, const char *format) {
    size_t before = f->count;
    int fd = dial_and_speak(f, host);
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &length), 0);
    until_accepted(f, before + 1);
    unsigned port = ntohs(((struct sockaddr_in *)&own)->sin_port); // at the same offset in both families
    char expected[64], text[PREFACE_BYTES + 1] = "";
    snprintf(expected, sizeof expected, "%s:%u", format, port);
    assert_string_equal(f->peers[before], expected);
    assert_true(fcntl(f->fds[before], F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(f->fds[before], F_GETFD) & FD_CLOEXEC);
    assert_int_equal(read(f->fds[before], text, PREFACE_BYTES), PREFACE_BYTES); // the first bytes are still readable
    assert_string_equal(text, PREFACE);
    close(fd);
}

static void a_peer_that_sends_data_is_handed_over_with_its_address(void **state) {
    struct fixture *f = *state;
    listen_at(f, "127.0.0.1:0", CONNECTIONS_MAX);
    assert_true(f->port > 0);
    expect_peer(f, "127.0.0.1", "ipv4:127.0.0.1");
}

static void peers_of_both_families_are(void **state) {
    struct fixture *f = *state;
    listen_at(f, "[::]:0", CONNECTIONS_MAX);
    expect_peer(f, "::1", "ipv6:[::1]");
    expect_peer(f, "127.0.0.1", "ipv4:127.0.0.1"); // mapped
}

static void a_name_is_served_on_all_its_addresses(void **state) {
    struct fixture *f = *state;
    listen_at(f, "localhost:0", 2 * CONNECTIONS_MAX);
    expect_peer(f, "127.0.0.1", "ipv4:127.0.0.1");
    assert_int_equal(tcp_listener_counts(f->listener).turned_away, 0);
}

static void a_silent_peer_is_not_handed_over(void **state) {
    struct fixture *f = *state;
    listen_at(f, "127.0.0.1:0", CONNECTIONS_MAX);
    int silent = dial(f, "127.0.0.1"), gone = dial(f, "127.0.0.1");
    assert_int_equal(write(silent, PREFACE, PREFACE_BYTES - 1), PREFACE_BYTES - 1); // an incomplete preface counts as silence
    turns(f, 10);
    assert_int_equal(tcp_listener_counts(f->listener).open, 2);
    close(gone);
    turns(f, 10);
    assert_int_equal(tcp_listener_counts(f->listener).open, 1);
    assert_int_equal(f->count, 0);
    assert_false(is_closed(silent));
    assert_int_equal(write(silent, PREFACE + PREFACE_BYTES - 1, 1), 1);
    until_accepted(f, 1);
    gone = dial(f, "127.0.0.1");
    turns(f, 10);
    tcp_listener_stop(f->listener);
    f->listener = NULL;
    assert_true(is_closed(gone));
    assert_false(is_closed(silent));
    close(gone);
    close(silent);
}

static void a_silent_connection_is_closed_after_its_time(void **state) {
    struct fixture *f = *state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    f->port = ntohs(at.sin_port);
    struct acceptor_options options = {.loop = &f->loop,
                                       .name = "test",
                                       .max_connections = CONNECTIONS_MAX,
                                       .silent_ns = 100 * (int64_t)NS_PER_MS,
                                       .accepted = accepted_bare,
                                       .context = f};
    assert_false(err_is(acceptor_start(&options, fd, &f->acceptor)));
    int first = dial(f, "127.0.0.1");
    turns(f, 20);
    int second = dial(f, "127.0.0.1"), speaker = dial_and_speak(f, "127.0.0.1");
    until_accepted(f, 1);
    int64_t begun_ns = clock_now_ns();
    while (!(is_closed(first) && is_closed(second))) {
        assert_true(clock_now_ns() - begun_ns < 20 * (int64_t)NS_PER_S);
        turns(f, 1);
    }
    assert_false(is_closed(speaker));
    assert_int_equal(acceptor_counts(f->acceptor).open, 1);
    assert_int_equal(acceptor_counts(f->acceptor).turned_away, 0);
    close(first);
    close(second);
    close(speaker);
}

// ---- limits

static void mute_stderr(int *saved) {
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    *saved = dup(STDERR_FILENO);
    dup2(null, STDERR_FILENO); // a log line is expected
    close(null);
}

static void restore_stderr(int saved) {
    dup2(saved, STDERR_FILENO);
    close(saved);
}

static void at_the_limit_the_new_connection_is_closed(void **state) {
    struct fixture *f = *state;
    int fds[CONNECTIONS_MAX + 3];
    listen_at(f, "127.0.0.1:0", CONNECTIONS_MAX);
    for (int i = 0; i < CONNECTIONS_MAX + 3; i++) {
        fds[i] = dial_and_speak(f, "127.0.0.1");
        turns(f, 4);
    }
    assert_int_equal(f->count, CONNECTIONS_MAX);
    for (int i = 0; i < CONNECTIONS_MAX + 3; i++) {
        assert_int_equal(is_closed(fds[i]), i >= CONNECTIONS_MAX);
        close(fds[i]);
    }
    struct acceptor_counts counts = tcp_listener_counts(f->listener);
    assert_int_equal(counts.open, CONNECTIONS_MAX); // their owner has not closed them
    assert_int_equal(counts.turned_away, 3);
    close(f->fds[--f->count]);
    turns(f, 60); // until the next scan
    fds[0] = dial_and_speak(f, "127.0.0.1");
    until_accepted(f, CONNECTIONS_MAX);
    close(fds[0]);
}

static void at_the_limit_the_oldest_silent_connection_is_closed_first(void **state) {
    struct fixture *f = *state;
    int silent[50];
    listen_at(f, "127.0.0.1:0", CONNECTIONS_MAX);
    int speaker = dial_and_speak(f, "127.0.0.1");
    until_accepted(f, 1);
    for (int i = 0; i < 50; i++) {
        silent[i] = dial(f, "127.0.0.1");
        assert_true(silent[i] >= 0);
    }
    turns(f, 10);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(is_closed(silent[i]), i < 50 - (CONNECTIONS_MAX - 1));
    }
    int late = dial_and_speak(f, "127.0.0.1"); // is served during the flood
    until_accepted(f, 2);
    assert_false(is_closed(speaker) || is_closed(late));
    assert_int_equal(tcp_listener_counts(f->listener).turned_away, 50 - (CONNECTIONS_MAX - 1) + 1);
    for (int i = 0; i < 50; i++) {
        close(silent[i]);
    }
    close(speaker);
    close(late);
}

// Uses up all descriptors below `limit`, the process's limit.
static void take_all_descriptors(struct rlimit *before, int *held, int *count) {
    assert_int_equal(getrlimit(RLIMIT_NOFILE, before), 0);
    struct rlimit low = *before;
    low.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (*count = 0; (held[*count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0; (*count)++) {
    }
}

static void without_descriptors_new_connections_are_closed_and_accepting_resumes(void **state) {
    struct fixture *f = *state;
    int held[64], count, saved;
    struct rlimit before;
    listen_at(f, "127.0.0.1:0", 100);
    int clients[3];
    for (int i = 0; i < 3; i++) { // connected, not accepted yet
        clients[i] = dial_and_speak(f, "127.0.0.1");
    }
    mute_stderr(&saved);
    take_all_descriptors(&before, held, &count);
    turns(f, 20);
    bool all_closed = is_closed(clients[0]) && is_closed(clients[1]) && is_closed(clients[2]);
    unsigned long turned_away = tcp_listener_counts(f->listener).turned_away;
    while (count > 0) {
        close(held[--count]);
    }
    setrlimit(RLIMIT_NOFILE, &before);
    restore_stderr(saved);
    assert_true(all_closed);
    assert_int_equal(turned_away, 3);
    assert_int_equal(f->count, 0);
    int late = dial_and_speak(f, "127.0.0.1");
    until_accepted(f, 1);
    close(late);
    for (int i = 0; i < 3; i++) {
        close(clients[i]);
    }
}

// ---- addresses

static void a_port_in_use_is_refused_with_its_cause(void **state) {
    struct fixture *f = *state;
    char address[64];
    struct tcp_listener *second;
    unsigned port;
    listen_at(f, "127.0.0.1:0", CONNECTIONS_MAX);
    snprintf(address, sizeof address, "127.0.0.1:%u", f->port);
    struct tcp_listener_options options = {
        .loop = &f->loop, .address = address, .max_connections = CONNECTIONS_MAX, .accepted = accepted};
    assert_int_equal(tcp_listener_start(&options, &second, &port).code, EXPERTD_ERR_UNAVAILABLE);
    assert_null(second);
    assert_non_null(strstr(expertd_err_message(), address));
    assert_non_null(strstr(expertd_err_message(), "another program listens there"));
}

static void a_port_is_free_again_at_once(void **state) {
    struct fixture *f = *state;
    char address[64];
    listen_at(f, "127.0.0.1:0", CONNECTIONS_MAX);
    snprintf(address, sizeof address, "127.0.0.1:%u", f->port);
    int fd = dial_and_speak(f, "127.0.0.1");
    until_accepted(f, 1);
    tcp_listener_stop(f->listener);
    close(f->fds[--f->count]); // first, so that the port stays in TIME_WAIT
    listen_at(f, address, CONNECTIONS_MAX);
    close(fd);
    expect_peer(f, "127.0.0.1", "ipv4:127.0.0.1");
}

static void counters_survive_refusing(void **state) {
    struct fixture *f = *state;
    int fds[CONNECTIONS_MAX - 1], silent[2];
    listen_at(f, "127.0.0.1:0", CONNECTIONS_MAX);
    for (unsigned i = 0; i < CONNECTIONS_MAX - 1; i++) {
        fds[i] = dial_and_speak(f, "127.0.0.1");
        until_accepted(f, i + 1);
    }
    for (unsigned i = 0; i < 2; i++) { // the second one replaces the first
        silent[i] = dial(f, "127.0.0.1");
        turns(f, 10);
    }
    assert_int_equal(tcp_listener_counts(f->listener).open, CONNECTIONS_MAX);
    tcp_listener_refuse(f->listener);
    tcp_listener_refuse(f->listener);
    turns(f, 10);
    assert_true(is_closed(silent[1]));
    assert_int_equal(tcp_listener_counts(f->listener).open, CONNECTIONS_MAX - 1);
    assert_int_equal(tcp_listener_counts(f->listener).turned_away, 1);
    close(f->fds[--f->count]);
    assert_int_equal(tcp_listener_counts(f->listener).open, CONNECTIONS_MAX - 2);
    for (unsigned i = 0; i < CONNECTIONS_MAX - 1; i++) {
        close(fds[i]);
    }
    close(silent[0]);
    close(silent[1]);
}

static void invalid_addresses_are_refused(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *address;
        enum expertd_err_code code;
    } BAD[] = {
        {"", EXPERTD_ERR_CONFIG},
        {"localhost", EXPERTD_ERR_CONFIG},
        {"127.0.0.1:", EXPERTD_ERR_CONFIG},
        {":80", EXPERTD_ERR_CONFIG},
        {"unix:/tmp/x", EXPERTD_ERR_CONFIG},
        {"127.0.0.1:65536", EXPERTD_ERR_CONFIG},
        {"127.0.0.1:x", EXPERTD_ERR_CONFIG},
        {"::1:80", EXPERTD_ERR_CONFIG},
        {"[]:80", EXPERTD_ERR_CONFIG},
        {"192.0.2.1:0", EXPERTD_ERR_UNAVAILABLE}, // a documentation address
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct tcp_listener_options options = {
            .loop = &f->loop, .address = BAD[i].address, .max_connections = CONNECTIONS_MAX, .accepted = accepted};
        unsigned port;
        assert_int_equal(tcp_listener_start(&options, &f->listener, &port).code, BAD[i].code);
        assert_null(f->listener);
        assert_non_null(strstr(expertd_err_message(), BAD[i].address));
    }
    tcp_listener_stop(NULL);
    acceptor_stop(NULL);
    assert_int_equal(acceptor_counts(NULL).open, 0);
}

#define ACCEPTOR_TEST(name) cmocka_unit_test_setup_teardown(name, make, unmake)

// ---- connections whose handshake may never end

// From another address of this machine.
static int speak_from(const struct fixture *f, const char *source) {
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(inet_pton(AF_INET, source, &from.sin_addr), 1);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(write(fd, PREFACE, PREFACE_BYTES), PREFACE_BYTES);
    return fd;
}

static void close_all(const int *fds, size_t count) {
    for (size_t i = 0; i < count; i++) {
        close(fds[i]);
    }
}

static void a_new_connection_replaces_the_oldest_unproven_one(void **state) {
    struct fixture *f = *state;
    int fds[CONNECTIONS_MAX + 2];
    listen_with_handshakes(f, CONNECTIONS_MAX, 10 * (int64_t)NS_PER_S);
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        fds[i] = dial_and_speak(f, "127.0.0.1");
        until_accepted(f, i + 1);
    }
    f->proven[f->fds[0]] = true;
    for (size_t i = CONNECTIONS_MAX; i < CONNECTIONS_MAX + 2; i++) {
        fds[i] = dial_and_speak(f, "127.0.0.1");
        until_accepted(f, i + 1);
    }
    static const bool CLOSED[CONNECTIONS_MAX + 2] = {false, true, true, false, false, false};
    for (size_t i = 0; i < CONNECTIONS_MAX + 2; i++) {
        assert_int_equal(is_closed(fds[i]), CLOSED[i]);
    }
    assert_int_equal(tcp_listener_counts(f->listener).turned_away, 2);
    close_all(fds, CONNECTIONS_MAX + 2);
}

static void connections_with_calls_and_old_ones_are_never_replaced(void **state) {
    struct fixture *f = *state;
    int fds[CONNECTIONS_MAX + 1];
    listen_with_handshakes(f, CONNECTIONS_MAX, 100 * (int64_t)NS_PER_MS);
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        fds[i] = dial_and_speak(f, "127.0.0.1");
        until_accepted(f, i + 1);
        f->proven[f->fds[i]] = i % 2;
    }
    usleep(150000); // the others are old now
    fds[CONNECTIONS_MAX] = dial_and_speak(f, "127.0.0.1");
    turns(f, 20);
    assert_int_equal(f->count, CONNECTIONS_MAX);
    assert_true(is_closed(fds[CONNECTIONS_MAX]));
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        assert_false(is_closed(fds[i]));
    }
    close_all(fds, CONNECTIONS_MAX + 1);
}

// One host with many half-open handshakes displaces its own, not the single one of another host, although that is the oldest.
static void the_host_with_the_most_unproven_connections_loses_one(void **state) {
    struct fixture *f = *state;
    int fds[CONNECTIONS_MAX + 1];
    listen_with_handshakes(f, CONNECTIONS_MAX, 10 * (int64_t)NS_PER_S);
    for (size_t i = 0; i < CONNECTIONS_MAX + 1; i++) {
        fds[i] = speak_from(f, i == 0 ? "127.0.0.2" : "127.0.0.1");
        until_accepted(f, i + 1);
    }
    assert_false(is_closed(fds[0]));
    assert_true(is_closed(fds[1]));
    assert_false(is_closed(fds[2]));
    close_all(fds, CONNECTIONS_MAX + 1);
}

// Their owner may be slow to close what was shut down: a bounded number waits for it.
static void connections_that_their_owner_has_not_closed_bound_the_replacements(void **state) {
    struct fixture *f = *state;
    enum { MAX = 16, TRIES = 64 };
    int fds[TRIES];
    listen_with_handshakes(f, MAX, 10 * (int64_t)NS_PER_S);
    for (size_t i = 0; i < TRIES; i++) {
        fds[i] = dial_and_speak(f, "127.0.0.1");
        turns(f, 2); // handed over before the next one: silent connections would give way first
    }
    assert_int_equal(f->count, MAX + MAX / 2 + 1);
    assert_int_equal(tcp_listener_counts(f->listener).open, MAX + MAX / 2 + 1);
    for (size_t i = 0; i < f->count; i++) { // the owner closes what was shut down
        char text[PREFACE_BYTES];
        if (read(f->fds[i], text, sizeof text) <= 0 || is_closed(f->fds[i])) {
            close(f->fds[i]);
            f->fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        }
    }
    turns(f, 100);
    int more = dial_and_speak(f, "127.0.0.1");
    until_accepted(f, MAX + MAX / 2 + 2);
    close(more);
    close_all(fds, TRIES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ACCEPTOR_TEST(a_peer_that_sends_data_is_handed_over_with_its_address),
        ACCEPTOR_TEST(peers_of_both_families_are),
        ACCEPTOR_TEST(a_name_is_served_on_all_its_addresses),
        ACCEPTOR_TEST(a_silent_peer_is_not_handed_over),
        ACCEPTOR_TEST(a_silent_connection_is_closed_after_its_time),
        ACCEPTOR_TEST(at_the_limit_the_new_connection_is_closed),
        ACCEPTOR_TEST(at_the_limit_the_oldest_silent_connection_is_closed_first),
        ACCEPTOR_TEST(without_descriptors_new_connections_are_closed_and_accepting_resumes),
        ACCEPTOR_TEST(a_port_in_use_is_refused_with_its_cause),
        ACCEPTOR_TEST(a_port_is_free_again_at_once),
        ACCEPTOR_TEST(counters_survive_refusing),
        ACCEPTOR_TEST(a_new_connection_replaces_the_oldest_unproven_one),
        ACCEPTOR_TEST(connections_with_calls_and_old_ones_are_never_replaced),
        ACCEPTOR_TEST(the_host_with_the_most_unproven_connections_loses_one),
        ACCEPTOR_TEST(connections_that_their_owner_has_not_closed_bound_the_replacements),
        ACCEPTOR_TEST(invalid_addresses_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
