// The client's side of opening a region, with servers that send the descriptor correctly, wrongly or not at all.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/c/region.h"

enum { BYTES = 8192, TIMEOUT_US = 200000 };

enum conduct { HANG_UP, STAY_SILENT, BYTE_ALONE, SHORT_FILE, RIGHT };

// A fake daemon for one connection.
struct server {
    enum conduct conduct;
    char folder[32];
    struct open_region_response offer;
    int fd;
    pthread_t thread;
    uint8_t token[REGION_TOKEN_LENGTH];
    ssize_t after; // result of recv after the client has closed the lease
};

static void pass(int socket, int fd) {
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    assert_int_equal(sendmsg(socket, &message, MSG_NOSIGNAL), 1);
}

static void *serve(void *context) {
    struct server *server = context;
    int peer = accept(server->fd, NULL, NULL);
    assert_int_equal(recv(peer, server->token, sizeof server->token, MSG_WAITALL), sizeof server->token);
    if (server->conduct == BYTE_ALONE) {
        pass(peer, -1);
    } else if (server->conduct == SHORT_FILE || server->conduct == RIGHT) {
        int file = memfd_create("test", MFD_CLOEXEC);
        assert_int_equal(ftruncate(file, server->conduct == RIGHT ? BYTES : BYTES - 1), 0);
        assert_int_equal(pwrite(file, "here", 4, 0), 4);
        pass(peer, file);
        close(file);
    }
    char byte;
    server->after = server->conduct == HANG_UP ? 0 : recv(peer, &byte, 1, 0);
    close(peer);
    return NULL;
}

static void start(struct server *server, enum conduct conduct) {
    *server = (struct server){.conduct = conduct, .after = -1};
    strcpy(server->folder, "/tmp/expertd-region.XXXXXX");
    assert_non_null(mkdtemp(server->folder));
    snprintf(server->offer.socket, sizeof server->offer.socket, "%s/s", server->folder);
    memcpy(server->offer.token, "0123456789abcdef", REGION_TOKEN_LENGTH);
    server->offer.region = 77;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, server->offer.socket, sizeof address.sun_path);
    server->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(server->fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(server->fd, 1), 0);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

static void stop(struct server *server) {
    pthread_join(server->thread, NULL);
    close(server->fd);
    unlink(server->offer.socket);
    assert_int_equal(rmdir(server->folder), 0);
    assert_memory_equal(server->token, server->offer.token, REGION_TOKEN_LENGTH);
    assert_int_equal(server->after, 0); // the client has closed the lease
}

static int open_descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) {
        count += fcntl(fd, F_GETFD) != -1;
    }
    return count;
}

static void a_region_is_mapped_and_its_lease_kept_until_it_is_closed(void **state) {
    (void)state;
    int descriptors = open_descriptors();
    struct server server;
    struct client_region region;
    start(&server, RIGHT);
    assert_false(err_is(client_region_fetch(&server.offer, BYTES, 0, &region)));
    assert_true(region.id == 77 && region.bytes == BYTES);
    assert_memory_equal(region.data, "here", 4);
    region.data[BYTES - 1] = 1;
    client_region_close(&region);
    client_region_close(&region);
    stop(&server);
    assert_int_equal(open_descriptors(), descriptors);
}

static void a_daemon_that_breaks_the_protocol_is_an_error(void **state) {
    (void)state;
    int descriptors = open_descriptors();
    for (int conduct = HANG_UP; conduct < RIGHT; conduct++) {
        struct server server;
        struct client_region region;
        start(&server, (enum conduct)conduct);
        int64_t begun_ns = clock_now_ns();
        assert_int_equal(client_region_fetch(&server.offer, BYTES, TIMEOUT_US, &region).code, EXPERTD_ERR_IO);
        assert_true(clock_now_ns() - begun_ns < 20 * (int64_t)NS_PER_S);
        assert_true(region.bytes == 0 && !region.data);
        client_region_close(&region);
        stop(&server);
    }
    assert_int_equal(open_descriptors(), descriptors);
}

static void a_missing_socket_is_named(void **state) {
    (void)state;
    struct open_region_response offer = {.socket = "/nonexistent/s.regions"};
    struct client_region region;
    assert_int_equal(client_region_fetch(&offer, BYTES, 0, &region).code, EXPERTD_ERR_IO);
    assert_non_null(strstr(expertd_err_message(), "/nonexistent/s.regions"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_region_is_mapped_and_its_lease_kept_until_it_is_closed),
        cmocka_unit_test(a_daemon_that_breaks_the_protocol_is_an_error),
        cmocka_unit_test(a_missing_socket_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
