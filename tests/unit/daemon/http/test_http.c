// The HTTP server over real loopback sockets with raw bytes. Server and client run alternately on one thread.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "base/clock.h"
#include "daemon/http/http.h"

enum { PATIENCE_MS = 20000, LARGE = 8 << 20, TEXT_MAX = 65536, CONNECTIONS = 4, SHORT_MS = 200, LONG_MS = 30000 };

struct fixture {
    uv_loop_t loop;
    struct http_server *server;
    unsigned port, pages;
    char path[2048];
};

static struct http_answer page(void *context, const char *path, FILE *body) {
    struct fixture *fixture = context;
    fixture->pages++;
    snprintf(fixture->path, sizeof fixture->path, "%s", path);
    if (strcmp(path, "/hello") == 0) {
        fputs("hello\n", body);
        return (struct http_answer){200, "text/plain"};
    }
    if (strcmp(path, "/empty") == 0) {
        return (struct http_answer){200, "text/plain"};
    }
    if (strcmp(path, "/large") == 0) {
        for (int i = 0; i < LARGE; i += 26) {
            fprintf(body, "%.*s", LARGE - i < 26 ? LARGE - i : 26, "abcdefghijklmnopqrstuvwxyz");
        }
        return (struct http_answer){200, "text/plain"};
    }
    fputs("not here\n", body);
    return (struct http_answer){strcmp(path, "/busy") == 0 ? 503 : 404, "text/plain"};
}

static void start(struct fixture *fixture, unsigned timeout_ms) {
    memset(fixture, 0, sizeof *fixture);
    assert_int_equal(uv_loop_init(&fixture->loop), 0);
    const struct http_options options = {.loop = &fixture->loop,
                                         .address = "127.0.0.1:0",
                                         .page = page,
                                         .context = fixture,
                                         .max_connections = CONNECTIONS,
                                         .timeout_ms = timeout_ms};
    err_t e = http_start(&options, &fixture->server, &fixture->port);
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
}

static void stop(struct fixture *fixture) {
    http_stop(fixture->server);
    uv_run(&fixture->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&fixture->loop), 0); // every handle is closed
}

// ---- the client

static int client(const struct fixture *fixture) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)fixture->port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void put(int fd, const char *text) {
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

static void turn(struct fixture *fixture) {
    uv_run(&fixture->loop, UV_RUN_NOWAIT);
    usleep(500);
}

static void turns(struct fixture *fixture, int count) {
    for (int i = 0; i < count; i++) {
        turn(fixture);
    }
}

struct received {
    char *text;
    size_t length;
    bool ended; // the server has closed the connection
    int error;
};

// Runs the server until it has closed the connection or `length` bytes have arrived.
static struct received take(struct fixture *fixture, int fd, size_t length) {
    struct received got = {.text = calloc(1, length + 1)};
    int64_t limit_ns = clock_now_ns() + (int64_t)PATIENCE_MS * NS_PER_MS;
    while (got.length < length && !got.ended) {
        ssize_t n = recv(fd, got.text + got.length, length - got.length, MSG_DONTWAIT);
        if (n > 0) {
            got.length += (size_t)n;
        } else if (n == 0 || errno != EAGAIN) {
            got.ended = true;
            got.error = n ? errno : 0;
        } else {
            assert_true(clock_now_ns() < limit_ns);
            turn(fixture);
        }
    }
    return got;
}

static char *exchange(struct fixture *fixture, const char *request) {
    int fd = client(fixture);
    put(fd, request);
    struct received got = take(fixture, fd, TEXT_MAX);
    assert_true(got.ended);
    assert_int_equal(got.error, 0);
    close(fd);
    return got.text;
}

static void expect_status(struct fixture *fixture, const char *request, const char *status_line) {
    char *answer = exchange(fixture, request);
    if (strncmp(answer, status_line, strlen(status_line)) != 0) {
        fail_msg("%s\nis answered\n%s", request, answer);
    }
    free(answer);
}

static size_t count(const char *text, const char *piece) {
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, piece)); p++) {
        n++;
    }
    return n;
}

// ---- answers

