// The client with addresses where no daemon answers. expertd-verify and the end-to-end tests use it with a daemon.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "client/c/client.h"

enum { SECOND_US = 1000000 };

static void assert_nothing_reached(struct client *client, err_t e, const char *address) {
    assert_int_equal(e.code, EXPERTD_ERR_UNAVAILABLE);
    assert_non_null(strstr(expertd_err_message(), address));
    assert_non_null(strstr(expertd_err_message(), "expertd --model"));
    assert_null(client_refusal(client));
}

static void a_wrong_address_is_refused(void **state) {
    (void)state;
    struct client *client = (struct client *)1;
    assert_int_equal(client_create("nowhere", &client).code, EXPERTD_ERR_USAGE);
    assert_null(client);
    client_destroy(NULL);
}

static void a_missing_socket_is_named_at_once(void **state) {
    (void)state;
    struct client *client;
    struct client_description description;
    enum proto_serving serving;
    assert_false(err_is(client_create("unix:/nonexistent/expertd.sock", &client)));
    assert_string_equal(client_address(client), "unix:/nonexistent/expertd.sock");
    int64_t start = clock_now_ns();
    err_t e = client_describe(client, "", 10 * SECOND_US, &description);
    assert_nothing_reached(client, e, "unix:/nonexistent/expertd.sock");
    assert_null(description.owner);
    e = client_health(client, "", 10 * SECOND_US, &serving);
    assert_nothing_reached(client, e, "unix:/nonexistent/expertd.sock");
    assert_true(clock_now_ns() - start < 10 * (int64_t)NS_PER_S); // less than the timeout of one call
    client_destroy(client);
}

struct listener {
    char folder[32], path[64], address[80];
    int fd;
};

static void listen_here(struct listener *out) {
    strcpy(out->folder, "/tmp/expertd-client.XXXXXX");
    assert_non_null(mkdtemp(out->folder));
    snprintf(out->path, sizeof out->path, "%s/s ock", out->folder); // the space must be escaped in the target
    snprintf(out->address, sizeof out->address, "unix:%s", out->path);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s", out->path);
    out->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(out->fd, (struct sockaddr *)&name, sizeof name), 0);
    assert_int_equal(listen(out->fd, 4), 0);
}

static void stop_listening(struct listener *listener) {
    close(listener->fd);
    unlink(listener->path);
    rmdir(listener->folder);
}

static void a_silent_listener_ends_with_the_timeout(void **state) {
    (void)state;
    struct listener listener;
    listen_here(&listener);
    struct client *client;
    assert_false(err_is(client_create(listener.address, &client)));
    const float row[2] = {1, 2};
    struct wire_request request = {
        .id = 1,
        .hidden = {.present = true, .view = {.dtype = EXPERTD_DTYPE_F32, .rank = 2, .shape = {1, 2}, .data = row, .bytes = 8}}};
    struct client_reply reply;
    err_t e = client_forward(client, &request, SECOND_US / 5, &reply);
    assert_nothing_reached(client, e, listener.address);
    assert_non_null(strstr(expertd_err_message(), "0.2 s"));
    assert_null(reply.bytes.data);
    client_reply_deinit(&reply);
    client_destroy(client);
    stop_listening(&listener);
}

static void *answer_in_another_language(void *argument) {
    struct listener *listener = argument;
    int fd = accept(listener->fd, NULL, NULL);
    static const char TEXT[] = "220 mail.example.org ESMTP\r\n";
    ssize_t written = write(fd, TEXT, sizeof TEXT - 1);
    (void)written;
    close(fd);
    return NULL;
}

static void a_listener_with_another_protocol_is_refused(void **state) {
    (void)state;
    struct listener listener;
    listen_here(&listener);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, answer_in_another_language, &listener), 0);
    struct client *client;
    enum proto_serving serving;
    assert_false(err_is(client_create(listener.address, &client)));
    err_t e = client_health(client, "", SECOND_US, &serving);
    assert_nothing_reached(client, e, listener.address);
    pthread_join(thread, NULL);
    client_destroy(client);
    stop_listening(&listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_address_is_refused),
        cmocka_unit_test(a_missing_socket_is_named_at_once),
        cmocka_unit_test(a_silent_listener_ends_with_the_timeout),
        cmocka_unit_test(a_listener_with_another_protocol_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
