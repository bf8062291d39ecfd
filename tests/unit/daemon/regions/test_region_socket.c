// Tests the regions' socket: its path, and leases that are open when it stops. Misbehaving clients are tested end to end.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/log/log.h"
#include "daemon/regions/region_socket.h"

static void the_path_is_absolute_and_fits(void **state) {
    (void)state;
    char path[REGION_SOCKET_PATH_MAX], folder[64] = "/tmp/expertd-regions-XXXXXX", wanted[96], longest[128];
    assert_true(region_socket_path("/run/expertd.sock", path));
    assert_string_equal(path, "/run/expertd.sock.regions");
    assert_non_null(mkdtemp(folder));
    char *back = getcwd(NULL, 0);
    assert_int_equal(chdir(folder), 0);
    assert_true(region_socket_path("here.sock", path));
    snprintf(wanted, sizeof wanted, "%s/here.sock.regions", folder);
    assert_string_equal(path, wanted);
    memset(longest, 'a', sizeof longest);
    longest[0] = '/';
    longest[107 - strlen(".regions")] = '\0';
    assert_true(region_socket_path(longest, path));
    assert_int_equal(strlen(path), 107);
    assert_false(region_socket_path(longest + 1, path)); // a relative path becomes longer
    longest[107 - strlen(".regions")] = 'a';
    longest[108 - strlen(".regions")] = '\0';
    assert_false(region_socket_path(longest, path));
    assert_int_equal(chdir(back), 0);
    free(back);
    assert_int_equal(rmdir(folder), 0);
}

static int connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void run_until_open(uv_loop_t *loop, struct region_registry *registry, uint32_t open) {
    for (int turn = 0; turn < 1000 && region_counts(registry).open != open; turn++) {
        uv_run(loop, UV_RUN_NOWAIT);
        usleep(1000);
    }
    assert_int_equal(region_counts(registry).open, open);
}

static void leases_that_are_open_at_the_end_are_ended(void **state) {
    (void)state;
    char folder[64] = "/tmp/expertd-regions-XXXXXX", path[96], byte;
    uv_loop_t loop;
    struct region_registry *registry;
    struct region_socket *socket;
    log_init(LOG_LEVEL_ERROR, false);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/s", folder);
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_false(err_is(region_registry_create(&(struct region_limits){4096, 4, 4}, &registry)));
    struct region_socket_options options = {
        .loop = &loop, .path = path, .allow_uids = "self", .registry = registry, .max_regions = 4};
    assert_false(err_is(region_socket_start(&options, &socket)));

    struct region_offer lost, held;
    assert_false(err_is(region_offer(registry, "unix:1", 4096, clock_now_ns(), &lost)));
    assert_false(err_is(region_offer(registry, "unix:1", 4096, clock_now_ns(), &held)));
    int loser = connect_to(path), holder = connect_to(path), newcomer = connect_to(path);
    assert_int_equal(send(loser, lost.token, sizeof lost.token, 0), sizeof lost.token);
    assert_int_equal(send(holder, held.token, sizeof held.token, 0), sizeof held.token);
    shutdown(loser, SHUT_WR);
    run_until_open(&loop, registry, 1);
    assert_true(region_is_open(registry, held.id));
    region_socket_refuse(socket);
    assert_int_equal(access(path, F_OK), -1);
    region_socket_stop(socket);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_int_equal(region_counts(registry).open, 0);
    assert_int_equal(recv(holder, &byte, 1, 0), 1); // the byte that carries the descriptor
    assert_int_equal(recv(holder, &byte, 1, 0), 0);
    assert_int_equal(recv(newcomer, &byte, 1, 0), 0);
    close(loser);
    close(holder);
    close(newcomer);
    region_registry_destroy(registry);
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_path_is_absolute_and_fits),
        cmocka_unit_test(leases_that_are_open_at_the_end_are_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