static void get_returns_the_page(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    char *answer = exchange(&f, "GET /hello?x=1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_memory_equal(answer, "HTTP/1.1 200 OK\r\nDate: ", 23);
    assert_non_null(strstr(answer, "\r\nContent-Type: text/plain\r\nContent-Length: 6\r\nConnection: close\r\n"));
    assert_non_null(strstr(answer, "\r\n\r\nhello\n"));
    assert_string_equal(f.path, "/hello");
    free(answer);
    stop(&f);
}

static void head_returns_the_length_without_the_page(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    char *answer = exchange(&f, "HEAD /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_non_null(strstr(answer, "\r\nContent-Length: 6\r\n"));
    assert_string_equal(strstr(answer, "\r\n\r\n"), "\r\n\r\n");
    free(answer);
    stop(&f);
}

static void statuses_of_pages_are_sent(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    expect_status(&f, "GET /nowhere HTTP/1.1\r\nConnection: close\r\n\r\n", "HTTP/1.1 404 Not Found\r\n");
    expect_status(&f, "GET /busy HTTP/1.0\r\n\r\n", "HTTP/1.1 503 Service Unavailable\r\n");
    expect_status(&f, "GET /empty HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n");
    expect_status(&f, "GET http://host:1/hello HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n");
    expect_status(&f, "GET http://host HTTP/1.0\r\n\r\n", "HTTP/1.1 404 Not Found\r\n");
    assert_string_equal(f.path, "/");
    stop(&f);
}

static void a_connection_answers_one_request_after_another(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    int fd = client(&f);
    for (int i = 0; i < 20; i++) {
        put(fd, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
        char all[1024] = "";
        while (!strstr(all, "\r\n\r\nhello\n")) {
            struct received got = take(&f, fd, 1);
            assert_int_equal(got.length, 1);
            assert_true(strlen(all) + 2 < sizeof all);
            all[strlen(all) + 1] = '\0';
            all[strlen(all)] = got.text[0];
            free(got.text);
        }
        assert_non_null(strstr(all, "Connection: keep-alive"));
    }
    assert_int_equal(f.pages, 20);
    close(fd);
    stop(&f);
}

static void requests_sent_together_are_answered_in_order(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    char *answer =
        exchange(&f, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\nHEAD /hello HTTP/1.1\r\nHost: a\r\n\r\nGET /nowhere HTTP/1.1\r\nHost: "
                     "a\r\n\r\nGET /empty HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_int_equal(count(answer, "HTTP/1.1 200 OK\r\n"), 3);
    assert_int_equal(count(answer, "HTTP/1.1 404 "), 1);
    assert_int_equal(count(answer, "\r\n\r\nhello\n"), 1);
    assert_int_equal(f.pages, 4);
    assert_string_equal(f.path, "/empty");
    free(answer);
    stop(&f);
}

static void a_request_may_come_byte_by_byte(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    int fd = client(&f);
    for (const char *p = "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"; *p; p++) {
        put(fd, (char[2]){*p, '\0'});
        turn(&f);
    }
    struct received got = take(&f, fd, TEXT_MAX);
    assert_non_null(strstr(got.text, "hello\n"));
    free(got.text);
    close(fd);
    stop(&f);
}

static void a_half_closed_client_is_answered(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    int fd = client(&f);
    put(fd, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    shutdown(fd, SHUT_WR);
    struct received got = take(&f, fd, TEXT_MAX);
    assert_true(got.ended);
    assert_non_null(strstr(got.text, "hello\n"));
    free(got.text);
    close(fd);
    stop(&f);
}

static void a_large_page_arrives_complete(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    int fd = client(&f);
    put(fd, "GET /large HTTP/1.0\r\n\r\n");
    struct received got = take(&f, fd, LARGE + TEXT_MAX);
    assert_true(got.ended);
    const char *body = strstr(got.text, "\r\n\r\n") + 4;
    assert_int_equal(got.length - (size_t)(body - got.text), LARGE);
    for (int i = 0; i < LARGE; i++) {
        assert_true(body[i] == 'a' + i % 26);
    }
    free(got.text);
    close(fd);
    stop(&f);
}

// ---- refusals

static void other_methods_get_the_allowed_ones(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    static const char *const REQUESTS[] = {"POST /hello HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "DELETE / HTTP/1.1\r\n\r\n",
                                           "OPTIONS * HTTP/1.1\r\n\r\n", "CONNECT a:1 HTTP/1.1\r\n\r\n",
                                           "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"};
    for (size_t i = 0; i < sizeof REQUESTS / sizeof REQUESTS[0]; i++) {
        char *answer = exchange(&f, REQUESTS[i]);
        assert_memory_equal(answer, "HTTP/1.1 405 Method Not Allowed\r\n", 33);
        assert_non_null(strstr(answer, "\r\nAllow: GET, HEAD\r\n"));
        free(answer);
    }
    assert_int_equal(f.pages, 0);
    stop(&f);
}

static void invalid_requests_get_bad_request(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    static const char *const REQUESTS[] = {"\x16\x03\x01\x02\x01\x01",
                                           "hello\r\n\r\n",
                                           "GET\r\n\r\n",
                                           "GET /\x01 HTTP/1.1\r\n\r\n",
                                           "GET / HTTP/1.1\r\na\x01: c\r\n\r\n",
                                           "GET / FTP/1.1\r\n\r\n",
                                           "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                           "GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                                           "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"};
    for (size_t i = 0; i < sizeof REQUESTS / sizeof REQUESTS[0]; i++) {
        expect_status(&f, REQUESTS[i], "HTTP/1.1 400 Bad Request\r\n");
    }
    expect_status(&f, "GET / HTTP/2.0\r\n\r\n", "HTTP/1.1 505 HTTP Version Not Supported\r\n");
    expect_status(&f, "GET /\r\n\r\n", "HTTP/1.1 505 HTTP Version Not Supported\r\n");
    assert_int_equal(f.pages, 0);
    stop(&f);
}

static void bodies_are_refused(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    expect_status(&f, "GET /hello HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", "HTTP/1.1 413 Payload Too Large\r\n");
    expect_status(&f, "GET /hello HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 413 Payload Too Large\r\n");
    expect_status(&f, "GET /hello HTTP/1.0\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\n");
    assert_int_equal(f.pages, 1);
    stop(&f);
}

static char *long_request(const char *head, size_t length, const char *tail) {
    size_t begin = strlen(head), all = begin + length + strlen(tail) + 1;
    char *text = malloc(all);
    snprintf(text, all, "%s", head);
    memset(text + begin, 'x', length);
    snprintf(text + begin + length, all - begin - length, "%s", tail);
    return text;
}

static void heads_beyond_8_kilobytes_are_refused(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    char *fits = long_request("GET /hello HTTP/1.0\r\nA: ", 8192 - 28, "\r\n\r\n");
    char *larger = long_request("GET /hello HTTP/1.0\r\nA: ", 8192 - 27, "\r\n\r\n");
    char *huge = long_request("GET /hello HTTP/1.0\r\nA: ", 100000, "\r\n\r\n");
    char *path = long_request("GET /", 1100, " HTTP/1.0\r\n\r\n");
    assert_int_equal(strlen(fits), 8192);
    expect_status(&f, fits, "HTTP/1.1 200 OK\r\n");
    expect_status(&f, larger, "HTTP/1.1 431 Request Header Fields Too Large\r\n");
    expect_status(&f, huge, "HTTP/1.1 431 Request Header Fields Too Large\r\n");
    expect_status(&f, path, "HTTP/1.1 414 URI Too Long\r\n");
    assert_int_equal(f.pages, 1);
    free(fits);
    free(larger);
    free(huge);
    free(path);
    stop(&f);
}

static void nothing_after_a_refused_request_is_served(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    expect_status(&f, "POST / HTTP/1.1\r\nContent-Length: 30\r\n\r\nGET /hello HTTP/1.1\r\n\r\n", "HTTP/1.1 405 ");
    assert_int_equal(f.pages, 0);
    stop(&f);
}

// ---- limits

static void a_slow_head_is_cut_off(void **state) {
    (void)state;
    struct fixture f;
    start(&f, SHORT_MS);
    int fd = client(&f);
    put(fd, "GET /hello HTTP/1.1\r\n");
    int64_t begin_ns = clock_now_ns();
    bool closed = false;
    char byte;
    while (!closed && clock_now_ns() - begin_ns < (int64_t)PATIENCE_MS * NS_PER_MS) {
        send(fd, "a", 1, MSG_NOSIGNAL);
        turns(&f, 20);
        ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
        closed = n == 0 || (n < 0 && errno != EAGAIN);
    }
    assert_true(closed);
    assert_int_equal(f.pages, 0);
    close(fd);
    stop(&f);
}

static void an_idle_connection_is_closed(void **state) {
    (void)state;
    struct fixture f;
    start(&f, SHORT_MS);
    int fd = client(&f);
    struct received got = take(&f, fd, 1);
    assert_true(got.ended);
    free(got.text);
    close(fd);
    stop(&f);
}

static void a_client_that_does_not_read_loses_its_connection(void **state) {
    (void)state;
    struct fixture f;
    start(&f, SHORT_MS);
    int fd = client(&f);
    put(fd, "GET /large HTTP/1.1\r\n\r\n");
    int64_t begin_ns = clock_now_ns();
    while (clock_now_ns() - begin_ns < (int64_t)SHORT_MS * 3 * NS_PER_MS) {
        turn(&f);
    }
    struct received got = take(&f, fd, LARGE + TEXT_MAX);
    assert_true(got.ended);
    assert_true(got.length < LARGE);
    free(got.text);
    close(fd);
    stop(&f);
}

static void connections_beyond_the_limit_get_retry_after(void **state) {
    (void)state;
    struct fixture f;
    int fds[CONNECTIONS];
    start(&f, LONG_MS);
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = client(&f);
        turns(&f, 3);
    }
    char *answer = exchange(&f, "GET /hello HTTP/1.1\r\n\r\n");
    assert_memory_equal(answer, "HTTP/1.1 503 Service Unavailable\r\n", 34);
    assert_non_null(strstr(answer, "\r\nRetry-After: 1\r\n"));
    free(answer);
    // The others still work, and a freed connection is used again.
    put(fds[0], "GET /hello HTTP/1.0\r\n\r\n");
    struct received got = take(&f, fds[0], TEXT_MAX);
    assert_non_null(strstr(got.text, "hello\n"));
    free(got.text);
    close(fds[0]);
    turns(&f, 20);
    expect_status(&f, "GET /hello HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n");
    for (int i = 1; i < CONNECTIONS; i++) {
        close(fds[i]);
    }
    stop(&f);
}

// After a second, only the connection that has been idle longest is replaced. The next one is answered when it sends a request.
static void one_makes_room(const char *even, const char *odd, const char *then) {
    enum { SILENT_MS = 1100 };
    struct fixture f;
    int fds[CONNECTIONS];
    start(&f, LONG_MS);
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = client(&f);
        put(fds[i], i % 2 ? odd : even);
        turns(&f, 10);
    }
    int64_t begin_ns = clock_now_ns();
    while (clock_now_ns() - begin_ns < SILENT_MS * (int64_t)NS_PER_MS) {
        turn(&f);
    }
    expect_status(&f, "GET /hello HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n");
    struct received got = take(&f, fds[0], LARGE);
    assert_true(got.ended && got.length < LARGE);
    free(got.text);
    put(fds[1], then);
    got = take(&f, fds[1], LARGE);
    assert_true(strstr(got.text, "hello\n") || got.length == LARGE);
    free(got.text);
    for (int i = 0; i < CONNECTIONS; i++) {
        close(fds[i]);
    }
    stop(&f);
}

static void idle_connections_are_replaced_at_the_limit(void **state) {
    (void)state;
    one_makes_room("", "GET /hel", "lo HTTP/1.0\r\n\r\n");
    one_makes_room("GET /large HTTP/1.1\r\n\r\n", "GET /large HTTP/1.1\r\n\r\n", "");
}

static void a_flood_waits_in_the_backlog_and_is_answered(void **state) {
    (void)state;
    enum { FLOOD = 40 };
    struct fixture f;
    int fds[FLOOD];
    start(&f, LONG_MS);
    for (int i = 0; i < FLOOD; i++) {
        fds[i] = client(&f);
        put(fds[i], "GET /hello HTTP/1.0\r\n\r\n");
    }
    for (int i = 0; i < FLOOD; i++) {
        struct received got = take(&f, fds[i], TEXT_MAX);
        assert_memory_equal(got.text, "HTTP/1.1 ", 9);
        free(got.text);
        close(fds[i]);
    }
    turns(&f, 20);
    expect_status(&f, "GET /hello HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n");
    stop(&f);
}

static void clients_that_disconnect_leak_nothing(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    for (int i = 0; i < 50; i++) {
        int fd = client(&f);
        struct linger reset = {.l_onoff = 1, .l_linger = 0};
        put(fd, i % 2 ? "GET /large HTTP/1.1\r\n\r\n" : "GET /hel");
        turns(&f, i % 3);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
        turns(&f, 2);
    }
    turns(&f, 20);
    expect_status(&f, "GET /hello HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n");
    stop(&f);
}

// ---- start and stop

static void an_address_in_use_is_reported(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    char address[32], expected[256];
    snprintf(address, sizeof address, "127.0.0.1:%u", f.port);
    struct http_server *second;
    unsigned port;
    const struct http_options options = {
        .loop = &f.loop, .address = address, .page = page, .max_connections = 1, .timeout_ms = LONG_MS};
    err_t e = http_start(&options, &second, &port);
    assert_int_equal(e.code, EXPERTD_ERR_UNAVAILABLE);
    assert_null(second);
    snprintf(expected, sizeof expected,
             "HTTP (--http HOST:PORT, or --http off): cannot listen on %s: another program listens there", address);
    assert_int_equal(strncmp(expertd_err_message(), expected, strlen(expected)), 0);
    stop(&f);
}

static void unreachable_addresses_are_refused(void **state) {
    (void)state;
    uv_loop_t loop;
    uv_loop_init(&loop);
    static const char *const ADDRESSES[] = {"203.0.113.77:1", "no.such.host.invalid:1", "nonsense", "[::1", ":1"};
    for (size_t i = 0; i < sizeof ADDRESSES / sizeof ADDRESSES[0]; i++) {
        struct http_server *server;
        unsigned port;
        const struct http_options options = {
            .loop = &loop, .address = ADDRESSES[i], .page = page, .max_connections = 1, .timeout_ms = LONG_MS};
        assert_int_equal(http_start(&options, &server, &port).code, i < 2 ? EXPERTD_ERR_UNAVAILABLE : EXPERTD_ERR_CONFIG);
        assert_non_null(strstr(expertd_err_message(), ADDRESSES[i]));
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void stopping_closes_what_is_open(void **state) {
    (void)state;
    struct fixture f;
    start(&f, LONG_MS);
    int idle = client(&f), writing = client(&f);
    put(writing, "GET /large HTTP/1.1\r\n\r\n");
    turns(&f, 10);
    stop(&f);
    char byte;
    assert_true(recv(idle, &byte, 1, 0) <= 0);
    close(idle);
    close(writing);
    http_stop(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(get_returns_the_page),
        cmocka_unit_test(head_returns_the_length_without_the_page),
        cmocka_unit_test(statuses_of_pages_are_sent),
        cmocka_unit_test(a_connection_answers_one_request_after_another),
        cmocka_unit_test(requests_sent_together_are_answered_in_order),
        cmocka_unit_test(a_request_may_come_byte_by_byte),
        cmocka_unit_test(a_half_closed_client_is_answered),
        cmocka_unit_test(a_large_page_arrives_complete),
        cmocka_unit_test(other_methods_get_the_allowed_ones),
        cmocka_unit_test(invalid_requests_get_bad_request),
        cmocka_unit_test(bodies_are_refused),
        cmocka_unit_test(heads_beyond_8_kilobytes_are_refused),
        cmocka_unit_test(nothing_after_a_refused_request_is_served),
        cmocka_unit_test(a_slow_head_is_cut_off),
        cmocka_unit_test(an_idle_connection_is_closed),
        cmocka_unit_test(a_client_that_does_not_read_loses_its_connection),
        cmocka_unit_test(connections_beyond_the_limit_get_retry_after),
        cmocka_unit_test(idle_connections_are_replaced_at_the_limit),
        cmocka_unit_test(a_flood_waits_in_the_backlog_and_is_answered),
        cmocka_unit_test(clients_that_disconnect_leak_nothing),
        cmocka_unit_test(an_address_in_use_is_reported),
        cmocka_unit_test(unreachable_addresses_are_refused),
        cmocka_unit_test(stopping_closes_what_is_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
