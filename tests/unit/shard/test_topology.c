#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "shard/topology.h"

static struct topology_cpus cpus_of(const char *list) {
    struct topology_cpus cpus;
    assert_false(err_is(topology_parse_cpus(list, &cpus)));
    return cpus;
}

static void lists_of_sysfs_are_parsed(void **state) {
    (void)state;
    assert_int_equal(cpus_of("0-3,8,10-11\n").bits[0], 0xd0f);
    assert_int_equal(cpus_of("64-65").bits[1], 3);
    assert_int_equal(cpus_of("\n").bits[0], 0);
    assert_int_equal(cpus_of("").bits[0], 0);
    assert_int_equal(cpus_of("4095").bits[63], UINT64_C(1) << 63);
}

static void bad_lists_are_refused(void **state) {
    (void)state;
    static const char *const BAD[] = {"x", "1-", "-1", "1,x", "1;2", "4096", "0-99999999999999999999", "1 2", ",1"};
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        struct topology_cpus cpus;
        if (topology_parse_cpus(BAD[i], &cpus).code != EXPERTD_ERR_IO) {
            fail_msg("\"%s\" is accepted", BAD[i]);
        }
    }
}

static void write_node(const char *root, unsigned node, const char *list) {
    char path[512];
    snprintf(path, sizeof path, "mkdir -p %s/sys/devices/system/node/node%u", root, node);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%u/cpulist", root, node);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(list, file);
    fclose(file);
}

static void nodes_have_the_cpus_that_the_process_may_use(void **state) {
    (void)state;
    char root[] = "/tmp/expertd-test-topology-XXXXXX", command[64];
    assert_non_null(mkdtemp(root));
    static struct topology topology;
    struct topology_cpus allowed = cpus_of("0-2,5,70");
    topology_read(root, &allowed, &topology); // no files: one node
    assert_int_equal(topology.count, 1);
    assert_int_equal(topology.cpus, 5);
    assert_memory_equal(&topology.nodes[0].cpus, &allowed, sizeof allowed);
    write_node(root, 0, "0-1,4\n");
    write_node(root, 1, "6-9\n"); // none allowed
    write_node(root, 2, "\n");    // memory without CPUs
    write_node(root, 3, "2,70\n");
    write_node(root, 5, "rubbish\n");
    topology_read(root, &allowed, &topology);
    assert_int_equal(topology.count, 2);
    assert_int_equal(topology.cpus, 4);
    assert_int_equal(topology.nodes[0].number, 0);
    assert_int_equal(topology.nodes[0].cpus.bits[0], 3);
    assert_int_equal(topology.nodes[1].number, 3);
    assert_int_equal(topology.nodes[1].cpus.bits[0], 4);
    assert_int_equal(topology.nodes[1].cpus.bits[1], 64);
    assert_int_equal(topology.nodes[1].count, 2);
    snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0);
}

static void consecutive_ranks_share_nodes_and_every_node_has_one(void **state) {
    (void)state;
    static struct topology topology = {.count = 3};
    assert_int_equal(topology_teams(NULL, 8), 1);
    assert_int_equal(topology_teams(&topology, 2), 1); // otherwise a node without a rank would be idle
    for (uint32_t ranks = 3; ranks < 20; ranks++) {
        assert_int_equal(topology_teams(&topology, ranks), 3);
        uint32_t last = 0;
        for (uint32_t r = 0; r < ranks; r++) {
            uint32_t node = topology_node_of_rank(3, ranks, r);
            assert_true(node == last || node == last + 1);
            assert_ptr_equal(topology_home(&topology, ranks, r), &topology.nodes[node]);
            last = node;
        }
        assert_int_equal(last, 2);
    }
    assert_null(topology_home(&topology, 1, 0));
}

static void this_machine_is_read_and_memory_preferred(void **state) {
    (void)state;
    static struct topology topology;
    struct topology_cpus allowed;
    topology_allowed(&allowed);
    topology_read("", &allowed, &topology);
    assert_true(topology.count >= 1 && topology.cpus >= 1);
    enum { BYTES = 1 << 16 };
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    struct topology_node none = {.number = 63}; // does not exist: the advice is ignored
    topology_prefer(&topology.nodes[0], memory, BYTES);
    topology_prefer(&none, memory, BYTES);
    topology_prefer(NULL, memory, BYTES);
    topology_prefer(&topology.nodes[0], memory + 1, 100); // not a full page
    memset(memory, 1, BYTES);
    munmap(memory, BYTES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_sysfs_are_parsed),
        cmocka_unit_test(bad_lists_are_refused),
        cmocka_unit_test(nodes_have_the_cpus_that_the_process_may_use),
        cmocka_unit_test(consecutive_ranks_share_nodes_and_every_node_has_one),
        cmocka_unit_test(this_machine_is_read_and_memory_preferred),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
