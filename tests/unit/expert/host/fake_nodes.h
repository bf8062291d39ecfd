// A topology for tests on any machine: each node has one of the machine's CPUs; with more nodes than CPUs they share them.
#ifndef EXPERTD_TESTS_UNIT_EXPERT_LAYER_FAKE_NODES_H
#define EXPERTD_TESTS_UNIT_EXPERT_LAYER_FAKE_NODES_H

#include "shard/topology.h"

static void fake_nodes(uint32_t count, struct topology *out) {
    struct topology_cpus allowed;
    *out = (struct topology){.count = count, .cpus = count};
    topology_allowed(&allowed);
    uint32_t cpu = 0;
    for (uint32_t n = 0; n < count; n++) {
        while (!(allowed.bits[cpu / 64] >> cpu % 64 & 1)) {
            cpu = (cpu + 1) % TOPOLOGY_CPUS_MAX;
        }
        out->nodes[n] = (struct topology_node){.number = n, .count = 1};
        out->nodes[n].cpus.bits[cpu / 64] = (uint64_t)1 << cpu % 64;
        cpu = (cpu + 1) % TOPOLOGY_CPUS_MAX;
    }
}

#endif
