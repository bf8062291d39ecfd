// Tests the names of connections: found by gRPC's names, plain and TLS, also when descriptors and addresses are reused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/grpc/peers.h"

static int open_socket(void) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    return fd;
}

static int find(struct peers *peers, const char *grpc_name, const char *expected) {
    char name[RPC_PEER_MAX];
    int fd = peers_find(peers, grpc_name, name);
    assert_string_equal(name, expected);
    return fd;
}

static void set(struct peers *peers, int fd, const char *name) {
    assert_false(err_is(peers_set(peers, fd, name)));
}

static void names_are_found_by_descriptor_and_by_address(void **state) {
    (void)state;
    struct peers peers;
    peers_init(&peers);
    assert_int_equal(find(&peers, "fd:3", "unknown"), -1);
    assert_int_equal(find(&peers, "ipv4:127.0.0.1:1", "ipv4:127.0.0.1:1"), -1);
    set(&peers, 7, "unix:uid=0,fd=7,number=1");
    set(&peers, 300, "ipv4:127.0.0.1:40214"); // beyond the first reservation
    set(&peers, 301, "ipv6:[::1]:40214");
    assert_int_equal(find(&peers, "fd:7", "unix:uid=0,fd=7,number=1"), 7);
    assert_int_equal(find(&peers, "ipv4:127.0.0.1:40214", "ipv4:127.0.0.1:40214"), 300);
    assert_int_equal(find(&peers, "ipv6:%5B::1%5D:40214", "ipv6:[::1]:40214"), 301);
    assert_int_equal(find(&peers, "fd:8", "unknown"), -1);
    assert_int_equal(find(&peers, "fd:", "unknown"), -1);
    assert_int_equal(find(&peers, "fd:7x", "unknown"), -1);
    assert_int_equal(find(&peers, "fd:-7", "unknown"), -1);
    assert_int_equal(find(&peers, "fd:99999999999999999999", "unknown"), -1);
    assert_int_equal(find(&peers, "unix:/a", "unknown"), -1);
    assert_int_equal(find(&peers, NULL, "unknown"), -1);
    char endless[300] = "ipv6:";
    memset(endless + 5, '1', sizeof endless - 6);
    endless[sizeof endless - 1] = '\0';
    assert_int_equal(find(&peers, endless, "unknown"), -1);
    peers_deinit(&peers);
}

static void a_reused_descriptor_has_its_new_name_only(void **state) {
    (void)state;
    struct peers peers;
    peers_init(&peers);
    set(&peers, 5, "ipv4:127.0.0.1:1");
    assert_false(peers_has_called(&peers, 5));
    find(&peers, "ipv4:127.0.0.1:1", "ipv4:127.0.0.1:1");
    assert_true(peers_has_called(&peers, 5));
    set(&peers, 5, "ipv4:127.0.0.1:2");
    assert_false(peers_has_called(&peers, 5));
    assert_int_equal(find(&peers, "ipv4:127.0.0.1:1", "ipv4:127.0.0.1:1"), -1);
    assert_int_equal(find(&peers, "ipv4:127.0.0.1:2", "ipv4:127.0.0.1:2"), 5);
    assert_false(peers_has_called(&peers, -1));
    assert_false(peers_has_called(&peers, 1 << 20));
    peers_deinit(&peers);
}

// A name of a closed connection stays until its descriptor is reused. Two open connections from one address and port are to two
// ports of this process: gRPC's name does not tell them apart.
static void of_two_equal_names_the_open_connection_is_meant(void **state) {
    (void)state;
    struct peers peers;
    peers_init(&peers);
    int first = open_socket(), second = open_socket();
    set(&peers, first, "ipv4:127.0.0.1:9");
    set(&peers, second, "ipv4:127.0.0.1:9");
    assert_int_equal(find(&peers, "ipv4:127.0.0.1:9", "ipv4:127.0.0.1:9"), -1);
    close(second);
    assert_int_equal(find(&peers, "ipv4:127.0.0.1:9", "ipv4:127.0.0.1:9"), first);
    close(first);
    assert_int_equal(find(&peers, "ipv4:127.0.0.1:9", "ipv4:127.0.0.1:9"), -1);
    peers_deinit(&peers);
}

static void many_names_are_found_after_many_replacements(void **state) {
    (void)state;
    enum { MANY = 500, ROUNDS = 5 };
    struct peers peers;
    char name[RPC_PEER_MAX];
    peers_init(&peers);
    for (int round = 0; round < ROUNDS; round++) {
        for (int fd = 0; fd < MANY; fd++) {
            snprintf(name, sizeof name, "ipv4:10.0.%d.%d:%d", fd / 256, fd % 256, 1000 + round);
            set(&peers, fd, name);
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int fd = 0; fd < MANY; fd++) {
            snprintf(name, sizeof name, "ipv4:10.0.%d.%d:%d", fd / 256, fd % 256, 1000 + round);
            assert_int_equal(find(&peers, name, name), round == ROUNDS - 1 ? fd : -1);
        }
    }
    peers_deinit(&peers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_found_by_descriptor_and_by_address),
        cmocka_unit_test(a_reused_descriptor_has_its_new_name_only),
        cmocka_unit_test(of_two_equal_names_the_open_connection_is_meant),
        cmocka_unit_test(many_names_are_found_after_many_replacements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
